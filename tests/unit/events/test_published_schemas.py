"""What is published of the catalogue is what the code says, and a v1 reader never trips."""

from __future__ import annotations

import copy
import inspect
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from shared.events import CATALOGUE, DOMAINS, Address, Event, Payload, decode
from shared.events.catalogue import fact
from shared.events.parts import PodRef
from shared.events.schemas import DOCS, breaking, breaks, differences, documents, main, schema, write
from shared.events.world import HealthReported
from tests.unit.events.samples import SAMPLES, samples
from tests.unit.events.samples import write as write_samples

FROZEN = sorted(SAMPLES.glob("*.json"))
KINDS = [pytest.param(payload, id=payload.kind.name) for payload, _ in CATALOGUE.values()]


def subject_of(wire: dict[str, Any]) -> str:
    domain, name, _ = wire["type"].removeprefix("io.mediafleet.").split(".")
    place, _, entity = wire["subject"].partition("/")
    return Address(domain, place, entity, name).subject


def subset(old: Any, new: Any) -> bool:
    """Whether all that `old` says stands in `new`."""
    if isinstance(old, dict) and isinstance(new, dict):
        return all(key in new and subset(value, new[key]) for key, value in old.items())
    if isinstance(old, list) and isinstance(new, list):
        return len(old) == len(new) and all(subset(*pair) for pair in zip(old, new, strict=True))
    return bool(old == new)


@pytest.mark.parametrize("sample", FROZEN, ids=lambda path: path.name)
def test_every_sample_ever_shipped_is_read_whole(sample: Path) -> None:
    wire = json.loads(sample.read_text())
    read = decode(subject_of(wire), sample.read_bytes())
    assert isinstance(read, Event), "its type was removed from the catalogue"
    assert subset(wire, json.loads(read.encode())), "a field of it is not read any more"


def test_every_type_has_its_samples() -> None:
    missing = {name for name, _ in samples()} - {path.name for path in FROZEN}
    assert not missing, "run python -m tests.unit.events.samples and check in what it wrote"


def test_a_sample_that_is_there_is_not_written_again(tmp_path: Path) -> None:
    (tmp_path / "health.reported.json").write_text("frozen")
    written = write_samples(tmp_path)
    assert (tmp_path / "health.reported.json").read_text() == "frozen"
    assert len(written) == 2 * len(CATALOGUE) - 1


def test_the_documents_are_those_of_the_code() -> None:
    assert differences(DOCS) == [], "run python -m shared.events.schemas --write"


def resolve(pointer: str, document: dict[str, Any]) -> Any:
    if pointer.startswith("./"):
        return json.loads((DOCS / pointer).read_text())
    found: Any = document
    for name in pointer.removeprefix("#/").split("/"):
        found = found[name]
    return found


def references(value: Any) -> list[str]:
    if isinstance(value, dict):
        here = [value["$ref"]] if isinstance(value.get("$ref"), str) else []
        return here + [found for inner in value.values() for found in references(inner)]
    return [found for inner in value for found in references(inner)] if isinstance(value, list) else []


def test_the_asyncapi_document_hangs_together() -> None:
    document = yaml.safe_load((DOCS / "asyncapi.yaml").read_text())
    assert document["asyncapi"] == "3.0.0"
    assert document["channels"].keys() == {payload.kind.name for payload, _ in CATALOGUE.values()}
    for pointer in references(document):
        assert resolve(pointer, document), pointer
    for operation in document["operations"].values():
        channel = operation["channel"]["$ref"]
        assert operation["action"] in {"send", "receive"}
        assert all(message["$ref"].startswith(f"{channel}/messages/") for message in operation["messages"])


def test_a_channel_says_its_subject_and_its_stream() -> None:
    document = yaml.safe_load((DOCS / "asyncapi.yaml").read_text())
    struck = document["channels"]["remediation.struck"]
    assert struck["address"] == "fleet.v1.remediation.{place}.{entity}.struck"
    assert struck["x-nats"]["stream"] == "FLEET_REMEDIATION"
    assert struck["x-nats"]["discard"] == "new"
    assert document["channels"]["sample.sampled"]["x-nats"]["storage"] == "memory"
    assert "bridge.receive.remediation.struck" in document["operations"]


@pytest.mark.parametrize("payload", KINDS)
def test_a_schema_names_its_type_and_stays_open(payload: type[Payload]) -> None:
    made = schema(payload)
    assert made["$id"] == payload.kind.dataschema
    assert made["title"] == payload.kind.type
    assert 'additionalProperties": false' not in json.dumps(made)


