"""Publishing states a fact once, whatever the connection does."""

from __future__ import annotations

import asyncio

import pytest

from shared.bus.port import Bus, Disconnected
from shared.errors import BadInput, Permanent
from shared.events import Event, Unknown
from shared.events.world import Diagnosed, HealthReported
from tests.contract.bus.world import KEY, NODE, WITHIN_S, World, everything, newer, report, window


async def test_a_fact_said_twice_is_stored_once(bus: Bus) -> None:
    first = await bus.publish(report(1))
    again = await bus.publish(report(1))
    assert (first.sequence, first.duplicate) == (again.sequence, False)
    assert again.duplicate
    assert len(await everything(bus)) == 1


async def test_two_processes_that_say_the_same_fact_say_it_once(world: World) -> None:
    one, other = await world.bus(instance="0"), await world.bus(instance="1")
    stored = await asyncio.gather(one.publish(report(1)), other.publish(report(1)))
    assert sorted(answer.duplicate for answer in stored) == [False, True]


async def test_another_body_under_a_known_id_is_refused(bus: Bus) -> None:
    await bus.publish(report(1))
    with pytest.raises(Permanent, match="the id of another fact") as refused:
        await bus.publish(report(1, serial="1320220012345"))
    assert refused.value.field == "id"


async def test_an_id_is_forgotten_after_the_window(world: World, bus: Bus) -> None:
    await bus.publish(report(1))
    async with asyncio.timeout(world.duplicate_window_s + WITHIN_S):
        while (await bus.publish(report(1))).duplicate:
            await world.pass_time(world.duplicate_window_s / 10)
    assert len(await everything(bus)) == 2


async def test_sequences_grow_by_one(bus: Bus) -> None:
    stored = [await bus.publish(report(number)) for number in range(1, 4)]
    assert [answer.sequence for answer in stored] == [1, 2, 3]


async def test_a_publish_cut_off_is_stored_once_when_the_connection_is_back(world: World, bus: Bus) -> None:
    await world.partition(bus)
    publishing = asyncio.create_task(bus.publish(report(1)))
    await world.heal(bus)
    async with asyncio.timeout(WITHIN_S):
        await publishing
    await bus.publish(report(1))
    assert len(await everything(bus)) == 1


async def test_a_publish_gives_up_after_its_deadline_and_may_be_said_again(world: World, bus: Bus) -> None:
    await world.partition(bus)
    async with asyncio.timeout(20):
        with pytest.raises(Disconnected):
            await bus.publish(report(1))
    await world.heal(bus)
    await bus.publish(report(1))
    assert len(await everything(bus)) == 1


async def test_any_name_is_stored_and_found(bus: Bus) -> None:
    names = ["worker.3", "*", ">", "a_2eb", "with space", "Grüße/und mehr"]
    for number, name in enumerate(names):
        await bus.publish(report(number, place=name.replace("/", ""), key=name))
    for name in names:
        place = name.replace("/", "")
        found = await everything(bus, place=place)
        assert [(made.of.place, made.of.entity) for made in found] == [(place, name)]


async def test_an_event_that_is_too_large_is_refused_before_it_is_sent(bus: Bus) -> None:
    with pytest.raises(BadInput, match="too large"):
        await bus.publish(report(1, serial="1" * 600_000))


async def test_history_is_filtered_and_in_order(bus: Bus) -> None:
    for number in range(1, 6):
        await bus.publish(report(number, place="a" if number % 2 else "b"))
    assert [window(made) for made in await everything(bus)] == [1, 2, 3, 4, 5]
    assert [window(made) for made in await everything(bus, place="a")] == [1, 3, 5]
    assert [window(made) for made in await everything(bus, after=3)] == [4, 5]
    assert len(await everything(bus, types=(HealthReported,))) == 5
    assert await everything(bus, types=(Diagnosed,)) == []
    assert await everything(bus, "inventory") == []


async def test_what_is_no_envelope_is_no_history(world: World, bus: Bus) -> None:
    await world.raw(f"fleet.v1.health.{NODE}.{KEY}.reported", b"+ACK")
    await world.raw(f"fleet.v1.health.{NODE}.{KEY}.reported", report(7, key="another").encode())
    await bus.publish(report(1))
    assert [window(made) for made in await everything(bus)] == [1]


async def test_a_type_from_a_later_version_is_kept_as_it_came(world: World, bus: Bus) -> None:
    subject, body = newer("health", "foretold")
    await world.raw(subject, body)
    found = [recorded.event async for recorded in bus.history("health")]
    assert isinstance(found[0], Unknown)
    assert (found[0].id, found[0].body) == ("from-the-future", body)


async def test_what_is_recorded_says_when_it_was_stored(bus: Bus) -> None:
    stored = await bus.publish(report(1))
    found = [recorded async for recorded in bus.history("health")]
    assert found[0].sequence == stored.sequence
    assert found[0].stored_at.tzinfo is not None
    assert isinstance(found[0].event, Event)


async def test_a_round_trip_needs_the_connection(world: World, bus: Bus) -> None:
    assert await bus.ping() >= 0
    await world.partition(bus)
    with pytest.raises(Disconnected):
        await bus.ping()


async def test_a_bus_says_whether_it_is_connected(world: World, bus: Bus) -> None:
    seen = [bus.connected]
    await world.partition(bus)
    seen.append(bus.connected)
    await world.heal(bus)
    seen.append(bus.connected)
    assert seen == [True, False, True]
