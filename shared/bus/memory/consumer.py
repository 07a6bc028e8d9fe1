"""What the in-memory server knows of one consumer: what it delivered and what has to go out again.

Redelivery is out of order, as on NATS: what was not acknowledged within `ack_wait` goes out again while newer
messages have long been delivered. A sign of life starts the wait anew; an acknowledgement of a consumer that
was deleted counts for nothing.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from shared.bus.memory.stream import Message, Stream
from shared.bus.port import Subscription
from shared.clock import Clock
from shared.events import escape


class Consumer:
    """One consumer of one stream, durable or not."""

    def __init__(
        self, stream: Stream, subscription: Subscription, *, start: int, number: int, clock: Clock
    ) -> None:
        """Make one.

        Args:
            stream: what it reads.
            subscription: what it lets through, and its limits.
            start: the first sequence that it may deliver.
            number: of the lease that it belongs to; 0 for none.
            clock: the time.
        """
        self.stream = stream
        self.number = number
        self.deleted = asyncio.Event()
        self._clock = clock
        self._facts = frozenset(payload.kind.fact for payload in subscription.types)
        self._place = None if subscription.place is None else escape(subscription.place)
        self._ack_wait_s = subscription.ack_wait_s
        self._max_pending = subscription.max_ack_pending
        self._cursor = start
        self._pending: dict[int, float] = {}
        """Sequence to deadline, earliest first: all wait equally long."""
        self._again: deque[int] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self._puller: tuple[Callable[[Message], None], Callable[[], None]] | None = None

    @property
    def floor(self) -> int:
        """All at or below it was acknowledged (or is none of its business)."""
        return min([self._cursor, *self._pending]) - 1

    @property
    def delivered(self) -> int:
        """The last sequence that it delivered or passed over."""
        return self._cursor - 1

    @property
    def remaining(self) -> int:
        """Messages that it has not delivered yet."""
        return sum(
            self._wants(self.stream.messages[sequence])
            for sequence in self.stream.messages
            if sequence >= self._cursor
        )

    def attach(self, deliver: Callable[[Message], None], at_head: Callable[[], None]) -> None:
        """Someone pulls.

        Args:
            deliver: gets each message.
            at_head: called when nothing is left to deliver.
        """
        self._puller = deliver, at_head
        self.pump()

    def detach(self) -> None:
        """Nobody pulls any more; what was delivered still waits for its acknowledgement."""
        self._puller = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def delete(self) -> None:
        """It is gone: its pulls end, its acknowledgements count for nothing."""
        self.detach()
        self.deleted.set()

    def acknowledge(self, sequence: int) -> None:
        """A message is done with."""
        if self.deleted.is_set():
            return
        self._pending.pop(sequence, None)
        self.pump()

    def in_progress(self, sequence: int) -> None:
        """A message is still held: its wait starts anew."""
        if self._pending.pop(sequence, None) is not None:
            self._pending[sequence] = self._clock.monotonic() + self._ack_wait_s

    def pump(self) -> None:
        """Deliver what may be delivered now."""
        if self._puller is None:
            return
        deliver, at_head = self._puller
        now_s = self._clock.monotonic()
        self.stream.age(now_s)
        self._expire(now_s)
        while len(self._pending) < self._max_pending:
            message = self._next()
            if message is None:
                at_head()
                break
            self._pending[message.sequence] = now_s + self._ack_wait_s
            deliver(message)
        self._wait(now_s)

    def _expire(self, now_s: float) -> None:
        """Move what waited too long to what goes out again."""
        while self._pending:
            sequence, deadline_s = next(iter(self._pending.items()))
            if deadline_s > now_s:
                return
            del self._pending[sequence]
            self._again.append(sequence)

    def _next(self) -> Message | None:
        while self._again:
            message = self.stream.messages.get(self._again.popleft())
            if message is not None:
                return message
        while self._cursor <= self.stream.last_sequence:
            message = self.stream.messages.get(self._cursor)
            self._cursor += 1
            if message is not None and self._wants(message):
                return message
        return None

    def _wants(self, message: Message) -> bool:
        _, _, _, place, _, fact = message.subject.split(".")
        return fact in self._facts and self._place in (None, place)

    def _wait(self, now_s: float) -> None:
        """Look again when the first of what was delivered may be late."""
        if self._pending and self._timer is None:
            delay_s = max(0.0, next(iter(self._pending.values())) - now_s)
            self._timer = asyncio.get_running_loop().call_later(delay_s, self._look)

    def _look(self) -> None:
        self._timer = None
        self.pump()
