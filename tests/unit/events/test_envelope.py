"""The envelope is CloudEvents 1.0, its id is the fact's, and nothing but a matching one is read."""

from __future__ import annotations

import contextlib
import json
import math
import re
import uuid
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from shared.errors import BadInput
from shared.events import CATALOGUE, AnyEvent, Cause, Entity, Event, Unknown, decode, event
from shared.events.envelope import MAX_BYTES, NAMESPACE
from shared.events.parts import PodRef, WorkloadRef
from shared.events.remediation import EvictionOrdered, Held, Struck
from shared.events.workload import ScaleApplied
from shared.events.world import HealthReported, Heartbeat, Sampled
from tests.unit.events.samples import samples

AT = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
DEVICE = ("worker-3", "nvidia-0000-3b-00-0")
SUBJECT = "fleet.v1.health.worker-3.nvidia-0000-3b-00-0.reported"
SOURCE = "/mediafleet/discovery/worker-3"
EVERY_SAMPLE = [pytest.param(made, id=name) for name, made in samples()]


def report(window_id: int = 7, **fields: Any) -> Event[HealthReported]:
    data = HealthReported(boot_id="b1", window_id=window_id, verdict="healthy", streak=1, **fields)
    return event(data, DEVICE, cause=Cause.source("b1", window_id), source=SOURCE, at=AT)


def body(**changes: Any) -> bytes:
    """A report's JSON with some attributes replaced; None removes."""
    made = json.loads(report().encode()) | changes
    return json.dumps({key: value for key, value in made.items() if value is not None}).encode()


def pod(name: str) -> PodRef:
    return PodRef(namespace="batch", name=name, uid=f"uid-of-{name}")


@pytest.mark.parametrize("made", EVERY_SAMPLE)
def test_every_event_is_a_cloudevent(made: AnyEvent) -> None:
    wire = json.loads(made.encode())
    assert wire["specversion"] == "1.0"
    assert {"id", "source", "specversion", "type", "subject", "time", "data"} <= wire.keys()
    assert all(re.fullmatch(r"[a-z0-9]{1,20}", attribute) for attribute in wire)
    assert all(isinstance(value, str | int) and value != "" for key, value in wire.items() if key != "data")
    assert datetime.fromisoformat(wire["time"]).tzinfo is not None
    assert re.fullmatch(r"00-[0-9a-f]{32}-[0-9a-f]{16}-01", wire["traceparent"])
    assert wire["dataschema"].endswith(f"{made.data.kind.name}.v1.json")


@pytest.mark.parametrize("made", EVERY_SAMPLE)
def test_an_event_is_built_as_its_validation_would_build_it(made: AnyEvent) -> None:
    stated = {name: getattr(made, name) for name in type(made).model_fields if name in made.model_fields_set}
    validated = type(made).model_validate(stated)
    assert made == validated
    assert made.model_fields_set == validated.model_fields_set
    assert list(made.__dict__) == list(validated.__dict__)
    assert made.encode() == validated.encode()
    assert (made.model_extra, repr(made)) == (None, repr(validated))
    assert made.model_copy(update={"source": "/other"}).source == "/other"
    with pytest.raises(ValidationError, match="frozen"):
        made.id = "another"  # type: ignore[misc] # that it cannot be set is the test


def test_an_id_is_a_uuid_of_version_five() -> None:
    kind = HealthReported.kind
    for window_id in range(50):
        made = report(window_id)
        name = "\n".join([f"source\nb1\n{window_id}", kind.type, made.subject, "b1", str(window_id)])
        assert made.id == str(uuid.uuid5(NAMESPACE, name))


def test_what_cannot_be_stated_is_refused_by_its_name() -> None:
    data = report().data
    with pytest.raises(BadInput, match="no zone"):
        event(data, DEVICE, cause=Cause("k"), source=SOURCE, at=AT.replace(tzinfo=None))
    for source in ("", "x" * 513):
        with pytest.raises(BadInput, match="source"):
            event(data, DEVICE, cause=Cause("k"), source=source, at=AT)


