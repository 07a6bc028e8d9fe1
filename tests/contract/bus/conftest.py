"""The same suite on the in-memory bus, on virtual time, and on NATS."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from shared.bus.nats import lease
from shared.bus.port import Bus
from tests.contract.bus.nats_world import LEASE_TTL_S, nats_world, provisioned
from tests.contract.bus.world import MemoryWorld, World


@pytest.fixture(scope="session")
def provisioned_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The store of a provisioned server, to be copied."""
    directory = tmp_path_factory.mktemp("nats-template")
    asyncio.run(provisioned(directory))
    return directory


@pytest.fixture(params=[pytest.param("memory", marks=pytest.mark.looptime), "nats"])
async def world(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[World]:
    if request.param == "memory":
        yield MemoryWorld()
        return
    monkeypatch.setattr(lease, "TTL_S", LEASE_TTL_S)
    monkeypatch.setattr(lease, "_RENEW_EVERY_S", LEASE_TTL_S / 3)
    monkeypatch.setattr(lease, "_POLL_S", 0.05)
    template = request.getfixturevalue("provisioned_store")
    async with nats_world(template, tmp_path) as made:
        yield made


@pytest.fixture
async def bus(world: World) -> Bus:
    return await world.bus()
