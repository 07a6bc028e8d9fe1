"""What a dead letter carries, and when two tellings are one fact."""

from __future__ import annotations

import base64
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.bus.deadletters import Refusal, dead_letter, same_fact
from shared.bus.nats.consumers import family_of
from shared.bus.nats.frames import parse
from shared.events import Event
from shared.events.envelope import MAX_BYTES
from shared.events.workload import Rejected

AT = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)


def letter(
    body: bytes, subject: str = "fleet.v1.health.worker-3.gpu.reported", **more: str
) -> Event[Rejected]:
    refusal = Refusal("c_health", "FLEET_HEALTH", 7, subject, body, more.get("reason", "because"))
    return dead_letter(refusal, service="c", source="/mediafleet/c/0", at=AT)


@given(st.binary(max_size=2000))
def test_any_body_is_carried_whole(body: bytes) -> None:
    data = letter(body).data
    carried = data.raw.encode() if data.encoding == "utf-8" else base64.b64decode(data.raw)
    assert carried == body


@pytest.mark.parametrize("body", [b"x" * 900_000, b"\xff" * 900_000, b"\x00" * 300_000, b'"' * 300_000])
def test_a_huge_body_is_cut_so_that_the_letter_can_be_sent(body: bytes) -> None:
    made = letter(body)
    assert len(made.encode()) < MAX_BYTES
    if len(body) > 300_000:
        assert "cut" in made.data.reason


def test_the_letter_is_about_the_place_of_its_message_or_the_fleet() -> None:
    assert letter(b"x").of.place == "worker-3"
    assert letter(b"x", "nonsense").of.place == "fleet"


def test_every_telling_about_one_message_has_one_id() -> None:
    assert letter(b"x").id == letter(b"x", reason="something else").id


@pytest.mark.parametrize(
    ("stored", "said", "same"),
    [
        (b"x", b"x", True),
        (b"x", b"y", False),
        (b'{"id":"1","time":"a","source":"s"}', b'{"id":"1","time":"b","source":"t"}', True),
        (b'{"id":"1","data":1}', b'{"id":"1","data":2}', False),
        (b"[1]", b"[2]", False),
    ],
)
def test_one_fact_may_be_said_at_another_time_by_another_copy(
    stored: bytes, said: bytes, *, same: bool
) -> None:
    assert same_fact(stored, said) is same


@pytest.mark.parametrize(
    ("name", "family"),
    [
        ("remediation_health-17", "remediation_health"),
        ("remediation_health-17-2", "remediation_health"),
        ("node-agent_health-17", "node-agent_health"),
        ("outsider", "outsider"),
        ("a-b", "a-b"),
    ],
)
def test_a_durables_family_is_its_name_without_the_lease(name: str, family: str) -> None:
    assert family_of(name) == family


def test_headers_are_read_as_nats_writes_them() -> None:
    raw = b"NATS/1.0 408 Request Timeout\r\nNats-Pending-Messages: 3\r\n\r\n"
    assert parse(raw) == {"Status": "408", "Description": "Request Timeout", "Nats-Pending-Messages": "3"}
    assert parse(b"NATS/1.0\r\nA: b: c\r\n\r\n") == {"A": "b: c"}
    assert parse(b"NATS/1.0 503\r\n\r\n") == {"Status": "503", "Description": ""}
