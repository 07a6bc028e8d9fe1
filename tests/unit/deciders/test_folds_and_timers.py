"""The cache of folded cases, and the deadlines."""

from __future__ import annotations

import asyncio

import pytest

from shared.bus.memory import MemoryBus, MemoryServer
from shared.clock import SystemClock
from shared.deciders.folds import Folds
from shared.deciders.timers import Timers
from shared.events import Cause, Entity, event
from shared.events import remediation as say
from tests.unit.deciders.toy_decider import ONE, OTHER, START, Rules, Toy, ToyDecider

pytestmark = pytest.mark.looptime


async def _append(bus: MemoryBus, of: Entity, *facts: say.CasePayload) -> int:
    last = await bus.last(of)
    sequence = 0 if last is None else last.sequence
    for n, fact in enumerate(facts):
        made = event(fact, of, cause=Cause.source(of.about, n), source="/t", at=START)
        sequence = await bus.append(made, sequence)
    return sequence


OPENED = say.Opened(epoch=1, state="suspect", reason="r")
CLOSED = say.Closed(epoch=1, reason="r")


def _bus() -> MemoryBus:
    return MemoryBus(MemoryServer(clock=SystemClock(start=START)), "t")


async def test_open_cases_stay_in_memory_and_old_closed_ones_are_read_again() -> None:
    bus = _bus()
    third = Entity("remediation", "n1", "nvidia-0000-03-00-0")
    await _append(bus, ONE, OPENED, CLOSED)
    await _append(bus, OTHER, OPENED, CLOSED)
    await _append(bus, third, OPENED)
    folds: Folds[Toy, str, Rules] = Folds(bus, ToyDecider(Rules()), closed_kept=1)
    await folds.recover()
    assert [of for of, _ in folds.open()] == [third]
    assert folds.open_count == 1
    assert folds.peek(ONE) is None
    assert (await folds.get(ONE)).case.facts == ("opened", "closed")
    assert folds.peek(OTHER) is None


async def test_a_log_that_was_not_in_the_history_is_empty_without_asking() -> None:
    bus = _bus()
    folds: Folds[Toy, str, Rules] = Folds(bus, ToyDecider(Rules()))
    await _append(bus, ONE, OPENED)
    assert (await folds.get(ONE)).sequence == 1
    await folds.recover()
    bus.partition()
    assert (await folds.get(OTHER)).sequence == 0


async def test_an_empty_log_that_is_read_is_not_kept_as_closed() -> None:
    bus = _bus()
    folds: Folds[Toy, str, Rules] = Folds(bus, ToyDecider(Rules()))
    assert (await folds.reload(ONE)).sequence == 0
    assert folds.peek(ONE) is None


async def test_a_moved_deadline_fires_once_at_its_last_time_and_a_removed_one_never() -> None:
    clock = SystemClock(start=START)
    fired: list[tuple[Entity, float]] = []
    begun = clock.monotonic()
    timers = Timers(clock, lambda of: fired.append((of, clock.monotonic() - begun)))
    task = asyncio.create_task(timers.run())
    from datetime import timedelta  # noqa: PLC0415 - only here

    timers.arm(ONE, START + timedelta(seconds=10))
    timers.arm(ONE, START + timedelta(seconds=30))
    timers.arm(ONE, START + timedelta(seconds=30))
    timers.arm(OTHER, START + timedelta(seconds=20))
    assert len(timers) == 2
    timers.arm(OTHER, None)
    await asyncio.sleep(29)
    assert fired == []
    await asyncio.sleep(2)
    assert [(of, round(at_s)) for of, at_s in fired] == [(ONE, 30)]
    timers.arm(OTHER, START + timedelta(seconds=5000))
    timers.arm(ONE, START + timedelta(seconds=4000))
    await asyncio.sleep(5000)
    assert [of for of, _ in fired] == [ONE, ONE, OTHER]
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
