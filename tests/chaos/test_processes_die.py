"""Each service is killed in the middle of its part and started again."""

from __future__ import annotations

import asyncio

import pytest

from shared.events import remediation as say
from shared.events import workload, world
from tests.chaos.breach import Breach
from tests.chaos.site import NODES, Site

pytestmark = [pytest.mark.chaos, pytest.mark.asyncio(loop_scope="session")]


async def test_cases_outlive_the_death_of_their_nodes_agents(site: Site) -> None:
    await asyncio.gather(_quarantine_without_bridge_and_kubelet(site), _deep_check_without_discovery(site))


async def _quarantine_without_bridge_and_kubelet(site: Site) -> None:
    """The bridge dies before it answers a quarantine, and its kubelet is restarted."""
    sick = await site.occupy(NODES[0], 2)
    bridge = f"bridge@{sick.node}"
    site.stage.pause(bridge)
    await site.break_fatally(sick)
    await site.said(say.Quarantined, sick.about, since=sick.heard_at)
    await site.stage.kill(bridge)
    await site.restart_kubelet(sick.node)
    assert not site.has_said(world.Fenced, sick)
    await site.stage.again(bridge)
    await site.said(world.Fenced, sick.about, since=sick.heard_at)
    await site.heal(sick)
    await site.closed(sick)
    assert sorted(await site.evicted(sick)) == sorted(sick.pods.values())


async def _deep_check_without_discovery(site: Site) -> None:
    """Discovery dies in the middle of a deep check, and another device breaks while it is away."""
    sick = await site.occupy(NODES[1], 1)
    discovery = f"discovery@{sick.node}"
    await site.fault(sick, "hang")
    await site.fault(sick, "xid", code=79)
    await site.said(say.DiagnosisRequested, sick.about, since=sick.heard_at)
    await site.stage.kill(discovery)
    await site.heal(sick)
    second = await site.another(sick)
    await site.break_fatally(second)
    await site.stage.again(discovery)
    await site.said(say.Quarantined, second.about, since=second.heard_at)
    await site.heal(second)
    await site.closed(sick)
    await site.closed(second)
    assert await site.evicted(sick) == list(sick.pods.values())


async def test_a_drain_and_a_breach_outlive_the_death_of_every_cluster_service(site: Site) -> None:
    await asyncio.gather(_drain_without_its_services(site), _breach_without_its_services(site))


async def _drain_without_its_services(site: Site) -> None:
    """Remediation dies with its evictions done and not recorded, the manager and alerting in mid-write."""
    sick = await site.occupy(NODES[0], 2)
    resource = f"{sick.node}-{sick.device}"
    await site.api_fault(path=f"mediaresources/{resource}/status", hang_s=30, times=1)
    for pod in sick.pods:
        await site.api_fault(path=f"/{pod.partition('/')[2]}/eviction$", hang_s=0.4, times=1)
    site.stage.pause("alerting-1")
    await site.break_fatally(sick)
    for pod in sick.pods:
        await site.until_met(f"/{pod.partition('/')[2]}/eviction")
    site.stage.pause("remediation-1")
    await site.until_logged("both evictions are carried out", sick, count=2)
    dying = ("remediation-1", "manager-1", "alerting-1")
    await asyncio.gather(*(site.stage.kill(name) for name in dying))
    assert not site.has_said(say.PodEvicted, sick)
    assert not site.has_said(workload.AlertRaised, sick)
    for name in dying:
        await site.stage.again(name)
    await site.heal(sick)
    await site.closed(sick)
    assert sorted(await site.evicted(sick)) == sorted(sick.pods.values())
    assert len(await site.evictions(sick)) == 2, "who looks first asks nobody twice"
    await site.until_phase(resource, "Healthy")
    await site.alerted_once(sick)


async def _breach_without_its_services(site: Site) -> None:
    """The guardian dies with its eviction done and not recorded, the autoscaler in mid-write."""
    breach = await Breach.staged(site, NODES[1])
    await site.api_fault(path=f"/{breach.loud.name}/eviction$", hang_s=0.4, times=1)
    await site.api_fault(verb="patch", path=f"/{breach.name}/scale$", hang_s=30, times=1)
    await breach.grow_loud()
    await site.until_met(f"/{breach.loud.name}/eviction")
    site.stage.pause("guardian-1")
    await breach.until_evicted()
    await site.stage.kill("guardian-1")
    await site.stage.again("guardian-1")
    await site.until_met(f"/{breach.name}/scale", within_s=20)
    await site.stage.kill("autoscaler-1")
    await site.stage.again("autoscaler-1")
    await breach.relieved(replicas=2)
    await breach.end()
