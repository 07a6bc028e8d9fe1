"""What the audit holds, and how its holder is asked before a log is purged."""

from __future__ import annotations

import asyncio

from shared.bus.port import Bus
from shared.events import Entity, Event
from tests.contract.bus.test_case_log import OTHER, grow, windows
from tests.contract.bus.world import KEY, LOG, NODE, WITHIN_S, World, report, struck


async def until_audited(bus: Bus, of: Entity, sequence: int) -> None:
    """The audit follows its streams; how soon is the server's affair."""
    async with asyncio.timeout(WITHIN_S):
        while not await bus.audited(of, sequence):  # noqa: ASYNC110 - the server does not tell
            await asyncio.sleep(0.01)


async def test_the_audit_holds_a_log_up_to_where_it_has_followed(bus: Bus) -> None:
    assert not await bus.audited(LOG, 1)
    sequences = await grow(bus, 3)
    await until_audited(bus, LOG, sequences[-1])
    assert await bus.audited(LOG, sequences[0])
    assert not await bus.audited(LOG, sequences[-1] + 1)
    assert not await bus.audited(OTHER, 1)


async def test_the_audit_of_one_log_says_nothing_of_another(bus: Bus) -> None:
    sequences = await grow(bus, 2)
    other = await bus.append(struck(1, of=OTHER), 0)
    await until_audited(bus, OTHER, other)
    assert other > sequences[-1]
    assert not await bus.audited(LOG, other)


async def test_a_log_that_was_purged_whole_is_not_held(bus: Bus) -> None:
    sequences = await grow(bus, 2)
    await until_audited(bus, LOG, sequences[-1])
    await bus.purge(LOG, below=sequences[-1] + 1)
    assert not await bus.audited(LOG, sequences[-1])


async def test_what_was_purged_is_read_from_the_audit(bus: Bus) -> None:
    sequences = await grow(bus, 3)
    await bus.publish(report(7))
    await bus.publish(report(8, key="another"))
    await until_audited(bus, LOG, sequences[-1])
    await bus.purge(LOG, below=sequences[-1])
    assert await windows(bus) == [3]
    async with asyncio.timeout(WITHIN_S):
        while len(found := [each.event async for each in bus.audit(NODE, KEY)]) < 4:  # noqa: ASYNC110 - as above
            await asyncio.sleep(0.01)
    known = [each for each in found if isinstance(each, Event)]
    assert sorted(each.type.rsplit(".", 2)[-2] for each in known) == [
        "reported",
        "struck",
        "struck",
        "struck",
    ]
    assert [each.data.window_id for each in known if each.of == LOG] == [1, 2, 3]  # type: ignore[attr-defined] # strikes


async def test_of_what_was_never_said_the_audit_holds_nothing(world: World) -> None:
    bus = await world.bus()
    assert [each async for each in bus.audit("nowhere", "nothing")] == []
