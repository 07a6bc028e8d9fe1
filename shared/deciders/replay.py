"""Run a decider with another policy over recorded events, and say what would differ.

The engine is pure: it hears recorded events in the order of their time, folds the logs that come of them,
fires deadlines at their time, and takes the outcome of effects from the caller (what was recorded, or an
assumption). Own facts are heard by the decider itself as on the bus. Nothing is published, nothing is done.

    report = await replay(bus, decider, script, policy, types=hears, place="worker-3")
    for difference in report.differences: ...
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Generic, Literal, Protocol, TypeVar

from shared.bus.past import SNAPSHOT, past
from shared.bus.port import Bus
from shared.deciders.protocol import Decider, Effect
from shared.events import AnyEvent, Cause, Entity, Payload, Unknown, event

CaseT = TypeVar("CaseT")
CaseT_contra = TypeVar("CaseT_contra", contravariant=True)
ContextT = TypeVar("ContextT")
ContextT_co = TypeVar("ContextT_co", covariant=True)
PolicyT = TypeVar("PolicyT")

_MOST_FACTS = 256
_WAIT, _SOON, _LONGER_WAIT = timedelta(seconds=1), timedelta(minutes=10), timedelta(seconds=10)
"""A passed deadline that leads to nothing yet is asked again every second, as live; later not so often."""
_SOURCE = "/mediafleet/replay"


class Script(Protocol[CaseT_contra, ContextT_co]):
    """What replay needs besides the decider: the pure part of a service's hands."""

    def route(self, event: AnyEvent) -> Entity | None:
        """As in `Hands`."""
        ...

    def observe(self, event: AnyEvent, now: datetime) -> None:
        """As in `Hands`, at the time of the event."""
        ...

    def context(
        self, of: Entity, case: CaseT_contra, cause: AnyEvent | None, now: datetime
    ) -> ContextT_co | None:
        """What would have been gathered."""
        ...

    def outcome(self, effect: Effect, case: CaseT_contra, now: datetime) -> Payload | None:
        """What would have become of an effect; None: it gave no outcome."""
        ...


@dataclass(frozen=True, slots=True)
class Difference:
    """One fact that another policy would add, leave out, or say differently.

    Attributes:
        of: whose log.
        kind: added, missing or changed.
        fact: its name, `quarantined`.
        n: which one of that name in the log, from 1.
        recorded: what was said; None when added.
        replayed: what would be said; None when missing.
    """

    of: Entity
    kind: Literal["added", "missing", "changed"]
    fact: str
    n: int
    recorded: AnyEvent | None
    replayed: AnyEvent | None


@dataclass(frozen=True, slots=True)
class Report:
    """What a replay found.

    Attributes:
        heard: recorded events that were fed.
        recorded: own facts that were said.
        replayed: own facts that would be said, by log.
        differences: in the order of logs and time.
    """

    heard: int
    recorded: int
    replayed: Mapping[Entity, Sequence[AnyEvent]]
    differences: tuple[Difference, ...]


class Engine(Generic[CaseT, ContextT, PolicyT]):
    """The decider over logs in memory, on the time of the events."""

    def __init__(
        self,
        decider: Decider[CaseT, ContextT, PolicyT],
        script: Script[CaseT, ContextT],
        policy: PolicyT,
        *,
        source: str = _SOURCE,
        on_fact: Callable[[AnyEvent, CaseT], None] | None = None,
    ) -> None:
        """Args: on_fact: told of every own fact with the case after it (tests check invariants there)."""
        self._decider = decider
        self._script = script
        self._policy = policy
        self._source = source
        self._on_fact = on_fact
        self.logs: dict[Entity, list[AnyEvent]] = {}
        self.cases: dict[Entity, CaseT] = {}
        self.policy = policy
        self._asked: dict[Entity, tuple[datetime, datetime]] = {}
        self._to_hear: deque[AnyEvent] = deque()
        self._sequence = 0

    def case(self, of: Entity) -> CaseT:
        """The case of a log."""
        if of not in self.cases:
            self.cases[of] = self._decider.initial(of)
        return self.cases[of]

    def hear(self, heard: AnyEvent, now: datetime) -> None:
        """One event, at its time, and all that follows at once."""
        self._to_hear.append(heard)
        while self._to_hear:
            one = self._to_hear.popleft()
            self._script.observe(one, now)
            of = self._script.route(one)
            if of is not None:
                self._exhaust(of, one, now)
                self.settle(of, now)

    def settle(self, of: Entity, now: datetime) -> None:
        """What follows from a case itself now, its effects included."""
        self._exhaust(of, None, now)
        tried: set[str] = set()
        while True:
            case = self.case(of)
            effect = next((e for e in self._decider.effects(case) if e.ready and e.key not in tried), None)
            if effect is None:
                break
            tried.add(effect.key)
            outcome = self._script.outcome(effect, case, now)
            if outcome is not None:
                self._append(of, outcome, Cause.of(effect.ordered), now)
                self._exhaust(of, None, now)
        self._asked.pop(of, None)

    def advance(self, until: datetime) -> None:
        """Fire every deadline up to a time."""
        while True:
            due = [(at, of) for of in list(self.cases) if (at := self._due(of)) is not None and at <= until]
            if not due:
                return
            at, of = min(due, key=lambda one: (one[0], one[1].about))
            said = len(self.logs.get(of, ()))
            _, since = self._asked.get(of, (at, at))
            self.settle(of, at)
            while self._to_hear:
                self.hear(self._to_hear.popleft(), at)
            if len(self.logs.get(of, ())) == said:
                wait = _WAIT if at - since < _SOON else _LONGER_WAIT
                self._asked[of] = (at + wait, since)

    def _due(self, of: Entity) -> datetime | None:
        at = self._decider.due(self.cases[of], self._policy)
        asked = self._asked.get(of)
        return at if at is None or asked is None else max(at, asked[0])

    def _exhaust(self, of: Entity, cause: AnyEvent | None, now: datetime) -> None:
        for _ in range(_MOST_FACTS):
            case = self.case(of)
            context = self._script.context(of, case, cause, now)
            if cause is None:
                fact = self._decider.next(case, context, now, self._policy)
            else:
                fact = self._decider.decide(case, cause, context, now, self._policy)
            if fact is None:
                return
            last = self.logs[of][-1] if self.logs.get(of) else None
            follows = Cause.of(last) if last is not None else Cause(f"start\n{of}")
            self._append(of, fact, follows if cause is None else Cause.of(cause), now)
        raise RuntimeError(f"{of}: more than {_MOST_FACTS} facts follow from one cause")

    def _append(self, of: Entity, fact: Payload, cause: Cause, now: datetime) -> None:
        said = event(fact, of, cause=cause, source=self._source, at=now)
        self._sequence += 1
        self.cases[of] = self._decider.evolve(self.case(of), said, self._sequence)
        self.logs.setdefault(of, []).append(said)
        self._to_hear.append(said)
        if self._on_fact is not None:
            self._on_fact(said, self.cases[of])


