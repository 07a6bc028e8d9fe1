"""A lost connection, a restarted server: nothing is lost, and nobody acts on old news."""

from __future__ import annotations

import asyncio

import pytest

from shared.bus.port import Bus, Delivery, Subscription
from shared.events import Cause, Event, event
from shared.events.parts import PodRef
from shared.events.remediation import HoldRequested
from shared.events.world import HealthReported, Sampled
from tests.contract.bus.world import (
    AT,
    LOG,
    Heard,
    World,
    current,
    everything,
    hold,
    leased,
    report,
    struck,
    window,
)


async def test_consuming_goes_on_after_a_restart_and_loses_nothing(world: World, bus: Bus) -> None:
    heard = Heard()
    async with bus.consume("tester", (heard.health(),)) as consumption:
        for number in range(1, 4):
            await bus.publish(report(number))
        await heard.count(3)
        await world.restart()
        for number in range(4, 7):
            await bus.publish(report(number))
        await heard.count(6)
        await current(consumption)
    assert heard.windows == [1, 2, 3, 4, 5, 6]


async def test_what_is_in_work_during_a_break_is_not_handled_twice(world: World) -> None:
    bus, writer = await world.bus(), await world.bus("writer")
    go = asyncio.Event()

    async def wait(_: Delivery) -> None:
        await go.wait()

    heard = Heard(wait)
    for number in range(1, 4):
        await bus.publish(report(number))
    async with bus.lease("tester") as lease, bus.consume("tester", (heard.health(),), lease=lease) as running:
        await heard.count(1)
        await world.partition(bus)
        await writer.publish(report(4))
        await world.heal(bus)
        go.set()
        await heard.count(4)
        await current(running)
    assert heard.windows == [1, 2, 3, 4]


async def test_what_was_done_during_a_break_is_not_done_again(world: World) -> None:
    bus, writer = await world.bus(), await world.bus("writer")
    heard = Heard()
    cut = asyncio.Event()
    done = asyncio.Event()

    async def finish_in_the_dark(_: Delivery) -> None:
        await cut.wait()
        done.set()

    heard = Heard(finish_in_the_dark)
    await bus.publish(report(1))
    async with bus.consume("tester", (heard.health(),)):
        await heard.count(1)
        await world.partition(bus)
        cut.set()
        await done.wait()
        await writer.publish(report(2))
        await world.heal(bus)
        await heard.count(2)
    assert heard.windows == [1, 2]


async def test_nobody_is_caught_up_while_cut_off(world: World) -> None:
    bus, writer = await world.bus(), await world.bus("writer")
    heard = Heard()
    async with bus.consume("tester", (heard.health(),)) as consumption:
        await current(consumption)
        since_s = consumption.listening_since_s
        await world.partition(bus)
        assert not consumption.caught_up
        await writer.publish(report(1))
        await world.pass_time(0.05)
        await world.heal(bus)
        await current(consumption)
        assert heard.windows == [1]
        assert consumption.listening_since_s > since_s


async def test_commands_come_first_after_a_break_too(world: World) -> None:
    bus, writer = await world.bus(), await world.bus("writer")
    heard = Heard()
    subscriptions = (
        heard.health(key=lambda event: event.id),
        Subscription("command", (HoldRequested,), heard, key=lambda event: event.id),
    )
    async with bus.consume("tester", subscriptions) as consumption:
        await current(consumption)
        await world.partition(bus)
        await writer.publish(report(1))
        await writer.publish(hold("h1"))
        await world.heal(bus)
        await heard.count(2)
    assert [type(delivery.event.data) for delivery in heard.deliveries] == [HoldRequested, HealthReported]


async def test_a_break_while_commands_are_heard_holds_the_rest_back(world: World) -> None:
    bus, writer = await world.bus(), await world.bus("writer")
    go = asyncio.Event()

    async def wait(_: Delivery) -> None:
        await go.wait()

    commands, rest = Heard(wait), Heard()
    subscriptions = (rest.health(), Subscription("command", (HoldRequested,), commands))
    await writer.publish(report(1))
    await writer.publish(hold("h1"))
    async with bus.consume("tester", subscriptions) as consumption:
        await commands.count(1)
        await world.partition(bus)
        await world.heal(bus)
        assert rest.deliveries == []
        go.set()
        await current(consumption)
    assert len(commands.deliveries) == 1
    assert rest.windows == [1]


async def test_logs_and_facts_outlive_a_restart(world: World, bus: Bus) -> None:
    await bus.publish(report(1))
    sequence = await bus.append(struck(1), 0)
    await world.restart()
    assert [window(made) for made in await everything(bus)] == [1]
    assert (await bus.publish(report(1))).duplicate
    await bus.append(struck(2), sequence)
    found = [recorded.event async for recorded in bus.read(LOG)]
    assert [window(made) for made in found if isinstance(made, Event)] == [1, 2]


def sample(number: int) -> Event[Sampled]:
    data = Sampled(
        boot_id="b1",
        n=number,
        pod=PodRef(namespace="live", name="edge", uid="u"),
        workload="deployment-edge",
        window_s=10,
        measured_at=AT,
    )
    return event(data, ("live", "edge"), cause=Cause.source("b1", number), source="/mediafleet/test/0", at=AT)


@pytest.mark.parametrize("durable", [False, True])
async def test_measurements_in_memory_are_heard_again_after_a_restart_made_them_count_from_one(
    world: World, bus: Bus, *, durable: bool
) -> None:
    heard = Heard()
    subscription = Subscription("sample", (Sampled,), heard)
    async with leased(bus, subscription) if durable else bus.consume("tester", (subscription,)):
        for number in range(1, 4):
            await bus.publish(sample(number))
        await heard.count(3)
        await world.restart()
        await bus.publish(sample(4))
        deliveries = await heard.count(4)
    numbers = [made.event.data.n for made in deliveries if isinstance(made.event.data, Sampled)]
    assert numbers == [1, 2, 3, 4]
    assert deliveries[3].sequence <= 4
