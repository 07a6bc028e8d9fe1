"""The journal through which node services say everything."""

from __future__ import annotations

import asyncio
import shutil
from datetime import UTC, datetime
from pathlib import Path

import pytest

from shared.bus.port import Bus, Disconnected, Stored
from shared.errors import Permanent, Refused
from shared.events import AnyEvent, Cause, event, world
from shared.journal import Journal, read

AT = datetime(2026, 3, 1, tzinfo=UTC)


def said(number: int) -> AnyEvent:
    fact = world.Released(allocation_id=f"a-{number}", reason="the pod is gone" * 20)
    return event(
        fact,
        ("worker-1", "nvidia-0000-3b-00-0"),
        cause=Cause.source("boot", number),
        source="/test",
        at=AT,
    )


def ids(entries: object) -> list[str]:
    return [entry.event.data.allocation_id for entry in entries]  # type: ignore[attr-defined]


def segments(folder: Path) -> int:
    return len(list(folder.glob("*.journal")))


def spoil(folder: Path, old: bytes, new: bytes) -> None:
    (segment,) = folder.glob("*.journal")
    segment.write_bytes(segment.read_bytes().replace(old, new))


class RecordingBus:
    """Only what the journal needs of a bus."""

    def __init__(self, *, fail: int = 0, refuse: str = "") -> None:
        self.stored: list[str] = []
        self.fail = fail
        self.refuse = refuse
        self.enough = asyncio.Event()
        self.want = 0

    async def publish(self, event: AnyEvent) -> Stored:
        if self.fail:
            self.fail -= 1
            raise Disconnected("no answer")
        if event.data.allocation_id == self.refuse:  # type: ignore[attr-defined]
            raise Permanent("permissions violation")
        self.stored.append(event.data.allocation_id)  # type: ignore[attr-defined]
        if len(self.stored) >= self.want:
            self.enough.set()
        return Stored(len(self.stored), duplicate=False)


async def pumped(journal: Journal, bus: RecordingBus, want: int) -> None:
    bus.want = want
    port: Bus = bus  # type: ignore[assignment]
    task = asyncio.create_task(journal.pump(port))
    async with asyncio.timeout(10):
        await bus.enough.wait()
        await journal.until_empty()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_what_was_said_before_a_crash_is_published_after_it(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "j")
    journal.append(said(1), said(2))
    again = Journal(tmp_path / "j")
    assert again.depth == 2
    bus = RecordingBus()
    await pumped(again, bus, 2)
    assert bus.stored == ["a-1", "a-2"]
    third = Journal(tmp_path / "j")
    assert third.depth == 0
    for each in (journal, again, third, third):
        each.close()


async def test_order_survives_a_bus_that_goes_away(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    journal.append(*(said(number) for number in range(5)))
    bus = RecordingBus(fail=2)
    await pumped(journal, bus, 5)
    assert bus.stored == [f"a-{number}" for number in range(5)]
    journal.append(said(9))
    await pumped(journal, bus, 6)
    assert bus.stored[-1] == "a-9"
    journal.close()


async def test_an_event_that_the_bus_refuses_for_good_blocks_nothing(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    journal.append(said(1), said(2), said(3))
    bus = RecordingBus(refuse="a-2")
    await pumped(journal, bus, 2)
    assert bus.stored == ["a-1", "a-3"]
    journal.close()


async def test_a_long_outage_waits_on_the_disk_and_not_in_memory(tmp_path: Path) -> None:
    journal = Journal(tmp_path, segment_bytes=50_000)
    for start in range(0, 1200, 100):
        journal.append(*(said(number) for number in range(start, start + 100)))
    assert len(journal._window) <= 500
    assert journal.depth == 1200
    bus = RecordingBus()
    await pumped(journal, bus, 1200)
    assert bus.stored == [f"a-{number}" for number in range(1200)]
    assert segments(tmp_path) == 1
    journal.close()


def test_a_torn_line_is_cut_off_and_a_broken_one_passed_over(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    journal.append(said(1), said(2), said(3))
    journal.close()
    (segment,) = tmp_path.glob("*.journal")
    lines = segment.read_bytes().splitlines(keepends=True)
    segment.write_bytes(lines[0] + lines[1].replace(b"a-2", b"a-7") + lines[2] + b"4\tdead")
    assert ids(read(tmp_path)) == ["a-1", "a-3"]
    again = Journal(tmp_path)
    assert segment.read_bytes().endswith(b"\n")
    assert again.append(said(4)) == 4
    assert ids(read(tmp_path, after=3)) == ["a-4"]
    again.close()


async def test_a_journal_that_only_holds_broken_lines_is_over(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    journal.append(said(1))
    journal.close()
    spoil(tmp_path, b"a-1", b"a-7")
    again = Journal(tmp_path)
    again.append(said(2))
    bus = RecordingBus()
    await pumped(again, bus, 1)
    assert bus.stored == ["a-2"]
    again.close()


def test_a_full_journal_drops_its_oldest_segment_and_counts_what_was_lost(tmp_path: Path) -> None:
    journal = Journal(tmp_path, max_bytes=20_000, segment_bytes=5_000)
    for number in range(60):
        journal.append(said(number))
    assert journal.lost > 0
    assert journal.depth + journal.lost == 60
    assert journal.pending(1)[0][0] == journal.lost + 1
    assert sum(file.stat().st_size for file in tmp_path.glob("*.journal")) <= 25_000
    journal.close()


def test_numbers_go_on_after_everything_was_acknowledged(tmp_path: Path) -> None:
    journal = Journal(tmp_path, segment_bytes=100)
    journal.append(said(1))
    journal.append(said(2))
    journal.acknowledge(2)
    journal.close()
    again = Journal(tmp_path)
    assert (again.depth, again.append(said(3))) == (0, 3)
    again.close()


def test_a_state_directory_that_cannot_be_used_is_refused_with_its_path(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(Refused, match="check the state directory"):
        Journal(tmp_path / "file" / "journal")


def test_a_state_directory_that_goes_away_is_refused_with_its_path_when_the_bus_has_an_event(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "journal"
    journal = Journal(folder)
    journal.append(said(1))
    shutil.rmtree(folder)
    with pytest.raises(Refused, match="check the state directory"):
        journal.acknowledge(1)
    journal.close()
