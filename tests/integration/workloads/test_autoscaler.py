"""The autoscaler on a bus in memory and virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta
from typing import Any

import pytest

from services.autoscaler.lease import lease, read
from services.autoscaler.policy import AutoscalerPolicy
from services.autoscaler.service import Autoscaler
from shared.bus.memory import Faults, MemoryBus
from shared.bus.port import Lease
from shared.errors import Permanent, Temporary
from shared.events import workload as facts
from shared.events.parts import PodRef, WorkloadRef
from shared.events.remediation import HoldRequested, ReleaseRequested, ReplacementRequested
from shared.kube.port import StaleWrite
from tests.integration.workloads.cluster import DEVICE, NODE, Cluster
from tests.integration.workloads.stage import Stage, stage

pytestmark = pytest.mark.looptime

EDGE = WorkloadRef(namespace="live", kind="Deployment", name="edge")
NOTE = "media.example.com/min-replicas-lease"


def autoscaler(cluster: Cluster, on: Stage, **policy: Any) -> Callable[[MemoryBus, Lease], Awaitable[None]]:
    made = AutoscalerPolicy(**policy)

    async def act(bus: MemoryBus, lease: Lease) -> None:
        await Autoscaler(
            bus,
            cluster,  # type: ignore[arg-type] # only what the autoscaler uses
            on.clock,
            policy=lambda: made,
            source=bus.source,
            domain="media.example.com",
            sweep_s=5.0,
        ).run(lease)

    return act


async def ask(
    on: Stage, cluster: Cluster, request_id: str = "r1", replicas: int = 4, *, for_s: float = 60.0
) -> None:
    data = facts.ScaleRequested(
        breach_id="b1",
        request_id=request_id,
        workload=EDGE,
        reason="slow",
        min_replicas=replicas,
        until=on.clock.now() + timedelta(seconds=for_s),
    )
    await cluster.say(on.bus, data, "live", "deployment-edge")


async def replace_pod(on: Stage, cluster: Cluster, request_id: str) -> None:
    data = ReplacementRequested(
        epoch=1,
        request_id=request_id,
        pod=PodRef(namespace="live", name="edge-1", uid=request_id),
        workload=EDGE,
        until=on.clock.now() + timedelta(seconds=60),
    )
    await cluster.say(on.bus, data, NODE, DEVICE)


def deployed(on: Stage, *, replicas: int = 2) -> Cluster:
    cluster = Cluster(on.clock)
    cluster.deploy("edge", replicas=replicas)
    return cluster


def replicas(cluster: Cluster) -> int | None:
    return cluster.workloads["live", "edge"].replicas


async def test_without_an_hpa_the_replicas_are_raised_and_given_back() -> None:
    async with stage() as on:
        cluster = deployed(on)
        on.start("autoscaler", autoscaler(cluster, on))
        await ask(on, cluster)
        applied = (await on.until(facts.ScaleApplied)).data
        assert isinstance(applied, facts.ScaleApplied)
        assert (applied.from_, applied.to, applied.mode) == (2, 4, "scale")
        assert replicas(cluster) == 4
        await on.until(facts.ScaleExpired)
        assert replicas(cluster) == 2
        assert await on.names("scale") == ["ordered", "applied", "ordered", "expired"]


async def test_with_an_hpa_its_floor_is_lent_with_a_note_and_given_back() -> None:
    async with stage() as on:
        cluster = deployed(on)
        cluster.hpa("edge-hpa", target="edge", low=2, high=6)
        on.start("autoscaler", autoscaler(cluster, on))
        await ask(on, cluster)
        await on.until(facts.ScaleApplied)
        hpa = cluster.hpas_["live", "edge-hpa"]
        note = read(hpa.annotations[NOTE])
        assert hpa.min_replicas == 4
        assert note is not None
        assert (note.before, note.raised, note.request) == (2, 4, "r1")
        assert not any(write.startswith("scale") for write in cluster.writes)
        await on.until(facts.ScaleExpired)
        hpa = cluster.hpas_["live", "edge-hpa"]
        assert hpa.min_replicas == 2
        assert NOTE not in hpa.annotations


async def test_what_a_person_sets_meanwhile_stays() -> None:
    async with stage() as on:
        cluster = deployed(on)
        cluster.hpa("edge-hpa", target="edge", low=2, high=6)
        on.start("autoscaler", autoscaler(cluster, on))
        await ask(on, cluster)
        await on.until(facts.ScaleApplied)
        cluster.person_edits("live", "edge-hpa", 3)
        expired = (await on.until(facts.ScaleExpired)).data
        assert isinstance(expired, facts.ScaleExpired)
        assert "somebody set minReplicas to 3" in expired.reason
        hpa = cluster.hpas_["live", "edge-hpa"]
        assert hpa.min_replicas == 3
        assert NOTE not in hpa.annotations


async def test_replicas_that_a_person_sets_meanwhile_stay_too() -> None:
    async with stage() as on:
        cluster = deployed(on)
        on.start("autoscaler", autoscaler(cluster, on))
        await ask(on, cluster)
        await on.until(facts.ScaleApplied)
        cluster.person_scales("live", "edge", 9)
        await on.until(facts.ScaleExpired)
        assert replicas(cluster) == 9


async def test_the_hpas_maximum_bounds_a_request() -> None:
    async with stage() as on:
        cluster = deployed(on)
        cluster.hpa("edge-hpa", target="edge", low=2, high=3)
        on.start("autoscaler", autoscaler(cluster, on))
        await ask(on, cluster, replicas=10)
        await on.until(facts.ScaleApplied)
        assert cluster.hpas_["live", "edge-hpa"].min_replicas == 3
        await ask(on, cluster, "r2", replicas=10)
        refused = (await on.until(facts.ScaleRefused)).data
        assert isinstance(refused, facts.ScaleRefused)
        assert refused.reason == "3 replicas are the most allowed, 10 were wanted"


async def test_a_longer_request_holds_the_level_when_a_shorter_one_ends() -> None:
    async with stage() as on:
        cluster = deployed(on)
        cluster.hpa("edge-hpa", target="edge", low=2, high=9)
        on.start("autoscaler", autoscaler(cluster, on))
        await ask(on, cluster, "long", 4, for_s=100)
        await ask(on, cluster, "high", 6, for_s=50)
        await ask(on, cluster, "low", 3, for_s=20)
        await on.until(facts.ScaleExpired, count=1)
        assert cluster.hpas_["live", "edge-hpa"].min_replicas == 4
        await on.until(facts.ScaleExpired, count=2)
        assert cluster.hpas_["live", "edge-hpa"].min_replicas == 2


async def test_two_replacements_at_once_are_two_more_replicas() -> None:
    async with stage() as on:
        cluster = deployed(on)
        on.start("autoscaler", autoscaler(cluster, on))
        await replace_pod(on, cluster, "p1")
        await replace_pod(on, cluster, "p2")
        await on.until(facts.ScaleApplied, count=2)
        assert replicas(cluster) == 4
        await on.until(facts.ScaleExpired, count=2)
        assert replicas(cluster) == 2


@pytest.mark.parametrize("seed", range(3))
async def test_two_copies_and_everything_twice_raise_once(seed: int) -> None:
    async with stage(Faults(seed=seed, duplicate=0.5, lost_ack=0.3, lost_answer=0.2)) as on:
        cluster = deployed(on)
        on.start("autoscaler", autoscaler(cluster, on), "a")
        on.start("autoscaler", autoscaler(cluster, on), "b")
        await ask(on, cluster)
        await replace_pod(on, cluster, "p1")
        await on.until(facts.ScaleExpired, count=2)
        assert replicas(cluster) == 2
        assert len([w for w in cluster.writes if w.startswith("scale edge 4")]) <= 1
        assert (await on.names("scale")).count("applied") == 2


async def test_a_holder_killed_before_the_outcome_is_followed_by_one_that_looks_first() -> None:
    async with stage() as on:
        cluster = deployed(on)
        cluster.hpa("edge-hpa", target="edge", low=2, high=9)
        written = asyncio.Event()

        async def write_and_hang(*args: object, **kwargs: object) -> None:
            await Cluster.patch_hpa_min(cluster, *args, **kwargs)  # type: ignore[arg-type] # as called
            written.set()
            await asyncio.Event().wait()

        cluster.patch_hpa_min = write_and_hang  # type: ignore[assignment, method-assign] # it hangs
        first = on.start("autoscaler", autoscaler(cluster, on), "a")
        await ask(on, cluster)
        await written.wait()
        await on.stop(first)
        del cluster.patch_hpa_min
        on.start("autoscaler", autoscaler(cluster, on), "b")
        await on.until(facts.ScaleExpired)
        assert cluster.writes == ["min edge-hpa 4", "min edge-hpa 2"]


async def test_a_holder_killed_while_the_lease_stands_is_followed_by_one_that_gives_back() -> None:
    async with stage() as on:
        cluster = deployed(on)
        cluster.hpa("edge-hpa", target="edge", low=2, high=9)
        first = on.start("autoscaler", autoscaler(cluster, on), "a")
        await ask(on, cluster)
        await on.until(facts.ScaleApplied)
        await on.stop(first)
        await asyncio.sleep(300)
        on.start("autoscaler", autoscaler(cluster, on), "b")
        await on.until(facts.ScaleExpired)
        assert cluster.hpas_["live", "edge-hpa"].min_replicas == 2


async def test_a_lease_that_no_log_remembers_is_given_back_when_it_is_over() -> None:
    async with stage() as on:
        cluster = deployed(on)
        cluster.hpa("edge-hpa", target="edge", low=5, high=9)
        until = on.clock.now() + timedelta(seconds=30)
        cluster.person_edits("live", "edge-hpa", 5, {NOTE: lease(1, 5, until, "lost").text()})
        on.start("autoscaler", autoscaler(cluster, on))
        await on.until(facts.ScaleExpired)
        assert cluster.hpas_["live", "edge-hpa"].min_replicas == 1
        assert NOTE not in cluster.hpas_["live", "edge-hpa"].annotations


async def test_a_busy_object_and_a_silent_server_are_tried_again() -> None:
    async with stage() as on:
        cluster = deployed(on)
        cluster.failures = [StaleWrite("busy"), Temporary("500"), *[StaleWrite("busy")] * 3]
        on.start("autoscaler", autoscaler(cluster, on))
        await ask(on, cluster)
        await on.until(facts.ScaleApplied)
        assert replicas(cluster) == 4


async def test_a_forbidden_write_is_refused_but_giving_back_is_tried_until_it_is_allowed() -> None:
    async with stage() as on:
        cluster = deployed(on)
        cluster.failures = [Permanent("403: no right to patch")]
        on.start("autoscaler", autoscaler(cluster, on))
        await ask(on, cluster, "r1")
        refused = (await on.until(facts.ScaleRefused)).data
        assert isinstance(refused, facts.ScaleRefused)
        assert "403" in refused.reason
        await ask(on, cluster, "r2")
        await on.until(facts.ScaleApplied)
        cluster.failures = [Permanent("403: no right to patch")] * 3
        await on.until(facts.ScaleExpired)
        assert replicas(cluster) == 2


async def test_requests_that_cannot_be_served_are_refused_with_the_reason() -> None:
    async with stage() as on:
        cluster = deployed(on)
        cluster.hpa("one", target="edge")
        cluster.hpa("two", target="edge")
        on.start("autoscaler", autoscaler(cluster, on))
        await ask(on, cluster, "twice")
        await on.until(facts.ScaleRefused)
        cluster.hpas_.clear()
        cluster.workloads.clear()
        await ask(on, cluster, "gone")
        await ask(on, cluster, "late", for_s=-1)
        await on.until(facts.ScaleRefused, count=3)
        reasons = [e.data.reason for e in await on.said("scale") if isinstance(e.data, facts.ScaleRefused)]
        assert reasons[0] == "more than one HPA targets it (one, two): leave one"
        assert reasons[1] == "Deployment edge is gone or cannot be scaled"
        assert reasons[2].startswith("too late")


async def test_dry_run_only_says() -> None:
    async with stage() as on:
        cluster = deployed(on)
        on.start("autoscaler", autoscaler(cluster, on, dry_run=True))
        await ask(on, cluster)
        refused = (await on.until(facts.ScaleRefused)).data
        assert isinstance(refused, facts.ScaleRefused)
        assert refused.reason == "dry-run: would raise scale from 2 to 4"
        assert not cluster.writes


async def test_enough_replicas_are_applied_without_a_write() -> None:
    async with stage() as on:
        cluster = deployed(on, replicas=7)
        on.start("autoscaler", autoscaler(cluster, on))
        await ask(on, cluster)
        await on.until(facts.ScaleApplied)
        await asyncio.sleep(120)
        assert not cluster.writes


async def test_while_a_person_holds_a_workload_nothing_is_raised_or_given_back() -> None:
    async with stage() as on:
        cluster = deployed(on)
        on.start("autoscaler", autoscaler(cluster, on))
        await ask(on, cluster)
        await on.until(facts.ScaleApplied)
        until: datetime = on.clock.now() + timedelta(seconds=300)
        hold = HoldRequested(request_id="h", owner="ann", reason="test", until=until)
        await cluster.say(on.bus, hold, "live", "deployment-edge")
        await on.until(facts.ScaleHeld)
        await ask(on, cluster, "r2", 6)
        await on.until(facts.ScaleRefused)
        await asyncio.sleep(120)
        assert replicas(cluster) == 4
        await on.until(facts.ScaleReleased)
        await on.until(facts.ScaleExpired)
        assert replicas(cluster) == 2
        again = HoldRequested(request_id="h2", owner="ann", reason="test")
        await cluster.say(on.bus, again, "live", "deployment-edge")
        free = ReleaseRequested(request_id="x2", owner="ann", reason="done")
        await cluster.say(on.bus, free, "live", "deployment-edge")
        await on.until(facts.ScaleReleased, count=2)