@pytest.mark.parametrize("made", EVERY_SAMPLE)
def test_every_event_is_read_back_as_it_was_said(made: AnyEvent) -> None:
    again = decode(made.address.subject, made.encode())
    assert again == made
    assert isinstance(again, Event)
    assert again.of == made.of


def test_the_same_fact_of_the_same_cause_has_the_same_id() -> None:
    assert report().id == report().id
    assert report(7).id != report(8).id


def test_two_pods_evicted_for_one_cause_are_two_facts() -> None:
    def order(name: str, attempt: int = 1) -> str:
        data = EvictionOrdered(epoch=4, pod=pod(name), attempt=attempt, deadline=AT)
        return event(data, DEVICE, cause=Cause("one"), source=SOURCE, at=AT).id

    assert len({order("a"), order("b"), order("a", 2)}) == 3
    assert order("a") == order("a")


def test_the_id_does_not_depend_on_when_or_by_whom_it_is_said() -> None:
    again = event(
        HealthReported(boot_id="b1", window_id=7, verdict="unknown", streak=9),
        Entity("health", *DEVICE),
        cause=Cause.source("b1", 7),
        source="/mediafleet/discovery/other",
        at=datetime(2027, 1, 1, tzinfo=UTC),
    )
    assert again.id == report().id


def test_an_event_carries_on_the_trace_and_case_of_its_cause() -> None:
    first = event(
        Held(epoch=4, command_id="c", owner="me", reason="r"),
        DEVICE,
        cause=Cause.source("b1", 7),
        source=SOURCE,
        at=AT,
        correlationid="remediation:worker-3/gpu#4",
    )
    struck = Struck(epoch=4, strike=1, of=3, boot_id="b1", window_id=7, evidence_ids=("b1-7",), at=AT)
    second = event(struck, DEVICE, cause=Cause.of(first), source=SOURCE, at=AT)
    third = event(
        struck,
        DEVICE,
        cause=Cause.timer("case", 4, "draining", "12:00", since=second),
        source=SOURCE,
        at=AT,
    )
    assert (second.causationid, third.causationid) == (first.id, second.id)
    assert first.correlationid == second.correlationid == third.correlationid
    traces = {(made.traceparent or "").split("-")[1] for made in (first, second, third)}
    spans = {(made.traceparent or "").split("-")[2] for made in (first, second, third)}
    assert len(traces) == 1
    assert len(spans) == 3
    assert (first.epoch, second.epoch) == (4, 4)


def test_a_timer_without_an_event_behind_it_has_no_causation() -> None:
    cause = Cause.timer("case", 4, "draining", "12:00")
    assert (cause.event_id, cause.correlationid, cause.traceparent) == (None, None, None)
    assert cause.key != Cause.timer("case", 5, "draining", "12:00").key


def test_a_payload_without_an_epoch_leaves_it_out() -> None:
    assert "epoch" not in json.loads(report().encode())


def test_a_producer_cannot_say_unknown_fields() -> None:
    with pytest.raises(ValidationError, match="Extra inputs"):
        HealthReported(boot_id="b", window_id=1, verdict="healthy", streak=1, mood="good")  # type: ignore[call-arg]  # the mistake under test


def test_a_consumer_ignores_fields_that_it_does_not_know() -> None:
    wire = json.loads(report().encode())
    wire["future"] = "attribute"
    wire["data"]["future"] = {"nested": True}
    wire["data"]["evidence"] = [
        {"id": "e", "kind": "counter", "class": "fatal", "at": "2026-03-01T12:00:00Z", "future": 1}
    ]
    read = decode(SUBJECT, json.dumps(wire).encode())
    assert isinstance(read, Event)
    assert isinstance(read.data, HealthReported)
    assert read.data.evidence[0].class_ == "fatal"


