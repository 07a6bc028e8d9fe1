"""Processes on a memory bus: services to start, kill and double, and facts to wait for."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime

from shared.bus.memory import Faults, MemoryBus, MemoryServer
from shared.bus.port import Disconnected, Lease, LeaseLost
from shared.clock import SystemClock
from shared.events import AnyEvent, Payload, Unknown

_LOOK_S = 0.25
AT = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)


class Stage:
    """One server, one clock, any number of processes."""

    def __init__(self, faults: Faults | None = None) -> None:
        self.clock = SystemClock(start=AT)
        self.server = MemoryServer(clock=self.clock, faults=faults)
        self.bus = MemoryBus(self.server, "test")
        self._tasks: list[asyncio.Task[None]] = []

    def start(
        self, service: str, act: Callable[[MemoryBus, Lease], Awaitable[None]], instance: str = "0"
    ) -> asyncio.Task[None]:
        """A process that is active whenever it has the lease."""
        bus = MemoryBus(self.server, service, instance=instance)
        task = asyncio.create_task(self._live(bus, service, act), name=f"{service}-{instance}")
        self._tasks.append(task)
        return task

    def background(self, work: Awaitable[None]) -> asyncio.Task[None]:
        """Anything that goes on by itself."""

        async def go() -> None:
            await work

        task = asyncio.create_task(go())
        self._tasks.append(task)
        return task

    async def stop(self, *tasks: asyncio.Task[None]) -> None:
        for task in tasks or tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*(tasks or self._tasks), return_exceptions=True)
        broken = [
            e
            for t in tasks or self._tasks
            if t.done() and not t.cancelled() and (e := t.exception()) is not None
        ]
        if broken:
            raise broken[0]

    @staticmethod
    async def _live(bus: MemoryBus, service: str, act: Callable[[MemoryBus, Lease], Awaitable[None]]) -> None:
        while True:
            try:
                async with bus.lease(service) as lease:
                    await act(bus, lease)
            except (LeaseLost, Disconnected):
                await asyncio.sleep(0.2)

    async def said(self, domain: str) -> list[AnyEvent]:
        """Everything that a domain's stream holds."""
        return [r.event async for r in self.bus.history(domain) if not isinstance(r.event, Unknown)]

    async def names(self, domain: str, *without: str) -> list[str]:
        """The facts of a domain, in order."""
        return [e.data.kind.fact for e in await self.said(domain) if e.data.kind.fact not in without]

    async def until(self, wanted: type[Payload], *, count: int = 1, within_s: float = 600.0) -> AnyEvent:
        """The n-th fact of a type, when it is there."""
        try:
            async with asyncio.timeout(within_s):
                while True:
                    found = [e for e in await self.said(wanted.kind.domain) if isinstance(e.data, wanted)]
                    if len(found) >= count:
                        return found[count - 1]
                    await asyncio.sleep(_LOOK_S)
        except TimeoutError:
            names = await self.names(wanted.kind.domain)
            raise AssertionError(f"no {count}. {wanted.__name__} within {within_s} s, but {names}") from None


@asynccontextmanager
async def stage(faults: Faults | None = None) -> AsyncIterator[Stage]:
    """A stage that is cleared at the end; a process that broke fails the test."""
    made = Stage(faults)
    try:
        yield made
    finally:
        await made.stop()
