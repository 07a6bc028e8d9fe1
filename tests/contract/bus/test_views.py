"""A view is a hint that its writer can rebuild: compare-and-set, tombstones, origins, a watch."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta

import pytest
from pydantic import BaseModel, ConfigDict, Field

from shared.bus.port import Bus, Entry, Origin
from shared.errors import Conflict
from tests.contract.bus.world import AT, WITHIN_S, World


class Place(BaseModel):
    model_config = ConfigDict(frozen=True, populate_by_name=True)

    name: str
    free_slots: int = Field(default=0, alias="freeSlots")


def origin(sequence: int, *, rebuilt: int = 0) -> Origin:
    return Origin(AT + timedelta(hours=rebuilt), sequence)


Changes = AsyncIterator[Entry[Place] | None]


async def following(changes: Changes) -> Entry[Place] | None:
    async with asyncio.timeout(WITHIN_S):
        return await anext(changes)


async def until_current(changes: Changes) -> list[Entry[Place]]:
    found = []
    while (entry := await following(changes)) is not None:
        found.append(entry)
    return found


def named(entry: Entry[Place] | None) -> str | None:
    assert entry is not None
    return entry.value.name if entry.value else None


async def test_a_value_is_read_back(bus: Bus) -> None:
    view = bus.view("devices", Place)
    assert await view.get("worker-3/gpu") is None
    revision = await view.put("worker-3/gpu", Place(name="a", free_slots=2), origin=origin(7))
    assert await view.get("worker-3/gpu") == Entry(
        "worker-3/gpu", Place(name="a", free_slots=2), revision or 0, origin(7)
    )


async def test_any_key_is_its_own(bus: Bus) -> None:
    view = bus.view("devices", Place)
    keys = ["a.b", "*", ">", "worker.3/gpu", "a_2eb", "Grüße"]
    for key in keys:
        await view.put(key, Place(name=f"value of {key}"))
    for key in keys:
        entry = await view.get(key)
        assert entry is not None
        assert (entry.key, named(entry)) == (key, f"value of {key}")
    assert set(keys) == (await view.all()).keys()


async def test_views_of_different_names_do_not_mix(bus: Bus) -> None:
    await bus.view("devices", Place).put("k", Place(name="a"))
    assert await bus.view("claims", Place).get("k") is None


async def test_a_compare_and_set_wants_the_revision_that_stands(bus: Bus) -> None:
    view = bus.view("devices", Place)
    first = await view.put("k", Place(name="a"), expected=0)
    assert first is not None
    second = await view.put("k", Place(name="b"), expected=first)
    assert second is not None
    assert second > first
    for stale in (0, first):
        with pytest.raises(Conflict):
            await view.put("k", Place(name="c"), expected=stale)
    entry = await view.get("k")
    assert named(entry) == "b"


async def test_of_two_writers_that_expect_nothing_one_wins(world: World) -> None:
    one, other = await world.bus(instance="0"), await world.bus(instance="1")
    answers = await asyncio.gather(
        one.view("devices", Place).put("k", Place(name="a"), expected=0),
        other.view("devices", Place).put("k", Place(name="b"), expected=0),
        return_exceptions=True,
    )
    assert sum(isinstance(answer, Conflict) for answer in answers) == 1


async def test_a_deletion_is_a_value_with_an_origin(bus: Bus) -> None:
    view = bus.view("devices", Place)
    await view.put("k", Place(name="a"), origin=origin(1))
    revision = await view.put("k", None, origin=origin(2))
    entry = await view.get("k")
    assert entry == Entry("k", None, revision or 0, origin(2))
    assert await view.all() == {}
    assert await view.put("k", Place(name="too late"), origin=origin(1)) is None
    assert await view.put("k", Place(name="again"), origin=origin(3)) is not None


async def test_what_was_made_from_something_older_is_not_written(bus: Bus) -> None:
    view = bus.view("devices", Place)
    await view.put("k", Place(name="new"), origin=origin(5))
    assert await view.put("k", Place(name="old"), origin=origin(4)) is None
    entry = await view.get("k")
    assert named(entry) == "new"
    assert await view.put("k", Place(name="same"), origin=origin(5)) is not None
    assert await view.put("k", Place(name="newer"), origin=origin(6)) is not None


async def test_a_stream_made_anew_is_newer_though_it_counts_from_one(bus: Bus) -> None:
    view = bus.view("devices", Place)
    await view.put("k", Place(name="before"), origin=origin(900))
    assert await view.put("k", Place(name="after"), origin=origin(1, rebuilt=1)) is not None
    assert await view.put("k", Place(name="before"), origin=origin(901)) is None


async def test_another_writers_value_is_judged_by_its_origin_too(world: World) -> None:
    one, other = await world.bus(instance="0"), await world.bus(instance="1")
    mine, theirs = one.view("devices", Place), other.view("devices", Place)
    await mine.put("k", Place(name="a"), origin=origin(1))
    await theirs.put("k", Place(name="b"), origin=origin(5))
    assert await mine.put("k", Place(name="c"), origin=origin(3)) is None
    assert await mine.put("k", Place(name="d"), origin=origin(6)) is not None
    assert named(await theirs.get("k")) == "d"


async def test_an_older_origin_is_ignored_before_the_revision_is_compared(bus: Bus) -> None:
    view = bus.view("devices", Place)
    await view.put("k", Place(name="a"), origin=origin(5))
    assert await view.put("k", Place(name="b"), origin=origin(4), expected=99) is None


async def test_a_watch_tells_what_there_is_then_what_changes(bus: Bus) -> None:
    view = bus.view("devices", Place)
    await view.put("a", Place(name="1"))
    await view.put("b", Place(name="2"))
    await view.put("a", Place(name="3"))
    await view.put("b", None)
    changes = view.watch()
    found = await until_current(changes)
    assert [(entry.key, named(entry)) for entry in found] == [("a", "3"), ("b", None)]
    await view.put("c", Place(name="4"))
    await view.put("c", Place(name="5"))
    assert [named(await following(changes)), named(await following(changes))] == ["4", "5"]
    await changes.aclose()  # type: ignore[attr-defined] # both are generators


async def test_a_watch_of_nothing_is_current_at_once(bus: Bus) -> None:
    changes = bus.view("devices", Place).watch()
    assert await until_current(changes) == []
    await changes.aclose()  # type: ignore[attr-defined] # both are generators


async def test_a_watch_goes_on_after_a_partition(world: World) -> None:
    watcher, writer = await world.bus("watcher"), await world.bus("writer")
    view = writer.view("devices", Place)
    await view.put("a", Place(name="1"))
    changes = watcher.view("devices", Place).watch()
    assert len(await until_current(changes)) == 1
    await world.partition(watcher)
    await view.put("a", Place(name="2"))
    await view.put("b", Place(name="3"))
    await world.heal(watcher)
    assert {named(await following(changes)), named(await following(changes))} == {"2", "3"}
    await view.put("b", Place(name="4"))
    assert named(await following(changes)) == "4"
    await changes.aclose()  # type: ignore[attr-defined] # both are generators


async def test_a_view_and_its_watch_outlive_a_server_restart(world: World, bus: Bus) -> None:
    view = bus.view("devices", Place)
    await view.put("a", Place(name="1"), origin=origin(1))
    changes = view.watch()
    assert len(await until_current(changes)) == 1
    await world.restart()
    assert named(await view.get("a")) == "1"
    await view.put("a", Place(name="2"), origin=origin(2))
    assert named(await following(changes)) == "2"
    await changes.aclose()  # type: ignore[attr-defined] # both are generators
