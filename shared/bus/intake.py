"""What one subscription holds: the gate between a stream and the lanes.

The server hands out messages in stream order, but hands some out twice: after a reconnect the consumer is
made anew from the lowest message still held. `highest` is the last sequence that came in order; at or below
it a message is either held (its new token is noted, so that the acknowledgement reaches the living consumer)
or was handled (it is only acknowledged). So nothing is handled twice by one process, and nothing is skipped.

The same gate counts what has still to be handled until the head as of the last (re)connect is reached, gives
signs of life for everything held, and turns a handler's outcome into an acknowledgement or a dead letter.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import nullcontext
from datetime import UTC, datetime
from time import perf_counter
from typing import Any, Protocol

import structlog

from shared.bus.deadletters import Refusal, dead_letter
from shared.bus.handling import handling
from shared.bus.lanes import Abandoned, Lanes, really_cancelled
from shared.bus.metrics import Meters
from shared.bus.port import Delivery, Disconnected, LeaseLost, Subscription
from shared.clock import Clock
from shared.errors import BadInput, FleetError, Permanent, Temporary
from shared.events import AnyEvent, Unknown, decode

KILLS = 3
"""Processes that a message may kill before it becomes a dead letter."""
DEAD_LETTER_DOMAIN = "deadletter"
EPOCH = datetime.fromtimestamp(0, UTC)
_AGAIN_S = 1.0
"""Between tries of what only waits for the bus."""

_log = structlog.get_logger(__name__)


class Carrier(Protocol):
    """What an implementation of the bus does for an intake."""

    def acknowledge(self, token: str) -> None:
        """The message is done with. Never raises for a lost connection: it will be delivered again."""
        ...

    async def in_progress(self, token: str) -> None:
        """The message is still held. Never raises for a lost connection."""
        ...

    async def publish_dead_letter(self, event: AnyEvent) -> None:
        """Write a dead letter. Raises `Disconnected` or `Permanent`."""
        ...


class Starts(Protocol):
    """Counts, outside the process, how often a message was started by holders whose lease expired."""

    async def counted(self, sequence: int) -> int:
        """Starts counted so far."""
        ...

    async def count(self, sequence: int) -> None:
        """Count one more, before it is handled."""
        ...

    async def forget(self, sequence: int) -> None:
        """It was handled."""
        ...


class Intake:
    """One subscription's gate."""

    def __init__(
        self,
        service: str,
        source: str,
        subscription: Subscription,
        stream: str,
        *,
        lanes: Lanes,
        carrier: Carrier,
        clock: Clock,
    ) -> None:
        """Make it closed: `begin` opens it.

        Args:
            service: who consumes.
            source: `/mediafleet/<service>/<instance>`, for dead letters.
            subscription: what is heard, and the handler.
            stream: its name.
            lanes: where messages go.
            carrier: acknowledges and writes dead letters.
            clock: the time.
        """
        self.service = service
        self.subscription = subscription
        self.stream = stream
        self.carrier = carrier
        self.clock = clock
        self.stream_created = EPOCH
        """When the stream was made; whoever opens the intake knows it."""
        self.highest = 0
        self.lag = 0
        """Messages that the server had still to deliver, as of the last one."""
        self.held: dict[int, Held] = {}
        self.suspects_up_to = 0
        """Messages up to here may have been started by a holder whose lease expired."""
        self.starts: Starts | None = None
        self.on_caught_up: Callable[[], None] = _nothing
        self.meters = Meters(service, subscription.domain, held=lambda: len(self.held), lag=lambda: self.lag)
        self._source = source
        self._lanes = lanes
        self._types = frozenset(subscription.types)
        self._exclusive = asyncio.Lock()
        self.since_s: float | None = None
        """Monotonic time since when it delivers without a break; None while it does not."""
        self._remaining = 0
        self._untried = 0

    @property
    def family(self) -> str:
        """The consumer's name without the number of its lease."""
        return f"{self.service}_{self.subscription.domain}"

    @property
    def resume_at(self) -> int:
        """The lowest sequence that the next consumer has to deliver."""
        return min(self.held) if self.held else self.highest + 1

    @property
    def caught_up(self) -> bool:
        """All up to the head as of the last `begin` was handled, or tried at least once."""
        return self.since_s is not None and not self._remaining and not self._untried

    def begin(self, *, remaining: int, after: int | None = None) -> None:
        """A consumer was (re)made.

        Args:
            remaining: messages that it had to deliver at that moment.
            after: given, what lies at or below is not ours (the old holder's ack floor, or the head for a
                subscription without history).
        """
        self.since_s = self.clock.monotonic()
        if after is not None:
            self.highest = max(self.highest, after)
        self._remaining = remaining
        self._untried = 0
        for held in self.held.values():
            held.counts = not held.tried
            self._untried += held.counts
        self._tell_caught_up()

    def interrupted(self) -> None:
        """The connection broke: not caught up until the next `begin`."""
        self.since_s = None

    def none_remaining(self) -> None:
        """The server has nothing more to deliver (messages aged away, or were purged)."""
        self._remaining = 0
        self._tell_caught_up()

    def rebuilt(self) -> None:
        """The stream was made anew and counts from 1 again; what is held belongs to the old one."""
        self.highest = 0
        for held in self.held.values():
            held.counts = False
        self.held.clear()
        self._untried = 0
        self.suspects_up_to = 0

    def offer(self, subject: str, body: bytes, sequence: int, stored_at: datetime, token: str) -> bool:
        """Take a message that the server delivered.

        Args:
            subject: where it was published.
            body: as stored.
            sequence: of the stream.
            stored_at: when the stream took it, UTC.
            token: acknowledges it.

        Returns:
            True when it is held now; False when it is to be acknowledged at once, as handled or not wanted.
        """
        counts = False
        if self._remaining:
            self._remaining -= 1
            counts = True
        if sequence <= self.highest:
            self.meters.redelivered.inc()
            held = self.held.get(sequence)
            if held is not None:
                held.token = token
            self._tell_caught_up()
            return held is not None
        self.highest = sequence
        event: AnyEvent | None = None
        problem: Permanent | None = None
        try:
            decoded = decode(subject, body)
        except BadInput as error:
            problem = error
            key = subject
        else:
            if isinstance(decoded, Unknown) or type(decoded.data) not in self._types:
                self._tell_caught_up()
                return False
            event = decoded
            try:
                key = self.subscription.key(decoded)
            except Exception as error:  # noqa: BLE001 - a key function that fails refuses its message
                problem = Permanent(f"no lane: {type(error).__name__}: {error}")
                event, key = None, subject
        held = Held(
            self,
            subject,
            body,
            event=event,
            problem=problem,
            sequence=sequence,
            stored_at=stored_at,
            token=token,
        )
        if counts:
            held.counts = True
            self._untried += 1
        self.held[sequence] = held
        self._lanes.put(key, held)
        return True

    async def sign_for_all(self) -> None:
        """Give signs of life for everything held, every third of ack_wait, until cancelled."""
        while True:
            await asyncio.sleep(self.subscription.ack_wait_s / 3)
            for held in tuple(self.held.values()):
                await self.carrier.in_progress(held.token)

    def close(self) -> None:
        """Forget what is held."""
        self.held.clear()
        self.meters.close()

    def settle(self, held: Held) -> None:
        """It is done with: acknowledge it."""
        if held.counts:
            self.tried(held)
        # Of a stream that was rebuilt meanwhile, nothing is held and nothing to be acknowledged.
        if self.held.get(held.sequence) is held:
            del self.held[held.sequence]
            self.carrier.acknowledge(held.token)

    def tried(self, held: Held) -> None:
        """One try is over, whatever came of it."""
        held.tried = True
        if held.counts:
            held.counts = False
            self._untried -= 1
            if not self._untried and not self._remaining:
                self._tell_caught_up()

    async def refuse(self, held: Held, reason: str, field: str) -> None:
        """Write the dead letter, then acknowledge; waits for the bus as long as it takes."""
        refusal = Refusal(
            self.family,
            self.stream,
            held.sequence,
            held.subject,
            held.body,
            reason,
            field,
            held.attempt,
            held.event,
        )
        _log.error(
            "message_refused",
            consumer=self.family,
            stream=self.stream,
            sequence=held.sequence,
            subject=held.subject,
            field=field,
            reason=reason,
            attempts=held.attempt,
        )
        self.meters.dead_letters.inc()
        if self.subscription.domain != DEAD_LETTER_DOMAIN:
            await self._write(refusal)
        self.settle(held)

    def handle(self, held: Held) -> Coroutine[Any, Any, None]:
        """Try until it is handled, or refused.

        Raises:
            Abandoned: the lanes stop while it waits for another try.
            LeaseLost: its handler found out that the lease is gone.
        """
        if held.event is None:
            return self._skip(held)
        if held.sequence <= self.suspects_up_to and self.starts is not None:
            return self._handle_suspect(held, held.event, self.starts)
        return self._handle(held, held.event)

    async def _skip(self, held: Held) -> None:
        """Refuse what is no envelope for its subject."""
        handling(None)
        self.meters.skipped.inc()
        problem = held.problem or Permanent("it could not be decoded")
        await self.refuse(held, problem.reason, problem.field)

    async def _handle_suspect(self, held: Held, event: AnyEvent, starts: Starts) -> None:
        """Count each start outside the process; what was counted before runs alone: only it is blamed."""
        counted = await self._persist(starts.counted, held.sequence)
        if counted >= KILLS - 1:
            held.attempt = counted + 1
            await self.refuse(held, f"its process died {counted + 1} times while it was handled", "")
        else:
            try:
                async with self._exclusive if counted else nullcontext():
                    await self._persist(starts.count, held.sequence)
                    await self._handle(held, event)
            except Abandoned:
                await starts.forget(held.sequence)
                raise
        await self._persist(starts.forget, held.sequence)

    async def _persist(self, step: Callable[[int], object], sequence: int) -> int:
        while True:
            try:
                result = await step(sequence)  # type: ignore[misc] # every step of Starts is a coroutine
            except Disconnected:
                await self._lanes.pause(_AGAIN_S)
            else:
                return int(result or 0)

    async def _handle(self, held: Held, event: AnyEvent) -> None:
        meters = self.meters
        first_s: float | None = None
        handling(event)
        while True:
            failure: Exception
            started_s = perf_counter()
            try:
                await self.subscription.handle(
                    Delivery(
                        event,
                        self.stream,
                        held.sequence,
                        held.stored_at,
                        self.stream_created,
                        held.attempt,
                    )
                )
            except LeaseLost:
                raise
            except asyncio.CancelledError:
                if really_cancelled():
                    raise
                failure = Permanent("its handler leaked the cancellation of something it awaited")
            except Exception as error:  # noqa: BLE001 - the port: anything else is a dead letter
                failure = error
            else:
                meters.handler_seconds.observe(perf_counter() - started_s)
                self.settle(held)
                return
            meters.handler_seconds.observe(perf_counter() - started_s)
            first_s = self.clock.monotonic() if first_s is None else first_s
            again = self._again(held, failure, first_s)
            if isinstance(again, Permanent):
                await self.refuse(held, again.reason, again.field)
                return
            self.tried(held)
            meters.retries.inc()
            await self._lanes.pause(again)

    def _again(self, held: Held, failure: Exception, first_s: float) -> float | Permanent:
        """Seconds until the next try, or why there is none."""
        if isinstance(failure, Disconnected):
            return _AGAIN_S
        if isinstance(failure, Permanent):
            return failure
        if isinstance(failure, Temporary):
            waited_s = self.clock.monotonic() - first_s
            rules = self.subscription
            if held.attempt >= rules.attempts or waited_s + failure.delay_s > rules.give_up_after_s:
                return Permanent(
                    f"gave up after {held.attempt} attempts in {waited_s:.1f} s: {failure.reason}"
                )
            held.attempt += 1
            return failure.delay_s
        if not isinstance(failure, FleetError):
            _log.error("handler_failed", consumer=self.family, sequence=held.sequence, exc_info=failure)
        return Permanent(f"{type(failure).__name__}: {failure}")

    async def _write(self, refusal: Refusal) -> None:
        while True:
            letter = dead_letter(refusal, service=self.service, source=self._source, at=self.clock.now())
            try:
                await self.carrier.publish_dead_letter(letter)
            except Disconnected:
                await self._lanes.pause(_AGAIN_S)
            except Permanent as error:
                self.meters.dead_letters_refused.inc()
                _log.critical(
                    "dead_letter_refused",
                    consumer=refusal.consumer,
                    stream=refusal.stream,
                    sequence=refusal.sequence,
                    reason=error.reason,
                    body=refusal.body[:4096].decode(errors="replace"),
                )
                return
            else:
                return

    def _tell_caught_up(self) -> None:
        if self.caught_up:
            self.on_caught_up()


class Held:
    """One message between delivery and acknowledgement; what a lane runs."""

    __slots__ = (
        "attempt",
        "body",
        "counts",
        "event",
        "intake",
        "problem",
        "sequence",
        "stored_at",
        "subject",
        "token",
        "tried",
    )

    def __init__(
        self,
        intake: Intake,
        subject: str,
        body: bytes,
        *,
        event: AnyEvent | None,
        problem: Permanent | None,
        sequence: int,
        stored_at: datetime,
        token: str,
    ) -> None:
        self.intake = intake
        self.subject = subject
        self.body = body
        self.event = event
        self.problem = problem
        self.sequence = sequence
        self.stored_at = stored_at
        self.token = token
        self.attempt = 1
        self.tried = False
        self.counts = False

    @property
    def order(self) -> tuple[str, int]:
        """Its place in its stream."""
        return self.intake.stream, self.sequence

    def run(self, lanes: Lanes) -> Coroutine[Any, Any, None]:  # noqa: ARG002 - what a lane calls
        """Handle it."""
        return self.intake.handle(self)


def _nothing() -> None:
    return
