"""Provisioning: once is as good as ten times, and what drifted comes back."""

from __future__ import annotations

from pathlib import Path

import pytest

from shared.bus.nats import NatsBus, connect
from shared.bus.nats.link import ApiError
from shared.bus.provision import VIEWS, provision
from shared.bus.server import EmbeddedServer
from shared.errors import FleetError, Temporary
from shared.events import DOMAINS
from tests.contract.bus.world import Heard, report, struck

AUDIT = "FLEET_AUDIT"


async def config(bus: NatsBus, stream: str) -> dict[str, object]:
    found: dict[str, object] = (await bus.link.api(f"STREAM.INFO.{stream}"))["config"]
    return found


async def test_a_second_time_changes_nothing(server: EmbeddedServer) -> None:
    assert await provision(server.url) == []


async def test_every_domain_and_view_has_its_stream(bus: NatsBus) -> None:
    for domain in DOMAINS.values():
        assert (await config(bus, domain.stream))["name"] == domain.stream
    for view in (*VIEWS, "leases", "attempts"):
        assert (await config(bus, f"KV_{view}"))["max_msgs_per_subject"] == 1


async def test_drift_is_told_and_put_right(server: EmbeddedServer, bus: NatsBus) -> None:
    drifted = await config(bus, "FLEET_HEALTH")
    await bus.link.api("STREAM.UPDATE.FLEET_HEALTH", drifted | {"max_age": 1_000_000_000_000})
    (change,) = await provision(server.url)
    assert (change.stream, change.what, change.field) == ("FLEET_HEALTH", "updated", "max_age")
    assert "FLEET_HEALTH: updated max_age" in str(change)
    assert await config(bus, "FLEET_HEALTH") == drifted
    assert await provision(server.url) == []


async def test_what_cannot_be_changed_in_place_is_told_and_left_alone(
    server: EmbeddedServer, bus: NatsBus
) -> None:
    kept = await config(bus, "FLEET_NODE")
    await bus.link.api("STREAM.DELETE.FLEET_NODE")
    await bus.link.api("STREAM.CREATE.FLEET_NODE", kept | {"storage": "memory"})
    changes = await provision(server.url)
    assert ("FLEET_NODE", "conflict", "storage") in [(c.stream, c.what, c.field) for c in changes]
    assert (await config(bus, "FLEET_NODE"))["storage"] == "memory"


async def test_the_audit_holds_everything_but_measurements_and_forgets_nothing(bus: NatsBus) -> None:
    found = await config(bus, AUDIT)
    sources = found["sources"]
    assert isinstance(sources, list)
    assert {source["name"] for source in sources} == {
        domain.stream for domain in DOMAINS.values() if domain.name not in ("sample", "deadletter")
    }
    await bus.publish(report(1))
    last = await bus.append(struck(1), 0)
    count = 0
    while count < 2:
        count = (await bus.link.api(f"STREAM.INFO.{AUDIT}"))["state"]["messages"]
    await bus.purge(struck(1).of, below=last + 1)
    assert await bus.last(struck(1).of) is None
    assert (await bus.link.api(f"STREAM.INFO.{AUDIT}"))["state"]["messages"] == count
    with pytest.raises(ApiError):
        await bus.link.api(f"STREAM.PURGE.{AUDIT}", {})
    with pytest.raises(ApiError):
        await bus.link.api(f"STREAM.MSG.DELETE.{AUDIT}", {"seq": 1})


async def test_the_audit_keeps_every_telling_of_a_fact(bus: NatsBus) -> None:
    """A restated fact keeps its id; the audit has no window in which it would count as a repetition."""
    for subject in ("fleet.v1.node.a.b.heartbeat", "fleet.v1.health.a.b.reported"):
        await bus.link.request(subject, b"said", headers={"Nats-Msg-Id": "the same"})
    count = 0
    while count < 2:
        count = (await bus.link.api(f"STREAM.INFO.{AUDIT}"))["state"]["messages"]


async def test_a_service_before_provisioning_is_told_what_to_run(tmp_path: Path) -> None:
    async with (
        EmbeddedServer(tmp_path) as bare,
        connect(bare.url, service="t", instance="0") as unmade,
        unmade.consume("t", (Heard().health(),)) as consumption,
    ):
        with pytest.raises(FleetError, match="run `mediafleet provision`"):
            await consumption.until_caught_up()


async def test_a_full_log_refuses_for_now_and_throws_nothing_away(bus: NatsBus) -> None:
    log = await config(bus, "FLEET_REMEDIATION")
    last = await bus.append(struck(1), 0)
    await bus.link.api("STREAM.UPDATE.FLEET_REMEDIATION", log | {"max_bytes": 1500})
    full = False
    for n in range(2, 10):
        try:
            last = await bus.append(struck(n), last)
        except Temporary as error:
            full = "full" in error.reason
            break
    assert full
    await bus.link.api("STREAM.UPDATE.FLEET_REMEDIATION", log)
    await bus.append(struck(20), last)


async def test_more_replicas_than_there_are_servers_are_refused_with_the_servers_word(tmp_path: Path) -> None:
    async with EmbeddedServer(tmp_path) as server:
        with pytest.raises(FleetError, match="replicas > 1 not supported in non-clustered mode"):
            await provision(server.url, replicas=3)
