"""A case log takes a fact only where its writer has read it."""

from __future__ import annotations

import asyncio

import pytest

from shared.bus.port import Bus
from shared.errors import Conflict, Temporary
from shared.events import Entity, Unknown
from tests.contract.bus.world import KEY, LOG, NODE, World, newer, struck, window

OTHER = Entity("remediation", NODE, "nvidia-0000-3b-00-0-mig-1-0")
STRUCK = f"fleet.v1.remediation.{NODE}.{KEY}.struck"


async def windows(bus: Bus, of: Entity = LOG, after: int = 0) -> list[int]:
    found = [recorded.event async for recorded in bus.read(of, after=after)]
    return [window(made) for made in found if not isinstance(made, Unknown)]


async def grow(bus: Bus, count: int, of: Entity = LOG) -> list[int]:
    sequences: list[int] = []
    for number in range(1, count + 1):
        sequences.append(await bus.append(struck(number, of=of), sequences[-1] if sequences else 0))
    return sequences


async def test_a_log_grows_fact_by_fact(bus: Bus) -> None:
    sequences = await grow(bus, 3)
    assert sequences == sorted(set(sequences))
    assert await windows(bus) == [1, 2, 3]
    assert await windows(bus, after=sequences[0]) == [2, 3]
    assert await windows(bus, after=sequences[-1]) == []


async def test_logs_of_one_stream_do_not_mix(bus: Bus) -> None:
    await bus.append(struck(1), 0)
    await bus.append(struck(2, of=OTHER), 0)
    assert await windows(bus) == [1]
    assert await windows(bus, OTHER) == [2]


@pytest.mark.parametrize("expected", [0, 1, 99])
async def test_a_stale_expectation_is_a_conflict_that_says_where_the_log_stands(
    bus: Bus, expected: int
) -> None:
    sequences = await grow(bus, 2)
    with pytest.raises(Conflict) as conflict:
        await bus.append(struck(3), expected)
    assert conflict.value.last == sequences[-1]
    assert conflict.value.expected == expected
    assert await windows(bus) == [1, 2]


async def test_an_empty_log_takes_only_an_expectation_of_nothing(bus: Bus) -> None:
    with pytest.raises(Conflict) as conflict:
        await bus.append(struck(1), 5)
    assert conflict.value.last in (0, None)
    assert await windows(bus) == []


async def test_of_two_racing_writers_one_wins(world: World) -> None:
    one, other = await world.bus(instance="0"), await world.bus(instance="1")
    answers = await asyncio.gather(
        one.append(struck(1), 0), other.append(struck(2), 0), return_exceptions=True
    )
    assert sum(isinstance(answer, Conflict) for answer in answers) == 1
    assert len(await windows(one)) == 1


async def test_an_append_said_again_is_the_first_one(bus: Bus) -> None:
    sequence = await bus.append(struck(1), 0)
    assert await bus.append(struck(1), 0) == sequence
    assert await windows(bus) == [1]


async def test_an_append_said_again_after_the_log_moved_on_is_the_first_one(bus: Bus) -> None:
    first, second = await grow(bus, 2)
    assert await bus.append(struck(1), 0) == first
    assert await bus.append(struck(2), first) == second
    assert await windows(bus) == [1, 2]


async def test_an_append_cut_off_is_stored_once_when_the_connection_is_back(world: World, bus: Bus) -> None:
    await world.partition(bus)
    appending = asyncio.create_task(bus.append(struck(1), 0))
    await world.heal(bus)
    async with asyncio.timeout(8):
        sequence = await appending
    assert await bus.append(struck(1), 0) == sequence
    assert await windows(bus) == [1]


async def test_the_last_fact_is_the_logs_own(bus: Bus) -> None:
    assert await bus.last(LOG) is None
    sequences = await grow(bus, 2)
    await bus.append(struck(9, of=OTHER), 0)
    last = await bus.last(LOG)
    assert last is not None
    assert last.sequence == sequences[-1]
    assert not isinstance(last.event, Unknown)
    assert window(last.event) == 2


async def test_a_purge_forgets_what_lies_below_and_the_log_goes_on(bus: Bus) -> None:
    sequences = await grow(bus, 4)
    await bus.append(struck(1, of=OTHER), 0)
    await bus.purge(LOG, below=sequences[2])
    assert await windows(bus) == [3, 4]
    assert await windows(bus, OTHER) == [1]
    await bus.append(struck(5), sequences[-1])
    assert await windows(bus) == [3, 4, 5]


async def test_a_log_purged_whole_is_empty(bus: Bus) -> None:
    sequences = await grow(bus, 2)
    await bus.purge(LOG, below=sequences[-1] + 1)
    assert await bus.last(LOG) is None
    assert await windows(bus) == []
    assert await bus.append(struck(3), 0) > sequences[-1]


async def test_a_full_log_refuses_for_now_and_goes_on_when_it_is_compacted(world: World, bus: Bus) -> None:
    await world.limit("remediation", 8_000)
    sequences = [0]

    async def fill() -> None:
        for number in range(1, 30):
            sequences.append(await bus.append(struck(number), sequences[-1]))

    with pytest.raises(Temporary, match="is full"):
        await fill()
    await bus.purge(LOG, below=sequences[-1])
    assert await bus.append(struck(99), sequences[-1]) > sequences[-1]
    assert len(await windows(bus)) == 2


async def test_purging_an_empty_log_is_nothing(bus: Bus) -> None:
    await bus.purge(LOG, below=7)
    assert await bus.last(LOG) is None


async def test_a_fact_of_a_later_version_is_read_as_unknown_and_counts(world: World, bus: Bus) -> None:
    sequence = await bus.append(struck(1), 0)
    await world.raw(*newer(LOG.domain, "foretold", LOG.place, LOG.entity))
    found = [recorded async for recorded in bus.read(LOG)]
    assert isinstance(found[1].event, Unknown)
    with pytest.raises(Conflict):
        await bus.append(struck(2), sequence)
    await bus.append(struck(2), found[1].sequence)


async def test_no_case_holds_on_what_is_no_envelope(world: World, bus: Bus) -> None:
    sequence = await bus.append(struck(1), 0)
    await world.raw(STRUCK, b"+ACK")
    assert await windows(bus) == [1]
    last = await bus.last(LOG)
    assert last is not None
    assert last.sequence == sequence
    await bus.append(struck(2), sequence)
    assert await windows(bus) == [1, 2]


async def test_the_log_of_any_name_is_its_own(bus: Bus) -> None:
    entities = [Entity("remediation", name, name) for name in ("worker.3", "*", ">", "a_2eb", "w")]
    for entity in entities:
        sequences = await grow(bus, 2, of=entity)
        assert await windows(bus, entity) == [1, 2]
        last = await bus.last(entity)
        assert last is not None
        assert last.sequence == sequences[-1]
        await bus.purge(entity, below=sequences[-1])
    assert [await windows(bus, entity) for entity in entities] == [[2]] * len(entities)
