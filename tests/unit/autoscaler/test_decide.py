"""What the autoscaler decides, without a bus."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.autoscaler import lease
from services.autoscaler.decide import AutoscalerDecider, Floor, Observed, ScaleCase
from services.autoscaler.policy import AutoscalerPolicy
from shared.events import AnyEvent, Cause, Entity, Payload, event
from shared.events import workload as facts
from shared.events.parts import PodRef, WorkloadRef
from shared.events.remediation import HoldRequested, ReleaseRequested, ReplacementRequested
from shared.events.world import Heartbeat

AT = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
OF = Entity("scale", "live", "deployment-edge")
EDGE = WorkloadRef(namespace="live", kind="Deployment", name="edge")
POLICY = AutoscalerPolicy()


def says(data: Payload, of: Entity = OF, cause: Cause | None = None, at: datetime = AT) -> AnyEvent:
    return event(data, of, cause=cause or Cause(repr(data)), source="/t", at=at)


class Play:
    """One case and a world that does what is ordered."""

    def __init__(self, *, hpa: bool = False, replicas: int = 2, high: int = 10) -> None:
        self.decider = AutoscalerDecider()
        self.case: ScaleCase = self.decider.initial(OF)
        self.level, self.high, self.hpa = replicas, high, hpa
        self.now = AT
        self.log: list[AnyEvent] = []

    def seen(self) -> Observed:
        floors = (Floor("h", self.level, self.high),) if self.hpa else ()
        return Observed(EDGE, self.level, floors)

    def append(self, fact: Payload, cause: Cause) -> Payload:
        made = says(fact, cause=cause, at=self.now)
        self.log.append(made)
        self.case = self.decider.evolve(self.case, made, len(self.log))
        return fact

    def hears(self, cause: AnyEvent) -> Payload | None:
        fact = self.decider.decide(self.case, cause, self.seen(), self.now, POLICY)
        return None if fact is None else self.append(fact, Cause.of(cause))

    def asks(self, request_id: str, wanted: int, for_s: float = 60) -> Payload | None:
        data = facts.ScaleRequested(
            breach_id="b",
            request_id=request_id,
            workload=EDGE,
            reason="r",
            min_replicas=wanted,
            until=self.now + timedelta(seconds=for_s),
        )
        return self.hears(says(data, Entity("sla", "live", "deployment-edge"), at=self.now))

    def goes_on(self) -> None:
        while (fact := self.decider.next(self.case, self.seen(), self.now, POLICY)) is not None:
            self.append(fact, Cause.of(self.log[-1]) if self.log else Cause("s"))

    def acts(self) -> None:
        """Carry out every order as the world would, then go on."""
        self.goes_on()
        while effects := self.decider.effects(self.case):
            assert effects[0].ready == (self.case.held is None)
            if not effects[0].ready:
                return
            order = effects[0].ordered.data
            assert isinstance(order, facts.ScaleOrdered)
            cause = Cause.of(effects[0].ordered)
            if order.mode == "restore":
                if self.level == order.from_:
                    self.level = order.to
                said: Payload = facts.ScaleExpired(request_id=order.request_id, n=order.n)
            else:
                self.level = max(self.level, order.to)
                said = facts.ScaleApplied(
                    request_id=order.request_id,
                    n=order.n,
                    workload=EDGE,
                    from_=order.from_,
                    to=order.to,
                    mode=order.mode,
                    by=order.by,
                )
            self.append(said, cause)
            self.goes_on()

    def passes(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)
        self.acts()


def test_a_request_is_served_once() -> None:
    play = Play()
    assert isinstance(play.asks("r", 4), facts.ScaleOrdered)
    assert play.asks("r", 4) is None
    play.acts()
    assert play.asks("r", 4) is None
    assert play.level == 4
    assert play.decider.due(play.case, POLICY) == AT + timedelta(seconds=60)
    play.passes(60)
    assert play.level == 2
    assert play.decider.closed(play.case)
    assert play.asks("r", 4) is None


def test_nothing_is_answered_before_the_workload_was_seen() -> None:
    play = Play()
    data = facts.ScaleRequested(
        breach_id="b", request_id="r", workload=EDGE, reason="r", min_replicas=3, until=AT + timedelta(1)
    )
    assert play.decider.decide(play.case, says(data), None, AT, POLICY) is None


def test_a_longing_for_ever_is_cut_to_the_longest_lease() -> None:
    play = Play()
    ordered = play.asks("r", 3, for_s=1e6)
    assert isinstance(ordered, facts.ScaleOrdered)
    assert ordered.until == AT + timedelta(seconds=POLICY.longest_lease_s)


def test_a_floor_that_a_person_moved_meanwhile_is_what_is_given_back() -> None:
    play = Play(hpa=True)
    play.asks("r1", 4, for_s=60)
    play.acts()
    play.level = 5
    ordered = play.asks("r2", 7, for_s=120)
    assert isinstance(ordered, facts.ScaleOrdered)
    assert ordered.restore_to == 5


def test_orders_wait_for_each_other_and_a_hold_stops_them() -> None:
    play = Play()
    play.asks("r1", 3)
    play.asks("r2", 5)
    assert [e.key for e in play.decider.effects(play.case)] == ["r1:1"]
    assert play.decider.due(play.case, POLICY) is None
    play.hears(says(HoldRequested(request_id="h", owner="ann", reason="x", until=AT + timedelta(seconds=90))))
    play.acts()
    assert play.level == 2
    assert isinstance(play.asks("r3", 9), facts.ScaleRefused)
    assert play.decider.due(play.case, POLICY) == AT + timedelta(seconds=90)
    play.hears(says(ReleaseRequested(request_id="x", owner="ann", reason="x")))
    play.acts()
    assert play.level == 5


def test_an_orphaned_lease_is_given_back_only_when_it_is_over() -> None:
    play = Play(hpa=True)
    stands = lease.lease(1, 2, AT + timedelta(seconds=10), "lost")
    look = replace(play.seen(), floors=(Floor("h", 2, 10, stands),))
    assert play.decider.next(play.case, look, AT, POLICY) is None
    fact = play.decider.next(play.case, look, AT + timedelta(seconds=10), POLICY)
    assert isinstance(fact, facts.ScaleOrdered)
    assert (fact.mode, fact.to, fact.from_) == ("restore", 1, 2)
    assert play.decider.next(play.case, None, AT, POLICY) is None


def test_a_refused_order_leaves_nothing_behind() -> None:
    play = Play()
    play.asks("r", 4)
    play.append(facts.ScaleRefused(request_id="r", reason="403", by="x"), Cause("x"))
    assert play.decider.closed(play.case)
    assert play.case.base is None


def test_foreign_facts_change_nothing_and_a_snapshot_keeps_the_answers() -> None:
    play = Play()
    beat = says(
        Heartbeat(boot_id="b", n=1, device_keys=(), journal_depth=0, journal_lost=0), Entity("node", "n", "a")
    )
    assert play.hears(beat) is None
    assert play.decider.evolve(play.case, beat, 1).lifts == ()
    assert play.decider.snapshot(play.case) is None
    for n in range(5):
        play.asks(f"r{n}", 3)
        play.passes(61)
    snapshot = play.decider.snapshot(play.case)
    assert isinstance(snapshot, facts.ScaleSnapshotted)
    again = play.decider.evolve(play.decider.initial(OF), says(snapshot), 1)
    assert (again.seen, again.applied) == (play.case.seen, play.case.applied)
    assert play.decider.snapshot(again) is None
    play.asks("r9", 3)
    assert play.decider.snapshot(play.case) is None, "what is lifted is open"


@pytest.mark.parametrize("text", ["", "{}", "[1]", "not json", '{"before": "x"}'])
def test_a_note_that_somebody_broke_is_no_lease(text: str) -> None:
    assert lease.read(text) is None
    assert lease.read(None) is None


@settings(max_examples=150, deadline=None)
@given(
    st.booleans(),
    st.lists(
        st.one_of(
            st.tuples(st.just("ask"), st.integers(1, 14), st.integers(1, 200)),
            st.tuples(st.just("wait"), st.integers(0, 150), st.just(0)),
            st.tuples(st.just("act"), st.just(0), st.just(0)),
        ),
        max_size=25,
    ),
)
def test_a_level_is_never_above_the_maximum_and_always_comes_back(
    hpa: bool,  # noqa: FBT001 - hypothesis calls it
    steps: list[tuple[str, int, int]],
) -> None:
    play = Play(hpa=hpa, high=10)
    for n, (what, amount, for_s) in enumerate(steps):
        if what == "ask":
            play.asks(f"r{n}", amount, for_s)
        elif what == "wait":
            play.passes(amount)
        else:
            play.acts()
        assert play.level <= (10 if hpa else POLICY.max_replicas)
        assert play.level >= 2
    play.passes(POLICY.longest_lease_s)
    play.passes(POLICY.longest_lease_s)
    assert play.level == 2
    assert play.decider.closed(play.case)
    assert len({e.id for e in play.log}) == len(play.log)
    again = play.decider.initial(OF)
    for sequence, fact in enumerate(play.log, 1):
        again = play.decider.evolve(again, fact, sequence)
    assert again == play.case


def refused(
    play: Play, seen: Observed, *, wanted: int = 4, until_s: float = 60, policy: AutoscalerPolicy = POLICY
) -> str:
    data = facts.ScaleRequested(
        breach_id="b",
        request_id="r",
        workload=EDGE,
        reason="r",
        min_replicas=wanted,
        until=AT + timedelta(seconds=until_s),
    )
    fact = play.decider.decide(play.case, says(data), seen, AT, policy)
    assert isinstance(fact, facts.ScaleRefused)
    return fact.reason


def test_what_cannot_be_served_is_refused_with_the_reason() -> None:
    play = Play()
    seen = play.seen()
    two = (Floor("one", 1, 5), Floor("two", 1, 5))
    assert "too late" in refused(play, seen, until_s=0)
    assert "gone or cannot be scaled" in refused(play, replace(seen, replicas=None))
    assert "more than one HPA" in refused(play, replace(seen, floors=two))
    full = replace(seen, floors=(Floor("one", 3, 3),))
    assert "3 replicas are the most allowed, 4 were wanted" in refused(play, full)
    assert "dry-run" in refused(play, seen, policy=AutoscalerPolicy(dry_run=True))


def test_enough_is_applied_at_once_and_lifts_nothing() -> None:
    play = Play(replicas=6)
    assert isinstance(play.asks("r", 4), facts.ScaleApplied)
    assert play.decider.closed(play.case)


def test_a_replacement_is_one_more_than_what_stands_or_is_on_its_way() -> None:
    play = Play()
    for n, to in ((1, 3), (2, 4)):
        data = ReplacementRequested(
            epoch=1,
            request_id=f"r{n}",
            pod=PodRef(namespace="live", name="p", uid=f"u{n}"),
            workload=EDGE,
            until=AT + timedelta(seconds=60),
        )
        ordered = play.hears(says(data, Entity("remediation", "n1", "d1")))
        assert isinstance(ordered, facts.ScaleOrdered)
        assert ordered.to == to


def test_a_hold_ends_by_itself_when_its_time_is_over() -> None:
    play = Play()
    until = AT + timedelta(seconds=5)
    play.hears(says(HoldRequested(request_id="h", owner="ann", reason="x", until=until)))
    assert play.case.held is not None
    play.passes(5)
    assert play.case.held is None


def test_a_note_can_be_read_back() -> None:
    made = lease.lease(1, 3, AT, "r")
    assert lease.read(made.text()) == made
