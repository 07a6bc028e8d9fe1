"""A lease has one holder at a time, and a handover loses nothing and runs nothing twice at once."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

import pytest

from shared.bus.port import Bus, Delivery, Lease, LeaseLost
from shared.errors import Temporary
from tests.contract.bus.world import (
    WITHIN_S,
    Heard,
    World,
    current,
    dead_letters,
    leased,
    rejected,
    report,
)


async def lost(lease: Lease, within_s: float) -> None:
    async with asyncio.timeout(within_s):
        await lease.lost()


async def holder(bus: Bus, inside: asyncio.Event, leave: asyncio.Event, held: list[Lease]) -> None:
    async with bus.lease("manager") as lease:
        held.append(lease)
        inside.set()
        await leave.wait()


async def test_a_lease_has_one_holder_who_renews_it_until_it_is_released(world: World) -> None:
    world.lease_ttl_s = 1.0
    one, other = await world.bus(instance="0"), await world.bus(instance="1")
    inside, leave, held = asyncio.Event(), asyncio.Event(), list[Lease]()
    async with one.lease("manager") as lease:
        waiting = asyncio.create_task(holder(other, inside, leave, held))
        done, _ = await asyncio.wait({asyncio.create_task(inside.wait())}, timeout=world.lease_ttl_s * 1.5)
        assert not done
        assert 0 < lease.remaining_s() <= world.lease_ttl_s
    async with asyncio.timeout(WITHIN_S):
        await inside.wait()
    assert held[0].number > lease.number
    assert held[0].name == "manager"
    leave.set()
    await waiting


async def test_leases_of_different_names_do_not_meet(bus: Bus) -> None:
    async with asyncio.timeout(WITHIN_S), bus.lease("manager") as one, bus.lease("guardian") as other:
        assert one.remaining_s() > 0
        assert other.remaining_s() > 0


async def test_a_holder_cut_off_loses_its_lease_in_time_and_another_takes_it(world: World) -> None:
    world.lease_ttl_s = 1.0
    one, other = await world.bus(instance="0"), await world.bus(instance="1")
    async with one.lease("manager") as lease:
        await world.partition(one)
        async with asyncio.timeout(world.lease_ttl_s + WITHIN_S), other.lease("manager") as next_lease:
            assert lease.remaining_s() == 0
            await lost(lease, 0.1)
            assert next_lease.number > lease.number
        await world.heal(one)
        assert lease.remaining_s() == 0


async def test_a_short_break_costs_no_lease(world: World, bus: Bus) -> None:
    async with bus.lease("manager") as lease:
        await world.partition(bus)
        await world.heal(bus)
        await world.pass_time(world.lease_ttl_s * 1.2)
        assert lease.remaining_s() > 0


async def test_losing_the_lease_ends_the_consumption(world: World) -> None:
    world.lease_ttl_s = 1.0
    bus = await world.bus()
    heard = Heard()
    async with leased(bus, heard.health()) as running:
        await world.partition(bus)
        with pytest.raises(LeaseLost):
            async with asyncio.timeout(world.lease_ttl_s + WITHIN_S):
                await running.wait()


async def test_a_handover_goes_on_where_the_last_holder_stood(world: World) -> None:
    one, other = await world.bus(instance="0"), await world.bus(instance="1")
    first, second = Heard(), Heard()
    for number in range(1, 4):
        await one.publish(report(number))
    async with leased(one, first.health()) as running:
        await first.count(3)
        await current(running)
    for number in range(4, 6):
        await one.publish(report(number))
    async with leased(other, second.health()) as running:
        await current(running)
    assert first.windows == [1, 2, 3]
    assert second.windows == [4, 5]


async def test_a_holder_that_vanishes_loses_nothing(world: World) -> None:
    world.lease_ttl_s = 1.0
    one, other = await world.bus(instance="0"), await world.bus(instance="1")
    never = asyncio.Event()

    async def hang_at_two(delivery: Delivery) -> None:
        if delivery.sequence == 2:
            await never.wait()

    first, second = Heard(hang_at_two), Heard()
    for number in range(1, 5):
        await one.publish(report(number, key=f"nvidia-0000-{number:02x}-00-0"))
    async with leased(one, first.health()):
        await first.count(4)
        await world.partition(one)
        await other.publish(report(5))
        async with asyncio.timeout(world.lease_ttl_s * 2 + WITHIN_S), AsyncExitStack() as stack:
            await stack.enter_async_context(leased(other, second.health()))
            while not {2, 3, 4, 5} <= set(second.windows):
                await second.count(len(second.windows) + 1)
        never.set()
    assert sorted(first.windows) == [1, 2, 3, 4]
    assert len(second.windows) == len(set(second.windows))


async def test_a_late_acknowledgement_of_a_former_holder_counts_for_nothing(world: World) -> None:
    world.lease_ttl_s = 1.0
    one, other = await world.bus(instance="0"), await world.bus(instance="1")
    third = Heard()
    go = asyncio.Event()

    async def wait(_: Delivery) -> None:
        await go.wait()

    async def fail(_: Delivery) -> None:
        raise Temporary("in an hour", delay_s=3600)

    first, second = Heard(wait), Heard(fail)
    await one.publish(report(1))
    async with leased(one, first.health()):
        await first.count(1)
        await world.partition(one)
        async with asyncio.timeout(world.lease_ttl_s * 2 + WITHIN_S), AsyncExitStack() as stack:
            await stack.enter_async_context(leased(other, second.health(give_up_after_s=9999)))
            await second.count(1)
            await world.heal(one)
            go.set()
    async with leased(one, third.health()):
        await third.count(1)
    assert (first.windows, second.windows, third.windows) == ([1], [1], [1])


async def test_a_message_that_kills_its_process_is_a_dead_letter_after_three(world: World) -> None:
    world.lease_ttl_s = 1.0
    publisher = await world.bus("publisher")
    await publisher.publish(report(1))
    await publisher.publish(report(2, key="nvidia-0000-86-00-0"))
    rescue = asyncio.Event()

    async def die(delivery: Delivery) -> None:
        if delivery.sequence == 1:
            await rescue.wait()

    lives = [Heard(die) for _ in range(5)]
    async with dead_letters(publisher) as letters, AsyncExitStack() as stack:
        for life, heard in enumerate(lives):
            bus = await world.bus(instance=str(life))
            async with asyncio.timeout(world.lease_ttl_s * 2 + WITHIN_S):
                await stack.enter_async_context(leased(bus, heard.health()))
            started = asyncio.create_task(seen(heard, 1))
            buried = asyncio.create_task(letters.count(1))
            await asyncio.wait({started, buried}, return_when=asyncio.FIRST_COMPLETED, timeout=WITHIN_S)
            started.cancel()
            if buried.done():
                break
            buried.cancel()
            await world.partition(bus)
        letter = rejected(letters.deliveries[0])
        rescue.set()
    assert letter.sequence == 1
    assert "died 3 times" in letter.reason
    assert sum(1 in [delivery.sequence for delivery in heard.deliveries] for heard in lives) == 3


async def seen(heard: Heard, sequence: int) -> None:
    number = 1
    while sequence not in [delivery.sequence for delivery in await heard.count(number)]:
        number = len(heard.deliveries) + 1


async def test_a_holder_that_releases_blames_no_message(world: World) -> None:
    publisher = await world.bus("publisher")
    await publisher.publish(report(1))

    async def later(_: Delivery) -> None:
        raise Temporary("in an hour", delay_s=3600)

    for life in range(4):
        waiting = Heard(later)
        bus = await world.bus(instance=str(life))
        async with leased(bus, waiting.health(give_up_after_s=9999)):
            await waiting.count(1)
    calm = Heard()
    async with leased(publisher, calm.health()):
        await calm.count(1)
    assert [recorded async for recorded in publisher.history("deadletter")] == []


async def test_a_lease_of_another_bus_is_refused(bus: Bus) -> None:
    class Foreign:
        name, number = "tester", 1

        def remaining_s(self) -> float:
            return 1.0

        async def lost(self) -> None:
            return

    with pytest.raises(TypeError, match="a lease of this bus"):
        async with bus.consume("tester", (Heard().health(),), lease=Foreign()):
            pass
