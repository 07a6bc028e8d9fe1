"""An ordered journal on the node's disk, through which a node service says everything.

An event is appended and flushed first, and goes from here to the bus in the order in which it was said; a
lost bus loses nothing, and a crash repeats at most what was not acknowledged yet (ids are deterministic, so
twice is once). Another process of the node may read the journal with `read`.

    <folder>/00000000000000000001.journal     number, checksum, subject and body of one event a line
    <folder>/acknowledged                     number of the last event that the bus has

Segments that the bus has are deleted. A journal larger than its bound drops its oldest segment and counts
what was lost in it. A torn line at the end, from a crash in the middle of a write, is cut off at the start.
"""

from __future__ import annotations

import asyncio
import os
import zlib
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice, pairwise
from pathlib import Path

import structlog
from prometheus_client import Counter

from shared.bus.port import Bus, Disconnected
from shared.errors import BadInput, Permanent, Refused, Temporary
from shared.events import AnyEvent, Unknown, decode

_SUFFIX = ".journal"
_ACKNOWLEDGED = "acknowledged"
_WINDOW = 500
"""Events kept decoded in memory; the rest of a long outage waits on the disk."""
_RETRY_S = (0.1, 5.0)
"""First and longest pause before an event is published again."""

_UNREADABLE = Counter("mediafleet_journal_unreadable", "Lines of a node's journal that could not be read.")
_REJECTED = Counter("mediafleet_journal_rejected", "Events that the bus refused for good.", ["type"])
_LOST = Counter("mediafleet_journal_lost", "Events that a full journal dropped before the bus had them.")

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Entry:
    """One event in the journal; `number` grows by one, from 1."""

    number: int
    event: AnyEvent | Unknown


class Journal:
    """The journal of one service; one process writes it.

    Attributes:
        lost: events that this process dropped because the journal was full.
    """

    def __init__(self, folder: Path, *, max_bytes: int = 32 << 20, segment_bytes: int = 1 << 20) -> None:
        """Open or make the journal and find where it stands.

        Args:
            folder: its directory, of this service alone.
            max_bytes: bound; beyond it the oldest segment goes.
            segment_bytes: a file is closed at this size.

        Raises:
            Refused: the folder cannot be made, read or written.
        """
        self._folder = folder
        self._max_bytes = max_bytes
        self._segment_bytes = segment_bytes
        self._news = asyncio.Event()
        self._progress = asyncio.Event()
        self.lost = 0
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._acknowledged = acknowledged(folder)
            for segment in _segments(folder)[-1:]:
                _cut_torn_tail(segment)
        except OSError as error:
            raise Refused(f"{folder} cannot be used ({error}); check the state directory") from error
        self._window: deque[tuple[int, AnyEvent]] = deque()
        self._last = max(_last_number(folder), self._acknowledged)
        self._file = None if not (segments := _segments(folder)) else segments[-1].open("ab")

    @property
    def depth(self) -> int:
        """Events that the bus does not have yet."""
        return self._last - self._acknowledged

    def append(self, *events: AnyEvent) -> int:
        """Write events, in this order; they are on the disk when this returns the last one's number.

        Raises:
            Refused: the disk is full, read-only or gone.
        """
        try:
            for event in events:
                self._last += 1
                self._write(_line(self._last, event))
                newest = self._window[-1][0] if self._window else self._acknowledged
                if newest == self._last - 1 and len(self._window) < _WINDOW:
                    self._window.append((self._last, event))
            if self._file is not None:
                self._file.flush()
                os.fsync(self._file.fileno())
            self._bound()
        except OSError as error:
            raise Refused(f"{self._folder} cannot be written ({error}); check the state directory") from error
        self._news.set()
        return self._last

    def pending(self, limit: int = 100) -> Sequence[tuple[int, AnyEvent]]:
        """The oldest events that the bus does not have."""
        if not self._window and self.depth:
            waiting = islice(read(self._folder, after=self._acknowledged), _WINDOW)
            self._window.extend((e.number, e.event) for e in waiting if not isinstance(e.event, Unknown))
        return list(islice(self._window, limit))

    def acknowledge(self, number: int) -> None:
        """The bus has every event up to this one.

        Raises:
            Refused: the disk is full, read-only or gone.
        """
        while self._window and self._window[0][0] <= number:
            self._window.popleft()
        self._acknowledged = max(self._acknowledged, number)
        scratch = self._folder / f".{_ACKNOWLEDGED}.new"
        try:
            # No fsync: after a crash an older number stands; what follows it is said again under its old id.
            scratch.write_text(str(self._acknowledged))
            scratch.replace(self._folder / _ACKNOWLEDGED)
            for segment, following in pairwise(_segments(self._folder)):
                if int(following.name.removesuffix(_SUFFIX)) <= self._acknowledged + 1:
                    segment.unlink()
        except OSError as error:
            raise Refused(f"{self._folder} cannot be written ({error}); check the state directory") from error
        self._progress.set()

    async def until_empty(self) -> None:
        """Return when the bus has everything that was said so far; `pump` must be running."""
        target = self._last
        while self._acknowledged < target:
            self._progress.clear()
            await self._progress.wait()

    async def pump(self, bus: Bus) -> None:
        """Publish what is pending, in order, for ever; a bus that is away is waited for.

        An event that the bus refuses for good is logged, counted and passed over: it would block all others.
        """
        pause_s = _RETRY_S[0]
        while True:
            batch = self.pending()
            if not batch:
                self._news.clear()
                if self.depth:  # what is left could not be read
                    self.acknowledge(self._last)
                await self._news.wait()
                continue
            done = 0
            try:
                for number, event in batch:
                    await self._publish(bus, event)
                    done, pause_s = number, _RETRY_S[0]
            except (Disconnected, Temporary) as error:
                log.warning("journal waits for the bus", reason=str(error), depth=self.depth)
            if done:
                self.acknowledge(done)
            if done != batch[-1][0]:
                await asyncio.sleep(pause_s)
                pause_s = min(pause_s * 2, _RETRY_S[1])

    def close(self) -> None:
        """Close the file; what is pending is published after the next start."""
        if self._file is not None:
            self._file.close()
            self._file = None

    @staticmethod
    async def _publish(bus: Bus, event: AnyEvent) -> None:
        try:
            await bus.publish(event)
        except Permanent as error:
            _REJECTED.labels(event.type).inc()
            log.error("the bus refuses an event", event_id=event.id, type=event.type, reason=error.reason)

    def _write(self, line: bytes) -> None:
        if self._file is None or self._file.tell() >= self._segment_bytes:
            if self._file is not None:
                self._file.flush()
                os.fsync(self._file.fileno())
                self._file.close()
            self._file = (self._folder / f"{self._last:020d}{_SUFFIX}").open("ab")
            _sync_folder(self._folder)
        self._file.write(line)

    def _bound(self) -> None:
        """Drop the oldest segments while there is too much; the one in use always stays."""
        segments = _segments(self._folder)
        total = sum(segment.stat().st_size for segment in segments)
        for segment, following in pairwise(segments):
            if total <= self._max_bytes:
                return
            total -= segment.stat().st_size
            first_kept = int(following.name.removesuffix(_SUFFIX))
            gone = max(0, first_kept - 1 - self._acknowledged)
            self._acknowledged += gone
            while self._window and self._window[0][0] < first_kept:
                self._window.popleft()
            segment.unlink()
            self.lost += gone
            _LOST.inc(gone)
            log.error("the journal is full: events are lost", lost=gone, folder=str(self._folder))


