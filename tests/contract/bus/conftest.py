"""The same suite on the in-memory bus, on virtual time, and on NATS."""

from __future__ import annotations

import pytest

from shared.bus.port import Bus
from tests.contract.bus.world import MemoryWorld, World


@pytest.fixture(params=[pytest.param("memory", marks=pytest.mark.looptime)])
async def world() -> World:
    return MemoryWorld()


@pytest.fixture
async def bus(world: World) -> Bus:
    return await world.bus()
