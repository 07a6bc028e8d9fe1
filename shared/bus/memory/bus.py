"""The port of the bus over a `MemoryServer`: one `MemoryBus` is one process's connection."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import AbstractAsyncContextManager
from dataclasses import replace

from shared.bus import metrics
from shared.bus.deadletters import same_fact
from shared.bus.memory.consuming import consuming
from shared.bus.memory.leases import hold
from shared.bus.memory.server import Link, MemoryServer
from shared.bus.memory.stream import Full, Message, log_of
from shared.bus.memory.views import MemoryView
from shared.bus.port import Consumption, Disconnected, Lease, Recorded, Stored, Subscription, ValueT
from shared.errors import BadInput, Conflict, Permanent, Temporary
from shared.events import AnyEvent, Entity, Payload, decode, escape

SAY_WITHIN_S = 10.0
"""For a publish or append, repetitions included. What only asks fails at once without a connection."""
_AGAIN_S = 0.05
_FULL_DELAY_S = 10.0


class MemoryBus:
    """One process's connection to an in-memory server."""

    def __init__(
        self, server: MemoryServer, service: str, *, instance: str = "0", say_within_s: float = SAY_WITHIN_S
    ) -> None:
        """Connect.

        Args:
            server: where everything is.
            service: who this is, for metrics and dead letters.
            instance: which copy of it.
            say_within_s: how long a publish or append waits for the connection.
        """
        self.server = server
        self.service = service
        self.instance = instance
        self._say_within_s = say_within_s
        self._link = Link()
        server.links.add(self._link)

    @property
    def source(self) -> str:
        """The CloudEvents source of what this process says."""
        return f"/mediafleet/{self.service}/{self.instance}"

    @property
    def connected(self) -> bool:
        """Whether the connection is up."""
        return self._link.up.is_set()

    def partition(self) -> None:
        """Cut this process off: calls wait and fail, nothing is heard, leases run out."""
        self._link.cut()

    def heal(self) -> None:
        """Let it reach the server again."""
        self._link.mend()

    async def ping(self) -> float:
        """A round trip, in seconds."""
        sent_s = self.server.clock.monotonic()
        await self._settle()
        return self.server.clock.monotonic() - sent_s

    async def publish(self, event: AnyEvent) -> Stored:
        """State a fact."""
        sequence, duplicate = await self._store(event, None)
        if duplicate:
            stands = self.server.stream_of(event.address.subject).messages.get(sequence)
            if stands is not None and not same_fact(stands.body, event.encode()):
                raise Permanent(f"{event.type} of {event.subject} has the id of another fact", field="id")
        return Stored(sequence, duplicate)

    async def append(self, event: AnyEvent, expected: int) -> int:
        """Add a fact to its entity's log."""
        log = log_of(event.address.subject)
        while True:
            try:
                sequence, _ = await self._store(event, expected)
            except Conflict as conflict:
                last = conflict.last or 0
                above = tuple(self.server.stream_of(event.address.subject).of(log, after=expected))
                own = [message.sequence for message in above if message.id == event.id]
                if own:
                    return own[0]
                if last < expected or any(_recorded(message) for message in above):
                    metrics.CONFLICTS.labels(self.service, event.of.domain).inc()
                    raise
                # Only what is no envelope stands above: nobody folds it, and no case holds on it.
                expected = last
            else:
                return sequence

    async def read(self, of: Entity, *, after: int = 0) -> AsyncIterator[Recorded]:
        """The log of one entity, in order."""
        await self._settle()
        stream = self.server.aged(of.domain)
        for recorded in self._recorded(of.domain, tuple(stream.of(log_of(of.wildcard), after=after))):
            yield recorded

    async def history(
        self, domain: str, *, place: str | None = None, types: tuple[type[Payload], ...] = (), after: int = 0
    ) -> AsyncIterator[Recorded]:
        """What a domain's stream keeps, in order, up to its head now."""
        await self._settle()
        facts = {payload.kind.fact for payload in types}
        wanted = None if place is None else escape(place)
        kept = tuple(
            message
            for message in self.server.aged(domain).messages.values()
            if message.sequence > after and _matches(message, wanted, facts)
        )
        for recorded in self._recorded(domain, kept):
            yield recorded

    async def last(self, of: Entity) -> Recorded | None:
        """The last fact of an entity's log."""
        await self._settle()
        kept = tuple(self.server.aged(of.domain).of(log_of(of.wildcard), after=0))
        return next(self._recorded(of.domain, reversed(kept)), None)

    async def audited(self, of: Entity, sequence: int) -> bool:
        """Whether the audit holds an entity's log up to a sequence."""
        await self._settle()
        log = log_of(of.wildcard)
        copy = next((message for message in reversed(self.server.audited()) if message.log == log), None)
        if copy is None or copy.sequence < sequence:
            return False
        return self.server.aged(of.domain).messages.get(copy.sequence) is copy

    async def audit(self, place: str, entity: str) -> AsyncIterator[Recorded]:
        """All that the audit holds about one entity."""
        await self._settle()
        token = (escape(place), escape(entity))
        kept = [
            replace(message, sequence=number)
            for number, message in enumerate(self.server.audited(), 1)
            if tuple(message.subject.split(".")[3:5]) == token
        ]
        for recorded in self._recorded("audit", kept):
            yield recorded

    async def purge(self, of: Entity, *, below: int) -> None:
        """Forget an entity's facts below a sequence."""
        await self._settle()
        stream = self.server.aged(of.domain)
        for message in tuple(stream.of(log_of(of.wildcard), after=0)):
            if message.sequence < below:
                stream.remove(message.sequence)

    def lease(self, name: str) -> AbstractAsyncContextManager[Lease]:
        """Wait for the lease, hold it while inside."""
        return hold(self.server, self._link, name)

    def consume(
        self, service: str, subscriptions: tuple[Subscription, ...], *, lease: Lease | None = None
    ) -> AbstractAsyncContextManager[Consumption]:
        """Hear these subscriptions while inside."""
        return consuming(
            self.server,
            self._link,
            service,
            self.source,
            subscriptions,
            lease=lease,
            publish=self.publish,
            settle=self._settle,
        )

    def view(self, name: str, value: type[ValueT]) -> MemoryView[ValueT]:
        """The view of that name."""
        return MemoryView(self.server.bucket(name), value, self._link, self._settle)

    async def _settle(self) -> None:
        """What every call costs: a connection, and some time.

        Raises:
            Disconnected: there is none.
        """
        if self._link.up.is_set():
            await asyncio.sleep(self.server.faults.delay())
        if not self._link.up.is_set():
            raise Disconnected("the bus is not reachable")

    async def _settle_patiently(self) -> None:
        """The same for what is repeated until it is answered."""
        try:
            async with asyncio.timeout(self._say_within_s):
                while True:
                    await self._link.up.wait()
                    await asyncio.sleep(self.server.faults.delay())
                    if self._link.up.is_set():
                        return
        except TimeoutError:
            raise Disconnected("the bus is not reachable") from None

    async def _store(self, event: AnyEvent, expected: int | None) -> tuple[int, bool]:
        """Send until an answer comes."""
        subject, body = event.address.subject, event.encode()
        faults = self.server.faults
        while True:
            await self._settle_patiently()
            try:
                stored = self.server.store(subject, body, id_=event.id, expected=expected)
            except Full:
                stream = self.server.stream_of(subject).name
                raise Temporary(f"{stream} is full: compact closed cases", delay_s=_FULL_DELAY_S) from None
            if not faults.happens(faults.lost_answer):
                metrics.PUBLISHED.labels(self.service, event.of.domain).inc()
                return stored
            metrics.PUBLISH_RETRIES.labels(self.service, event.of.domain).inc()
            await asyncio.sleep(_AGAIN_S)

    def _recorded(self, domain: str, messages: Iterable[Message]) -> Iterator[Recorded]:
        for message in messages:
            recorded = _recorded(message)
            if recorded is None:
                metrics.SKIPPED.labels(self.service, domain).inc()
            else:
                yield recorded


def _recorded(message: Message) -> Recorded | None:
    """A message as a fact; None when it is no envelope of its subject."""
    try:
        event = decode(message.subject, message.body)
    except BadInput:
        return None
    return Recorded(event, message.sequence, message.stored_at)


def _matches(message: Message, place: str | None, facts: set[str]) -> bool:
    _, _, _, at, _, fact = message.subject.split(".")
    return (place is None or place == at) and (not facts or fact in facts)
