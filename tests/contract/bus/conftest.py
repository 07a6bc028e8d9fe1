"""The same suite on the in-memory bus, on virtual time, on NATS, and on NATS of another version."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from shared.bus.nats import bus as nats_bus
from shared.bus.nats import publishing
from shared.bus.port import Bus
from tests.contract.bus.container import missing
from tests.contract.bus.nats_world import container_world, nats_world, provisioned
from tests.contract.bus.world import MemoryWorld, World


@pytest.fixture(scope="session")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the store of a provisioned server is kept, to be copied."""
    return tmp_path_factory.mktemp("nats-template")


SERVERS = [pytest.param("memory", marks=pytest.mark.looptime), "nats", *([] if missing() else ["container"])]


@pytest.fixture(params=SERVERS)
async def world(
    request: pytest.FixtureRequest, template: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[World]:
    if request.param == "memory":
        yield MemoryWorld()
        return
    # Production waits longer for an answer, and for lanes at the end, than the suite has time.
    # A server in a container is slower to have its streams again.
    within_s = 3.0 if request.param == "container" else 1.0
    monkeypatch.setattr(publishing.publish, "__kwdefaults__", {"within_s": within_s})
    monkeypatch.setattr(nats_bus, "STOP_WITHIN_S", 1.0)
    if request.param == "container":
        async with container_world(tmp_path) as made:
            yield made
        return
    await provisioned(template)
    async with nats_world(template, tmp_path) as made:
        yield made


@pytest.fixture
async def bus(world: World) -> Bus:
    return await world.bus()
