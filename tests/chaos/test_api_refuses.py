"""The API server answers badly, or not at all, in the middle of a drain."""

from __future__ import annotations

import asyncio

import pytest

from shared.events import remediation as say
from tests.chaos.site import NODES, Site

pytestmark = [pytest.mark.chaos, pytest.mark.asyncio(loop_scope="session")]


async def test_drains_outlive_every_answer_of_the_api_server(site: Site) -> None:
    await asyncio.gather(_refused_and_unanswered(site), _held_up_by_a_budget(site))


async def _refused_and_unanswered(site: Site) -> None:
    """Two pods: one meets refusals, the other silence and an eviction whose answer got lost."""
    sick = await site.occupy(NODES[0], 2)
    first, second = (pod.partition("/")[2] for pod in list(sick.pods)[:2])
    for answer in (
        {"status": 409},
        {"status": 429, "retry_after_s": 1},
        {"status": 429, "budget": True},
        {"status": 500},
    ):
        await site.api_fault(path=f"/{first}/eviction$", **answer)
    await site.api_fault(verb="get", path=f"/pods/{second}$", hang_s=5)
    await site.api_fault(path=f"/{second}/eviction$", hang_s=5)
    await site.api_fault(path=f"/{second}/eviction$", status=500, after=True)
    await site.break_fatally(sick)
    await site.said(say.Quarantined, sick.about, since=sick.heard_at)
    await site.heal(sick)
    await site.closed(sick, within_s=30)
    await site.until_met(f"/{first}/eviction")
    await site.until_met(f"/{second}/eviction")
    statuses = {
        name: [e["status"] for e in await site.evictions(sick) if f"/{name}/" in e["path"]]
        for name in (first, second)
    }
    assert statuses[first] == [409, 429, 429, 500, 201]
    assert statuses[second][-1] == 500, "the one that was carried out, though its answer says otherwise"
    assert statuses[second].count(500) == 1
    assert await site.evicted(sick) == [sick.pods[f"work/{first}"]]


async def _held_up_by_a_budget(site: Site) -> None:
    """The budget holds one drain up, and no other; gone, it lets it go on."""
    kept = await site.occupy(NODES[1], 2, labels={"chaos": "kept"})
    other = await site.another(kept)
    await site.protect("budget", {"chaos": "kept"}, 99)
    for sick in (kept, other):
        await site.break_fatally(sick)
    await site.said(say.PodEvicted, kept.about, since=kept.heard_at, where=lambda e: e.outcome == "blocked")
    for sick in (kept, other):
        await site.heal(sick)
    await site.closed(other)
    assert await site.evicted(kept) == []
    assert site.now.holders[kept.about] >= set(kept.pods.values())
    await site.unprotect("budget")
    await site.closed(kept)
    assert sorted(await site.evicted(kept)) == sorted(kept.pods.values())
