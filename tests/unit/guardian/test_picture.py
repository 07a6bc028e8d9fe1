"""The picture: who holds what, what is sick, when the measurements cannot be believed; and the last look."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from services.guardian.act import Evictor
from services.guardian.case import Breach
from services.guardian.picture import Picture, unit_of
from services.guardian.policy import GuardianPolicy
from shared.clock import ManualClock
from shared.errors import BadInput, Temporary
from shared.events import Cause, Payload, event
from shared.events import device as devices
from shared.events import remediation as care
from shared.events import workload as facts
from shared.events.parts import Compatibility, PodRef, Slot, WorkloadRef
from shared.events.world import AllocationsStated, Bound, HealthReported, Holding, Released, Sampled
from shared.kube.models import Change, ChangeKind, EvictionAnswer, EvictionOutcome, Pod
from shared.kube.models import PodRef as KubePodRef

AT = datetime(2026, 1, 1, tzinfo=UTC)
POLICY = GuardianPolicy(dry_run=False, min_requests=0)
DEVICE = "nvidia-0000-3b-00-0"
ENGINE = f"{DEVICE}-enc-0"


def pod(name: str, *, tier: str | None = "online", sla: str | None = None, **more: Any) -> Pod:
    made = Pod(
        namespace="live",
        name=name,
        uid=f"u-{name}",
        node="n1",
        phase="Running",
        ready=True,
        deleting=False,
        priority=0,
        owner=None,
        created_at=AT - timedelta(seconds=600),
        resource_version="1",
        labels={"media.example.com/tier": tier} if tier else {},
        annotations={"sla/latency-p99-ms": sla} if sla else {},
    )
    return replace(made, **more)


def ref(name: str) -> PodRef:
    return PodRef(namespace="live", name=name, uid=f"u-{name}")


class Seen:
    """A picture that is told things."""

    def __init__(self) -> None:
        self.picture = Picture("media.example.com")
        self.n = 0

    def hear(self, data: Payload, entity: str = DEVICE, *, place: str = "n1", at: datetime = AT) -> None:
        self.n += 1
        cause = Cause.source("b", self.n)
        self.picture.hear(event(data, (place, entity), cause=cause, source="/t", at=at), POLICY)

    def bound(self, name: str, engine: str = ENGINE, slots: int = 1, **more: Any) -> None:
        data = Bound(
            allocation_id=f"a-{name}",
            pod=ref(name),
            container="c",
            resource="r",
            slots=tuple(Slot(engine=engine, slot=n) for n in range(slots)),
            **more,
        )
        self.hear(data, engine.rsplit("-", 2)[0] if slots else DEVICE)

    def samples(self, name: str, ms: float, at: datetime = AT) -> None:
        for back in (3, 2, 1, 0):
            data = Sampled(
                boot_id="b",
                n=self.n,
                pod=ref(name),
                workload="w",
                latency_p99_ms=ms,
                window_s=1,
                measured_at=at - timedelta(seconds=back),
            )
            self.hear(data, name, place="live")


def test_neighbours_hold_slots_of_the_same_engine_on_the_same_node() -> None:
    seen = Seen()
    seen.bound("edge")
    seen.bound("same", slots=2)
    seen.bound("other", f"{DEVICE}-enc-1")
    assert seen.picture.neighbours(pod("edge")) == ["u-same"]
    assert seen.picture.holds(pod("same"), ENGINE)
    assert not seen.picture.holds(pod("other"), ENGINE)
    seen.hear(Released(allocation_id="a-same", reason="gone"))
    assert seen.picture.neighbours(pod("edge")) == []


def test_a_unit_that_encodes_and_decodes_is_one_engine() -> None:
    assert unit_of("amd-0000-03-00-0-dec-0") == "amd-0000-03-00-0-enc-0"
    assert unit_of("nvidia-0000-03-00-0-dec-0") == "nvidia-0000-03-00-0-dec-0"
    assert unit_of("no engine at all") == "no engine at all"


def test_a_stated_list_replaces_all_that_was_known_of_the_node() -> None:
    seen = Seen()
    seen.bound("edge")
    seen.bound("ghost")
    holding = Holding(
        allocation_id="a-edge",
        device=DEVICE,
        resource="r",
        slots=(Slot(engine=ENGINE, slot=0),),
        pod=ref("edge"),
    )
    seen.hear(AllocationsStated(boot_id="b", n=1, holdings=(holding,)), "bridge")
    assert seen.picture.neighbours(pod("edge")) == []
    assert seen.picture.holds(pod("edge"), ENGINE)


def test_a_scene_says_what_the_api_server_knows_of_each_holder() -> None:
    seen = Seen()
    for name, slots in (("edge", 1), ("job", 2), ("gone", 1), ("whole", 0)):
        seen.bound(name, slots=slots, whole_device=name == "whole")
    seen.picture.pod_is(pod("edge", sla="100"))
    seen.picture.pod_is(pod("job", tier=None, annotations={"media.example.com/eviction": "never"}))
    seen.picture.owned("u-job", WorkloadRef(namespace="live", kind="Job", name="j"))
    (engine,) = seen.picture.scene(pod("edge"), AT).engines
    by_name = {h.pod.name: h for h in engine.others}
    assert set(by_name) == {"job", "gone"}
    job = by_name["job"]
    assert (job.tier, job.tenant, job.slots, job.opted_out, job.age_s) == ("batch", "live", 2, True, 600.0)
    assert not by_name["gone"].live
    assert seen.picture.running() == 2


def test_faults_come_and_go_with_what_is_heard_and_parents_count_for_partitions() -> None:
    seen = Seen()
    seen.bound("edge")
    edge = pod("edge")

    def faults() -> str:
        return ",".join(seen.picture.scene(edge, AT).faults.values())

    health = HealthReported(boot_id="b", window_id=1, verdict="unhealthy", streak=1)
    for bad, good, word in (
        (health, health.model_copy(update={"verdict": "healthy"}), "unhealthy"),
        (care.Opened(epoch=1, state="suspect", reason="r"), care.Cleared(epoch=1, streak=9), "case"),
        (care.Quarantined(epoch=1, reason="r", deadline=AT), care.Closed(epoch=1, reason="r"), "case"),
    ):
        seen.hear(bad)
        assert word in faults()
        seen.hear(health.model_copy(update={"verdict": "unknown", "window_id": 5}))
        assert word in faults()
        seen.hear(good)
        assert faults() == ""
    seen.hear(devices.Lost(generation=1, reason="silent"))
    assert "lost" in faults()
    seen.hear(care.Retired(epoch=1, reason="old"))
    nobody: Any = None
    again = devices.Registered.model_construct(
        device=nobody, generation=2, compatibility=Compatibility(verdict="compatible")
    )
    seen.picture._hear_device("n1", DEVICE, again)
    assert faults() == ""
    partition = Seen()
    partition.bound("edge", f"{DEVICE}-mig-3-0-enc-0")
    partition.hear(health)
    assert partition.picture.scene(edge, AT).faults


def test_targets_follow_the_annotation_and_only_of_online_pods() -> None:
    seen = Seen()
    picture = seen.picture
    picture.pod_is(pod("a", sla="100"))
    picture.pod_is(pod("b", sla="100ms"))
    picture.pod_is(pod("c", tier="batch", sla="100"))
    found = {p.name: t for p, t in picture.promised()}
    assert set(found) == {"a", "b"}
    assert isinstance(found["b"], BadInput)
    assert picture.target("u-b") is None
    picture.pod_is(pod("a", sla="200"))
    target = picture.target("u-a")
    assert target is not None
    assert target.latency_p99_ms == 200
    picture.pod_is(pod("a"))
    assert picture.target("u-a") is None
    picture.hear_pod(Change(ChangeKind.DELETED, pod("b")))
    assert picture.pod("u-b") is None
    assert list(picture.promised()) == []


def test_many_breached_or_silent_pods_brake_and_few_never_do() -> None:
    seen = Seen()
    for name in ("a", "b", "c", "d", "e"):
        seen.picture.pod_is(pod(name, sla="100"))
        seen.samples(name, 50)
    assert seen.picture.brake(AT, POLICY) == ""
    later = AT + timedelta(seconds=30)
    for name in ("a", "b"):
        seen.samples(name, 300, later)
    for name in ("c", "d", "e"):
        seen.samples(name, 50, later)
    assert seen.picture.brake(later, POLICY) == ""
    seen.samples("c", 300, later + timedelta(seconds=10))
    assert seen.picture.brake(later + timedelta(seconds=10), POLICY) == "3 of 5 online pods breached at once"
    assert "without a fresh sample" in seen.picture.brake(later + timedelta(seconds=60), POLICY)


def test_young_and_doubtful_pods_are_not_counted_as_missing() -> None:
    seen = Seen()
    for name in ("a", "b", "c", "d"):
        seen.picture.pod_is(pod(name, sla="100", created_at=AT))
    seen.picture.pod_is(pod("odd", sla="0.1"))
    assert seen.picture.brake(AT, POLICY) == ""


def test_a_common_cause_brakes_until_it_thaws() -> None:
    seen = Seen()
    seen.hear(care.Frozen(freeze_id="f", code="79", scope="cluster", cases=()), "budget", place="fleet")
    assert "common cause 79" in seen.picture.brake(AT, POLICY)
    seen.hear(care.Thawed(freeze_id="f"), "budget", place="fleet")
    assert seen.picture.brake(AT, POLICY) == ""


# ----------------------------------------------------------------------------------------- the last look


class Api:
    """The two calls that an eviction makes."""

    def __init__(self, found: Pod | None, answer: EvictionAnswer | None = None) -> None:
        self.found, self.answer, self.asked = found, answer, 0

    async def pod(self, namespace: str, name: str) -> Pod | None:
        del namespace, name
        return self.found

    async def evict(self, pod: KubePodRef, *, grace_s: int | None = None) -> EvictionAnswer:
        del pod, grace_s
        self.asked += 1
        assert self.answer is not None
        return self.answer

    async def record_event(self, *args: object, **kwargs: object) -> None:
        del args, kwargs
        raise Temporary("no Events today")


BREACH = Breach(
    id="b",
    pod=ref("edge"),
    workload=WorkloadRef(namespace="live", kind="Deployment", name="edge"),
    target=100,
    observed=300,
    opened_at=AT,
    attribution=facts.Attribution(verdict="neighbour"),
    candidates=(),
    looked_at=AT,
)


async def outcome(
    api: Api, *, dry_run: bool = False, ms: float = 300, held: bool = True, late: bool = False
) -> facts.SlaPodEvicted:
    seen = Seen()
    if held:
        seen.bound("job")
    seen.samples("edge", ms)
    clock = ManualClock(AT)
    clock.advance(61 if late else 1)
    order = facts.SlaEvictionOrdered(
        breach_id="b",
        pod=ref("job"),
        tier="batch",
        attempt=1,
        share=0.5,
        engine=ENGINE,
        deadline=AT + timedelta(seconds=60),
        dry_run=dry_run,
    )
    evictor = Evictor(
        api,  # type: ignore[arg-type] # the calls it makes
        seen.picture,
        clock,
        still_ours=lambda: None,
    )
    return await evictor.evict(order, BREACH, POLICY)


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (None, "gone"),
        (pod("job", uid="another"), "replaced"),
        (pod("job", deleting=True), "evicted"),
        (pod("job", phase="Succeeded"), "gone"),
        (pod("job", annotations={"media.example.com/eviction": "never"}), "withheld"),
    ],
)
async def test_what_the_world_says_already_is_the_outcome_and_nothing_is_asked(
    found: Pod | None, expected: str
) -> None:
    api = Api(found)
    assert (await outcome(api)).outcome == expected
    assert api.asked == 0


@pytest.mark.parametrize(
    ("how", "why"),
    [({"ms": 50}, "eased"), ({"held": False}, "no longer holds"), ({"late": True}, "too old")],
)
async def test_an_eviction_that_would_be_wrong_by_now_is_withheld(how: dict[str, Any], why: str) -> None:
    api = Api(pod("job"))
    said = await outcome(api, **how)
    assert said.outcome == "withheld"
    assert why in said.detail
    assert api.asked == 0


async def test_a_dry_run_stops_just_before_the_api() -> None:
    api = Api(pod("job"))
    assert (await outcome(api, dry_run=True)).outcome == "dry-run"
    assert api.asked == 0


async def test_an_eviction_stands_though_its_events_cannot_be_written() -> None:
    said = await outcome(Api(pod("job"), EvictionAnswer(201, EvictionOutcome.EVICTED)))
    assert (said.outcome, said.status) == ("evicted", 201)


async def test_a_refusal_is_an_outcome_with_its_time_and_throttling_is_none() -> None:
    blocked = EvictionAnswer(429, EvictionOutcome.BLOCKED, "pdb edge", 10.0)
    said = await outcome(Api(pod("job"), blocked))
    assert (said.outcome, said.status, said.detail) == ("blocked", 429, "pdb edge")
    assert said.retry_at == AT + timedelta(seconds=11)
    with pytest.raises(Temporary):
        await outcome(Api(pod("job"), EvictionAnswer(429, EvictionOutcome.THROTTLED, "later")))
