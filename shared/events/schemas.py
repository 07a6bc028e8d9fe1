"""The catalogue for readers outside: a JSON Schema per type, an AsyncAPI document and a page to read.

    python -m shared.events.schemas --check    fails when the checked-in documents differ from the code
    python -m shared.events.schemas --write    writes them; refuses what would break a v1 reader or writer

Within v1 only optional fields may be added. A published schema therefore says nothing against further fields,
and `breaking` names everything else that changed. `--replace` is for types that nobody has published yet.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue

from shared.events import CATALOGUE, Payload, asyncapi, reference

DIALECT = "https://json-schema.org/draft/2020-12/schema"
DOCS = Path(__file__).resolve().parents[2] / "docs"
_WORDS = frozenset({"description", "title", "$id", "$schema", "$defs", "$comment"})
"""Keywords that bind nobody."""


class _Untitled(GenerateJsonSchema):
    """Without the titles that pydantic makes from field names."""

    def field_title_should_be_set(self, schema: Any) -> bool:  # noqa: ARG002 - the answer is the same for all
        """No: the name says it."""
        return False


def schema(payload: type[Payload]) -> dict[str, Any]:
    """The JSON Schema of a payload as it is on the wire, open to fields that come later."""
    made = payload.model_json_schema(by_alias=True, schema_generator=_Untitled)
    return {
        "$schema": DIALECT,
        "$id": payload.kind.dataschema,
        "title": payload.kind.type,
        **{key: value for key, value in _open(made).items() if key != "title"},
    }


def _open(schema: JsonSchemaValue) -> JsonSchemaValue:
    """Without `additionalProperties: false`: that binds our producers, not the readers."""
    opened: JsonSchemaValue = {}
    for key, value in schema.items():
        if key == "additionalProperties" and value is False:
            continue
        opened[key] = _opened(value)
    return opened


def _opened(value: Any) -> Any:
    if isinstance(value, dict):
        return _open(value)
    return [_opened(item) for item in value] if isinstance(value, list) else value


def breaking(old: Mapping[str, Any], new: Mapping[str, Any]) -> tuple[str, ...]:
    """What of a change would trip a reader or a writer of the old schema; empty: it may be shipped."""
    return tuple(_breaks("", old, new, (old, new)))


def _breaks(
    path: str, old: Any, new: Any, roots: tuple[Mapping[str, Any], Mapping[str, Any]]
) -> Iterator[str]:
    if not (isinstance(old, Mapping) and isinstance(new, Mapping)):
        if old != new:
            yield f"{path or 'body'}: {old!r} became {new!r}"
        return
    old, new = _follow(old, roots[0]), _follow(new, roots[1])
    yield from _breaks_of_fields(path, old, new, roots)
    for key in sorted((old.keys() | new.keys()) - _WORDS - {"properties", "required"}):
        was, now = old.get(key), new.get(key)
        if isinstance(was, list) and isinstance(now, list) and len(was) == len(now):
            for before, after in zip(was, now, strict=True):
                yield from _breaks(path, before, after, roots)
        elif key in {"items", "additionalProperties"} and was is not None and now is not None:
            yield from _breaks(f"{path}[]", was, now, roots)
        elif was != now:
            yield f"{path or 'body'}: {key} {was!r} became {now!r}"


def _breaks_of_fields(
    path: str,
    old: Mapping[str, Any],
    new: Mapping[str, Any],
    roots: tuple[Mapping[str, Any], Mapping[str, Any]],
) -> Iterator[str]:
    had, has = old.get("properties", {}), new.get("properties", {})
    needed, needs = set(old.get("required", ())), set(new.get("required", ()))
    for name in had:
        field = f"{path}.{name}".lstrip(".")
        if name not in has:
            yield f"{field}: was removed"
            continue
        yield from _breaks(field, had[name], has[name], roots)
        if (name in needed) != (name in needs):
            yield f"{field}: became {'required' if name in needs else 'optional'}"
    for name in sorted(needs - had.keys()):
        yield f"{path}.{name}".lstrip(".") + ": was added as required"


def _follow(schema: Mapping[str, Any], root: Mapping[str, Any]) -> Mapping[str, Any]:
    """The schema behind a `$ref`, with what stands beside it."""
    if "$ref" not in schema:
        return schema
    name = str(schema["$ref"]).removeprefix("#/$defs/")
    return {**root["$defs"][name], **{key: value for key, value in schema.items() if key != "$ref"}}


@cache
def documents() -> Mapping[str, str]:
    """Every generated document: path below `docs/` to text; the catalogue is whole once it is imported."""
    schemas = {kind.kind.name: schema(kind) for kind, _ in CATALOGUE.values()}
    return {
        **{file_name(name): json.dumps(made, indent=2) + "\n" for name, made in sorted(schemas.items())},
        "asyncapi.yaml": asyncapi.document(),
        "events.md": reference.page(schemas),
    }


def file_name(name: str, version: int = 1) -> str:
    """Where the schema of `domain.fact` lies below `docs/`."""
    return f"schemas/{name}.v{version}.json"


def differences(docs: Path) -> list[str]:
    """The checked-in documents that are not what the code says, one line each."""
    wanted = documents()
    lines = [
        f"{name} {'differs' if (docs / name).exists() else 'is missing'}"
        for name, text in wanted.items()
        if not (docs / name).exists() or (docs / name).read_text() != text
    ]
    return lines + [f"{name} is of no type in the catalogue" for name in _strays(docs, wanted)]


def breaks(docs: Path) -> list[str]:
    """What writing the documents would break of the checked-in schemas, one line each."""
    wanted = documents()
    lines = [f"{name}: the type was removed" for name in _strays(docs, wanted)]
    for name, text in wanted.items():
        if name.startswith("schemas/") and (docs / name).exists():
            old = json.loads((docs / name).read_text())
            lines += [f"{name}: {line}" for line in breaking(old, json.loads(text))]
    return lines


def write(docs: Path) -> None:
    """Write every document, and remove the schemas of types that are gone."""
    wanted = documents()
    (docs / "schemas").mkdir(parents=True, exist_ok=True)
    for name in _strays(docs, wanted):
        (docs / name).unlink()
    for name, text in wanted.items():
        (docs / name).write_text(text)


def _strays(docs: Path, wanted: Mapping[str, str]) -> list[str]:
    return sorted(
        f"schemas/{path.name}"
        for path in (docs / "schemas").glob("*.json")
        if f"schemas/{path.name}" not in wanted
    )


def main(arguments: list[str] | None = None) -> int:
    """Check or write the generated documents; 0 is well, 1 says what is not."""
    parser = argparse.ArgumentParser(prog="python -m shared.events.schemas", description=main.__doc__)
    action = parser.add_mutually_exclusive_group(required=True)
    action.add_argument("--check", action="store_true", help="fail when a document differs from the code")
    action.add_argument("--write", action="store_true", help="write the documents")
    parser.add_argument("--replace", action="store_true", help="write even what breaks v1")
    parser.add_argument("--docs", type=Path, default=DOCS, help="the folder they lie in")
    given = parser.parse_args(arguments)
    if given.check:
        found, advice = differences(given.docs), "run python -m shared.events.schemas --write"
    else:
        found = [] if given.replace else breaks(given.docs)
        advice = "within v1 only optional fields are added: make a v2 type"
        if not found:
            write(given.docs)
    for line in found:
        sys.stderr.write(f"{line}\n")
    if found:
        sys.stderr.write(f"{advice}\n")
    return 1 if found else 0


if __name__ == "__main__":  # pragma: no cover - `main` is tested
    sys.exit(main())
