"""A store on the loop's time, and waiting for facts in it."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime
from random import Random
from typing import Any

import pytest

from services.simulator.api.controllers import Controllers, running
from services.simulator.api.resources import NAMESPACES, NODES, PODS
from services.simulator.api.store import Store
from shared.clock import ManualClock, SystemClock

Json = dict[str, Any]
Until = Callable[[Callable[[], Any]], Awaitable[None]]


@pytest.fixture
def store() -> Store:
    """A store on a clock that stands."""
    return seeded(Store(ManualClock(), random=seed(), history=100))


@pytest.fixture
async def cluster() -> Store:
    """A store on the loop's time."""
    return seeded(Store(SystemClock(start=datetime(2026, 1, 1, tzinfo=UTC)), random=seed()))


@pytest.fixture
async def controllers(cluster: Store) -> AsyncIterator[Controllers]:
    """Every controller at work on it; pods end after two seconds."""
    async with running(cluster, grace_s=2.0) as made:
        yield made


def seed() -> Random:
    return Random(7)  # noqa: S311 - names, no secrets


def seeded(made: Store) -> Store:
    made.create(NAMESPACES, "", {"metadata": {"name": "default"}})
    return made


@pytest.fixture
async def until(cluster: Store) -> AsyncIterator[Until]:
    """Wait until something holds; looked at after every change."""
    changed = asyncio.Event()
    forget = cluster.listen(lambda _: changed.set())

    async def wait(holds: Callable[[], Any]) -> None:
        async with asyncio.timeout(600):
            while not holds():
                changed.clear()
                await changed.wait()

    yield wait
    forget()


@pytest.fixture
def make_node(cluster: Store) -> Callable[..., Json]:
    def make(name: str, encoders: int = 2) -> Json:
        capacity = {"media.example.com/nvenc": str(encoders)}
        return cluster.create(NODES, "", {"metadata": {"name": name}, "status": {"capacity": capacity}})

    return make


@pytest.fixture
def pods(cluster: Store) -> Callable[..., list[Json]]:
    """Pods that are there, by what they are at."""

    def find(*, ready: bool | None = None, node: str | None = None) -> list[Json]:
        found = []
        for pod in cluster.each(PODS):
            conditions = pod["status"].get("conditions") or ()
            is_ready = any(entry["type"] == "Ready" and entry["status"] == "True" for entry in conditions)
            if ready is not None and (is_ready and not pod["metadata"].get("deletionTimestamp")) is not ready:
                continue
            if node is None or pod["spec"].get("nodeName") == node:
                found.append(pod)
        return found

    return find


@pytest.fixture
def template() -> Json:
    """A pod template that asks for one encoder."""
    container = {
        "name": "main",
        "image": "registry.invalid/edge:1",
        "resources": {"limits": {"media.example.com/nvenc": "1"}},
    }
    return {"metadata": {"labels": {"app": "edge"}}, "spec": {"containers": [container]}}
