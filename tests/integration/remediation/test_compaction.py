"""A closed case's log is compacted: what the next case needs, and what a person asks later, is all there."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from services.console.read import Filter, past
from services.console.why import Causes
from services.remediation.backtest import backtest
from services.remediation.case import DeviceCase
from services.remediation.decide import RemediationDecider
from shared.bus.memory import Faults
from shared.deciders.folds import Folds
from shared.events import Unknown
from shared.events import remediation as say
from tests.integration.remediation.remediation_site import DEVICE, KEY, NODE, Site, policy, site

pytestmark = pytest.mark.looptime

REST_S = 900.0
KEPT = ("epoch", "state", "serial", "penalty", "penalty_at", "epochs", "seen", "commands", "tainted")


async def recovered(place: Site) -> DeviceCase:
    """The case as a replica that starts now folds it."""
    folds = Folds(place.watch, RemediationDecider())
    await folds.recover()
    fold = folds.peek(DEVICE)
    assert fold is not None
    assert isinstance(fold.case, DeviceCase)
    return fold.case


async def compacted(place: Site) -> None:
    async with asyncio.timeout(2 * REST_S):
        while [each.event.address.fact async for each in place.watch.read(DEVICE)] != ["snapshotted"]:  # noqa: ASYNC110 - a purge tells nobody
            await asyncio.sleep(1)


async def test_a_compacted_log_folds_to_the_same_case_and_the_next_epoch_goes_on_from_it() -> None:
    async with site(policy(damping={"half_life_s": 1e9}), compact_after_s=REST_S) as place:
        command = await place.node.command(say.HoldRequested, "r1")
        await place.said("opened")
        await place.node.command(say.ReleaseRequested, "r2")
        await place.said("closed")
        place.node.holders = [place.kube.add("clips")]
        await place.node.strike_out()
        await place.until(lambda: place.names().count("closed") == 2, within_s=400)
        before = await recovered(place)
        await compacted(place)
        after = await recovered(place)
        for kept in KEPT:
            assert getattr(after, kept) == getattr(before, kept), kept
        assert before.epoch == 2
        assert before.penalty == 1000
        # The snapshot itself was caused by the last fact.
        assert after.applied[: len(before.applied)] == before.applied
        await place.pause()
        place.server.durables.clear()
        place.resume()
        await place.node.bus.publish(command)
        await place.node.strike_out()
        await place.said("quarantined")
        opened = next(fact.data for fact in place.facts if isinstance(fact.data, say.Opened))
        assert (opened.epoch, round(opened.penalty)) == (3, 1000)
        assert "held" not in place.names(), "a command of before the compaction is not carried out again"


async def test_why_and_backtest_read_the_audit_of_a_compacted_log() -> None:
    async with site(faults=Faults(delay_s=0.01), compact_after_s=REST_S) as place:
        place.node.holders = [place.kube.add("clips")]
        await place.node.strike_out()
        await place.said("closed", within_s=400)
        whole = await past(place.watch, Filter("fleet.v1.>"))
        until = place.clock.now() + timedelta(seconds=60)
        await compacted(place)
        events = await past(place.watch, Filter("fleet.v1.>"))
        assert {each.id for each in whole} < {each.id for each in events}
        assert len({each.id for each in events}) == len(events)
        why = Causes(each for each in events if not isinstance(each, Unknown)).explain("media/clips")
        assert why.lost is None
        assert why.causes[0].type.endswith("health.reported.v1")
        assert len(await past(place.watch, Filter(f"fleet.v1.remediation.{NODE}.{KEY}.opened"))) == 1
        late = await past(place.watch, Filter("fleet.v1.remediation.>"), place.clock.now())
        assert late == []
        report = await backtest(place.watch, place.rules, until=until)
        assert report.recorded > 15
        assert [(one.kind, one.fact, one.n) for one in report.differences if one.of == DEVICE] == []
