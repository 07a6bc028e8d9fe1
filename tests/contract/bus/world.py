"""What the contract suite needs of a server: buses of it, strangers on it, and bad days for it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any, Protocol

from shared.bus.memory import MemoryBus, MemoryServer
from shared.bus.port import Bus, Consumption, Delivery, Subscription
from shared.clock import SystemClock
from shared.events import Address, AnyEvent, Cause, Entity, Event, Payload, event
from shared.events.parts import PodRef
from shared.events.remediation import HoldRequested, Struck
from shared.events.workload import Rejected
from shared.events.world import Bound, HealthReported

AT = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
NODE = "worker-3"
KEY = "nvidia-0000-3b-00-0"
LOG = Entity("remediation", NODE, KEY)
WITHIN_S = 30.0
"""For every fact that a test waits for."""


class World(Protocol):
    """One server, for one test."""

    lease_ttl_s: float
    """Of the leases of buses that are made from now on; whole seconds."""
    duplicate_window_s: float

    async def bus(self, service: str = "tester", instance: str = "0") -> Bus:
        """A new connection."""
        ...

    async def raw(self, subject: str, body: bytes) -> None:
        """A stranger puts anything on a stream."""
        ...

    async def partition(self, bus: Bus) -> None:
        """Cut one connection off; returns when the bus has noticed."""
        ...

    async def heal(self, bus: Bus) -> None:
        """Let it through again; returns when the bus has noticed."""
        ...

    async def restart(self) -> None:
        """Stop the server and start it again."""
        ...

    async def limit(self, domain: str, max_bytes: int) -> None:
        """Give a stream so much room."""
        ...

    async def pass_time(self, seconds: float) -> None:
        """Let time go by, for what waits for nothing else."""
        ...


class MemoryWorld:
    """The in-memory server, on the loop's clock."""

    def __init__(self) -> None:
        self.lease_ttl_s = 2.0
        self.duplicate_window_s = 2.0
        self.server = MemoryServer(
            clock=SystemClock(start=AT),
            lease_ttl_s=self.lease_ttl_s,
            duplicate_window_s=self.duplicate_window_s,
        )

    async def bus(self, service: str = "tester", instance: str = "0") -> Bus:
        self.server.lease_ttl_s = self.lease_ttl_s
        return MemoryBus(self.server, service, instance=instance)

    async def raw(self, subject: str, body: bytes) -> None:
        self.server.store(subject, body)

    async def partition(self, bus: Bus) -> None:
        assert isinstance(bus, MemoryBus)
        bus.partition()

    async def heal(self, bus: Bus) -> None:
        assert isinstance(bus, MemoryBus)
        bus.heal()

    async def restart(self) -> None:
        self.server.restart()

    async def limit(self, domain: str, max_bytes: int) -> None:
        self.server.streams[domain].max_bytes = max_bytes

    async def pass_time(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


def report(window_id: int, *, place: str = NODE, key: str = KEY, **fields: Any) -> Event[HealthReported]:
    """A health report; the window tells them apart."""
    data = HealthReported(boot_id="b1", window_id=window_id, verdict="healthy", streak=1, **fields)
    return event(data, (place, key), cause=Cause.source("b1", window_id), source="/mediafleet/test/0", at=AT)


def newer(domain: str, fact: str, place: str = NODE, key: str = KEY) -> tuple[str, bytes]:
    """A fact of a version to come: its subject and its body."""
    kind = f"io.mediafleet.{domain}.{fact}.v1"
    body = f'{{"id": "from-the-future", "type": "{kind}", "subject": "{place}/{key}"}}'
    return Address(domain, place, key, fact).subject, body.encode()


def bound(number: int, *, key: str = KEY) -> Event[Bound]:
    """An allocation that is bound."""
    data = Bound(
        allocation_id=f"a{number}",
        pod=PodRef(namespace="live", name=f"p{number}", uid=f"u{number}"),
        container="c",
        resource="media.example.com/nvenc",
    )
    return event(data, (NODE, key), cause=Cause.source("b1", number), source="/mediafleet/test/0", at=AT)


def hold(request_id: str, *, key: str = KEY) -> Event[HoldRequested]:
    """A person's hold."""
    data = HoldRequested(request_id=request_id, owner="me", reason="because")
    return event(data, (NODE, key), cause=Cause(request_id), source="/mediafleet/test/0", at=AT)


def struck(window_id: int, *, of: Entity = LOG) -> Event[Struck]:
    """A strike for a case log."""
    data = Struck(
        epoch=1, strike=1, of=3, boot_id="b1", window_id=window_id, evidence_ids=(f"e{window_id}",), at=AT
    )
    return event(data, of, cause=Cause.source("b1", window_id), source="/mediafleet/test/0", at=AT)


def window(made: AnyEvent) -> int:
    """The number of a report or a strike."""
    assert isinstance(made.data, HealthReported | Struck)
    return made.data.window_id


class Heard:
    """A handler that remembers, and can be waited for."""

    def __init__(self, then: Callable[[Delivery], Awaitable[None]] | None = None) -> None:
        self.deliveries: list[Delivery] = []
        self._then = then
        self._changed = asyncio.Condition()

    async def __call__(self, delivery: Delivery) -> None:
        async with self._changed:
            self.deliveries.append(delivery)
            self._changed.notify_all()
        if self._then is not None:
            await self._then(delivery)

    @property
    def windows(self) -> list[int]:
        """The numbers of the reports heard, in order."""
        return [window(delivery.event) for delivery in self.deliveries]

    async def count(self, number: int) -> list[Delivery]:
        """Wait for so many."""
        async with asyncio.timeout(WITHIN_S), self._changed:
            await self._changed.wait_for(lambda: len(self.deliveries) >= number)
        return self.deliveries

    def health(self, **rules: Any) -> Subscription:
        """A subscription to health reports with this handler."""
        return Subscription("health", (HealthReported,), self, **rules)


@asynccontextmanager
async def dead_letters(bus: Bus) -> AsyncIterator[Heard]:
    """Everything that is dead-lettered."""
    heard = Heard()
    async with bus.consume("undertaker", (Subscription("deadletter", (Rejected,), heard),)):
        yield heard


@asynccontextmanager
async def leased(bus: Bus, *subscriptions: Subscription) -> AsyncIterator[Consumption]:
    """The lease of the tester, and its consumption."""
    async with bus.lease("tester") as lease, bus.consume("tester", subscriptions, lease=lease) as running:
        yield running


async def current(consumption: Consumption) -> None:
    """Wait until it is caught up."""
    async with asyncio.timeout(WITHIN_S):
        await consumption.until_caught_up()


def rejected(delivery: Delivery) -> Rejected:
    """The payload of a dead letter."""
    assert isinstance(delivery.event.data, Rejected)
    return delivery.event.data


async def everything(
    bus: Bus, domain: str = "health", types: tuple[type[Payload], ...] = (), **only: Any
) -> list[AnyEvent]:
    """What a stream keeps and knows."""
    return [
        recorded.event
        async for recorded in bus.history(domain, types=types, **only)
        if isinstance(recorded.event, Event)
    ]
