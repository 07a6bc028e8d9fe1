"""Two copies of every cluster service: the active one dies or stands still, the other goes on."""

from __future__ import annotations

import asyncio
import time

import pytest
import pytest_asyncio

from shared.events import remediation as say
from tests.chaos.breach import Breach
from tests.chaos.site import CLUSTER_SERVICES, NODES, Site

pytestmark = [pytest.mark.chaos, pytest.mark.asyncio(loop_scope="session")]


@pytest_asyncio.fixture(loop_scope="session")
async def doubled(site: Site) -> Site:
    """Every cluster service runs twice from now on; the first copy of each is active."""
    for service in CLUSTER_SERVICES:
        if not site.runs(f"{service}-2"):
            await site.start_copy(service, 2)
    for service in CLUSTER_SERVICES:
        await site.until_stands_by(f"{service}-2")
    return site


async def test_the_second_copies_finish_a_drain_and_a_breach_when_the_active_ones_are_killed(
    doubled: Site,
) -> None:
    await asyncio.gather(_drain(doubled), _breach(doubled))


async def _drain(site: Site) -> None:
    sick = await site.occupy(NODES[0], 2)
    dying = [await site.active(service) for service in ("remediation", "manager", "alerting")]
    first = next(iter(sick.pods))
    await site.api_fault(path=f"/{first.partition('/')[2]}/eviction$", hang_s=30, times=1)
    await site.break_fatally(sick)
    await site.until_met(f"/{first.partition('/')[2]}/eviction")
    await asyncio.gather(*(site.stage.kill(name) for name in dying))
    await site.heal(sick)
    await site.closed(sick)
    for name in dying:
        await site.stage.again(name)
    assert sorted(await site.evicted(sick)) == sorted(sick.pods.values())
    await site.until_phase(f"{sick.node}-{sick.device}", "Healthy")
    await site.alerted_once(sick)


async def _breach(site: Site) -> None:
    breach = await Breach.staged(site, NODES[1])
    dying = [await site.active(service) for service in ("guardian", "autoscaler")]
    await site.api_fault(path=f"/{breach.loud.name}/eviction$", hang_s=30, times=1)
    await breach.grow_loud()
    await site.until_met(f"/{breach.loud.name}/eviction")
    await asyncio.gather(*(site.stage.kill(name) for name in dying))
    await breach.relieved(replicas=2)
    for name in dying:
        await site.stage.again(name)
    await breach.end()


async def test_a_holder_that_stood_still_for_longer_than_its_lease_does_nothing_when_it_wakes(
    doubled: Site,
) -> None:
    site = doubled
    sick = await site.occupy(NODES[0], 2, labels={"chaos": "kept"})
    await site.protect("kept", {"chaos": "kept"}, 99)
    await site.break_fatally(sick)
    await site.said(say.PodEvicted, sick.about, since=sick.heard_at, where=lambda e: e.outcome == "blocked")
    asleep = await site.active("remediation")
    # At rest: a request that is already leaving when the process stops cannot be called back by anybody.
    await site.until(
        "every order has its outcome",
        lambda: len(site.has_said(say.PodEvicted, sick)) == len(site.has_said(say.EvictionOrdered, sick)) > 1,
    )
    site.stage.pause(asleep)
    other = "remediation-1" if asleep == "remediation-2" else "remediation-2"
    await site.until_logs(other, "active", after_s=time.time())
    mark, log_at, woken_s = len(site.heard), await site.cluster.log_position(), time.time()
    site.stage.resume(asleep)
    await site.until_logs(asleep, "standing by", after_s=woken_s)
    await site.said(
        say.PodEvicted, sick.about, since=mark, where=lambda e: e.outcome == "blocked"
    )  # the new holder goes on asking
    # The outcome of what it had asked before is still true, and stands only if nobody wrote meanwhile.
    said = [
        e
        for e in site.heard[mark:]
        if e.source.endswith(f"/{asleep}") and not isinstance(e.data, say.PodEvicted)
    ]
    assert not said, said
    log = await site.cluster.access_log(log_at)
    asked = [
        f"{e['at']} {e['verb']} {e['path']}"
        for e in log
        if e["user_agent"].endswith(f"/{asleep}")
        and e["verb"] not in ("get", "list", "watch")
        and not e["path"].endswith("/events")  # it may still tell people what it had done before
    ]
    assert not asked, asked
    await site.unprotect("kept")
    await site.heal(sick)
    await site.closed(sick)
    assert sorted(await site.evicted(sick)) == sorted(sick.pods.values())
