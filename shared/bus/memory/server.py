"""The in-memory server: what outlives every process that talks to it.

One `MemoryServer` stands for one nats-server; each simulated process gets a `MemoryBus` of it. All time comes
from the clock passed in, which must follow the running loop (`SystemClock`, also on a virtual loop).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from shared.bus.memory.consumer import Consumer
from shared.bus.memory.faults import Faults
from shared.bus.memory.stream import Message, Stream, empty
from shared.bus.port import Origin
from shared.clock import Clock
from shared.errors import BadInput, Conflict
from shared.events import DOMAINS, Keeps

DUPLICATE_WINDOW_S = 120.0
"""As provisioned: the server's default."""
LEASE_TTL_S = 5.0
"""A holder that is silent for so long has lost its lease."""


@dataclass(slots=True)
class Seat:
    """A lease as the server keeps it."""

    number: int = 0
    holder: object | None = None
    until_s: float = 0.0
    released: bool = True


@dataclass(frozen=True, slots=True)
class Cell:
    """One value of a view as the server keeps it; `value` None is a tombstone."""

    key: str
    value: bytes | None
    revision: int
    origin: Origin | None


@dataclass(slots=True)
class Bucket:
    """A view as the server keeps it."""

    revision: int = 0
    cells: dict[str, Cell] = field(default_factory=dict)
    watchers: set[asyncio.Queue[Cell | None]] = field(default_factory=set)

    def put(self, key: str, value: bytes | None, origin: Origin | None, expected: int | None) -> int | None:
        """Write; None when what stands was made from something newer.

        Raises:
            Conflict: another revision stands.
        """
        stands = self.cells.get(key)
        if (
            stands is not None
            and stands.origin is not None
            and origin is not None
            and _newer(stands.origin, origin)
        ):
            return None
        last = stands.revision if stands else 0
        if expected is not None and expected != last:
            raise Conflict(key, expected=expected, last=last)
        self.revision += 1
        cell = self.cells[key] = Cell(key, value, self.revision, origin)
        for watcher in self.watchers:
            watcher.put_nowait(cell)
        return self.revision


