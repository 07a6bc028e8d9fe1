"""docs/settings.md is made from the code; `MEDIAFLEET_WRITE_DOCS=1 pytest tests/unit/docs` writes it anew."""

import importlib
import os
from collections.abc import Iterator
from pathlib import Path

from pydantic import BaseModel

from shared.host.settings import ServiceSettings, SharedSettings, describe

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "settings.md"


def services() -> list[str]:
    return sorted(path.parent.name for path in (ROOT / "services").glob("*/settings.py"))


def settings_of(service: str) -> type[ServiceSettings]:
    module = importlib.import_module(f"services.{service}.settings")
    own = [
        each
        for each in vars(module).values()
        if isinstance(each, type) and issubclass(each, ServiceSettings) and each.__module__ == module.__name__
    ]
    assert len(own) == 1, f"services/{service}/settings.py defines one settings class"
    return own[0]


def policy_of(service: str) -> type[BaseModel] | None:
    if not (ROOT / "services" / service / "policy.py").exists():
        return None
    module = importlib.import_module(f"services.{service}.policy")
    own = vars(module)
    found: type[BaseModel] = own.get(f"{service.capitalize()}Policy") or own["Policy"]
    return found


def table(rows: list[tuple[str, str, str]]) -> Iterator[str]:
    yield "| name | default | meaning |"
    yield "|---|---|---|"
    for name, default, meaning in rows:
        text = " ".join(meaning.split()).replace("|", "\\|")
        yield f"| `{name}` | {f'`{default}`' if default else ''} | {text} |"
    yield ""


def policy_rows(policy: type[BaseModel], prefix: str = "") -> Iterator[tuple[str, str, str]]:
    for name, field in policy.model_fields.items():
        inner = field.annotation
        if isinstance(inner, type) and issubclass(inner, BaseModel):
            yield from policy_rows(inner, f"{prefix}{name}.")
        else:
            default = "" if field.is_required() or field.default_factory else str(field.default)
            yield f"{prefix}{name}", default, field.description or ""


def page() -> str:
    lines = [
        "# Settings and policies",
        "",
        "Settings come from the environment, else from the YAML file in `MEDIAFLEET_SETTINGS_FILE` (section",
        "`shared` and one per service). Policies are sections of the file in `MEDIAFLEET_POLICY_FILE`.",
        "This page is made from the code.",
        "",
        "## Every service",
        "",
        *table(describe(SharedSettings)),
    ]
    for service in services():
        lines += [f"## {service}", ""]
        rows = describe(settings_of(service))
        if rows:
            lines += table(rows)
        policy = policy_of(service)
        if policy is not None:
            lines += [f"Policy, section `{service}`:", "", *table(list(policy_rows(policy)))]
    return "\n".join(lines).rstrip() + "\n"


def test_the_settings_page_is_up_to_date() -> None:
    made = page()
    if os.environ.get("MEDIAFLEET_WRITE_DOCS"):
        PAGE.write_text(made)
    assert PAGE.read_text() == made, "run MEDIAFLEET_WRITE_DOCS=1 pytest tests/unit/docs"


def test_every_setting_and_policy_field_is_explained() -> None:
    for service in services():
        policy = policy_of(service)
        rows = [*describe(settings_of(service)), *(policy_rows(policy) if policy else ())]
        assert [name for name, _, meaning in rows if not meaning] == []