def test_an_event_cannot_be_changed() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        report().id = "other"  # type: ignore[misc] # the mistake under test


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"id": None}, "id"),
        ({"id": ""}, "id"),
        ({"id": "x" * 129}, "id"),
        ({"specversion": "0.3"}, "specversion"),
        ({"source": ""}, "source"),
        ({"type": "io.mediafleet.health.diagnosed.v1"}, "type"),
        ({"type": "io.mediafleet.health.reported.v2"}, "type"),
        ({"subject": "worker-4/nvidia-0000-3b-00-0"}, "subject"),
        ({"subject": "worker-3/nvidia-0000-3c-00-0"}, "subject"),
        ({"time": "yesterday"}, "time"),
        ({"time": "2026-03-01T12:00:00"}, "time"),
        ({"epoch": -1}, "epoch"),
        ({"data": None}, "data"),
        ({"data": []}, "data"),
        ({"data": {"boot_id": "b", "window_id": -1, "verdict": "healthy", "streak": 0}}, "data.window_id"),
        ({"data": {"boot_id": "b", "window_id": 1.5, "verdict": "healthy", "streak": 0}}, "data.window_id"),
        ({"data": {"boot_id": "b", "window_id": 1, "streak": 0}}, "data.verdict"),
        ({"datacontenttype": "text/plain"}, "datacontenttype"),
    ],
)
def test_a_wrong_attribute_is_refused_by_its_name(changes: dict[str, Any], field: str) -> None:
    with pytest.raises(BadInput) as refused:
        decode(SUBJECT, body(**changes))
    assert refused.value.field == field
    assert refused.value.fix in str(refused.value)


@pytest.mark.parametrize(
    "raw", [b"", b"{", b"[]", b"null", b"42", b"\xff\xfe", b'{"id": "\\ud800"}', b"[" * 9000]
)
def test_what_is_no_json_object_is_refused(raw: bytes) -> None:
    with pytest.raises(BadInput):
        decode(SUBJECT, raw)


def test_an_envelope_on_a_foreign_subject_is_refused() -> None:
    with pytest.raises(BadInput, match=r"came on fleet\.v1\.health\.worker-4"):
        decode("fleet.v1.health.worker-4.nvidia-0000-3b-00-0.reported", report().encode())


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf, -1.0])
def test_an_impossible_number_is_not_said(number: float) -> None:
    with pytest.raises(ValidationError):
        Sampled(
            boot_id="b",
            n=1,
            pod=pod("a"),
            workload="deployment-a",
            latency_p99_ms=number,
            window_s=10,
            measured_at=AT,
        )


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "-1", '"NaN"', '"12"x', "1e999"])
def test_an_impossible_number_is_not_read(number: str) -> None:
    said = Sampled(
        boot_id="b", n=1, pod=pod("a"), workload="deployment-a", fps=33.0, window_s=10, measured_at=AT
    )
    made = event(said, ("live", "a"), cause=Cause.source("b", 1), source=SOURCE, at=AT)
    raw = made.encode().replace(b'"fps":33.0', b'"fps":' + number.encode())
    with pytest.raises(BadInput):
        decode(made.address.subject, raw)


def test_a_missing_figure_stays_missing() -> None:
    said = Sampled(boot_id="b", n=1, pod=pod("a"), workload="w", window_s=10, measured_at=AT)
    made = event(said, ("live", "a"), cause=Cause.source("b", 1), source=SOURCE, at=AT)
    read = decode(made.address.subject, made.encode())
    assert isinstance(read, Event)
    assert isinstance(read.data, Sampled)
    assert read.data.fps is None


def test_an_event_that_is_too_large_is_neither_said_nor_read() -> None:
    keys = tuple(f"nvidia-{index:040}" for index in range(12_000))
    beat = Heartbeat(boot_id="b", n=1, device_keys=keys, journal_depth=0, journal_lost=0)
    made = event(beat, ("worker-3", "agent"), cause=Cause.source("b", 1), source=SOURCE, at=AT)
    with pytest.raises(BadInput, match="too large"):
        made.encode()
    with pytest.raises(BadInput, match="too large"):
        decode(SUBJECT, body(source="x" * MAX_BYTES))


