"""The port of the bus: all that a service may do with it, whatever carries the events.

Two implementations answer alike, held together by one contract suite: NATS JetStream (`shared.bus.nats`) and
memory (`shared.bus.memory`).

*Publish* states a fact; the same id within the server's window is stored once. *Append* adds to a case log
and holds only when the log still stands where the caller read it, else `Conflict`. *Consume* hands events to
keyed lanes: one lane per key, serial inside, gated by stream sequence. A handler returns (ack), raises
`Temporary` (tried again inside its lane, order kept) or raises anything else (dead letter, nothing dropped
silently).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from datetime import datetime
from typing import Generic, Protocol, TypeVar

from pydantic import BaseModel

from shared.errors import FleetError
from shared.events import AnyEvent, Entity, Payload, Unknown

ValueT = TypeVar("ValueT", bound=BaseModel)


class LeaseLost(FleetError):  # noqa: N818 - says what happened; its holder must stop
    """The lease ran out or another took it: nothing more may be done in its name."""


class Disconnected(FleetError):  # noqa: N818 - a state of the bus, not a mistake
    """The bus is not reachable now; what was asked may have been done, so ask again with the same id."""


@dataclass(frozen=True, slots=True)
class Stored:
    """A publish that the server answered.

    Attributes:
        sequence: of the stream; of the first copy when `duplicate`.
        duplicate: the id was stored before, within the server's window.
    """

    sequence: int
    duplicate: bool


@dataclass(frozen=True, slots=True)
class Recorded:
    """One event as a stream holds it."""

    event: AnyEvent | Unknown
    sequence: int
    stored_at: datetime


@dataclass(frozen=True, slots=True)
class Delivery:
    """One event as a handler gets it.

    Attributes:
        event: decoded, and checked against its subject.
        stream: the stream's name.
        sequence: its place in the stream.
        stored_at: when the server stored it, UTC.
        stream_created: when the stream was made, UTC; with `sequence` the origin of what is made from it.
        attempt: 1 for the first try of this process; grows with every `Temporary`.
    """

    event: AnyEvent
    stream: str
    sequence: int
    stored_at: datetime
    stream_created: datetime
    attempt: int = 1

    @property
    def origin(self) -> Origin:
        """What a view's value made from this event carries."""
        return Origin(self.stream_created, self.sequence)


Handler = Callable[[Delivery], Awaitable[None]]


def by_entity(event: AnyEvent) -> str:
    """The usual lane: `place/entity`, one per device or workload."""
    return event.subject


@dataclass(frozen=True, slots=True)
class Subscription:
    """What one handler hears of one domain.

    Attributes:
        domain: the domain, and so the stream.
        types: the payload classes wanted; the server filters by them.
        handle: called once per event, serially within a lane.
        key: event to lane. Subscriptions of one `consume` share their lanes.
        place: only this place (node services must give theirs: their credentials allow no other).
        history: True: from the oldest event kept; False: only what comes after the consumer was made.
        ack_wait_s: the server redelivers after this long without a sign; signs are given every third of it.
        max_ack_pending: events held (queued or in work) at once.
        attempts: tries until a `Temporary` becomes permanent.
        give_up_after_s: time until a `Temporary` becomes permanent.
    """

    domain: str
    types: tuple[type[Payload], ...]
    handle: Handler
    key: Callable[[AnyEvent], str] = by_entity
    place: str | None = None
    history: bool = True
    ack_wait_s: float = 30.0
    max_ack_pending: int = 1000
    attempts: int = 20
    give_up_after_s: float = 600.0


class Lease(Protocol):
    """The right to be the one active replica, while it lasts."""

    @property
    def name(self) -> str:
        """What it is a lease of."""
        ...

    @property
    def number(self) -> int:
        """Grows with every holder; durables are marked with it."""
        ...

    def remaining_s(self) -> float:
        """Seconds left, counted from before the last renewal was sent; an effect needs its timeout of it."""
        ...

    async def lost(self) -> None:
        """Return when it is no longer ours."""
        ...


class Consumption(Protocol):
    """A running consumption of several subscriptions over one set of lanes."""

    @property
    def caught_up(self) -> bool:
        """Every input has reached its head as of the last (re)connect or takeover: effects may run.

        Each message up to there was handled, or tried once: one that waits for another try holds up no other.
        """
        ...

    async def until_caught_up(self) -> None:
        """Return when `caught_up`; raises what ended the consumption before."""
        ...

    @property
    def listening_since_s(self) -> float:
        """Monotonic time since when we hear without a break; silence before it says nothing."""
        ...

    def submit(self, key: str, job: Callable[[], Awaitable[None]]) -> None:
        """Run a job (a timer, an outcome) in the lane of `key`, after what is queued there.

        `Temporary` is retried as for a delivery; any other error ends the consumption with it.
        """
        ...

    async def wait(self) -> None:
        """Until it ends; raises what ended it (`LeaseLost`, a deleted consumer, a job's error)."""
        ...


