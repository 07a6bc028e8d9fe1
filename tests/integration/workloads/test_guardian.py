"""The guardian on a bus in memory and virtual time; latency follows from who shares an engine."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from services.guardian.policy import GuardianPolicy
from services.guardian.service import Guardian
from services.guardian.view import WorkloadRow
from shared.bus.memory import Faults, MemoryBus
from shared.bus.port import Lease
from shared.errors import Temporary
from shared.events import workload as facts
from shared.events.remediation import HoldRequested, Quarantined, ReleaseRequested
from shared.kube.models import EvictionAnswer, EvictionOutcome
from tests.integration.workloads.cluster import DEVICE, ENGINE, NODE, OTHER_ENGINE, Cluster, released
from tests.integration.workloads.stage import Stage, stage

pytestmark = pytest.mark.looptime

POLICY = GuardianPolicy(
    dry_run=False,
    grace_s=5,
    relief_wait_s=10,
    min_requests=0,
    scale_settle_s=10,
    reattribute_s=10,
    retry_s=30,
)


def guardian(
    cluster: Cluster, on: Stage, policy: GuardianPolicy = POLICY
) -> Callable[[MemoryBus, Lease], Awaitable[None]]:
    async def act(bus: MemoryBus, lease: Lease) -> None:
        await Guardian(
            bus,
            cluster,  # type: ignore[arg-type] # only what the guardian uses
            on.clock,
            policy=lambda: policy,
            source=bus.source,
            domain="media.example.com",
            tick_s=2.0,
        ).run(lease)

    return act


def crowded(on: Stage) -> Cluster:
    """One live pod with a target, two batch pods on its engine, one elsewhere."""
    cluster = Cluster(on.clock)
    cluster.deploy("edge", replicas=2)
    cluster.run("edge-1", tier="online", sla="120", load=0.3, owner="edge")
    cluster.run("small", tier="batch", load=0.1)
    cluster.run("large", tier="batch", load=0.4, slots=2)
    cluster.run("far", tier="besteffort", engine=OTHER_ENGINE, load=0.9)
    return cluster


async def begin(on: Stage, cluster: Cluster) -> None:
    await cluster.say_held(on.bus)
    on.background(cluster.sample(on.bus))


async def test_a_breach_by_a_neighbour_ends_with_the_neighbour_evicted_and_the_sla_restored() -> None:
    async with stage() as on:
        cluster = crowded(on)
        await begin(on, cluster)
        on.start("guardian", guardian(cluster, on))
        restored = await on.until(facts.Restored)
        assert cluster.evictions == ["large"]
        assert await on.names("sla", "attributed") == [
            "breached",
            "step-proposed",
            "granted",
            "eviction-ordered",
            "pod-evicted",
            "scale-requested",
            "relieved",
            "restored",
        ]
        breached = (await on.until(facts.Breached)).data
        assert isinstance(breached, facts.Breached)
        assert breached.attribution.verdict == "neighbour"
        assert breached.attribution.engine == ENGINE
        assert [c.pod.name for c in breached.candidates] == ["large", "small"]
        assert not any(c.measured for c in breached.candidates)
        asked = (await on.until(facts.ScaleRequested)).data
        assert isinstance(asked, facts.ScaleRequested)
        assert asked.min_replicas == 3
        assert isinstance(restored.data, facts.Restored)
        assert restored.data.after < 0.9 * 120 < restored.data.before
        assert ("SLAEviction", "large", "edge-1") in cluster.events
        assert restored.correlationid == f"sla:live/deployment-edge#{breached.breach_id}"


async def test_every_fact_leads_back_to_the_sample_that_breached() -> None:
    async with stage() as on:
        cluster = crowded(on)
        await begin(on, cluster)
        on.start("guardian", guardian(cluster, on))
        evicted = await on.until(facts.SlaPodEvicted)
        everything = {e.id: e for e in [*await on.said("sla"), *await on.said("sample")]}
        chain = [evicted]
        while chain[-1].causationid in everything:
            chain.append(everything[chain[-1].causationid or ""])
        assert [e.data.kind.name for e in chain] == [
            "sla.pod-evicted",
            "sla.eviction-ordered",
            "sla.granted",
            "sla.step-proposed",
            "sla.breached",
            "sample.sampled",
        ]


async def test_overload_by_its_own_traffic_goes_straight_to_scale_up() -> None:
    async with stage() as on:
        cluster = Cluster(on.clock)
        cluster.deploy("edge", replicas=1)
        mine = cluster.run("edge-1", tier="online", sla="120", load=0.3, owner="edge")
        cluster.run("busy", tier="batch", load=0.1)
        await begin(on, cluster)
        on.start("guardian", guardian(cluster, on))
        await asyncio.sleep(20)
        cluster.load[mine.uid] = 0.7
        asked = await on.until(facts.ScaleRequested)
        assert await on.names("sla") == ["breached", "scale-requested"]
        assert isinstance(asked.data, facts.ScaleRequested)
        assert asked.data.min_replicas == 2
        cluster.load[mine.uid] = 0.3
        await on.until(facts.Restored)
        assert not cluster.evictions


async def test_a_sick_device_is_left_to_remediation() -> None:
    async with stage() as on:
        cluster = crowded(on)
        sick = Quarantined(epoch=1, reason="three strikes", deadline=on.clock.now())
        await cluster.say(on.bus, sick, NODE, DEVICE)
        await begin(on, cluster)
        on.start("guardian", guardian(cluster, on))
        breached = (await on.until(facts.Breached)).data
        await asyncio.sleep(60)
        assert isinstance(breached, facts.Breached)
        assert breached.attribution.verdict == "device-fault"
        assert await on.names("sla") == ["breached"]
        assert not cluster.evictions


async def test_missing_samples_neither_breach_nor_restore() -> None:
    async with stage() as on:
        cluster = crowded(on)
        await cluster.say_held(on.bus)
        on.start("guardian", guardian(cluster, on))
        pod = cluster.pods_["u-edge-1"]
        for _ in range(10):
            await cluster.say_sample(on.bus, pod, latency_p99_ms=None)
            await cluster.say_sample(on.bus, pod, latency_p99_ms=2147483634.0)
            await asyncio.sleep(1)
        assert await on.names("sla") == []
        sampling = on.background(cluster.sample(on.bus))
        await on.until(facts.SlaEvictionOrdered)
        await on.stop(sampling)
        missed = await on.until(facts.ReliefMissed)
        assert isinstance(missed.data, facts.ReliefMissed)
        assert missed.data.after is None
        assert "restored" not in await on.names("sla")


async def test_two_copies_and_everything_delivered_twice_evict_one_pod_once() -> None:
    async with stage(Faults(seed=7, duplicate=0.5, lost_ack=0.2, lost_answer=0.1)) as on:
        cluster = crowded(on)
        await begin(on, cluster)
        on.start("guardian", guardian(cluster, on), "a")
        on.start("guardian", guardian(cluster, on), "b")
        await on.until(facts.Restored)
        assert cluster.evictions == ["large"]
        names = await on.names("sla")
        assert [names.count(n) for n in ("breached", "eviction-ordered", "pod-evicted")] == [1, 1, 1]


async def test_a_holder_killed_between_order_and_outcome_is_followed_by_one_that_looks_first() -> None:
    async with stage() as on:
        cluster = crowded(on)
        await begin(on, cluster)
        hanging = asyncio.Event()

        async def evict_and_hang(*args: object, **kwargs: object) -> EvictionAnswer:
            await Cluster.evict(cluster, *args, **kwargs)  # type: ignore[arg-type] # as it was called
            hanging.set()
            await asyncio.Event().wait()
            raise AssertionError

        cluster.evict = evict_and_hang  # type: ignore[method-assign] # the first holder's API hangs
        first = on.start("guardian", guardian(cluster, on), "a")
        await hanging.wait()
        await on.stop(first)
        del cluster.evict
        on.start("guardian", guardian(cluster, on), "b")
        evicted = await on.until(facts.SlaPodEvicted)
        assert isinstance(evicted.data, facts.SlaPodEvicted)
        assert evicted.data.outcome in ("evicted", "gone")
        await on.until(facts.Restored)
        assert cluster.evictions == ["large"]


async def test_a_disruption_budget_that_refuses_makes_it_take_the_next_one() -> None:
    async with stage() as on:
        cluster = crowded(on)
        cluster.answers = [EvictionAnswer(429, EvictionOutcome.BLOCKED, "pdb", 10.0)]
        await begin(on, cluster)
        on.start("guardian", guardian(cluster, on))
        await on.until(facts.SlaPodEvicted, count=2)
        assert cluster.evictions == ["large", "small"]
        assert "returned" in await on.names("sla")


async def test_an_api_server_that_gives_no_answer_is_asked_again() -> None:
    async with stage() as on:
        cluster = crowded(on)
        cluster.answers = [Temporary("500"), EvictionAnswer(429, EvictionOutcome.THROTTLED, "busy", 2.0)]
        await begin(on, cluster)
        on.start("guardian", guardian(cluster, on))
        await on.until(facts.Restored)
        assert cluster.evictions == ["large"] * 3
        assert (await on.names("sla")).count("pod-evicted") == 1


async def test_evictions_that_do_not_help_open_the_circuit() -> None:
    async with stage() as on:
        cluster = crowded(on)
        cluster.load["u-edge-1"] = 0.99  # nothing that leaves makes it fast
        await begin(on, cluster)
        on.start("guardian", guardian(cluster, on))
        await on.until(facts.CircuitOpened)
        await asyncio.sleep(60)
        assert cluster.evictions == ["large", "small"]
        assert (await on.names("sla")).count("relief-missed") >= 2


async def test_a_breach_that_clears_by_itself_withdraws_what_was_queued() -> None:
    async with stage() as on:
        cluster = crowded(on)
        policy = POLICY.model_copy(update={"fleet_at_least": 0, "fleet_percent": 0.0})
        await begin(on, cluster)
        on.start("guardian", guardian(cluster, on, policy))
        await on.until(facts.SlaDenied)
        cluster.load["u-large"] = 0.05
        await on.until(facts.Restored)
        assert not cluster.evictions
        assert "eviction-ordered" not in await on.names("sla")


async def test_dry_run_says_everything_and_does_nothing() -> None:
    async with stage() as on:
        cluster = crowded(on)
        await begin(on, cluster)
        on.start("guardian", guardian(cluster, on, POLICY.model_copy(update={"dry_run": True})))
        evicted = await on.until(facts.SlaPodEvicted)
        await asyncio.sleep(120)
        assert isinstance(evicted.data, facts.SlaPodEvicted)
        assert evicted.data.outcome == "dry-run"
        assert (await on.names("sla")).count("pod-evicted") == 1
        assert "scale-requested" not in await on.names("sla")
        assert not cluster.evictions


async def test_many_breaches_at_once_freeze_and_thaw() -> None:
    async with stage() as on:
        cluster = crowded(on)
        for n in range(2, 5):
            cluster.run(f"edge-{n}", tier="online", sla="120", load=0.0, owner="edge")
        await begin(on, cluster)
        on.start("guardian", guardian(cluster, on))
        await on.until(facts.SlaFrozen)
        assert not cluster.evictions
        cluster.load["u-large"] = 0.0
        await on.until(facts.SlaThawed)
        assert not cluster.evictions


async def test_a_persons_hold_keeps_it_still_until_released() -> None:
    async with stage() as on:
        cluster = crowded(on)
        hold = HoldRequested(request_id="h1", owner="ann", reason="load test")
        await cluster.say(on.bus, hold, "live", "deployment-edge")
        await begin(on, cluster)
        on.start("guardian", guardian(cluster, on))
        await asyncio.sleep(30)
        assert await on.names("sla") == ["held"]
        await cluster.say(
            on.bus, ReleaseRequested(request_id="r1", owner="ann", reason="done"), "live", "deployment-edge"
        )
        await on.until(facts.Restored)
        assert cluster.evictions == ["large"]


async def test_the_view_tells_each_workload_and_a_bad_annotation_is_an_event() -> None:
    async with stage() as on:
        cluster = crowded(on)
        cluster.run("odd", tier="online", sla="0.2s", owner="odd")
        cluster.deploy("odd")
        await begin(on, cluster)
        on.start("guardian", guardian(cluster, on))
        await on.until(facts.Breached)
        await asyncio.sleep(4)
        row = await on.bus.view("workloads", WorkloadRow).get("live/deployment-edge")
        assert row is not None
        assert row.value is not None
        assert row.value.state == "breached"
        assert row.value.verdict == "neighbour"
        assert [name for reason, name, _ in cluster.events if reason == "SLAAnnotation"] == ["odd"]


async def test_a_pod_that_goes_closes_its_breach() -> None:
    async with stage() as on:
        cluster = crowded(on)
        policy = POLICY.model_copy(update={"fleet_at_least": 0, "fleet_percent": 0.0})
        await begin(on, cluster)
        on.start("guardian", guardian(cluster, on, policy))
        await on.until(facts.SlaDenied)
        await cluster.say(on.bus, released("u-edge-1"), NODE, DEVICE)
        cluster.delete("u-edge-1")
        closed = await on.until(facts.SlaClosed)
        assert isinstance(closed.data, facts.SlaClosed)
        assert closed.data.reason == "the pod is gone"
