"""A consumption from the in-memory server: consumers are made, lost with the link, and made anew.

As on NATS the consumer of a lease is durable and belongs to the lease's number: a new holder makes its own
from the old one's acknowledgement floor and then deletes the old one. After a reconnect every consumer is
made anew from the lowest message that is still held.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from shared.bus.consumption import FIRST_DOMAIN, STOP_WITHIN_S, Flow, in_order, lanes_for
from shared.bus.intake import EPOCH, Intake
from shared.bus.memory.consumer import Consumer
from shared.bus.memory.leases import MemoryLease
from shared.bus.memory.server import Link, MemoryServer
from shared.bus.memory.stream import Message
from shared.bus.port import Lease, LeaseLost, Subscription
from shared.events import AnyEvent

Publish = Callable[[AnyEvent], Awaitable[object]]


@dataclass(slots=True)
class _Starts:
    """The port's `Starts` of one consumer family, in the server."""

    server: MemoryServer
    service: str
    domain: str
    settle: Callable[[], Awaitable[None]]

    async def counted(self, sequence: int) -> int:
        """Starts counted so far."""
        await self.settle()
        return self.server.starts.get((self.service, self.domain, sequence), 0)

    async def count(self, sequence: int) -> None:
        """Count one more."""
        await self.settle()
        key = (self.service, self.domain, sequence)
        self.server.starts[key] = self.server.starts.get(key, 0) + 1

    async def forget(self, sequence: int) -> None:
        """It was handled."""
        await self.settle()
        self.server.starts.pop((self.service, self.domain, sequence), None)