@dataclass(frozen=True, slots=True)
class Origin:
    """What a view's value was made from; older ones are ignored.

    Attributes:
        created: when the stream was made: a rebuilt stream counts from 1 again and is newer all the same.
        sequence: of the event in that stream.
    """

    created: datetime
    sequence: int


@dataclass(frozen=True, slots=True)
class Entry(Generic[ValueT]):
    """One value of a view.

    Attributes:
        value: None when it was deleted (a tombstone: the deletion has an origin too).
        revision: for the next compare-and-set.
    """

    key: str
    value: ValueT | None
    revision: int
    origin: Origin | None = None


class View(Protocol[ValueT]):
    """A key-value view: a hint, made from events, that its writer can rebuild."""

    async def get(self, key: str) -> Entry[ValueT] | None:
        """The value of a key; None when it never had one. A tombstone is an entry with value None."""
        ...

    async def put(
        self, key: str, value: ValueT | None, *, origin: Origin | None = None, expected: int | None = None
    ) -> int | None:
        """Write a value (None: a tombstone) and return its revision.

        Args:
            key: any text; escaped as in subjects.
            value: the value.
            origin: what it was made from; when the stored one is newer nothing is written, and None returned.
            expected: revision that must still stand (0: no value yet).

        Raises:
            Conflict: another revision stands.
        """
        ...

    async def all(self) -> Mapping[str, Entry[ValueT]]:
        """Every key that has a value now."""
        ...

    def watch(self) -> AsyncIterator[Entry[ValueT] | None]:
        """Every key's last entry, then None once, then every change; goes on across a server restart."""
        ...


class Bus(Protocol):
    """The bus. Every call has a deadline; `Disconnected` means ask again."""

    @property
    def connected(self) -> bool:
        """Whether the connection is up."""
        ...

    async def ping(self) -> float:
        """A round trip through JetStream, in seconds.

        Raises:
            Disconnected: no answer within 2 s.
        """
        ...

    async def publish(self, event: AnyEvent) -> Stored:
        """State a fact, with its id as dedup key; a timed-out try is repeated with the same id.

        Raises:
            Disconnected: no answer within the deadline; it may be stored.
            Temporary: the stream is full.
            Permanent: the server refuses it for good (permissions, size), or another body has the same id.
        """
        ...

    async def append(self, event: AnyEvent, expected: int) -> int:
        """Add a fact to its entity's log and return its sequence.

        Args:
            event: its `of` names the log.
            expected: sequence of the log's last fact as the caller folded it; 0 for an empty log.

        Raises:
            Conflict: the log moved on. A retry of an own append that was stored is no conflict: it returns.
            Temporary: the log is full.
            Disconnected: no answer within the deadline; it may be stored.
        """
        ...

    def read(self, of: Entity, *, after: int = 0) -> AsyncIterator[Recorded]:
        """The log of one entity, in order, facts above `after`."""
        ...

    def history(
        self, domain: str, *, place: str | None = None, types: tuple[type[Payload], ...] = (), after: int = 0
    ) -> AsyncIterator[Recorded]:
        """What a domain's stream keeps, in order, up to its head at the time of the call."""
        ...

    async def last(self, of: Entity) -> Recorded | None:
        """The last fact of an entity's log."""
        ...

    async def audited(self, of: Entity, sequence: int) -> bool:
        """Whether the audit holds an entity's log up to a sequence, so that what lies below may be purged.

        A log that was purged, or made anew, since the audit took it is not held: the answer is no.
        """
        ...

    def audit(self, place: str, entity: str) -> AsyncIterator[Recorded]:
        """All that the audit holds about one entity, in every domain, in the order in which it came there.

        Sequences and times are the audit's. Measurements are never in it.
        """
        ...

    async def purge(self, of: Entity, *, below: int) -> None:
        """Forget an entity's facts with a sequence lower than `below` (after a snapshot)."""
        ...

    def lease(self, name: str) -> AbstractAsyncContextManager[Lease]:
        """Wait for the lease, hold and renew it while inside, release it at the end."""
        ...

    def consume(
        self, service: str, subscriptions: tuple[Subscription, ...], *, lease: Lease | None = None
    ) -> AbstractAsyncContextManager[Consumption]:
        """Hear these subscriptions while inside; leaving stops pulling and finishes lanes within a deadline.

        Args:
            service: who consumes; names the durable, the metrics and the dead letters.
            subscriptions: at most one per domain.
            lease: given, the consumers are durable and numbered by it; else ephemeral, from history each
                time.
        """
        ...

    def view(self, name: str, value: type[ValueT]) -> View[ValueT]:
        """The view of that name, holding values of that model."""
        ...
