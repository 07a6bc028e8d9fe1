"""One node: a host tree, discovery on it, and a memory bus that others read and ask through."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import TypeVar

from services.discovery.service import Discovery
from services.discovery.settings import DiscoverySettings
from services.simulator.hardware import NodeSpec
from services.simulator.trees import HostTree
from shared.bus.memory import MemoryBus, MemoryServer
from shared.clock import SystemClock
from shared.events import AnyEvent, Cause, Payload, Unknown, event
from shared.events.remediation import DiagnosisRequested

NAME = "worker-1"
T4, L4, MI210, NPU = "nvidia-0000-3b-00-0", "nvidia-0000-5e-00-0", "amd-0000-81-00-0", "huawei-0000-a4-00-0"
MODELS = ("Tesla T4", "NVIDIA L4", "Instinct MI210", "910B3")
QUICK = DiscoverySettings(
    watch_s=0.05,
    rescan_s=30.0,
    probe_s=0.3,
    fast_probe_s=0.1,
    tool_deadline_s=2.0,
    grace_s=0.0,
    heartbeat_s=0.2,
    kernel_poll_s=0.005,
    burst_s=0.1,
    quiet_s=0.05,
    settle_windows=3,
    missing_s=1.0,
)

P = TypeVar("P", bound=Payload)


class Node:
    """Discovery of one node, started and stopped at will; everything that it said can be waited for."""

    def __init__(self, folder: Path, models: tuple[str, ...] = MODELS) -> None:
        self.tree = HostTree(folder / "root", NodeSpec(NAME, models))
        self.tree.build()
        self.state = folder / "state"
        self.state.mkdir()
        self.clock = SystemClock()
        self.server = MemoryServer(clock=self.clock)
        self.bus = MemoryBus(self.server, "discovery")
        self.discovery: Discovery | None = None
        self._task: asyncio.Task[None] | None = None

    async def start(self, settings: DiscoverySettings = QUICK) -> None:
        """Start a new process and wait until it said its inventory."""
        self.discovery = Discovery(
            settings,
            node=NAME,
            root=self.tree.root,
            state_dir=self.state,
            source="/mediafleet/discovery/test",
            clock=self.clock,
        )
        ready = asyncio.Event()
        self._task = asyncio.create_task(self.discovery.run(self.bus, ready.set), name="discovery")
        waiting = asyncio.create_task(ready.wait())
        await asyncio.wait({self._task, waiting}, timeout=20, return_when=asyncio.FIRST_COMPLETED)
        if self._task.done():
            self._task.result()
        waiting.cancel()

    async def stop(self) -> None:
        """End the process, as SIGTERM does."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    async def said(self, kind: type[P], entity: str | None = None) -> list[P]:
        """Facts of a kind that reached the bus so far."""
        found: list[P] = []
        async for recorded in MemoryBus(self.server, "reader").history(kind.kind.domain):
            made = recorded.event
            if (
                not isinstance(made, Unknown)
                and isinstance(made.data, kind)
                and entity in (None, made.of.entity)
            ):
                found.append(made.data)
        return found

    async def until(
        self, kind: type[P], entity: str | None, holds: Callable[[P], bool], within_s: float = 15
    ) -> P:
        """The first fact of a kind that holds; waits for it."""
        async with asyncio.timeout(within_s):
            while True:
                for fact in await self.said(kind, entity):
                    if holds(fact):
                        return fact
                await asyncio.sleep(0.01)

    async def holds_soon(
        self, kind: type[P], entity: str, holds: Callable[[P], bool], *, times: int, within_s: float = 15
    ) -> None:
        """Wait until so many facts of a kind hold."""
        async with asyncio.timeout(within_s):
            while True:
                if sum(holds(fact) for fact in await self.said(kind, entity)) >= times:
                    return
                await asyncio.sleep(0.01)

    @staticmethod
    async def holds(condition: Callable[[], bool], within_s: float = 15) -> None:
        """Wait until something holds."""
        async with asyncio.timeout(within_s):
            while True:
                if condition():
                    return
                await asyncio.sleep(0.01)

    async def ask(self, key: str, *, epoch: int = 1, attempt: int = 1, deadline_s: float = 60) -> AnyEvent:
        """Ask for a deep check, as remediation does."""
        asked = DiagnosisRequested(
            epoch=epoch, attempt=attempt, deadline=self.clock.now() + timedelta(seconds=deadline_s)
        )
        return await self.publish(asked, key)

    async def publish(self, fact: Payload, key: str) -> AnyEvent:
        """Say something in remediation's name."""
        made = event(
            fact,
            (NAME, key),
            cause=Cause.source("test", key),
            source="/mediafleet/remediation/test",
            at=self.clock.now(),
        )
        await MemoryBus(self.server, "remediation").publish(made)
        return made
