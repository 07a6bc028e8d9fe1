"""The bus is killed, or away for a while."""

from __future__ import annotations

import pytest

from shared.events import remediation as say
from shared.events import world
from tests.chaos.site import NODES, Site

pytestmark = [pytest.mark.chaos, pytest.mark.asyncio(loop_scope="session")]


async def test_a_drain_goes_on_after_the_bus_was_killed_between_an_order_and_its_outcome(site: Site) -> None:
    sick = await site.occupy(NODES[0], 2)
    await site.api_fault(path="/eviction$", hang_s=0.6, times=2)
    await site.break_fatally(sick)
    await site.said_times(2, say.EvictionOrdered, sick)
    await site.stage.server.kill()
    await site.until_logged("both evictions are carried out", sick, count=2)
    await site.stage.server.start()
    await site.heal(sick)
    await site.closed(sick)
    assert [each["status"] for each in await site.evictions(sick)] == [201, 201]


async def test_a_bridge_alone_withdraws_one_fatally_broken_device_and_the_bus_hears_of_both_later(
    site: Site,
) -> None:
    first = await site.occupy(NODES[1], 1)
    second = await site.another(first)
    await site.stage.server.kill()
    await site.fault(first, "lost")
    await site.until("the kubelet no longer gives the first", lambda: not site.now.healthy[first.about])
    await site.fault(second, "lost")
    await site.said_by_journal(NODES[1], "journal", world.HealthReported, second.device)
    assert site.now.healthy[second.about], "at most one device per node is taken without the bus"
    for sick in (first, second):
        await site.heal(sick)
    await site.stage.server.start()
    await site.said(world.Withdrawn, first.about, since=first.heard_at)
    for sick in (first, second):
        await site.said(say.Quarantined, sick.about, since=sick.heard_at)
        await site.closed(sick)
    assert [each["status"] for each in await site.evictions(first)] == [201]