async def replay(
    bus: Bus,
    decider: Decider[CaseT, ContextT, PolicyT],
    script: Script[CaseT, ContextT],
    policy: PolicyT,
    *,
    types: Iterable[type[Payload]],
    place: str | None = None,
    until: datetime | None = None,
) -> Report:
    """Run a policy over what the streams hold, and the audit of logs that were compacted.

    Args:
        bus: read only.
        decider: the decider.
        script: routing, contexts and outcomes.
        policy: the policy to try.
        types: payload classes to feed, as in `Hands.hears`; those of the own domain come of the replay.
        place: only this node or namespace.
        until: deadlines are fired up to this time; the last event's when not given.
    """
    by_domain: dict[str, list[type[Payload]]] = {}
    for payload in types:
        by_domain.setdefault(payload.kind.domain, []).append(payload)
    by_domain[decider.domain] = []
    kept = await past(bus, {domain: tuple(wanted) for domain, wanted in by_domain.items()}, place=place)
    engine = Engine(decider, script, policy)
    heard = 0
    recorded: dict[Entity, list[AnyEvent]] = {}
    for found in kept:
        fact = found.event
        if isinstance(fact, Unknown) or fact.address.fact == SNAPSHOT:
            continue
        if fact.of.domain == decider.domain:
            recorded.setdefault(fact.of, []).append(fact)
        else:
            heard += 1
            engine.advance(found.stored_at)
            engine.hear(fact, found.stored_at)
    if until is not None:
        engine.advance(until)
    return Report(
        heard=heard,
        recorded=sum(len(facts) for facts in recorded.values()),
        replayed=engine.logs,
        differences=tuple(compare(recorded, engine.logs)),
    )


def compare(
    recorded: Mapping[Entity, Sequence[AnyEvent]], replayed: Mapping[Entity, Sequence[AnyEvent]]
) -> Iterable[Difference]:
    """The differences of logs: the n-th fact of each name is compared, times and ids are not."""
    for of in sorted({*recorded, *replayed}, key=str):
        before, after = _by_name(recorded.get(of, ())), _by_name(replayed.get(of, ()))
        for name in dict.fromkeys((*before, *after)):
            said, would = before.get(name, []), after.get(name, [])
            for n in range(max(len(said), len(would))):
                was = said[n] if n < len(said) else None
                will = would[n] if n < len(would) else None
                if was is None:
                    yield Difference(of, "added", name, n + 1, None, will)
                elif will is None:
                    yield Difference(of, "missing", name, n + 1, was, None)
                elif _essence(was.data) != _essence(will.data):
                    yield Difference(of, "changed", name, n + 1, was, will)


def _by_name(facts: Sequence[AnyEvent]) -> dict[str, list[AnyEvent]]:
    found: dict[str, list[AnyEvent]] = {}
    for fact in facts:
        found.setdefault(fact.data.kind.fact, []).append(fact)
    return found


def _essence(data: Payload) -> dict[str, object]:
    """A payload without what follows from the time of saying it, and without ids of causes."""
    return {
        name: value
        for name, value in data.model_dump(mode="json").items()
        if name
        not in {"deadline", "until", "retry_at", "cause_id", "freeze_id", "fenced_by", "after_s", "penalty"}
    }