def test_an_event_of_an_unknown_type_is_kept_as_it_came() -> None:
    raw = (
        b'{"id": "from-the-future", "type": "io.mediafleet.health.foretold.v1", "subject": "worker-3/gpu",'
        b' "data": {"anything": [1]}}'
    )
    read = decode("fleet.v1.health.worker-3.gpu.foretold", raw)
    assert isinstance(read, Unknown)
    assert (read.id, read.body) == ("from-the-future", raw)
    assert read.of == Entity("health", "worker-3", "gpu")


@pytest.mark.parametrize("raw", [b"{}", b"nonsense", b'{"id": ""}', b'{"id": 5}'])
def test_an_unknown_type_without_an_id_is_refused(raw: bytes) -> None:
    with pytest.raises(BadInput) as refused:
        decode("fleet.v1.health.worker-3.gpu.foretold", raw)
    assert refused.value.field in {"id", "body"}


@pytest.mark.parametrize(
    ("kind", "about", "field"),
    [
        ("io.mediafleet.health.reported.v1", "worker-3/gpu", "type"),
        ("io.mediafleet.health.foretold.v1", "worker-4/gpu", "subject"),
    ],
)
def test_what_calls_itself_otherwise_is_no_newer_fact(kind: str, about: str, field: str) -> None:
    raw = json.dumps({"id": "i", "type": kind, "subject": about}).encode()
    with pytest.raises(BadInput) as refused:
        decode("fleet.v1.health.worker-3.gpu.foretold", raw)
    assert refused.value.field == field


@pytest.mark.parametrize("place", ["a/b", "/", "a/"])
def test_a_place_that_would_read_as_place_and_entity_is_not_confused(place: str) -> None:
    beat = Heartbeat(boot_id="b", n=1, device_keys=(), journal_depth=0, journal_lost=0)
    with pytest.raises(BadInput, match="place"):
        event(beat, (place, "agent"), cause=Cause.source("b", 1), source=SOURCE, at=AT)
    hex_place = "".join(f"_{ord(char):02x}" if char == "/" else char for char in place)
    with pytest.raises(BadInput, match="place"):
        decode(f"fleet.v1.node.{hex_place}.agent.heartbeat", b"{}")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=10), inner, max_size=4),
    max_leaves=12,
)
ATTRIBUTES = st.sampled_from(sorted(json.loads(report().encode())))
SUBJECTS = st.sampled_from([SUBJECT, *(made.address.subject for _, made in samples())])


@given(SUBJECTS, st.binary(max_size=200))
def test_decoding_any_bytes_fails_only_as_bad_input(subject: str, raw: bytes) -> None:
    with pytest.raises(BadInput):
        decode(subject, raw)


@given(SUBJECTS, ATTRIBUTES, JSON)
def test_decoding_an_envelope_with_any_attribute_fails_only_as_bad_input(
    subject: str, attribute: str, value: Any
) -> None:
    with contextlib.suppress(BadInput):
        decode(subject, body(**{attribute: value}))


@given(st.sampled_from([made for _, made in samples()]), st.data())
def test_decoding_a_damaged_event_fails_only_as_bad_input(made: AnyEvent, data: st.DataObject) -> None:
    raw = bytearray(made.encode())
    at = data.draw(st.integers(0, len(raw) - 1))
    raw[at] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(at, len(raw)))
    with contextlib.suppress(BadInput):
        decode(made.address.subject, bytes(raw[:cut]))


def test_a_pod_and_a_workload_read_well() -> None:
    assert str(pod("a")) == "batch/a"
    assert WorkloadRef(namespace="live", kind="Deployment", name="rtmp-edge").entity == "deployment-rtmp-edge"


def test_a_field_named_by_a_keyword_keeps_its_name_on_the_wire() -> None:
    workload = WorkloadRef(namespace="live", kind="Deployment", name="edge")
    made = ScaleApplied(request_id="r", workload=workload, from_=1, to=2, mode="scale", by="e")
    assert json.loads(made.model_dump_json(by_alias=True))["from"] == 1


def test_every_type_tells_apart_its_facts_by_fields_that_it_has() -> None:
    for payload, _ in CATALOGUE.values():
        for path in payload.kind.discriminator:
            assert path.split(".")[0] in payload.model_fields, payload.kind.name
        assert payload.kind.discriminator, payload.kind.name
