"""The bridge as a process: a real nats-server, a kubelet on unix sockets, signals and kills."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from shared.bus.nats.bus import NatsBus, connect
from shared.bus.provision import provision
from shared.bus.server import EmbeddedServer
from shared.events import AnyEvent, Cause, Payload, Unknown, device, event, remediation, world
from shared.events.parts import Compatibility
from tests.contract.kubelet.kubelets import SmallKubelet
from tests.unit.bridge.devices import AT, GPU, NVENC, gpu

NODE = "worker-1"
FIRST, SECOND = gpu("3b"), gpu("5e")
MEMORY_BYTES = 70 << 20


@pytest.fixture
def root() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="br-"))
    boot = folder / "proc/sys/kernel/random"
    boot.mkdir(parents=True)
    (boot / "boot_id").write_text("boot-1\n")
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
async def url(tmp_path: Path) -> AsyncIterator[str]:
    async with EmbeddedServer(tmp_path / "nats") as server:
        await provision(server.url)
        yield server.url


@pytest.fixture
async def bus(url: str) -> AsyncIterator[NatsBus]:
    async with connect(url, service="tester", instance="0") as made:
        yield made


@pytest.fixture
async def kubelet(root: Path) -> AsyncIterator[SmallKubelet]:
    made = SmallKubelet(root)
    await made.start()
    yield made
    await made.stop()


@asynccontextmanager
async def bridge(url: str, root: Path, log: Path) -> AsyncIterator[asyncio.subprocess.Process]:
    environment = os.environ | {
        "MEDIAFLEET_NATS_URL": url,
        "MEDIAFLEET_NODE_NAME": NODE,
        "MEDIAFLEET_INSTANCE": "b1",
        "MEDIAFLEET_HOST_ROOT": str(root),
        "MEDIAFLEET_STATE_DIR": str(root / "state"),
        "MEDIAFLEET_HEALTH_HOST": "127.0.0.1",
        "MEDIAFLEET_HEALTH_PORT": "0",
        "MEDIAFLEET_BRIDGE__SLOTS_PER_ENGINE": "4",
        "MEDIAFLEET_BRIDGE__BUSY_S": "0.05",
    }
    with log.open("ab") as output:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "services.bridge", env=environment, stderr=output, stdout=output
        )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def tell(bus: NatsBus, key: str, fact: Payload, number: int) -> None:
    cause = Cause.source("test", number)
    await bus.publish(event(fact, (NODE, key), cause=cause, source="/test", at=AT))


async def register(bus: NatsBus) -> None:
    for number, each in enumerate((FIRST, SECOND)):
        known = Compatibility(verdict="compatible")
        await tell(bus, each.key, device.Registered(device=each, generation=1, compatibility=known), number)


async def said(bus: NatsBus, kind: type[Payload]) -> AnyEvent:
    """The first fact of a kind, once it is there."""
    async with asyncio.timeout(15):
        while True:
            async for recorded in bus.history("allocation", place=NODE, types=(kind,)):
                assert not isinstance(recorded.event, Unknown)
                return recorded.event
            await bus.ping()


def resident_bytes(pid: int | None) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0]) * 1024


async def test_a_pod_is_given_an_engine_and_a_killed_bridge_still_answers_the_quarantine(
    bus: NatsBus, url: str, kubelet: SmallKubelet, root: Path, tmp_path: Path
) -> None:
    log = tmp_path / "bridge.log"
    await register(bus)
    async with bridge(url, root, log) as process:
        await kubelet.until(lambda: kubelet.devices(GPU).keys() == {FIRST.key, SECOND.key})
        await kubelet.until(lambda: len(kubelet.devices(NVENC)) == 16)
        assert await kubelet.admit("edge", {"main": {NVENC: 1}}) == ""
        bound = await said(bus, world.Bound)
        assert bound.source == "/mediafleet/bridge/b1"
        process.kill()
        await process.wait()
    await tell(bus, bound.of.entity, remediation.Quarantined(epoch=3, reason="xid 79", deadline=AT), 9)
    async with bridge(url, root, log) as process:
        fenced = await said(bus, world.Fenced)
        assert isinstance(fenced.data, world.Fenced)
        assert isinstance(bound.data, world.Bound)
        assert (fenced.data.epoch, fenced.data.holders) == (3, (bound.data.pod,))
        await kubelet.until(lambda: kubelet.devices(GPU)[bound.of.entity] == "Unhealthy")
        process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(5):
            assert await process.wait() == 0


async def test_at_work_it_stays_within_its_memory(
    bus: NatsBus, url: str, kubelet: SmallKubelet, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in os.environ if name.startswith("COV")]:
        monkeypatch.delenv(name)  # measuring coverage costs memory of its own
    await register(bus)
    async with bridge(url, root, root / "bridge.log") as process:
        await kubelet.until(lambda: len(kubelet.devices(NVENC)) == 16)
        assert await kubelet.admit("edge", {"main": {NVENC: 1}}) == ""
        await said(bus, world.Bound)
        assert resident_bytes(process.pid) <= MEMORY_BYTES


async def test_a_bridge_that_is_told_no_node_says_so(root: Path, url: str, tmp_path: Path) -> None:
    log = tmp_path / "bridge.log"
    environment = os.environ | {
        "MEDIAFLEET_NATS_URL": url,
        "MEDIAFLEET_HOST_ROOT": str(root),
        "MEDIAFLEET_HEALTH_PORT": "0",
        "MEDIAFLEET_STATE_DIR": str(root / "state"),
    }
    with log.open("wb") as output:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "services.bridge", env=environment, stderr=output, stdout=output
        )
    async with asyncio.timeout(15):
        assert await process.wait() == 1
    assert "MEDIAFLEET_NODE_NAME" in log.read_text()
