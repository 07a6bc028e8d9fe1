"""What the in-memory server stores: one stream per domain.

The answers are those of nats-server 2.15: an expectation is checked before the duplicate window, a window
forgets, old messages age away, and a full stream refuses (logs) or forgets its oldest (facts).
"""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime

from shared.errors import Conflict
from shared.events import DOMAINS, Domain, Keeps


@dataclass(frozen=True, slots=True)
class Message:
    """One message as it is stored."""

    sequence: int
    subject: str
    id: str
    body: bytes
    stored_at: datetime
    stored_s: float
    """Monotonic."""

    @property
    def size_bytes(self) -> int:
        """What it counts against the stream's limit."""
        return len(self.body) + len(self.subject) + len(self.id)

    @property
    def log(self) -> str:
        """The subject without its last token: the entity."""
        return log_of(self.subject)


class Full(Exception):  # noqa: N818 - a state of the stream
    """The stream keeps what it has and takes nothing new."""


def log_of(subject: str) -> str:
    """The log that a subject belongs to."""
    return subject.rpartition(".")[0]


@dataclass(slots=True)
class Stream:
    """One domain's messages."""

    domain: Domain
    created: datetime
    duplicate_window_s: float
    max_bytes: int
    last_sequence: int = 0
    size_bytes: int = 0
    messages: dict[int, Message] = field(default_factory=dict)
    _logs: dict[str, list[int]] = field(default_factory=dict)
    _ids: OrderedDict[str, tuple[int, float]] = field(default_factory=OrderedDict)

    @property
    def name(self) -> str:
        """The stream's name."""
        return self.domain.stream

    def store(
        self, subject: str, body: bytes, *, id_: str, expected: int | None, at: datetime, now_s: float
    ) -> tuple[int, bool]:
        """Take a message; returns its sequence and whether its id was known.

        Raises:
            Conflict: the log does not stand at `expected`.
            Full: there is no room, and the stream discards what is new.
        """
        self.age(now_s)
        if expected is not None:
            last = self.last_of(log_of(subject))
            if last != expected:
                raise Conflict(log_of(subject), expected=expected, last=last)
        known = self._ids.get(id_) if id_ else None
        if known is not None:
            return known[0], True
        message = Message(self.last_sequence + 1, subject, id_, body, at, now_s)
        self._make_room(message.size_bytes)
        self.last_sequence = message.sequence
        self.messages[message.sequence] = message
        self.size_bytes += message.size_bytes
        self._logs.setdefault(message.log, []).append(message.sequence)
        if id_:
            self._ids[id_] = (message.sequence, now_s)
        return message.sequence, False

    def age(self, now_s: float) -> None:
        """Forget what is too old: messages by the stream's age, ids by the duplicate window."""
        while self._ids:
            oldest = next(iter(self._ids))
            if now_s - self._ids[oldest][1] < self.duplicate_window_s:
                break
            del self._ids[oldest]
        if self.domain.max_age is None:
            return
        limit_s = self.domain.max_age.total_seconds()
        while self.messages:
            first = self.messages[next(iter(self.messages))]
            if now_s - first.stored_s < limit_s:
                break
            self.remove(first.sequence)

    def last_of(self, log: str) -> int:
        """Sequence of a log's last message; 0 when it has none."""
        sequences = self._logs.get(log)
        return sequences[-1] if sequences else 0

    def of(self, log: str, *, after: int) -> Iterator[Message]:
        """A log's messages above a sequence, in order."""
        sequences = self._logs.get(log, [])
        for sequence in sequences[bisect_right(sequences, after) :]:
            yield self.messages[sequence]

    def remove(self, sequence: int) -> None:
        """Forget one message."""
        message = self.messages.pop(sequence)
        self.size_bytes -= message.size_bytes
        sequences = self._logs[message.log]
        sequences.remove(sequence)
        if not sequences:
            del self._logs[message.log]

    def _make_room(self, size: int) -> None:
        if self.domain.keeps is Keeps.LOG:
            if self.size_bytes + size > self.max_bytes:
                raise Full
            return
        while self.messages and self.size_bytes + size > self.max_bytes:
            self.remove(next(iter(self.messages)))


def empty(domain: str, *, created: datetime, duplicate_window_s: float, max_bytes: int | None) -> Stream:
    """A stream without messages, as provisioning makes it."""
    kept = DOMAINS[domain]
    return Stream(kept, created, duplicate_window_s, kept.max_bytes if max_bytes is None else max_bytes)
