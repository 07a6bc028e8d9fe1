import asyncio
from datetime import UTC, datetime, timedelta

import pytest

from shared.clock import ManualClock, SystemClock


async def test_the_system_clock_tells_the_time_of_day() -> None:
    clock = SystemClock()
    assert abs(clock.now() - datetime.now(UTC)) < timedelta(seconds=1)


async def test_the_system_clock_reads_the_wall_clock_again_after_a_minute(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = SystemClock()
    later = asyncio.get_running_loop().time() + 3600
    monkeypatch.setattr(SystemClock, "monotonic", lambda _: later)
    assert abs(clock.now() - datetime.now(UTC)) < timedelta(seconds=1)


@pytest.mark.looptime
async def test_a_clock_with_a_start_follows_virtual_time_only() -> None:
    start = datetime(2026, 1, 1, tzinfo=UTC)
    clock = SystemClock(start=start)
    await asyncio.sleep(3600)
    assert clock.now() == start + timedelta(hours=1)


def test_a_manual_clock_moves_when_told() -> None:
    clock = ManualClock()
    before = clock.now()
    clock.advance(5)
    assert (clock.now() - before, clock.monotonic()) == (timedelta(seconds=5), 5)