class MemoryServer:
    """Streams, durables, leases and views, and the links to them."""

    def __init__(
        self,
        *,
        clock: Clock,
        faults: Faults | None = None,
        duplicate_window_s: float = DUPLICATE_WINDOW_S,
        max_bytes: int | None = None,
        lease_ttl_s: float = LEASE_TTL_S,
    ) -> None:
        """Make one, provisioned.

        Args:
            clock: follows the running loop.
            faults: what goes wrong on the way; nothing by default.
            duplicate_window_s: how long an id is known.
            max_bytes: of every stream, instead of each domain's own.
            lease_ttl_s: how long a lease lasts without renewal.
        """
        self.clock = clock
        self.faults = faults or Faults()
        self.lease_ttl_s = lease_ttl_s
        self.duplicate_window_s = duplicate_window_s
        self._max_bytes = max_bytes
        self.streams: dict[str, Stream] = {domain: self._empty(domain) for domain in DOMAINS}
        self.consumers: dict[str, set[Consumer]] = {domain: set() for domain in DOMAINS}
        self.durables: dict[tuple[str, str], Consumer] = {}
        """(service, domain) to the durable of the lease's last holder."""
        self.audit: list[Message] = []
        """What every stream but those of measurements ever took, in order."""
        self.audit_lags = False
        """True: the audit takes nothing for now, and makes up for it afterwards."""
        self._to_audit: list[Message] = []
        self.starts: dict[tuple[str, str, int], int] = {}
        """(service, domain, sequence) to the starts counted for it."""
        self.seats: dict[str, Seat] = {}
        self.seat_freed = asyncio.Event()
        self.buckets: dict[str, Bucket] = {}
        self.links: set[Link] = set()

    def stream_of(self, subject: str) -> Stream:
        """The stream that takes a subject.

        Raises:
            BadInput: none does.
        """
        tokens = subject.split(".")
        stream = self.streams.get(tokens[2]) if subject.startswith("fleet.v1.") and len(tokens) > 3 else None  # noqa: PLR2004 - domain and more
        if stream is None:
            raise BadInput("subject", f"no stream takes {subject!r}", "use a domain of the catalogue")
        return stream

    def store(
        self, subject: str, body: bytes, *, id_: str = "", expected: int | None = None
    ) -> tuple[int, bool]:
        """Take a message as it is, whoever sends it, and hand it to the consumers.

        Raises:
            BadInput: no stream takes the subject.
            Conflict: the log does not stand at `expected`.
            Full: the stream has no room.
        """
        stream = self.stream_of(subject)
        stored = stream.store(
            subject, body, id_=id_, expected=expected, at=self.clock.now(), now_s=self.clock.monotonic()
        )
        sequence, duplicate = stored
        if not duplicate and stream.domain.keeps is not Keeps.MEMORY:
            self._to_audit.append(stream.messages[sequence])
        for consumer in tuple(self.consumers[stream.domain.name]):
            consumer.pump()
        return stored

    def audited(self) -> list[Message]:
        """The audit, as far as it has come."""
        if not self.audit_lags:
            self.audit += self._to_audit
            self._to_audit = []
        return self.audit

    def aged(self, domain: str) -> Stream:
        """A stream without what is too old."""
        stream = self.streams[domain]
        stream.age(self.clock.monotonic())
        return stream

    def restart(self) -> None:
        """Stop and start: every link breaks and comes back, memory streams are made anew, empty."""
        links = [link for link in self.links if link.up.is_set()]
        for link in links:
            link.cut()
        for name, domain in DOMAINS.items():
            if domain.keeps is Keeps.MEMORY:
                self._rebuild(name)
        for link in links:
            link.mend()

    def expire(self, lease: str) -> None:
        """Take a lease from its holder, as if it had been silent for too long."""
        seat = self.seats[lease]
        seat.holder, seat.until_s = None, self.clock.monotonic()
        self.seat_changed()

    def seat_changed(self) -> None:
        """Wake whoever waits for a lease."""
        self.seat_freed.set()
        self.seat_freed = asyncio.Event()

    def bucket(self, name: str) -> Bucket:
        """The view of that name."""
        return self.buckets.setdefault(name, Bucket())

    def _rebuild(self, domain: str) -> None:
        before = self.streams[domain].created
        self.streams[domain] = self._empty(domain, after=before)
        for consumer in self.consumers[domain]:
            consumer.delete()
        self.consumers[domain].clear()
        for key in [key for key in self.durables if key[1] == domain]:
            del self.durables[key]

    def _empty(self, domain: str, *, after: datetime | None = None) -> Stream:
        """A new stream; never created at the moment of the one before it."""
        created = self.clock.now()
        if after is not None:
            created = max(created, after + timedelta(microseconds=1))
        return empty(
            domain,
            created=created,
            duplicate_window_s=self.duplicate_window_s,
            max_bytes=self._max_bytes,
        )


class Link:
    """One process's connection, which can be cut."""

    def __init__(self) -> None:
        self.up = asyncio.Event()
        self.up.set()
        self.broken = asyncio.Event()
        """Of the connection that is up now: set when it breaks, and replaced by the next one's."""
        self.listeners: set[Callable[[], None]] = set()
        """Called when it breaks."""

    def cut(self) -> None:
        """Nothing passes any more."""
        self.up.clear()
        self.broken.set()
        for told in tuple(self.listeners):
            told()

    def mend(self) -> None:
        """It works again."""
        if not self.up.is_set():
            self.broken = asyncio.Event()
            self.up.set()


def _newer(stored: Origin, offered: Origin) -> bool:
    return (stored.created, stored.sequence) > (offered.created, offered.sequence)
