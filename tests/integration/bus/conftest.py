"""A provisioned nats-server for each test, started from one template store."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from shared.bus.nats import NatsBus, connect
from shared.bus.nats.frames import Frame
from shared.bus.provision import provision
from shared.bus.server import EmbeddedServer

Join = Callable[..., Awaitable[NatsBus]]
LEASE_TTL_S = 1


@pytest.fixture(scope="session")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the store of a provisioned server is kept."""
    return tmp_path_factory.mktemp("bus")


@pytest.fixture
async def server(template: Path, tmp_path: Path) -> AsyncIterator[EmbeddedServer]:
    """A server that has every stream."""
    if not (template / "store").exists():
        async with EmbeddedServer(template) as first:
            await provision(first.url)
    shutil.copytree(template / "store", tmp_path / "store")
    async with EmbeddedServer(tmp_path) as made:
        await provision(made.url)  # what is in memory only
        yield made


async def pull_one(bus: NatsBus, stream: str, consumer: str) -> Frame:
    """Pull one message as a stranger would, and leave it unacknowledged."""
    came: asyncio.Future[Frame] = asyncio.get_running_loop().create_future()
    inbox = bus.link.inbox()
    subscription = await bus.link.subscribe(inbox, came.set_result)
    await bus.link.send(f"$JS.API.CONSUMER.MSG.NEXT.{stream}.{consumer}", b'{"batch":1}', reply=inbox)
    frame = await came
    await bus.link.unsubscribe(subscription)
    return frame


@pytest.fixture
async def join(server: EmbeddedServer) -> AsyncIterator[Join]:
    """Connect to it, as often as you like."""
    async with AsyncExitStack() as stack:

        async def connected(service: str = "tester", instance: str = "0") -> NatsBus:
            return await stack.enter_async_context(
                connect(server.url, service=service, instance=instance, lease_ttl_s=LEASE_TTL_S)
            )

        yield connected


@pytest.fixture
async def bus(join: Join) -> NatsBus:
    """One connection."""
    return await join()
