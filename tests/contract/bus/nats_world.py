"""NATS for the contract suite: a server of its own for each test, and a wire to it for each bus."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Protocol

from nats.aio.client import Client

from shared.bus.nats.bus import NatsBus, connect
from shared.bus.nats.link import Link
from shared.bus.port import Bus
from shared.bus.provision import provision
from shared.bus.server import EmbeddedServer
from shared.events import DOMAINS
from tests.contract.bus.container import ContainerServer
from tests.contract.bus.world import WITHIN_S

DUPLICATE_WINDOW_S = 2.0
"""Longer than a busy machine may take between two calls."""
LEASE_TTL_S = 2.0


class Wire:
    """A TCP relay in front of the server, which can be cut."""

    def __init__(self, port: int) -> None:
        self._server_port = port
        self._listener: asyncio.Server | None = None
        self._pumps: set[asyncio.Task[None]] = set()
        self.port = 0

    async def open(self) -> None:
        """Let connections through."""
        self._listener = await asyncio.start_server(self._accept, "127.0.0.1", self.port)
        self.port = self._listener.sockets[0].getsockname()[1]

    async def cut(self) -> None:
        """End what is connected, and refuse what comes."""
        if self._listener is not None:
            self._listener.close()
            self._listener = None
        for pump in self._pumps:
            pump.cancel()
        await asyncio.gather(*self._pumps, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        relay = asyncio.ensure_future(self._relay(reader, writer))
        self._pumps.add(relay)
        relay.add_done_callback(self._pumps.discard)

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            server_reader, server_writer = await asyncio.open_connection("127.0.0.1", self._server_port)
        except OSError:
            writer.close()
            return
        there = asyncio.ensure_future(_pump(reader, server_writer))
        back = asyncio.ensure_future(_pump(server_reader, writer))
        try:
            await asyncio.wait({there, back}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            there.cancel()
            back.cancel()
            await asyncio.gather(there, back, return_exceptions=True)
            writer.close()
            server_writer.close()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()


class Server(Protocol):
    """A nats-server, wherever it runs."""

    @property
    def port(self) -> int: ...

    @property
    def url(self) -> str: ...

    async def restart(self) -> None: ...


class NatsWorld:
    """A provisioned nats-server."""

    def __init__(self, server: Server, stack: AsyncExitStack) -> None:
        self.lease_ttl_s = LEASE_TTL_S
        self.duplicate_window_s = DUPLICATE_WINDOW_S
        self._server = server
        self._stack = stack
        self._buses: list[NatsBus] = []
        self._wires: dict[int, Wire] = {}

    async def bus(self, service: str = "tester", instance: str = "0") -> Bus:
        wire = Wire(self._server.port)
        await wire.open()
        self._stack.push_async_callback(wire.cut)
        url = f"nats://127.0.0.1:{wire.port}"
        bus = await self._stack.enter_async_context(
            connect(url, service=service, instance=instance, lease_ttl_s=int(self.lease_ttl_s))
        )
        self._buses.append(bus)
        self._wires[id(bus)] = wire
        return bus

    async def raw(self, subject: str, body: bytes) -> None:
        client = Client()
        await client.connect(self._server.url)
        try:
            await client.jetstream().publish(subject, body)
        finally:
            await client.close()

    async def partition(self, bus: Bus) -> None:
        assert isinstance(bus, NatsBus)
        broke = asyncio.Event()
        bus.link.on_break.append(broke.set)
        await self._wires[id(bus)].cut()
        async with asyncio.timeout(WITHIN_S):
            await broke.wait()
        bus.link.on_break.remove(broke.set)
        # Whoever was told runs before the test goes on.
        await asyncio.sleep(0.01)

    async def heal(self, bus: Bus) -> None:
        assert isinstance(bus, NatsBus)
        await self._wires[id(bus)].open()
        await bus.link.until_connected(WITHIN_S)

    async def restart(self) -> None:
        broke = [asyncio.Event() for _ in self._buses]
        for bus, event in zip(self._buses, broke, strict=True):
            bus.link.on_break.append(event.set)
        for wire in self._wires.values():
            await wire.cut()
        await self._server.restart()
        for wire in self._wires.values():
            await wire.open()
        async with asyncio.timeout(WITHIN_S):
            for event in broke:
                await event.wait()
            for bus in self._buses:
                await bus.link.until_connected()

    async def limit(self, domain: str, max_bytes: int) -> None:
        link = Link("provision", "0")
        await link.open(self._server.url, within_s=WITHIN_S)
        try:
            stream = DOMAINS[domain].stream
            found = await link.api(f"STREAM.INFO.{stream}")
            await link.api(f"STREAM.UPDATE.{stream}", found["config"] | {"max_bytes": max_bytes})
        finally:
            await link.close()

    async def pass_time(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


async def provisioned(directory: Path) -> None:
    """Make a store that a server can start from, once for all tests."""
    if (directory / "store").exists():
        return
    async with EmbeddedServer(directory) as server:
        await provision(server.url, dedup_window_s=DUPLICATE_WINDOW_S)


@asynccontextmanager
async def nats_world(template: Path, directory: Path) -> AsyncIterator[NatsWorld]:
    """A fresh server that starts from the template."""
    shutil.copytree(template / "store", directory / "store")
    async with EmbeddedServer(directory) as server, AsyncExitStack() as stack:
        yield NatsWorld(server, stack)


@asynccontextmanager
async def container_world(directory: Path) -> AsyncIterator[NatsWorld]:
    """A fresh server in a container."""
    async with ContainerServer(directory) as server, AsyncExitStack() as stack:
        await provision(server.url, dedup_window_s=DUPLICATE_WINDOW_S)
        yield NatsWorld(server, stack)
