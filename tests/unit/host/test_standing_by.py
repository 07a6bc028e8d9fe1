"""Who is the active replica when one cannot go on."""

from __future__ import annotations

import asyncio

import pytest

from shared.bus.memory import MemoryBus, MemoryServer
from shared.bus.port import Lease
from shared.clock import SystemClock
from shared.errors import Yields
from shared.host import Host
from shared.host.settings import SharedSettings

pytestmark = pytest.mark.looptime


async def test_a_replica_that_yields_leaves_the_lease_to_another_and_tries_again_later() -> None:
    server, clock = MemoryServer(clock=SystemClock()), SystemClock()
    old, new = (
        Host("x", SharedSettings(instance=name), clock, MemoryBus(server, "x", instance=name))
        for name in ("old", "new")
    )
    active: list[str] = []

    async def cannot(lease: Lease) -> None:
        del lease
        active.append("old")
        raise Yields("a log holds what this version does not know")

    async def can(lease: Lease) -> None:
        del lease
        active.append("new")
        await asyncio.sleep(3600)

    first = asyncio.create_task(old.while_active(cannot))
    await asyncio.sleep(40)
    second = asyncio.create_task(new.while_active(can))
    await asyncio.sleep(40)
    for task in (first, second):
        task.cancel()
    await asyncio.gather(first, second, return_exceptions=True)
    assert active == ["old", "old", "old", "new"], "tried every 15 s while alone, not once more after"
