"""The manager between a memory bus and a simulated API server."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import timedelta
from random import Random

import pytest

from services.manager.fleet import DeviceRow
from services.manager.service import run
from services.manager.settings import ManagerSettings
from services.simulator.api.resources import NODES
from services.simulator.api.server import ApiServer
from shared.bus.memory import MemoryBus, MemoryServer
from shared.clock import SystemClock
from shared.events import Cause, Payload, Unknown, event
from shared.events.device import DeviceRejected, Lost, Registered
from shared.events.remediation import Quarantined
from shared.events.world import Discovered, FoundDevice, HealthReported, Heartbeat, InventoryStated, Removed
from shared.host import Host, SharedSettings
from shared.kube.client import KubeClient, connect

NODE, KEY = "worker-1", "nvidia-0000-3b-00-0"
NAME = f"{NODE}-{KEY}"


class World:
    """A manager at work, and what is needed to talk to it."""

    def __init__(self, server: MemoryServer, api: ApiServer, url: str, kube: KubeClient) -> None:
        self.clock = SystemClock()
        self.server, self.api, self.url, self.kube = server, api, url, kube
        self.bus = MemoryBus(server, "test")
        self._n = 0
        self._tasks: list[asyncio.Task[None]] = []

    def start(
        self, instance: str = "0", *, silent_after_s: float = 300, resync_every_s: float = 60
    ) -> asyncio.Task[None]:
        shared = SharedSettings(kube_url=self.url, instance=instance)
        host = Host("manager", shared, self.clock, MemoryBus(self.server, "manager", instance=instance))
        own = ManagerSettings(
            sweep_every_s=0.05, silent_after_s=silent_after_s, resync_every_s=resync_every_s
        )
        task = asyncio.create_task(run(host, own), name=f"manager-{instance}")
        self._tasks.append(task)
        return task

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def say(self, payload: Payload, entity: str = KEY) -> None:
        self._n += 1
        said = event(
            payload, (NODE, entity), cause=Cause.source("boot", self._n), source="/test", at=self.clock.now()
        )
        await self.bus.publish(said)

    async def until(self, seen: Callable[[], Awaitable[object]]) -> None:
        async with asyncio.timeout(10):
            while not await seen():  # noqa: ASYNC110 - what is waited for is on the other side of a socket
                await asyncio.sleep(0.01)

    async def facts(self, *kinds: type[Payload]) -> list[Payload]:
        found = [record.event async for record in self.bus.history("device")]
        return [each.data for each in found if not isinstance(each, Unknown) and isinstance(each.data, kinds)]

    async def status(self) -> dict[str, object]:
        for resource in await self.kube.media_resources():
            if resource.name == NAME:
                return dict(resource.status)
        return {}


@pytest.fixture
async def world() -> AsyncIterator[World]:
    clock = SystemClock()
    api = ApiServer(clock=clock, random=Random(1))  # noqa: S311 - uids of a simulation
    url = await api.start()
    api.store.create(NODES, "", {"metadata": {"name": NODE}})
    async with connect(url) as kube:
        made = World(MemoryServer(clock=clock), api, url, kube)
        yield made
        await made.stop()
    await api.stop()


def found(serial: str = "S1") -> FoundDevice:
    return FoundDevice(
        key=KEY,
        vendor="nvidia",
        bus_address="0000:3b:00.0",
        serial=serial,
        raw={"pci": {"pci_id": "10de:1eb8"}},
        sources=("pci",),
    )


async def test_a_discovered_device_becomes_a_media_resource_and_a_label(world: World) -> None:
    world.start()
    await world.say(Discovered(boot_id="b", n=1, device=found()))
    await world.until(lambda: world.facts(Registered))
    await world.until(world.status)

    async def labelled() -> bool:
        node = await world.kube.node(NODE)
        return node is not None and node.labels.get("media.example.com/gpu-vendor") == "nvidia"

    await world.until(labelled)
    row = await world.bus.view("devices", DeviceRow).get(f"{NODE}/{KEY}")
    assert row is not None
    assert row.value is not None
    assert row.value.state == "registered"


async def test_health_and_case_show_in_its_status(world: World) -> None:
    world.start()
    await world.say(Discovered(boot_id="b", n=1, device=found()))
    await world.say(HealthReported(boot_id="b", window_id=1, verdict="unhealthy", streak=1))
    await world.say(Quarantined(epoch=4, reason="r", deadline=world.clock.now()))

    async def shown() -> bool:
        status = await world.status()
        return (status.get("phase"), status.get("verdict"), status.get("epoch")) == (
            "Quarantined",
            "unhealthy",
            4,
        )

    await world.until(shown)


async def test_conditions_say_since_when_and_survive_the_manager(world: World) -> None:
    async def condition(kind: str) -> dict[str, object]:
        stand = (await world.status()).get("conditions")
        return (
            next((dict(each) for each in stand if each["type"] == kind), {})
            if isinstance(stand, list)
            else {}
        )

    async def quarantined() -> bool:
        return (await condition("Quarantined")).get("status") == "True"

    async def in_use() -> bool:
        return (await condition("Ready")).get("status") == "True"

    first = world.start("0")
    await world.say(Discovered(boot_id="b", n=1, device=found()))
    await world.say(HealthReported(boot_id="b", window_id=1, verdict="healthy", streak=1))
    await world.until(in_use)
    await world.say(Quarantined(epoch=4, reason="3 strikes: XID 79", deadline=world.clock.now()))
    await world.until(quarantined)
    before = await condition("Quarantined")
    assert (before["reason"], before["observedGeneration"]) == ("Quarantined", 1)
    assert "3 strikes: XID 79" in str(before["message"])
    assert (await condition("Ready"))["reason"] == "Quarantined"
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    written = len(world.api.access_log.find("patch", f"{NAME}/status"))
    world.clock = SystemClock(start=world.clock.now() + timedelta(hours=1))
    world.start("1")

    async def again() -> bool:
        return len(world.api.access_log.find("patch", f"{NAME}/status")) > written

    await world.until(again)
    assert (await condition("Quarantined"))["lastTransitionTime"] == before["lastTransitionTime"]


async def test_what_a_node_removes_or_no_longer_states_is_lost_and_its_resource_deleted(world: World) -> None:
    world.start()
    await world.say(Discovered(boot_id="b", n=1, device=found()))
    await world.until(world.status)
    await world.say(Removed(boot_id="b", n=2, reason="unplugged"))
    await world.until(lambda: world.facts(Lost))

    async def gone() -> bool:
        return not await world.status()

    await world.until(gone)
    await world.say(InventoryStated(boot_id="b", n=3, devices=(found("S2"),)), "agent")
    await world.until(world.status)
    await world.say(InventoryStated(boot_id="b", n=4, devices=()), "agent")
    await world.until(gone)
    assert [type(fact).__name__ for fact in await world.facts(Registered, Lost)] == [
        "Registered",
        "Lost",
        "Registered",
        "Lost",
    ]


async def test_a_silent_node_loses_its_devices_and_gets_them_back_with_its_first_word(world: World) -> None:
    world.start(silent_after_s=0.3)
    await world.say(InventoryStated(boot_id="b", n=1, devices=(found(),)), "agent")
    await world.until(lambda: world.facts(Lost))
    await world.say(Heartbeat(boot_id="b", n=2, device_keys=(KEY,), journal_depth=0, journal_lost=0), "agent")

    async def back() -> bool:
        return len(await world.facts(Registered)) == 2

    await world.until(back)


async def test_a_second_manager_takes_over_and_says_nothing_twice(world: World) -> None:
    first = world.start("0")
    await world.say(Discovered(boot_id="b", n=1, device=found()))
    await world.until(world.status)
    world.start("1")
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    await world.say(HealthReported(boot_id="b", window_id=1, verdict="healthy", streak=1))

    async def shown() -> bool:
        return (await world.status()).get("verdict") == "healthy"

    await world.until(shown)
    assert len(await world.facts(Registered)) == 1


async def test_a_deleted_media_resource_is_made_again(world: World) -> None:
    world.start(resync_every_s=0.1)
    await world.say(Discovered(boot_id="b", n=1, device=found()))
    await world.until(world.status)
    await world.kube.delete_media_resource(NAME)
    await world.until(world.status)


async def test_a_device_that_cannot_be_translated_is_rejected_and_the_next_one_is_taken(world: World) -> None:
    world.start()
    broken = found().model_copy(update={"raw": {"pci": {"pci_id": "10de:1eb8"}}, "key": "nvidia"})
    await world.say(Discovered(boot_id="b", n=1, device=broken), "no-such-key")
    await world.until(lambda: world.facts(DeviceRejected))
    await world.say(Discovered(boot_id="b", n=2, device=found()))
    await world.until(lambda: world.facts(Registered))
