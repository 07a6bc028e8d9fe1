"""Lanes by themselves: serial inside, parallel beside each other, and hard to kill."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from shared.bus.lanes import Lanes
from shared.bus.port import Disconnected
from shared.errors import FleetError, Temporary


class Message:
    """Something with a place in a stream."""

    def __init__(self, sequence: int, run: Callable[[], Awaitable[None]], stream: str = "S") -> None:
        self.order = (stream, sequence)
        self._run = run

    async def run(self, _: Lanes) -> None:
        await self._run()


@pytest.fixture
async def lanes() -> AsyncIterator[Lanes]:
    made = Lanes("tester", alarm_depth=4)
    yield made
    await made.stop(1.0)


def noting(done: list[str], name: str, wait: asyncio.Event | None = None) -> Callable[[], Awaitable[None]]:
    async def note() -> None:
        if wait is not None:
            await wait.wait()
        done.append(name)

    return note


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(2):
        while not condition():  # noqa: ASYNC110 - a turn of the loop, not a time
            await asyncio.sleep(0)


async def test_one_lane_is_serial_and_another_goes_on(lanes: Lanes) -> None:
    done: list[str] = []
    go_on = asyncio.Event()
    lanes.submit("a", noting(done, "a1", go_on))
    lanes.submit("a", noting(done, "a2"))
    lanes.submit("b", noting(done, "b1"))
    await until(lambda: done == ["b1"])
    go_on.set()
    await until(lambda: done == ["b1", "a1", "a2"])


async def test_any_number_of_lanes_may_wait_at_once(lanes: Lanes) -> None:
    done: list[str] = []
    go_on = asyncio.Event()
    for n in range(300):
        lanes.submit(f"k{n}", noting(done, f"{n}", go_on))
    lanes.submit("free", noting(done, "free"))
    await until(lambda: done == ["free"])
    assert len(lanes) == 300
    go_on.set()
    await until(lambda: len(done) == 301 and len(lanes) == 0)


async def test_a_late_redelivery_goes_before_later_messages_of_its_stream(lanes: Lanes) -> None:
    done: list[str] = []
    go_on = asyncio.Event()
    lanes.put("a", Message(1, noting(done, "1", go_on)))
    await asyncio.sleep(0)
    for n in (4, 5):
        lanes.put("a", Message(n, noting(done, f"{n}")))
    lanes.put("a", Message(3, noting(done, "3")))
    lanes.put("a", Message(2, noting(done, "other 2"), stream="T"))
    go_on.set()
    await until(lambda: len(done) == 5)
    assert done == ["1", "3", "4", "5", "other 2"]


async def test_a_redelivery_never_goes_before_what_runs_or_before_a_job(lanes: Lanes) -> None:
    done: list[str] = []
    go_on = asyncio.Event()
    lanes.put("a", Message(9, noting(done, "9", go_on)))
    await asyncio.sleep(0)
    lanes.submit("a", noting(done, "job"))
    lanes.put("a", Message(10, noting(done, "10")))
    lanes.put("a", Message(5, noting(done, "5")))
    go_on.set()
    await until(lambda: len(done) == 4)
    assert done == ["9", "job", "5", "10"]


async def test_a_deep_lane_is_an_alarm_until_it_drained(lanes: Lanes) -> None:
    done: list[str] = []
    go_on = asyncio.Event()
    for n in range(5):
        lanes.submit("a", noting(done, f"{n}", go_on))
    assert lanes.alarms() == 1
    assert lanes.deepest() == 5
    go_on.set()
    await until(lambda: len(done) == 5 and len(lanes) == 0)
    assert lanes.alarms() == 0
    assert lanes.deepest() == 0


async def test_a_job_waits_for_its_turn_and_for_the_bus(lanes: Lanes) -> None:
    done: list[str] = []
    answers: list[Exception | None] = [
        Temporary("not yet", delay_s=0),
        Temporary("not yet", delay_s=0.001),
        None,
    ]

    async def job() -> None:
        answer = answers.pop(0)
        if answer is not None:
            raise answer
        done.append("job")

    lanes.submit("a", job)
    lanes.submit("a", noting(done, "after"))
    await until(lambda: done == ["job", "after"])


async def test_a_jobs_error_ends_the_consumption_and_nothing_more_is_begun(lanes: Lanes) -> None:
    done: list[str] = []

    async def fail() -> None:
        raise FleetError("broken")

    lanes.submit("a", fail)
    lanes.submit("a", noting(done, "after"))
    with pytest.raises(FleetError, match="broken"):
        await asyncio.wait_for(asyncio.shield(lanes.failed), 1)
    lanes.submit("b", noting(done, "beside"))
    await asyncio.sleep(0)
    assert done == []


async def test_a_job_that_leaks_a_cancellation_ends_it_with_a_reason(lanes: Lanes) -> None:
    async def leak() -> None:
        child = asyncio.ensure_future(asyncio.Event().wait())
        child.cancel()
        await child

    lanes.submit("a", leak)
    with pytest.raises(FleetError, match="leaked"):
        await asyncio.wait_for(asyncio.shield(lanes.failed), 1)


async def test_a_job_that_is_never_done_gives_up(lanes: Lanes) -> None:
    async def never() -> None:
        raise Temporary("no", delay_s=0)

    lanes.submit("a", never)
    with pytest.raises(Temporary):
        await asyncio.wait_for(asyncio.shield(lanes.failed), 2)


async def test_stopping_leaves_what_waits_for_another_try_and_finishes_the_rest() -> None:
    lanes = Lanes("tester", alarm_depth=4)
    done: list[str] = []
    tried = asyncio.Event()

    async def later() -> None:
        tried.set()
        raise Disconnected("gone")

    lanes.submit("a", later)
    lanes.submit("b", noting(done, "b", tried))
    await tried.wait()
    assert await lanes.stop(1.0)
    assert done == ["b"]
    lanes.submit("c", noting(done, "too late"))
    assert len(lanes) == 0


async def test_stopping_cancels_what_is_not_done_in_time() -> None:
    lanes = Lanes("tester", alarm_depth=4)
    cancelled = asyncio.Event()

    async def forever() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    lanes.submit("a", forever)
    await asyncio.sleep(0)
    assert not await lanes.stop(0.01)
    assert cancelled.is_set()