def read(folder: Path, *, after: int = 0) -> Iterator[Entry]:
    """The events of a journal above a number, in order; also of one that another process is writing.

    A line that cannot be read is counted and passed over; the last one may be half written.
    """
    for segment in _segments(folder):
        try:
            body = segment.read_bytes()
        except FileNotFoundError:  # acknowledged and deleted meanwhile
            continue
        yield from _entries(body[: body.rfind(b"\n") + 1].splitlines(), after)


def _entries(lines: Iterable[bytes], after: int) -> Iterator[Entry]:
    for line in lines:
        try:
            number, checksum, rest = line.split(b"\t", 2)
            if int(number) <= after:
                continue
            yield _entry(int(number), int(checksum, 16), rest)
        except (ValueError, BadInput) as error:
            _UNREADABLE.inc()
            log.error(
                "a journal line cannot be read", reason=str(error), line=line[:200].decode(errors="replace")
            )


def _entry(number: int, checksum: int, rest: bytes) -> Entry:
    if checksum != zlib.crc32(rest):
        raise BadInput("journal", f"the checksum of event {number} is wrong", "check the disk")
    subject, body = rest.split(b"\t", 1)
    return Entry(number, decode(subject.decode(), body))


def _last_number(folder: Path) -> int:
    """The highest number in use: of the last readable line, else of the last segment's name less one."""
    for segment in reversed(_segments(folder)):
        for line in reversed(segment.read_bytes().splitlines()):
            head = line.partition(b"\t")[0]
            if head.isdigit():
                return int(head)
        return int(segment.name.removesuffix(_SUFFIX)) - 1
    return 0


def _line(number: int, event: AnyEvent) -> bytes:
    rest = event.address.subject.encode() + b"\t" + event.encode()
    return b"%d\t%08x\t%s\n" % (number, zlib.crc32(rest), rest)


def _segments(folder: Path) -> list[Path]:
    return sorted(folder.glob(f"*{_SUFFIX}"))


def acknowledged(folder: Path) -> int:
    """Number of the last event of a journal that the bus is known to have; 0 when that is not known."""
    try:
        return int((folder / _ACKNOWLEDGED).read_text())
    except (FileNotFoundError, ValueError):
        return 0  # everything is said again, under its old id


def _cut_torn_tail(segment: Path) -> None:
    body = segment.read_bytes()
    whole = body.rfind(b"\n") + 1
    if whole < len(body):
        os.truncate(segment, whole)


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
