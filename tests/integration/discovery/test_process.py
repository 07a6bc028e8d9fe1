"""Discovery as a process: a real nats-server, a host tree, signals and kills."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

from services.simulator.hardware import NodeSpec
from services.simulator.trees import HostTree
from shared.bus.nats.bus import NatsBus, connect
from shared.bus.port import Disconnected
from shared.bus.provision import provision
from shared.bus.server import EmbeddedServer
from shared.events import Unknown
from shared.events.world import Discovered, HealthReported, InventoryStated
from tests.integration.discovery.node import L4, NAME, T4

MEMORY_BYTES = 70 << 20


@pytest.fixture
def tree(tmp_path: Path) -> HostTree:
    made = HostTree(tmp_path / "root", NodeSpec(NAME, ("Tesla T4", "NVIDIA L4")))
    made.build()
    (tmp_path / "state").mkdir()
    return made


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[EmbeddedServer]:
    async with EmbeddedServer(tmp_path / "nats") as made:
        await provision(made.url)
        yield made


@pytest.fixture
async def bus(server: EmbeddedServer) -> AsyncIterator[NatsBus]:
    async with connect(server.url, service="tester", instance="0") as made:
        yield made


@asynccontextmanager
async def discovery(url: str, tree: HostTree) -> AsyncIterator[asyncio.subprocess.Process]:
    environment = os.environ | {
        "MEDIAFLEET_NATS_URL": url,
        "MEDIAFLEET_NODE_NAME": NAME,
        "MEDIAFLEET_HOST_ROOT": str(tree.root),
        "MEDIAFLEET_STATE_DIR": str(tree.root.parent / "state"),
        "MEDIAFLEET_HEALTH_HOST": "127.0.0.1",
        "MEDIAFLEET_HEALTH_PORT": "0",
        "MEDIAFLEET_DISCOVERY__PROBE_S": "0.5",
        "MEDIAFLEET_DISCOVERY__FAST_PROBE_S": "0.3",
    }
    with (tree.root.parent / "log").open("ab") as output:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "services.discovery", env=environment, stderr=output, stdout=output
        )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def reports(bus: NatsBus, key: str) -> list[HealthReported]:
    found = [each.event async for each in bus.history("health", types=(HealthReported,))]
    return [
        made.data
        for made in found
        if not isinstance(made, Unknown) and isinstance(made.data, HealthReported) and made.of.entity == key
    ]


async def until(bus: NatsBus, key: str, holds: Callable[[HealthReported], bool]) -> list[HealthReported]:
    async with asyncio.timeout(30):
        while True:
            with suppress(Disconnected):  # the tests kill the server
                found = await reports(bus, key)
                if any(holds(each) for each in found):
                    return found
            await asyncio.sleep(0.02)


def resident_bytes(pid: int) -> int:
    held = re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text(encoding="utf-8"))
    return int(held[1]) << 10 if held else 0


def unhealthy(report: HealthReported) -> bool:
    return report.verdict == "unhealthy"


async def test_a_process_says_what_there_is_within_its_memory_and_stops_when_told(
    server: EmbeddedServer, bus: NatsBus, tree: HostTree
) -> None:
    async with discovery(server.url, tree) as process:
        await until(bus, L4, lambda report: report.verdict == "healthy")
        tree.fault_line(T4, 79)
        await until(bus, T4, unhealthy)
        assert resident_bytes(process.pid) <= MEMORY_BYTES
        process.send_signal(signal.SIGTERM)
        assert await asyncio.wait_for(process.wait(), 5) == 0
    stated = [each async for each in bus.history("inventory", types=(InventoryStated,))]
    assert stated


async def test_a_process_killed_again_and_again_loses_no_fault_and_repeats_no_window(
    server: EmbeddedServer, bus: NatsBus, tree: HostTree
) -> None:
    async with discovery(server.url, tree) as process:
        await until(bus, T4, lambda report: report.verdict == "healthy")
        tree.fault_line(T4, 79)
        await until(bus, T4, unhealthy)
        process.kill()
        await process.wait()
    tree.fault_line(L4, 95)  # nobody looks
    async with discovery(server.url, tree):
        found = await until(bus, L4, unhealthy)
        assert [each.code for report in found for each in report.evidence] == ["95"]
        await until(bus, T4, lambda report: report.verdict == "healthy")
    windows = [(report.boot_id, report.window_id) for report in await reports(bus, T4)]
    assert len(windows) == len(set(windows))
    assert len({each.id for report in await reports(bus, T4) for each in report.evidence}) == 1
    known = [each async for each in bus.history("inventory", types=(Discovered,))]
    assert len(known) == 2


async def test_a_bus_that_is_killed_in_between_gets_everything_in_order(
    server: EmbeddedServer, bus: NatsBus, tree: HostTree
) -> None:
    async with discovery(server.url, tree) as process:
        await until(bus, T4, lambda report: report.verdict == "healthy")
        await server.kill()
        tree.fault_line(T4, 79)
        assert process.returncode is None
        await server.start()
        found = await until(bus, T4, unhealthy)
        windows = [report.window_id for report in found]
        assert windows == sorted(set(windows))
