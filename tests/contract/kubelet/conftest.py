"""A bridge on an in-memory bus, in front of each kubelet, over real unix sockets."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from services.bridge.plugin import Timing
from services.bridge.service import Bridge
from services.bridge.settings import BridgeSettings
from shared.bus.memory import MemoryBus, MemoryServer
from shared.clock import SystemClock
from shared.devices.model import UnifiedDevice
from shared.events import AnyEvent, Cause, Payload, Unknown, device, event
from shared.events.parts import Compatibility
from tests.contract.kubelet.kubelets import Kubelet, Simulated, SmallKubelet
from tests.contract.kubelet.real import Real
from tests.lab.lab import Lab
from tests.unit.bridge.devices import DOMAIN, gpu, vcn

NODE = "worker-1"
QUICK = Timing(poll_s=0.02, debounce_s=0.02, pause_s=0.02, longest_pause_s=0.2, stable_s=0.5)
DEVICES = (gpu("3b", enc=2, dec=1, numa=0), gpu("5e", enc=2, dec=1, numa=1), vcn("c3"))


@pytest.fixture
def root() -> Iterator[Path]:
    # pytest's own directories are too long for sockets.
    folder = Path(tempfile.mkdtemp(prefix="kb-"))
    boot = folder / "proc/sys/kernel/random"
    boot.mkdir(parents=True)
    (boot / "boot_id").write_text("boot-1\n")
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def lab_if_real(request: pytest.FixtureRequest) -> Lab | None:
    """The lab where the test's kubelet is the real one; skips where there is none."""
    lab: Lab | None = None
    if request.node.callspec.params["kubelet"] is Real:
        lab = request.getfixturevalue("lab")
    return lab


@pytest.fixture(params=[SmallKubelet, Simulated, Real], ids=["small", "simulator", "real"])
async def kubelet(
    request: pytest.FixtureRequest, root: Path, lab_if_real: Lab | None
) -> AsyncIterator[Kubelet]:
    if lab_if_real is not None:
        real = Real(root, lab_if_real)
        await real.start()
        yield real
        await real.clear()
        return
    made: Kubelet = request.param(root)
    await made.start()
    yield made
    await made.stop()


@dataclass(slots=True)
class Node:
    """A running bridge and the bus around it."""

    bridge: Bridge
    bus: MemoryBus
    said_by_others: int = 0

    async def tell(self, key: str, fact: Payload) -> AnyEvent:
        """Another service says something about a device of this node."""
        self.said_by_others += 1
        cause = Cause.source(f"test-{id(self)}", self.said_by_others)
        made = event(fact, (NODE, key), cause=cause, source="/test", at=self.bridge._clock.now())
        await self.bus.publish(made)
        return made

    async def register(self, *devices: UnifiedDevice) -> None:
        for each in devices:
            known = Compatibility(verdict="compatible")
            await self.tell(each.key, device.Registered(device=each, generation=1, compatibility=known))

    async def said(self, kind: type[Payload], *, count: int = 1) -> list[AnyEvent]:
        """Wait until the bridge has said so many facts of a kind."""
        async with asyncio.timeout(10):
            while True:
                history = self.bus.history(kind.kind.domain, place=NODE, types=(kind,))
                found = [each.event async for each in history if not isinstance(each.event, Unknown)]
                if len(found) >= count:
                    return found
                await self.bridge.journal.until_empty()
                await asyncio.sleep(0.01)


Start = Callable[[], AbstractAsyncContextManager[Node]]


@pytest.fixture
async def start(root: Path) -> Start:
    """Starts the node's bridge; started again it is the same node after a crash or an update."""
    clock = SystemClock()
    server = MemoryServer(clock=clock)

    @asynccontextmanager
    async def started() -> AsyncIterator[Node]:
        settings = BridgeSettings(
            slots_per_engine=2, reconcile_s=0.1, busy_s=0.02, settle_s=0.2, grace_s=0.3, alone_after_s=0.2
        )
        bridge = Bridge(
            settings,
            node=NODE,
            domain=DOMAIN,
            root=root,
            state_dir=root / "state",
            source="/test/bridge",
            clock=clock,
            timing=QUICK,
        )
        ready = asyncio.Event()
        bus = MemoryBus(server, "bridge")
        running = asyncio.create_task(bridge.run(bus, ready.set))
        try:
            async with asyncio.timeout(10):
                await asyncio.wait(
                    {running, asyncio.create_task(ready.wait())}, return_when=asyncio.FIRST_COMPLETED
                )
            if running.done():
                running.result()
            yield Node(bridge, bus)
        finally:
            running.cancel()
            await asyncio.wait({running})

    return started


@pytest.fixture
async def node(start: Start, kubelet: Kubelet) -> AsyncIterator[Node]:
    """A bridge with three devices, known to the kubelet."""
    async with start() as made:
        await made.register(*DEVICES)
        offered = {"gpu": 3, "nvenc": 10, "nvdec": 6}
        await kubelet.until(
            lambda: all(len(kubelet.devices(f"{DOMAIN}/{name}")) == n for name, n in offered.items())
        )
        yield made
