"""Alerting on a bus in memory and virtual time."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from services.alerting.service import Alerting, RulesFile
from shared.bus.memory import Faults, MemoryBus
from shared.bus.port import Lease
from shared.events import Cause, Payload, event
from shared.events import remediation as care
from shared.events import workload as facts
from shared.events.device import Lost
from shared.events.parts import PodRef
from shared.events.world import Heartbeat
from tests.integration.workloads.cluster import DEVICE, NODE
from tests.integration.workloads.stage import Stage, stage

pytestmark = pytest.mark.looptime

CASE = f"remediation:{NODE}/{DEVICE}#1"
POD = PodRef(namespace="live", name="edge-1", uid="u1")


def alerting(on: Stage, rules: Path | None = None) -> Callable[[MemoryBus, Lease], Awaitable[None]]:
    file = RulesFile(rules)

    async def act(bus: MemoryBus, lease: Lease) -> None:
        await Alerting(bus, on.clock, file, source=bus.source, look_s=1.0).run(lease)

    return act


async def say(
    on: Stage,
    data: Payload,
    n: int = 1,
    *,
    place: str = NODE,
    entity: str = DEVICE,
    case: str | None = CASE,
) -> None:
    made = event(
        data,
        (place, entity),
        cause=Cause.source("boot", n),
        source="/test",
        at=on.clock.now(),
        correlationid=case,
    )
    await on.bus.publish(made)


def quarantined(on: Stage, epoch: int = 1) -> care.Quarantined:
    return care.Quarantined(
        epoch=epoch, reason="three strikes", evidence_ids=("e1", "e2"), deadline=on.clock.now()
    )


async def test_a_quarantine_is_one_alert_and_its_end_resolves_it() -> None:
    async with stage() as on:
        on.start("alerting", alerting(on))
        await say(on, quarantined(on))
        raised = (await on.until(facts.AlertRaised)).data
        assert isinstance(raised, facts.AlertRaised)
        assert raised.alert_id == f"device-quarantined/{CASE}"
        assert raised.severity == "warning"
        assert raised.summary == f"{DEVICE} on {NODE} is out of service: three strikes"
        assert raised.affected == (f"{NODE}/{DEVICE}",)
        assert raised.evidence_ids[1:] == ("e1", "e2")
        await say(on, care.Readmitted(epoch=1, after_s=60))
        resolved = await on.until(facts.AlertResolved)
        assert resolved.of.entity == f"remediation-{DEVICE}"
        assert isinstance(resolved.data, facts.AlertResolved)
        assert not resolved.data.before_raise
        await say(on, care.Closed(epoch=1, reason="readmitted"))
        await asyncio.sleep(5)
        assert await on.names("alert") == ["raised", "resolved"]


async def test_duplicates_and_two_copies_do_nothing_more() -> None:
    async with stage(Faults(seed=3, duplicate=0.7, lost_ack=0.3)) as on:
        on.start("alerting", alerting(on), "a")
        on.start("alerting", alerting(on), "b")
        await say(on, quarantined(on), 1)
        await say(on, quarantined(on), 2)
        await say(on, care.Readmitted(epoch=1, after_s=60))
        await on.until(facts.AlertResolved)
        await asyncio.sleep(60)
        assert await on.names("alert") == ["raised", "resolved"]


async def test_after_a_restart_it_knows_what_it_said() -> None:
    async with stage() as on:
        first = on.start("alerting", alerting(on), "a")
        await say(on, quarantined(on))
        await on.until(facts.AlertRaised)
        await on.stop(first)
        await say(on, quarantined(on), 2)
        await say(on, care.Closed(epoch=1, reason="readmitted"))
        on.start("alerting", alerting(on), "b")
        await on.until(facts.AlertResolved)
        assert await on.names("alert") == ["raised", "resolved"]


async def test_a_resolve_that_comes_before_its_raise_is_kept_and_matched(tmp_path: Path) -> None:
    rules = tmp_path / "rules.yaml"
    rules.write_text(
        "node-fault: {fact: device.lost, resolved_by: [remediation.closed], severity: info,\n"
        "  summary: '{entity}', runbook: r, who: w, key: '{about}'}\n"
    )
    async with stage() as on:
        on.start("alerting", alerting(on, rules))
        await say(on, care.Closed(epoch=1, reason="replaced"))
        early = (await on.until(facts.AlertResolved)).data
        assert isinstance(early, facts.AlertResolved)
        assert early.before_raise
        await say(on, Lost(generation=1, reason="silent"))
        await asyncio.sleep(5)
        rules_said = [e.data.rule for e in await on.said("alert") if isinstance(e.data, facts.AlertPayload)]
        assert rules_said.count("node-fault") == 1


async def test_a_subject_that_fails_again_is_alerted_again() -> None:
    async with stage() as on:
        on.start("alerting", alerting(on))
        for n, lost in enumerate((5, 0, 7)):
            beat = Heartbeat(boot_id="b", n=n, device_keys=(), journal_depth=0, journal_lost=lost)
            await say(on, beat, n, entity="agent", case=None)
            await asyncio.sleep(1)
        await on.until(facts.AlertRaised, count=2)
        assert await on.names("alert") == ["raised", "resolved", "raised"]


async def test_what_nothing_resolves_ends_by_time() -> None:
    async with stage() as on:
        on.start("alerting", alerting(on))
        dead = facts.Rejected(
            consumer="remediation_health", stream="FLEET_HEALTH", sequence=7, subject="s", reason="no", raw=""
        )
        await say(on, dead, place="cluster", entity="remediation", case=None)
        await on.until(facts.AlertRaised)
        await asyncio.sleep(3600)
        resolved = await on.until(facts.AlertResolved)
        assert isinstance(resolved.data, facts.AlertResolved)
        assert resolved.data.reason == "3600 s have passed"


async def test_a_broken_rules_file_keeps_the_last_good_rules(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rules = tmp_path / "rules.yaml"
    rules.write_text("device-quarantined: {severity: critical}\n")
    async with stage() as on:
        on.start("alerting", alerting(on, rules))
        rules.write_text("device-quarantined: {severity: loud}\n")
        os.utime(rules, ns=(1, 1))
        await asyncio.sleep(3)
        await say(on, quarantined(on))
        raised = (await on.until(facts.AlertRaised)).data
        assert isinstance(raised, facts.AlertRaised)
        assert raised.severity == "critical"
        assert "device-quarantined.severity" in capsys.readouterr().out
        rules.write_text("device-quarantined: {enabled: false}\n")
        os.utime(rules, ns=(2, 2))
        resolved = (await on.until(facts.AlertResolved)).data
        assert isinstance(resolved, facts.AlertResolved)
        assert resolved.reason == "there is no such rule any more"


async def test_each_shipped_cause_raises_its_alert() -> None:
    async with stage() as on:
        on.start("alerting", alerting(on))
        now = on.clock.now()
        await say(on, care.Retired(epoch=1, reason="third case"), 1)
        await say(on, care.DrainStuck(epoch=1, evicted=(), left=(POD,)), 2)
        frozen = care.Frozen(freeze_id="f1", code="79", scope="cluster", cases=("a", "b"))
        await say(on, frozen, 3, place="fleet", entity="budget")
        await say(on, Lost(generation=1, reason="silent"), 4)
        opened = facts.CircuitOpened(breach_id="b1", until=now, reason="two misses")
        await say(on, opened, 5, place="live", entity="deployment-edge", case="sla:x#b1")
        missed = facts.ReliefMissed(breach_id="b1", n=1, before=300)
        await say(on, missed, 6, place="live", entity="deployment-edge", case="sla:x#b1")
        refused = facts.ScaleRefused(request_id="r", reason="no", by="x")
        await say(on, refused, 7, place="live", entity="deployment-edge", case="scale:x#r")
        await on.until(facts.AlertRaised, count=7)
        raised = {
            e.data.rule: e.data for e in await on.said("alert") if isinstance(e.data, facts.AlertRaised)
        }
        assert set(raised) == {
            "device-retired",
            "drain-stuck",
            "common-cause",
            "device-lost",
            "circuit-opened",
            "breach-unrelieved",
            "scale-refused",
        }
        assert raised["drain-stuck"].affected == (f"{NODE}/{DEVICE}", "live/edge-1")
        await say(
            on,
            facts.Restored(breach_id="b1", before=300, after=50, window_s=60),
            8,
            place="live",
            entity="deployment-edge",
            case="sla:x#b1",
        )
        await on.until(facts.AlertResolved, count=2)
