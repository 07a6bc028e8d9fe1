"""When alerts are raised and resolved, without a bus."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from services.alerting.decide import AlertCase, AlertDecider
from services.alerting.rules import SHIPPED, Rules, _rule, load
from shared.events import AnyEvent, Cause, Entity, Payload, event
from shared.events import remediation as care
from shared.events.device import Lost
from shared.events.workload import AlertRaised, AlertResolved, Breached
from shared.events.world import Heartbeat

AT = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
OF = Entity("alert", "n1", "remediation-d1")
RULES = load()
CROSS = Rules(
    (
        _rule(
            "cross",
            {
                "fact": "device.lost",
                "resolved_by": ["remediation.closed"],
                "key": "{about}",
                "again": True,
                "severity": "info",
                "summary": "s",
                "runbook": "r",
                "who": "w",
            },
            SHIPPED,
        ),
    )
)


def says(data: Payload, *, at: float = 0, epoch: int = 1) -> AnyEvent:
    time = AT + timedelta(seconds=at)
    cause = Cause(f"{data!r}{at}")
    return event(
        data, ("n1", "d1"), cause=cause, source="/t", at=time, correlationid=f"remediation:n1/d1#{epoch}"
    )


QUARANTINED = care.Quarantined(epoch=1, reason="r", deadline=AT)
READMITTED = care.Readmitted(epoch=1, after_s=1)
CLOSED = care.Closed(epoch=1, reason="r")
LOST = Lost(generation=1, reason="silent")


class Play:
    def __init__(self, rules: Rules = RULES) -> None:
        self.decider = AlertDecider()
        self.case = self.decider.initial(OF)
        self.rules = rules
        self.said: list[AnyEvent] = []

    def hears(self, cause: AnyEvent) -> list[str]:
        names = []
        while (fact := self.decider.decide(self.case, cause, None, AT, self.rules)) is not None:
            names.append(self.append(fact, Cause.of(cause), cause.time))
            assert len(names) < 10
        return names

    def append(self, fact: Payload, cause: Cause, at: datetime) -> str:
        made = event(fact, OF, cause=cause, source="/a", at=at)
        self.said.append(made)
        self.case = self.decider.evolve(self.case, made, len(self.said))
        return fact.kind.fact

    def waits(self, seconds: float) -> list[str]:
        now = AT + timedelta(seconds=seconds)
        names = []
        while (fact := self.decider.next(self.case, None, now, self.rules)) is not None:
            names.append(self.append(fact, Cause.of(self.said[-1]), now))
        return names


def test_a_case_is_alerted_once_and_ends_once() -> None:
    play = Play()
    assert play.hears(says(QUARANTINED)) == ["raised"]
    assert play.hears(says(QUARANTINED)) == []
    assert not play.decider.closed(play.case)
    assert play.hears(says(READMITTED)) == ["resolved"]
    assert play.hears(says(CLOSED)) == []
    assert play.hears(says(QUARANTINED, at=9)) == []
    assert play.decider.closed(play.case)
    assert play.hears(says(QUARANTINED, at=9, epoch=2)) == ["raised"]


def test_within_one_stream_a_resolve_without_a_raise_is_nothing() -> None:
    assert Play().hears(says(CLOSED)) == []


def test_one_end_may_resolve_several_alerts() -> None:
    play = Play()
    play.hears(says(QUARANTINED))
    play.hears(says(care.DrainStuck(epoch=1, evicted=(), left=())))
    assert play.hears(says(CLOSED, at=5)) == ["resolved", "resolved"]


def test_an_early_resolve_of_another_stream_waits_for_its_raise() -> None:
    play = Play(CROSS)
    assert play.hears(says(CLOSED, at=10)) == ["resolved"]
    first = play.said[0].data
    assert isinstance(first, AlertResolved)
    assert first.before_raise
    assert play.hears(says(LOST, at=5)) == []
    assert play.hears(says(LOST, at=15)) == ["raised"]
    assert play.hears(says(CLOSED, at=12)) == []
    assert play.hears(says(CLOSED, at=20)) == ["resolved"]


def test_a_lasting_state_ends_by_time_only_where_a_rule_says_so() -> None:
    play = Play()
    play.hears(says(QUARANTINED))
    assert play.decider.due(play.case, RULES) is None
    assert play.waits(1e6) == []
    breach = Breached.model_validate(
        {
            "breach_id": "b",
            "pod": {"namespace": "n", "name": "p", "uid": "u"},
            "workload": {"namespace": "n", "kind": "Deployment", "name": "w"},
            "target": 1,
            "observed": 2,
            "samples": [2],
            "attribution": {"verdict": "neighbour"},
        }
    )
    assert play.hears(says(breach)) == []


def test_time_ends_what_nothing_resolves() -> None:
    rule = CROSS.rules[0].model_copy(update={"resolve_after_s": 60.0, "resolved_by": ()})
    play = Play(Rules((rule,)))
    play.hears(says(LOST))
    assert play.decider.due(play.case, play.rules) == AT + timedelta(seconds=60)
    assert play.waits(59) == []
    assert play.waits(60) == ["resolved"]
    assert play.decider.due(play.case, play.rules) is None


def test_an_alert_whose_rule_is_gone_is_resolved() -> None:
    play = Play()
    play.hears(says(QUARANTINED))
    play.rules = Rules()
    assert play.decider.due(play.case, play.rules) is None
    assert play.waits(1) == ["resolved"]


def test_ended_alerts_are_forgotten_after_many_cases() -> None:
    play = Play()
    for epoch in range(1, 200):
        play.hears(says(QUARANTINED, at=epoch, epoch=epoch))
        play.hears(says(READMITTED, at=epoch, epoch=epoch))
    assert len(play.case.alerts) == 64


def test_what_is_no_alert_changes_nothing() -> None:
    decider, case = AlertDecider(), AlertCase(OF)
    beat = says(Heartbeat(boot_id="b", n=1, device_keys=(), journal_depth=0, journal_lost=0))
    assert decider.evolve(case, beat, 1) is case
    assert decider.effects(case) == ()
    assert decider.snapshot(case) is None


EVENTS = (
    says(QUARANTINED),
    says(READMITTED, at=10),
    says(CLOSED, at=20),
    says(care.DrainStuck(epoch=1, evicted=(), left=()), at=5),
    says(care.Drained(epoch=1, evicted=()), at=8),
    says(LOST, at=3),
)


@given(st.lists(st.sampled_from(EVENTS), max_size=30))
def test_whatever_the_order_no_alert_is_open_twice_or_resolved_twice(heard: list[AnyEvent]) -> None:
    play = Play()
    for one in heard:
        play.hears(one)
        assert play.hears(one) == []
    open_: set[str] = set()
    for said in play.said:
        if isinstance(said.data, AlertRaised):
            assert said.data.alert_id not in open_
            open_.add(said.data.alert_id)
        elif isinstance(said.data, AlertResolved):
            assert said.data.alert_id in open_
            open_.discard(said.data.alert_id)
    assert {a.id for a in play.case.alerts.values() if a.open} == open_
