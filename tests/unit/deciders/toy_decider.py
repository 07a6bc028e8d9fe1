"""A small decider: a hold request opens a case, one effect follows, a release or a deadline closes it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta

from shared.deciders import Effect
from shared.events import AnyEvent, Cause, Entity, Event, Payload, event
from shared.events import remediation as say
from shared.events.parts import PodRef

START = datetime(2026, 3, 1, 12, tzinfo=UTC)
ONE = Entity("remediation", "n1", "nvidia-0000-01-00-0")
OTHER = Entity("remediation", "n1", "nvidia-0000-02-00-0")
POD = PodRef(namespace="a", name="b", uid="c")


@dataclass(frozen=True, slots=True)
class Toy:
    """What the toy remembers."""

    of: Entity
    facts: tuple[str, ...] = ()
    open: bool = False
    order: AnyEvent | None = None
    until: datetime | None = None
    applied: tuple[str, ...] = ()


@dataclass
class Rules:
    """The toy's policy."""

    wait_s: float = 60.0
    endless: bool = False
    breaks: bool = False
    effect: bool = True
    ready: bool = True
    timeout_s: float = 2.0
    snapshots: bool = False


class ToyDecider:
    """opened -> eviction-ordered -> (effect) pod-evicted -> closed."""

    domain = "remediation"

    def __init__(self, rules: Rules) -> None:
        self.rules = rules

    def initial(self, of: Entity) -> Toy:
        return Toy(of)

    def evolve(self, case: Toy, fact: AnyEvent, sequence: int) -> Toy:
        del sequence
        name = fact.data.kind.fact
        case = replace(case, facts=(*case.facts, name), applied=(*case.applied, fact.causationid or ""))
        match fact.data:
            case say.Opened():
                return replace(case, open=True, until=fact.time + timedelta(seconds=self.rules.wait_s))
            case say.EvictionOrdered():
                return replace(case, order=fact)
            case say.PodEvicted():
                return replace(case, order=None)
            case say.Closed():
                return replace(case, open=False, until=None, order=None)
            case say.RemediationSnapshotted():
                return Toy(case.of, facts=("snapshotted",))
        return case

    def decide(
        self, case: Toy, cause: AnyEvent, context: str | None, now: datetime, policy: Rules
    ) -> Payload | None:
        del context, now
        if policy.endless:
            return say.Cleared(epoch=1, streak=len(case.facts))
        if cause.id in case.applied:
            return None
        if isinstance(cause.data, say.HoldRequested) and not case.open:
            return say.Opened(epoch=1, state="suspect", reason="asked")
        if isinstance(cause.data, say.ReleaseRequested) and case.open:
            return say.Closed(epoch=1, reason="released")
        return None

    def next(self, case: Toy, context: str | None, now: datetime, policy: Rules) -> Payload | None:
        del context
        if policy.breaks and case.of == ONE:
            raise RuntimeError("a mistake in the decider")
        if not case.open:
            return None
        if policy.effect and "eviction-ordered" not in case.facts:
            return say.EvictionOrdered(epoch=1, pod=POD, attempt=1, deadline=now)
        if case.until is not None and now >= case.until:
            if case.facts[-1] == "deadline-passed":
                return say.Closed(epoch=1, reason="late")
            return say.DeadlinePassed(epoch=1, timer="wait", deadline=case.until, state="suspect")
        return None

    def effects(self, case: Toy) -> Sequence[Effect]:
        if case.order is None:
            return ()
        return (Effect("evict", case.order, self.rules.timeout_s, ready=self.rules.ready),)

    def due(self, case: Toy, policy: Rules) -> datetime | None:
        del policy
        return case.until

    def closed(self, case: Toy) -> bool:
        return not case.open

    def snapshot(self, case: Toy) -> Payload | None:
        if not self.rules.snapshots or case.open or case.facts == ("snapshotted",):
            return None
        return say.RemediationSnapshotted(epoch=1, state={})


@dataclass
class ToyHands:
    """The toy's service."""

    acts: list[str] = field(default_factory=list)
    answers: list[Exception | str] = field(default_factory=list)
    said_facts: list[AnyEvent] = field(default_factory=list)
    observed: list[AnyEvent] = field(default_factory=list)
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    gather_fails: list[Exception] = field(default_factory=list)

    hears: tuple[type[Payload], ...] = (say.HoldRequested, say.ReleaseRequested)

    def route(self, heard: AnyEvent) -> Entity | None:
        return None if heard.of.place == "nobody" else Entity("remediation", heard.of.place, heard.of.entity)

    def observe(self, heard: AnyEvent) -> None:
        self.observed.append(heard)

    def correlation(self, of: Entity, fact: Payload) -> str:
        del fact
        return f"remediation:{of.about}#1"

    async def gather(self, of: Entity, case: Toy, cause: AnyEvent | None) -> str | None:
        del of, case, cause
        if self.gather_fails:
            raise self.gather_fails.pop(0)
        return None

    async def act(self, effect: Effect, case: Toy) -> Payload:
        del case
        self.acts.append(effect.key)
        answer = self.answers.pop(0) if self.answers else "evicted"
        if isinstance(answer, Exception):
            raise answer
        if answer == "hang":
            await asyncio.Event().wait()
        return say.PodEvicted(epoch=1, pod=POD, attempt=1, outcome=answer)

    def failed(self, effect: Effect, error: Exception) -> Payload:
        del effect
        return say.PodEvicted(epoch=1, pod=POD, attempt=1, outcome="failed", detail=str(error))

    def said(self, fact: AnyEvent, case: Toy) -> None:
        del case
        self.said_facts.append(fact)
        self.changed.set()

    def names(self, of: Entity = ONE) -> list[str]:
        return [fact.data.kind.fact for fact in self.said_facts if fact.of == of]


def hold(n: int = 1, of: Entity = ONE) -> Event[say.HoldRequested]:
    data = say.HoldRequested(request_id=f"r{n}", owner="ann", reason="x")
    return event(data, (of.place, of.entity), cause=Cause.source("t", n), source="/t", at=START)


def release(n: int = 2, of: Entity = ONE) -> Event[say.ReleaseRequested]:
    data = say.ReleaseRequested(request_id=f"r{n}", owner="ann", reason="x")
    return event(data, (of.place, of.entity), cause=Cause.source("t", n), source="/t", at=START)
