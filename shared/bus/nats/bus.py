"""The port's `Bus` on one connection."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import TypeVar

import structlog
from pydantic import BaseModel

from shared.bus.access import Access
from shared.bus.consumption import FIRST_DOMAIN, STOP_WITHIN_S, Flow, in_order, lanes_for
from shared.bus.intake import DEAD_LETTER_DOMAIN, Intake
from shared.bus.nats import advisories, publishing, reading
from shared.bus.nats.consumers import Subscribed
from shared.bus.nats.lease import TTL_S, NatsLease, hold
from shared.bus.nats.link import Link
from shared.bus.nats.pull import Pull
from shared.bus.nats.streams import AUDIT
from shared.bus.nats.view import NatsView
from shared.bus.port import Consumption, Disconnected, Lease, LeaseLost, Recorded, Stored, Subscription, View
from shared.clock import Clock, SystemClock
from shared.errors import BadInput
from shared.events import DOMAINS, AnyEvent, Entity, Payload, decode, escape
from shared.events.address import PREFIX

ValueT = TypeVar("ValueT", bound=BaseModel)

_BARRIER_WITHIN_S = 0.5

_log = structlog.get_logger(__name__)


@asynccontextmanager
async def connect(
    url: str,
    *,
    service: str,
    instance: str,
    clock: Clock | None = None,
    within_s: float | None = 30.0,
    lease_ttl_s: int = TTL_S,
    access: Access | None = None,
) -> AsyncIterator[NatsBus]:
    """A bus, while inside.

    Args:
        url: of the server, or several separated by commas.
        service: who connects; names inboxes, durables, metrics.
        instance: which copy of it (pod or node name).
        clock: the time; the system's by default.
        within_s: until the first connection stands; later breaks are waited out for ever. None: give the bus
            at once and connect meanwhile (a node must serve its kubelet while the bus is away); a refusal
            then ends what consumes.
        lease_ttl_s: how long a lease outlives its last renewal.
        access: credentials and trust; none by default.

    Raises:
        Disconnected: no server answers there.
        Refused: the server is too old, or does not let us in.
    """
    link = Link(service, instance, access or Access())
    opening = asyncio.create_task(link.open(url, within_s=within_s), name="bus-open")
    if within_s is None:
        opening.add_done_callback(link.opened)
    else:
        await opening
    try:
        yield NatsBus(link, clock or SystemClock(), lease_ttl_s=lease_ttl_s)
    finally:
        await _cancel([opening])
        await link.close()


class NatsBus:
    """The bus on NATS JetStream; see `port.Bus`."""

    def __init__(self, link: Link, clock: Clock, *, lease_ttl_s: int = TTL_S) -> None:
        self.link = link
        self._lease_ttl_s = lease_ttl_s
        self._clock = clock

    @property
    def connected(self) -> bool:
        """Whether the connection is up."""
        return self.link.connected

    async def ping(self) -> float:
        """A round trip through JetStream, in seconds."""
        started_s = self._clock.monotonic()
        await self.link.api("INFO")
        return self._clock.monotonic() - started_s

    async def publish(self, event: AnyEvent) -> Stored:
        """State a fact."""
        return await publishing.publish(self.link, event)

    async def append(self, event: AnyEvent, expected: int) -> int:
        """Add a fact to its entity's log."""
        return await publishing.append(self.link, event, expected)

    async def read(self, of: Entity, *, after: int = 0) -> AsyncIterator[Recorded]:
        """The log of one entity, in order, facts above `after`."""
        stream = DOMAINS[of.domain].stream
        last = await publishing.message(self.link, stream, {"last_by_subj": of.wildcard})
        head = last.sequence if last else 0
        position = after
        async for found in reading.stored(self.link, stream, of.wildcard, after=after, up_to=head):
            position = found.sequence
            recorded = _recorded(found)
            if recorded is not None:
                yield recorded
        while position < head:
            # The replica that served the batch is behind the leader: ask the leader for the rest.
            wanted = {"seq": position + 1, "next_by_subj": of.wildcard}
            message = await publishing.message(self.link, stream, wanted)
            if message is None:
                return
            position = message.sequence
            recorded = _recorded(message)
            if recorded is not None:
                yield recorded

    async def history(
        self, domain: str, *, place: str | None = None, types: tuple[type[Payload], ...] = (), after: int = 0
    ) -> AsyncIterator[Recorded]:
        """What a domain's stream keeps, in order, up to its head at the time of the call."""
        stream = DOMAINS[domain].stream
        _, head = await reading.state(self.link, stream)
        facts = {payload.kind.fact for payload in types}
        one = next(iter(facts)) if len(facts) == 1 else "*"
        subject = f"{PREFIX}.{domain}.{escape(place) if place else '*'}.*.{one}"
        async for found in reading.stored(self.link, stream, subject, after=after, up_to=head):
            if facts and found.subject.rpartition(".")[2] not in facts:
                continue
            recorded = _recorded(found)
            if recorded is not None:
                yield recorded

    async def last(self, of: Entity) -> Recorded | None:
        """The last fact of an entity's log, as the leader holds it."""
        stream = DOMAINS[of.domain].stream
        message = await publishing.message(self.link, stream, {"last_by_subj": of.wildcard})
        if message is None:
            return None
        recorded = _recorded(message)
        if recorded is None:
            # What is no fact lies on top: the last fact is below it.
            facts = [found async for found in self.read(of)]
            return facts[-1] if facts else None
        return recorded

    async def audited(self, of: Entity, sequence: int) -> bool:
        """Whether the audit holds an entity's log up to a sequence."""
        copy = await publishing.message(self.link, AUDIT, {"last_by_subj": of.wildcard})
        if copy is None or copy.origin is None or copy.origin < sequence:
            return False
        # A stream that was made anew counts from 1 again: the copy must be of what stands there now.
        stands = await publishing.message(self.link, DOMAINS[of.domain].stream, {"seq": copy.origin})
        return stands is not None and (stands.subject, stands.id) == (copy.subject, copy.id)

    async def audit(self, place: str, entity: str) -> AsyncIterator[Recorded]:
        """All that the audit holds about one entity."""
        _, head = await reading.state(self.link, AUDIT)
        subject = f"{PREFIX}.*.{escape(place)}.{escape(entity)}.*"
        async for found in reading.stored(self.link, AUDIT, subject, after=0, up_to=head):
            recorded = _recorded(found)
            if recorded is not None:
                yield recorded

    async def purge(self, of: Entity, *, below: int) -> None:
        """Forget an entity's facts with a sequence lower than `below`."""
        stream = DOMAINS[of.domain].stream
        await self.link.api(f"STREAM.PURGE.{stream}", {"filter": of.wildcard, "seq": below})

    def lease(self, name: str) -> AbstractAsyncContextManager[NatsLease]:
        """Wait for the lease, hold and renew it while inside, release it at the end."""
        return hold(self.link, name, ttl_s=self._lease_ttl_s)

    def view(self, name: str, value: type[ValueT]) -> View[ValueT]:
        """The view of that name, holding values of that model."""
        return NatsView(self.link, name, value)

    @asynccontextmanager
    async def consume(
        self, service: str, subscriptions: tuple[Subscription, ...], *, lease: Lease | None = None
    ) -> AsyncIterator[Consumption]:
        """Hear these subscriptions while inside; see `port.Bus.consume`."""
        held = _ours(lease)
        lanes = lanes_for(service, subscriptions)
        intakes = [
            Intake(
                service,
                self.link.source,
                subscription,
                DOMAINS[subscription.domain].stream,
                lanes=lanes,
                carrier=self,
                clock=self._clock,
            )
            for subscription in in_order(subscriptions)
        ]
        flow = Flow(lanes, intakes, self._clock)
        tasks = [asyncio.create_task(self._pull(flow, intake, held)) for intake in intakes]
        tasks += [asyncio.create_task(intake.sign_for_all()) for intake in intakes]
        if held is not None:
            tasks.append(asyncio.create_task(_until_lost(held)))
            if any(subscription.domain == DEAD_LETTER_DOMAIN for subscription in subscriptions):
                tasks.append(asyncio.create_task(advisories.copy_bodies(self.link, self._clock)))
        for task in (*tasks, self.link.dead):
            task.add_done_callback(_ending(flow))
        pulls, rest = tasks[: len(intakes)], tasks[len(intakes) :]
        try:
            yield flow
        finally:
            await _cancel(pulls)
            await lanes.stop(STOP_WITHIN_S)
            await _cancel(rest)
            for intake in intakes:
                intake.close()
            await self._barrier()

    def acknowledge(self, token: str) -> None:
        """The message is done with."""
        self.link.acknowledge(token)

    async def in_progress(self, token: str) -> None:
        """The message is still held."""
        try:
            await self.link.send(token, b"+WPI")
        except Disconnected:
            return

    async def publish_dead_letter(self, event: AnyEvent) -> None:
        """Write a dead letter."""
        await publishing.publish(self.link, event)

    async def _pull(self, flow: Flow, intake: Intake, held: NatsLease | None) -> None:
        first = flow.intakes[0]
        source = Subscribed(self.link, intake, held)
        if intake is not first and first.subscription.domain == FIRST_DOMAIN:
            source.wait_for(lambda: flow.until(first))
        await Pull(self.link, source).run()

    async def _barrier(self) -> None:
        """What was acknowledged has reached the server once it answered what was asked later."""
        try:
            async with asyncio.timeout(_BARRIER_WITHIN_S):
                await self.link.flush_acknowledgements()
                await self.ping()
        except (Disconnected, TimeoutError):
            return


async def _until_lost(held: NatsLease) -> None:
    await held.lost()
    raise LeaseLost(f"the lease {held.name} ({held.number}) is over")


def _ending(flow: Flow) -> Callable[[asyncio.Future[None]], None]:
    """A task's error ends the consumption."""

    def ended(task: asyncio.Future[None]) -> None:
        error = None if task.cancelled() else task.exception()
        if error is not None:
            flow.lanes.fail(error)

    return ended


def _recorded(found: reading.Stored) -> Recorded | None:
    """None for what is no envelope for its subject: it is no fact of anybody."""
    try:
        return Recorded(decode(found.subject, found.body), found.sequence, found.stored_at)
    except BadInput as error:
        _log.warning("skipped", subject=found.subject, sequence=found.sequence, reason=error.reason)
        return None


async def _cancel(tasks: list[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def _ours(given: Lease | None) -> NatsLease | None:
    if given is not None and not isinstance(given, NatsLease):
        raise TypeError(f"a lease of this bus is needed, not {type(given).__name__}")
    return given