class _Feed:
    """One intake and the consumer that feeds it now; also the intake's carrier."""

    def __init__(self, server: MemoryServer, link: Link, publish: Publish) -> None:
        self._server = server
        self._link = link
        self._publish = publish
        self._consumer: Consumer | None = None
        self._flying: deque[tuple[float, Callable[[], None]]] = deque()
        """What is on its way: due time and arrival, in order."""
        self._timer: asyncio.Handle | None = None
        self.intake: Intake

    def open(self, lease: MemoryLease | None) -> asyncio.Event:
        """Make the consumer (anew) and let it deliver; the event is set when another holder deletes it."""
        server, intake = self._server, self.intake
        subscription, key = intake.subscription, (intake.service, intake.subscription.domain)
        stream = server.aged(subscription.domain)
        if intake.stream_created not in (EPOCH, stream.created):
            intake.rebuilt()
        intake.stream_created = stream.created
        before = server.durables.get(key) if lease is not None else None
        start = intake.resume_at
        if self._consumer is None:
            start = 1 if subscription.history else stream.last_sequence + 1
            if lease is not None and before is not None:
                start = before.floor + 1
                if lease.expired and before.number != lease.number:
                    intake.suspects_up_to = before.delivered
        after = start - 1 if self._consumer is None else None
        consumer = self._consumer = Consumer(
            stream, subscription, start=start, number=lease.number if lease else 0, clock=server.clock
        )
        server.consumers[subscription.domain].add(consumer)
        if lease is not None:
            server.durables[key] = consumer
            if before is not None:
                server.consumers[subscription.domain].discard(before)
                before.delete()
        intake.begin(remaining=consumer.remaining, after=after)
        consumer.attach(self._send, self._send_end)
        return consumer.deleted

    def stop_pulling(self) -> None:
        """Nothing more is delivered; what is held can still be acknowledged."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._flying.clear()
        if self._consumer is not None:
            self._consumer.detach()

    def shut(self, *, durable: bool) -> None:
        """Stop; an ephemeral consumer goes, a durable one stays for who comes next."""
        self.stop_pulling()
        if self._consumer is not None and not durable:
            self._server.consumers[self.intake.subscription.domain].discard(self._consumer)

    def acknowledge(self, token: str) -> None:
        """The message is done with."""
        faults = self._server.faults
        arrives = self._link.up.is_set() and not faults.happens(faults.lost_ack)
        if arrives and self._consumer is not None:
            self._consumer.acknowledge(int(token))

    async def in_progress(self, token: str) -> None:
        """The message is still held."""
        if self._consumer is not None and self._link.up.is_set():
            self._consumer.in_progress(int(token))

    async def publish_dead_letter(self, event: AnyEvent) -> None:
        """Write a dead letter."""
        await self._publish(event)

    def _send(self, message: Message) -> None:
        self._fly(lambda: self._arrive(message))

    def _send_end(self) -> None:
        self._fly(self.intake.none_remaining)

    def _fly(self, arrive: Callable[[], None]) -> None:
        """Let something arrive after what is on its way already."""
        due_s = self._server.clock.monotonic() + self._server.faults.delay()
        if self._flying:
            due_s = max(due_s, self._flying[-1][0])
        self._flying.append((due_s, arrive))
        if self._timer is None:
            self._wait()

    def _wait(self) -> None:
        loop = asyncio.get_running_loop()
        delay_s = self._flying[0][0] - self._server.clock.monotonic()
        self._timer = loop.call_later(delay_s, self._land) if delay_s > 0 else loop.call_soon(self._land)

    def _land(self) -> None:
        self._timer = None
        now_s = self._server.clock.monotonic()
        while self._flying and self._flying[0][0] <= now_s:
            self._flying.popleft()[1]()
        if self._flying and self._timer is None:
            self._wait()

    def _arrive(self, message: Message) -> None:
        token = str(message.sequence)
        held = self.intake.offer(message.subject, message.body, message.sequence, message.stored_at, token)
        if self._consumer is not None:
            self.intake.lag = self._consumer.stream.last_sequence - self._consumer.delivered
            if not held:
                self._consumer.acknowledge(message.sequence)
        faults = self._server.faults
        if faults.happens(faults.duplicate):
            self._fly(lambda: self._arrive(message))


@asynccontextmanager
async def consuming(
    server: MemoryServer,
    link: Link,
    service: str,
    source: str,
    subscriptions: tuple[Subscription, ...],
    *,
    lease: Lease | None,
    publish: Publish,
    settle: Callable[[], Awaitable[None]],
) -> AsyncIterator[Flow]:
    """Hear the subscriptions while inside.

    Args:
        server: where the streams are.
        link: this process's connection.
        service: who consumes.
        source: for its dead letters.
        subscriptions: at most one per domain.
        lease: of this server; its holder's consumers are durable.
        publish: writes a dead letter.
        settle: waits for the link, as every call does; raises `Disconnected`.
    """
    if lease is not None and not isinstance(lease, MemoryLease):
        raise TypeError(f"a lease of this bus is needed, not {type(lease).__name__}")
    wanted = in_order(subscriptions)
    lanes = lanes_for(service, subscriptions)
    feeds = []
    for subscription in wanted:
        feed = _Feed(server, link, publish)
        stream = server.streams[subscription.domain].name
        feed.intake = Intake(
            service, source, subscription, stream, lanes=lanes, carrier=feed, clock=server.clock
        )
        if lease is not None:
            feed.intake.starts = _Starts(server, service, subscription.domain, settle)
        feeds.append(feed)
    flow = Flow(lanes, [feed.intake for feed in feeds], server.clock)
    when_cut = {flow.interrupted, *(feed.stop_pulling for feed in feeds)}
    link.listeners |= when_cut
    listening = [
        asyncio.create_task(
            _listen(flow, feed, link, lease), name=f"{service}-{feed.intake.subscription.domain}"
        )
        for feed in feeds
    ]
    tasks = list(listening)
    tasks += [asyncio.create_task(feed.intake.sign_for_all(), name=f"{service}-signs") for feed in feeds]
    if lease is not None:
        tasks.append(asyncio.create_task(_yield_when_lost(flow, lease), name=f"{service}-lease"))
    try:
        yield flow
    finally:
        link.listeners -= when_cut
        await _cancel(listening)
        for feed in feeds:
            feed.stop_pulling()
        try:
            await lanes.stop(STOP_WITHIN_S)
        finally:
            await _cancel(tasks)
            for feed in feeds:
                feed.shut(durable=lease is not None)
                feed.intake.close()


async def _listen(flow: Flow, feed: _Feed, link: Link, lease: MemoryLease | None) -> None:
    """Open a consumer whenever the link is up; commands catch up before anything else is heard."""
    first = flow.intakes[0]
    waits = feed.intake is not first and first.subscription.domain == FIRST_DOMAIN
    while True:
        await link.up.wait()
        broken = link.broken
        if waits:
            await flow.until(first)
        if lease is not None and lease.remaining_s() <= 0:
            return
        if broken.is_set():
            continue
        deleted = feed.open(lease)
        await _first(broken, deleted)
        if not broken.is_set():
            flow.lanes.fail(LeaseLost("another holder deleted the consumer"))
            return
        feed.shut(durable=lease is not None)


async def _yield_when_lost(flow: Flow, lease: MemoryLease) -> None:
    await lease.lost()
    flow.lanes.fail(LeaseLost(f"the lease {lease.name} ({lease.number}) is over"))


async def _first(*events: asyncio.Event) -> None:
    """Return when one of them is set."""
    waits = [asyncio.ensure_future(event.wait()) for event in events]
    try:
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    finally:
        await _cancel(waits)


async def _cancel(tasks: Sequence[asyncio.Future[Any]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
