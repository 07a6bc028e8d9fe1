from datetime import UTC, datetime, timedelta

import pytest

from services.console import rows
from services.console.read import Filter, entity, since, until
from shared.bus.memory import MemoryBus, MemoryServer
from shared.clock import SystemClock
from shared.errors import BadInput

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("subject", "takes", "leaves"),
    [
        ("fleet.v1.>", "fleet.v1.node.w.agent.heartbeat", "other.v1.x"),
        ("fleet.v1.remediation.>", "fleet.v1.remediation.w.d.struck", "fleet.v1.sla.ns.w.breached"),
        ("fleet.v1.*.w1.*.*", "fleet.v1.health.w1.d.reported", "fleet.v1.health.w2.d.reported"),
        ("fleet.v1.health.w.d.reported", "fleet.v1.health.w.d.reported", "fleet.v1.health.w.d.reported.more"),
        ("fleet.v1.health.*", "fleet.v1.health.x", "fleet.v1.health"),
    ],
)
def test_a_filter_takes_what_nats_would(subject: str, takes: str, leaves: str) -> None:
    wanted = Filter(subject)
    assert wanted.takes(takes)
    assert not wanted.takes(leaves)


def test_a_filter_reads_only_its_domain() -> None:
    assert Filter("fleet.v1.remediation.>").domains == ("remediation",)
    assert len(Filter("fleet.>").domains) > 10


@pytest.mark.parametrize("subject", ["", "fleet..v1", "fleet.>.v1", "fleet.v1.gossip.>", "fleet.v2.>", "foo"])
def test_a_filter_that_can_match_nothing_is_refused(subject: str) -> None:
    with pytest.raises(BadInput, match="--subject"):
        Filter(subject)


def test_times_are_ages_or_dates() -> None:
    assert since("1.5h", NOW) == NOW - timedelta(minutes=90)
    assert since("2026-01-01T00:00:00", NOW) == datetime(2026, 1, 1, tzinfo=UTC)
    assert until("2h", NOW) == NOW + timedelta(hours=2)
    assert until("2026-01-02T00:00:00+01:00", NOW) == datetime(2026, 1, 1, 23, tzinfo=UTC)
    with pytest.raises(BadInput, match="--since"):
        since("yesterday", NOW)


@pytest.mark.parametrize("text", ["soon", "99999999999999d", "2020-01-01T00:00:00Z", "0s"])
def test_a_hold_ends_at_a_time_to_come(text: str) -> None:
    with pytest.raises(BadInput, match="--until"):
        until(text, NOW)


def test_an_age_beyond_the_calendar_is_refused() -> None:
    with pytest.raises(BadInput, match=r"--since.*out of range"):
        since("99999999999999d", NOW)


def test_a_device_is_named_by_uid_or_by_node_and_key_and_a_workload_by_kind_and_name() -> None:
    assert entity("nvidia-worker-3-0000:3b:00.0") == ("worker-3", "nvidia-0000-3b-00-0")
    assert entity("worker-3/nvidia-0000-3b-00-0") == ("worker-3", "nvidia-0000-3b-00-0")
    assert entity("live/deployment-rtmp-edge") == ("live", "deployment-rtmp-edge")


@pytest.mark.parametrize("asked", ["gpu0", "nope/nope", "worker-*/>", "worker-1/", "Ü/nvidia-0000-3b-00-0"])
def test_what_names_neither_device_nor_workload_is_refused(asked: str) -> None:
    with pytest.raises(BadInput):
        entity(asked)


async def test_a_command_is_for_a_device_that_was_seen_or_for_a_workload() -> None:
    bus = MemoryBus(MemoryServer(clock=SystemClock()), "console")
    await bus.view("devices", rows.Row).put("w1/nvidia-0000-3b-00-0", rows.Row())
    await bus.view("devices", rows.Row).put("w1/nvidia-0000-5e-00-0", None)
    assert await rows.known(bus, "w1", "nvidia-0000-3b-00-0")
    assert await rows.known(bus, "w1", "nvidia-0000-3b-00-0-mig-3-0")
    assert await rows.known(bus, "w1", "nvidia-0000-5e-00-0"), "it was seen, and is gone"
    assert await rows.known(bus, "live", "deployment-edge")
    assert not await rows.known(bus, "w2", "nvidia-0000-3b-00-0")


def test_found_devices_show_a_question_mark_for_unknown_counts() -> None:
    shown = rows.found(
        [
            {
                "node": "w",
                "key": "k",
                "model": "m",
                "serial": None,
                "memory": {"totalBytes": None},
                "codecEngine": {"engines": {"enc": 0, "dec": 5, "jpeg": None}},
                "topology": {"numaNode": 1},
            }
        ]
    )
    assert shown[0]["engines"] == "0/5/?"
    assert shown[0]["memory"] == "unknown"
