"""Who makes a pod slow, and who would have to go."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.guardian.attribution import Engine, Holder, Scene, attribute, candidates, contended
from services.guardian.policy import GuardianPolicy
from services.guardian.readings import Reading
from shared.events.parts import PodRef, WorkloadRef

POLICY = GuardianPolicy()
SLOW = Reading(200.0, (200.0, 200.0, 200.0), breached=True, recovered=False)
EDGE = WorkloadRef(namespace="live", kind="Deployment", name="edge")


def pod(name: str) -> PodRef:
    return PodRef(namespace="live", name=name, uid=f"u-{name}")


def holder(name: str, slots: int = 1, **more: object) -> Holder:
    made = Holder(pod(name), slots, tier="batch", tenant="t1", age_s=600.0)
    return replace(made, **more)  # type: ignore[arg-type] # fields of a holder


def scene(*others: Holder, mine: int = 1, **more: object) -> Scene:
    made = Scene(pod("edge"), "n1", workload=EDGE, engines=(Engine("d1", "d1-enc-0", mine, others),))
    return replace(made, **more)  # type: ignore[arg-type] # fields of a scene


def names(*others: Holder, at: Scene | None = None, needed: float = 0.5) -> list[str]:
    at = at or scene(*others)
    order = candidates(at, at.engines[0], needed, POLICY)
    return [c.pod.name for c in order if not c.excluded]


def test_a_sick_device_comes_before_every_other_reason() -> None:
    verdict, found = attribute(scene(holder("a"), faults={"d1": "case"}), SLOW, 100, POLICY)
    assert verdict.verdict == "device-fault"
    assert verdict.reasons == ("d1: case",)
    assert found == ()


def test_others_on_the_same_engine_are_neighbours_by_inference() -> None:
    verdict, found = attribute(scene(holder("a", 3)), SLOW, 100, POLICY)
    assert (verdict.verdict, verdict.device, verdict.engine) == ("neighbour", "d1", "d1-enc-0")
    assert [(c.share, c.measured) for c in found] == [(0.75, False)]


def test_a_holder_that_is_gone_loads_nothing() -> None:
    ghost = holder("ghost", 8, live=False)
    assert attribute(scene(ghost), SLOW, 100, POLICY)[0].verdict == "unknown"
    _, found = attribute(scene(ghost, holder("a")), SLOW, 100, POLICY)
    assert [(c.pod.name, c.share) for c in found] == [("a", 0.5), ("ghost", 0.0)]


def test_own_requests_that_grew_are_the_pods_own_doing_even_with_neighbours() -> None:
    grown = replace(SLOW, rate_growth=2.0)
    assert attribute(scene(holder("a")), grown, 100, POLICY)[0].verdict == "self"


def test_a_queue_that_grows_beside_idle_neighbours_is_the_pods_own_doing() -> None:
    grown = replace(SLOW, queue_growth=2.0)
    idle = scene(holder("a", 1), mine=99)
    assert attribute(idle, grown, 100, POLICY)[0].verdict == "self"
    assert attribute(scene(holder("a")), grown, 100, POLICY)[0].verdict == "neighbour"


def test_what_nothing_explains_is_unknown() -> None:
    assert attribute(scene(), SLOW, 100, POLICY)[0].verdict == "unknown"
    nowhere = scene(engines=())
    verdict = attribute(nowhere, SLOW, 100, POLICY)[0]
    assert (verdict.verdict, verdict.engine) == ("unknown", None)
    assert contended(()) is None


def test_the_contended_engine_is_the_one_of_which_others_hold_most() -> None:
    engines = (Engine("d1", "e0", 1, (holder("a"),)), Engine("d1", "e1", 1, (holder("b", 4),)))
    found = contended(engines)
    assert found is not None
    assert found.engine == "e1"


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"live": False}, "not known"),
        ({"deleting": True}, "terminating"),
        ({"tier": "online"}, "tier online"),
        ({"tier": ""}, "tier unknown"),
        ({"opted_out": True}, "opted out"),
        ({"workload": EDGE}, "same workload"),
        ({"priority": 5}, "priority"),
        ({"age_s": 59.0}, "younger"),
        ({"age_s": None}, "younger"),
    ],
)
def test_who_may_not_be_evicted_is_listed_with_the_reason(more: dict[str, object], why: str) -> None:
    at = scene(replace(holder("a"), **more))  # type: ignore[arg-type] # fields of a holder
    (candidate,) = candidates(at, at.engines[0], 0.5, POLICY)
    assert why in candidate.excluded


def test_priority_must_lie_below_unless_nobody_has_one() -> None:
    at = scene(holder("a", priority=5), priority=5)
    assert names(at=at) == []
    assert names(at=scene(holder("a", priority=4), priority=5)) == ["a"]
    assert names(at=scene(holder("a"))) == ["a"]


def test_a_holder_of_next_to_nothing_is_left() -> None:
    at = scene(holder("a", 1), holder("b", 60))
    assert names(at=at) == ["b"]


def test_besteffort_goes_first_then_the_smallest_share_that_suffices() -> None:
    batch = [holder("small", 1), holder("right", 5), holder("huge", 8)]
    assert names(*batch, needed=0.3) == ["right", "huge", "small"]
    spare = holder("spare", 1, tier="besteffort")
    assert names(*batch, spare, needed=0.3)[0] == "spare"


def test_where_none_suffices_the_largest_goes_first() -> None:
    assert names(holder("a", 1), holder("b", 2), needed=0.99) == ["b", "a"]


def test_a_tenant_over_its_fair_share_goes_before_others() -> None:
    greedy = [holder(f"g{n}", 2, tenant="greedy") for n in range(3)]
    modest = holder("modest", 2, tenant="modest", priority=-5)
    assert names(modest, *greedy)[-1] == "modest"


def test_lower_priority_and_then_the_newest_go_first() -> None:
    assert names(holder("a", priority=-1), holder("b", priority=-9)) == ["b", "a"]
    assert names(holder("old", age_s=900.0), holder("new", age_s=90.0)) == ["new", "old"]


@given(
    st.lists(
        st.builds(
            holder,
            st.uuids().map(str),
            st.integers(1, 8),
            tier=st.sampled_from(["batch", "besteffort", "online", ""]),
            priority=st.integers(-3, 3),
            deleting=st.booleans(),
            opted_out=st.booleans(),
            live=st.booleans(),
        ),
        max_size=8,
    ),
    st.integers(-3, 3),
)
def test_nobody_protected_is_ever_a_candidate(others: list[Holder], priority: int) -> None:
    verdict, found = attribute(scene(*others, priority=priority), SLOW, 100, POLICY)
    by_uid = {h.pod.uid: h for h in others}
    assert {c.pod.uid for c in found} <= set(by_uid)
    assert verdict.verdict == "neighbour" or not found
    for candidate in found:
        one = by_uid[candidate.pod.uid]
        if not candidate.excluded:
            assert one.tier in ("batch", "besteffort")
            assert one.priority < priority or one.priority == priority == 0
            assert one.live
            assert not one.deleting
            assert not one.opted_out
