"""What a decider is: pure functions over one case, with nothing read but what is passed in.

A case is the fold of its log. One step appends one fact; what a decision needs from elsewhere is *gathered*
by the runner before it and copied into the fact that follows, so a fold needs only its own log. Things done
to the world are *effects*: they run only from an own fact, and their outcome is a fact again.

    heard event ──gather──> decide ──fact──> log ──evolve──> case ──next──> fact ... until quiescent
                                                               └──effects──> act ──outcome──> log
                                                               └──due──────> timer ──> next
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol, TypeVar

from shared.events import AnyEvent, Entity, Payload

CaseT = TypeVar("CaseT")
CaseT_contra = TypeVar("CaseT_contra", contravariant=True)
ContextT_co = TypeVar("ContextT_co", covariant=True)
ContextT_contra = TypeVar("ContextT_contra", contravariant=True)
PolicyT_contra = TypeVar("PolicyT_contra", contravariant=True)


@dataclass(frozen=True, slots=True)
class Effect:
    """Something to do to the world, ordered by an own fact that has no outcome yet.

    Attributes:
        key: unique within the case; the same order gives the same key, so it runs once at a time.
        ordered: the fact that ordered it.
        timeout_s: how long one try may take; it does not start with less lease left than this, so it must be
            shorter than the lease (5 s, renewed at two thirds of it).
        ready: False: ordered, but not to be started now (a person's hold); the outcome of one that is in
            flight already is recorded all the same.
    """

    key: str
    ordered: AnyEvent
    timeout_s: float = 2.0
    ready: bool = True


class Decider(Protocol[CaseT, ContextT_contra, PolicyT_contra]):
    """The pure heart of a deciding service.

    `ContextT_contra` is what the service gathers (a live look at pods, a view, a tier); `None` where nothing
    was gathered, as in replay of causes that need nothing.
    """

    @property
    def domain(self) -> str:
        """The domain of its logs."""
        ...

    def initial(self, of: Entity) -> CaseT:
        """The case of an empty log."""
        ...

    def evolve(self, case: CaseT, fact: AnyEvent, sequence: int) -> CaseT:
        """The case after one more fact of its log. Remembers the causes it has applied."""
        ...

    def decide(
        self,
        case: CaseT,
        cause: AnyEvent,
        context: ContextT_contra | None,
        now: datetime,
        policy: PolicyT_contra,
    ) -> Payload | None:
        """The fact that a heard event leads to; None when it changes nothing (also: applied before).

        Asked again after each fact with the same cause, until None: one cause may lead to several facts (a
        case is opened, then struck), and a crash between them is healed when the cause is redelivered.
        """
        ...

    def next(
        self, case: CaseT, context: ContextT_contra | None, now: datetime, policy: PolicyT_contra
    ) -> Payload | None:
        """The fact that follows from the case itself: its next step, or a passed deadline.

        Not asked before every input has reached its head, so a person's word that is still in a queue comes
        first. Fails safe on `context=None`.
        """
        ...

    def effects(self, case: CaseT) -> Sequence[Effect]:
        """What was ordered and has no outcome yet, in the order to do it."""
        ...

    def due(self, case: CaseT, policy: PolicyT_contra) -> datetime | None:
        """When `next` may have something to say although nothing is heard."""
        ...

    def closed(self, case: CaseT) -> bool:
        """Nothing is open: the case need not be in memory."""
        ...

    def snapshot(self, case: CaseT) -> Payload | None:
        """The fact (its name is `snapshotted`) that stands for the whole log, so that the rest may be purged.

        None while no fact could (a case is open), or while the log is not worth one.
        """
        ...


class Hands(Protocol[CaseT_contra, ContextT_co]):
    """What a service gives its decider: what it hears, what it reads, what it does.

    All methods but `act` are called inside the lane of the case; they must be quick when nothing is needed.
    """

    @property
    def hears(self) -> tuple[type[Payload], ...]:
        """The payload classes to subscribe to, own ones too."""
        ...

    def route(self, event: AnyEvent) -> Entity | None:
        """The case that an event concerns; None: it concerns no case (only `observe` sees it)."""
        ...

    def observe(self, event: AnyEvent) -> None:
        """Take note of a heard event outside any case (a heartbeat, a model), before its case does."""
        ...

    def correlation(self, of: Entity, fact: Payload) -> str:
        """The `correlationid` of an own fact: the case, as `domain:place/entity#epoch`."""
        ...

    async def gather(self, of: Entity, case: CaseT_contra, cause: AnyEvent | None) -> ContextT_co | None:
        """Read what the next decision of this case needs from elsewhere. `cause` None: for `next`."""
        ...

    async def act(self, effect: Effect, case: CaseT_contra) -> Payload:
        """Do it, idempotently, looking first, and return the outcome.

        Raises:
            Temporary: no outcome yet; tried again with backoff for as long as the case lists the effect.
        """
        ...

    def failed(self, effect: Effect, error: Exception) -> Payload:
        """The outcome of an effect whose `act` raised something else than `Temporary`."""
        ...

    def said(self, fact: AnyEvent, case: CaseT_contra) -> None:
        """An own fact was appended and folded: keep a view, wake somebody."""
        ...
