"""Another policy over what was recorded."""

from __future__ import annotations

from datetime import timedelta

import pytest

from services.remediation.backtest import backtest
from shared.bus.memory import Faults, MemoryBus
from shared.events import remediation as say
from tests.integration.remediation.remediation_site import DEVICE, Site, policy, site

pytestmark = pytest.mark.looptime


async def _recorded(place: Site) -> MemoryBus:
    place.node.holders = [place.kube.add("clips"), place.kube.add("edge-1", "online", owner="edge")]
    await place.node.strike_out()
    await place.said("closed", within_s=400)
    return place.watch


async def test_the_same_policy_would_have_done_the_same() -> None:
    async with site(faults=Faults(delay_s=0.01)) as place:
        bus = await _recorded(place)
        report = await backtest(bus, place.rules, until=place.clock.now() + timedelta(seconds=60))
        assert report.recorded > 20
        assert report.heard > 3
        assert [(one.kind, one.fact, one.n) for one in report.differences if one.of == DEVICE] == []


async def test_a_stricter_policy_would_have_waited() -> None:
    async with site(faults=Faults(delay_s=0.01)) as place:
        bus = await _recorded(place)
        report = await backtest(bus, policy(strikes={"count": 5}))
        differences = {(one.kind, one.fact) for one in report.differences if one.of == DEVICE}
        assert ("missing", "quarantined") in differences
        assert ("missing", "eviction-ordered") in differences
        assert ("changed", "struck") in differences


async def test_a_milder_ladder_shows_what_it_adds() -> None:
    async with site(faults=Faults(delay_s=0.01)) as place:
        place.node.diagnoses = "failed"
        await place.node.strike_out()
        await place.said("repair-requested")
        report = await backtest(
            place.watch, policy(recovery={"ladder": []}), place=DEVICE.place, until=place.clock.now()
        )
        kinds = {(one.kind, one.fact) for one in report.differences}
        assert ("added", "retired") in kinds
        assert any(isinstance(fact.data, say.NodeTainted) for fact in report.replayed[DEVICE])