def test_every_event_and_part_stands_in_the_page() -> None:
    page = (DOCS / "events.md").read_text()
    for payload, _ in CATALOGUE.values():
        assert f"### {payload.kind.name}\n" in page
    for domain in DOMAINS:
        assert f"## {domain}\n" in page
    assert "### PodRef\n" in page


def changed(change: Callable[[dict[str, Any]], object]) -> tuple[str, ...]:
    old = schema(HealthReported)
    new = copy.deepcopy(old)
    change(new)
    return breaking(old, new)


def test_an_optional_addition_breaks_nobody() -> None:
    def add(new: dict[str, Any]) -> None:
        new["properties"]["mood"] = {"type": "string", "default": ""}
        new["$defs"]["Evidence"]["properties"]["mood"] = {"type": "string", "default": ""}
        new["properties"]["streak"]["description"] = "said in other words"

    assert changed(add) == ()


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda new: new["properties"].pop("streak"), "streak: was removed"),
        (lambda new: new["required"].append("serial"), "serial: became required"),
        (lambda new: new["required"].remove("streak"), "streak: became optional"),
        (
            lambda new: new["required"].append("mood") or new["properties"].update(mood={"type": "string"}),
            "mood: was added as required",
        ),
        (
            lambda new: new["properties"]["streak"].update(type="string"),
            "streak: type 'integer' became 'string'",
        ),
        (lambda new: new["properties"]["streak"].update(minimum=1), "streak: minimum 0 became 1"),
        (lambda new: new["properties"]["streak"].update(maximum=9), "streak: maximum None became 9"),
        (
            lambda new: new["$defs"]["Evidence"]["properties"].pop("raw"),
            "evidence[].raw: was removed",
        ),
        (
            lambda new: new["$defs"]["Evidence"]["required"].append("code"),
            "evidence[].code: became required",
        ),
        (
            lambda new: new["properties"]["serial"]["anyOf"][0].update(type="integer"),
            "serial: type 'string' became 'integer'",
        ),
        (lambda new: new["properties"].update(streak=True), "streak: {"),
    ],
)
def test_any_other_change_is_named(change: Callable[[dict[str, Any]], object], says: str) -> None:
    found = changed(change)
    assert any(line.startswith(says) for line in found), found


def test_writing_refuses_what_breaks_v1(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path)
    assert differences(tmp_path) == []
    assert main(["--check", "--docs", str(tmp_path)]) == 0
    published = tmp_path / "schemas" / "health.reported.v1.json"
    older = json.loads(published.read_text())
    older["properties"]["gone"] = {"type": "string"}
    published.write_text(json.dumps(older))
    (tmp_path / "schemas" / "health.gone.v1.json").write_text("{}")
    (tmp_path / "events.md").unlink()
    assert breaks(tmp_path) == [
        "schemas/health.gone.v1.json: the type was removed",
        "schemas/health.reported.v1.json: gone: was removed",
    ]
    assert main(["--check", "--docs", str(tmp_path)]) == 1
    assert main(["--write", "--docs", str(tmp_path)]) == 1
    assert "make a v2 type" in capsys.readouterr().err
    assert json.loads(published.read_text()) == older
    assert main(["--write", "--replace", "--docs", str(tmp_path)]) == 0
    assert differences(tmp_path) == []
    assert not (tmp_path / "schemas" / "health.gone.v1.json").exists()


def test_the_documents_do_not_depend_on_the_moment() -> None:
    assert documents.__wrapped__() == documents()


def test_a_type_of_no_domain_or_said_twice_does_not_start() -> None:
    with pytest.raises(ValueError, match="no domain 'weather'"):

        @fact("weather.rained", by="sky", to="everyone")
        class Rained(Payload):
            """It rained."""

    with pytest.raises(ValueError, match=r"health\.reported is in the catalogue already"):

        @fact("health.reported", by="discovery", to="everyone")
        class Again(Payload):
            """Said before."""


@pytest.mark.parametrize("payload", KINDS)
def test_every_type_says_what_it_means_and_who_hears_it(payload: type[Payload]) -> None:
    assert inspect.getdoc(payload) != inspect.getdoc(Payload)
    assert payload.kind.said_by
    assert payload.kind.heard_by
    domain = DOMAINS[payload.kind.domain]
    assert domain.writers == ("any",) or set(payload.kind.said_by) <= set(domain.writers)


def test_a_part_refuses_what_it_does_not_know() -> None:
    with pytest.raises(ValueError, match="Extra inputs"):
        PodRef(namespace="n", name="p", uid="u", node="worker-3")  # type: ignore[call-arg]  # the mistake under test
