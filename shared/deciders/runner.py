"""Drives a decider over the bus while a lease is held.

    delivery ─┐
    timer ────┼─> lane of the case ─> decide* ─> next* ─> quiescent ─> effects ─> outcome ─> lane of the case
    outcome ──┘         (each appends one fact with the sequence that the cached fold stands at)

* Before every input has reached its head (`caught_up`) only what is heard is decided: no `next`, no timer, no
  effect. The cases that were skipped are taken up when it has.
* A conflict reads the log again and decides again; a redelivered cause leads to nothing, as the case shows it
  was applied; a crash between two facts is healed by redelivery of the cause or by `next` at the next start.
* Effects run outside the lane, one at a time per key, and only with more lease left than they may take. Their
  outcome is appended in the lane. Without an outcome the next holder runs them again: `act` looks first.
* A log with a fact of a newer version raises `Outdated`: nothing is appended and the lease is yielded.
* A log that has rested is compacted: once the audit holds it, its snapshot is appended and what lies below is
  purged. A crash between the two leaves a snapshot above other facts, which is purged after the next start.

A service runs it as

    async with bus.lease("remediation") as lease:
        await Runner(bus, decider, hands, policy=policy.current, clock=clock, source=source).run(lease)
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import datetime, timedelta
from functools import lru_cache, partial
from typing import Generic, TypeVar

import structlog

from shared.bus.handling import handling
from shared.bus.port import Bus, Consumption, Delivery, Disconnected, Lease, LeaseLost, Subscription
from shared.clock import Clock
from shared.deciders import metrics
from shared.deciders.folds import Fold, Folds, Outdated
from shared.deciders.protocol import Decider, Effect, Hands
from shared.deciders.timers import Timers
from shared.errors import Conflict, FleetError, Temporary
from shared.events import AnyEvent, Cause, Entity, Payload, event

CaseT = TypeVar("CaseT")
ContextT = TypeVar("ContextT")
PolicyT = TypeVar("PolicyT")

_MOST_FACTS = 64
"""Facts that one cause may lead to; more is a decider that does not come to rest."""
_RESEND_S = 0.2
"""Between tries of an append whose answer did not come."""
_LOOK_AGAIN_S = 1.0
"""A passed deadline that leads to nothing yet (it waits for a node) is asked again after this."""
_AFTER_FAILURE_S = 30.0
"""A case whose timer or outcome raised is tried again after this."""
_BACKOFF_S = (0.2, 5.0)
"""First and longest wait between tries of an effect."""
_LEASE_LOOK_S = 0.1
"""How often an effect that waits for the lease's renewal looks."""

_ATTEMPTS = 1_000_000
_GIVE_UP_S = 3600.0
"""A cause that must wait (`gather` raised `Temporary`) waits in its lane for so long, whatever the tries."""

_ASK_AUDIT_S = 60.0
"""Between questions whether the audit holds a log."""
_COMPACT = "compact"
"""The key under which a compaction is in flight."""

log = structlog.get_logger(__name__)


class Runner(Generic[CaseT, ContextT, PolicyT]):
    """One holder's run of one decider; made anew for every lease."""

    def __init__(
        self,
        bus: Bus,
        decider: Decider[CaseT, ContextT, PolicyT],
        hands: Hands[CaseT, ContextT],
        *,
        policy: Callable[[], PolicyT],
        clock: Clock,
        source: str,
        service: str | None = None,
        compact_after_s: Callable[[CaseT], float] | None = None,
    ) -> None:
        """Wire it; nothing runs before `run`.

        Args:
            bus: the bus.
            decider: the pure part.
            hands: the service's side.
            policy: the policy in force now.
            clock: time.
            source: `/mediafleet/<service>/<instance>`.
            service: names the durable consumers; the decider's domain when not given.
            compact_after_s: how long a log that has a snapshot rests before it is compacted; never when not
                given. A fact is kept at least so long, for those who hear it late.
        """
        self._bus = bus
        self._decider = decider
        self._hands = hands
        self._policy = policy
        self._clock = clock
        self._source = source
        self._service = service or decider.domain
        self._compact_after_s = compact_after_s
        self._folds: Folds[CaseT, ContextT, PolicyT] = Folds(bus, decider)
        self._timers = Timers(clock, self._take_up)
        self._lease: Lease | None = None
        self._consumption: Consumption | None = None
        self._tasks: asyncio.TaskGroup | None = None
        self._in_flight: dict[tuple[Entity, str], asyncio.Task[None]] = {}
        self._skipped: dict[Entity, None] = {}
        self._some_skipped = asyncio.Event()
        self._step_seconds = metrics.STEP_SECONDS.labels(decider.domain)
        self._open_cases = metrics.OPEN_CASES.labels(decider.domain)
        self._facts = lru_cache(partial(metrics.FACTS.labels, decider.domain))
        self._log = log.bind()
        self._untold: list[AnyEvent] = []
        self._hears = frozenset(hands.hears)
        self._heard_own: set[str] = set()

    # ------------------------------------------------------------------ what a service may ask of it

    def case(self, of: Entity) -> CaseT | None:
        """The case of a log as it is folded now; None when the log is empty or not in memory."""
        fold = self._folds.peek(of)
        return None if fold is None else fold.case

    def open_cases(self) -> Iterator[tuple[Entity, CaseT]]:
        """Every case that is not closed."""
        return ((of, fold.case) for of, fold in self._folds.open())

    def nudge(self, of: Entity) -> None:
        """Ask `next` of a case soon, in its lane: something that `gather` reads has changed."""
        self._take_up(of)

    @property
    def caught_up(self) -> bool:
        """Whether timers and effects may run."""
        return self._consumption is not None and self._consumption.caught_up

    @property
    def listening_since_s(self) -> float | None:
        """Monotonic time since when we hear without a break; None while we do not listen."""
        return None if self._consumption is None else self._consumption.listening_since_s

    # ------------------------------------------------------------------ life

    async def run(self, lease: Lease) -> None:
        """Recover every case, then hear, decide and act until the lease or the consumption ends.

        Raises:
            LeaseLost: another holds the lease now.
            Outdated: a log holds a newer version's fact.
        """
        self._lease = lease
        for of, fold in (await self._folds.recover()).items():
            if fold.unknown or not self._decider.closed(fold.case):
                self._skipped[of] = None
            else:
                self._arm(of, fold)
        self._some_skipped.set()
        try:
            async with self._bus.consume(self._service, self._subscriptions(), lease=lease) as consumption:
                self._consumption = consumption
                await self._until_ended(consumption)
        finally:
            self._consumption = None

    async def _until_ended(self, consumption: Consumption) -> None:
        try:
            async with asyncio.TaskGroup() as tasks:
                self._tasks = tasks
                own = (
                    tasks.create_task(self._timers.run(), name=f"{self._service}-timers"),
                    tasks.create_task(self._take_up_skipped(consumption), name=f"{self._service}-take-up"),
                )
                try:
                    await consumption.wait()
                finally:
                    self._tasks = None
                    for task in (*own, *self._in_flight.values()):
                        task.cancel()
        except BaseExceptionGroup as group:
            raise _first(group) from group
        finally:
            self._tasks = None

    def _subscriptions(self) -> tuple[Subscription, ...]:
        by_domain: dict[str, list[type[Payload]]] = {}
        for payload in self._hands.hears:
            by_domain.setdefault(payload.kind.domain, []).append(payload)
        return tuple(
            Subscription(
                domain,
                tuple(types),
                self._hear,
                key=self._lane,
                attempts=_ATTEMPTS,
                give_up_after_s=_GIVE_UP_S,
            )
            for domain, types in by_domain.items()
        )

    def _lane(self, heard: AnyEvent) -> str:
        return (self._hands.route(heard) or heard.of).about

    # ------------------------------------------------------------------ the lane's jobs

    async def _hear(self, delivery: Delivery) -> None:
        if delivery.event.id in self._heard_own:
            self._heard_own.discard(delivery.event.id)
            return
        await self._take(delivery.event)

    async def _take(self, heard: AnyEvent) -> None:
        self._hands.observe(heard)
        of = self._hands.route(heard)
        if of is not None:
            await self._step(of, heard)

    def _pass_on(self, of: Entity, said: AnyEvent) -> None:
        """Let another case hear an own fact now; its delivery, still on its way, is then only acknowledged.

        The delivery stays the guarantee: it is not awaited before `caught_up`, nor forgotten when this fails.
        """
        if type(said.data) not in self._hears or self._consumption is None or not self.caught_up:
            return
        other = self._hands.route(said)
        if other is not None and other != of:
            self._consumption.submit(other.about, partial(self._hear_own, said))

    async def _hear_own(self, said: AnyEvent) -> None:
        handling(said)
        try:
            await self._take(said)
        except (LeaseLost, Outdated):
            raise
        except Exception as error:  # noqa: BLE001 - met again, and answered for, when it is delivered
            log.debug("an own fact waits for its delivery", reason=str(error))
        else:
            self._heard_own.add(said.id)

    async def _timed(self, of: Entity) -> None:
        known = self._folds.peek(of)
        handling(None if known is None else known.last)
        try:
            await self._step(of, None)
        except (LeaseLost, Outdated):
            raise
        except Temporary as error:
            log.warning("the case waits", of=str(of), reason=str(error))
            self._timers.arm(of, self._clock.now() + timedelta(seconds=error.delay_s))
        except Exception:
            # One case that cannot go on must not stop all others: said, counted, and tried again.
            metrics.FAILURES.labels(self._decider.domain).inc()
            log.exception("the case could not take its next step", of=str(of))
            self._timers.arm(of, self._clock.now() + timedelta(seconds=_AFTER_FAILURE_S))

    async def _record(self, of: Entity, effect: Effect, outcome: Payload) -> None:
        handling(effect.ordered)
        try:
            fold = await self._known(of)
            while any(listed.key == effect.key for listed in self._decider.effects(fold.case)):
                try:
                    await self._append(of, fold, outcome, Cause.of(effect.ordered))
                except Conflict:
                    fold = await self._reload(of)
                else:
                    break
        finally:
            self._in_flight.pop((of, effect.key), None)
        await self._timed(of)

    async def _step(self, of: Entity, cause: AnyEvent | None) -> None:
        started_s = self._clock.monotonic()
        fold = await self._known(of)
        if cause is not None:
            fold = await self._exhaust(of, fold, cause)
        if cause is not None and fold.sequence == 0:
            return  # most of what is heard: a healthy device without a case
        if self.caught_up:
            fold = await self._exhaust(of, fold, None)
            self._start_effects(of, fold)
        elif not self._decider.closed(fold.case):
            self._skip(of)
        self._arm(of, fold)
        self._step_seconds.observe(self._clock.monotonic() - started_s)

    async def _exhaust(self, of: Entity, fold: Fold[CaseT], cause: AnyEvent | None) -> Fold[CaseT]:
        """Append what follows (from a cause, or from the case itself) until nothing does."""
        for _ in range(_MOST_FACTS):
            if fold.unknown:
                raise Outdated(of, fold.unknown)
            context = await self._hands.gather(of, fold.case, cause)
            now, policy = self._now(fold), self._policy()
            if cause is None:
                fact = self._decider.next(fold.case, context, now, policy)
            else:
                fact = self._decider.decide(fold.case, cause, context, now, policy)
            if fact is None:
                return fold
            why = Cause.of(cause) if cause is not None else _follows(of, fold.last, fact)
            try:
                fold = await self._append(of, fold, fact, why, at=now)
            except Conflict:
                fold = await self._reload(of)
        raise RuntimeError(
            f"{of}: more than {_MOST_FACTS} facts follow from one cause: it does not come to rest"
        )

    async def _known(self, of: Entity) -> Fold[CaseT]:
        fold = await self._folds.get(of)
        if fold.unknown:
            raise Outdated(of, fold.unknown)
        return fold

    async def _reload(self, of: Entity) -> Fold[CaseT]:
        metrics.CONFLICTS.labels(self._decider.domain).inc()
        log.warning("another writer was first: the log is read again", of=str(of))
        fold = await self._folds.reload(of)
        if fold.unknown:
            raise Outdated(of, fold.unknown)
        return fold

    async def _append(
        self, of: Entity, fold: Fold[CaseT], fact: Payload, why: Cause, *, at: datetime | None = None
    ) -> Fold[CaseT]:
        said = event(
            fact,
            of,
            cause=why,
            source=self._source,
            at=at or self._now(fold),
            correlationid=self._hands.correlation(of, fact),
        )
        while True:
            self.hold_lease()
            try:
                sequence = await self._bus.append(said, fold.sequence)
                break
            except Disconnected:
                # It may be stored: the same id again, until the lease is gone.
                await asyncio.sleep(_RESEND_S)
        fold = self._folds.advance(of, fold, said, sequence)
        self._untold.append(said)
        if len(self._untold) == 1:
            # Told at the loop's next turn: while the next fact is on its way, not before it is sent.
            asyncio.get_running_loop().call_soon(self._tell)
        self._hands.said(said, fold.case)
        self._pass_on(of, said)
        return fold

    def _tell(self) -> None:
        """Log and count what was appended; in a context of its own, as the loop calls it."""
        untold, self._untold = self._untold, []
        for said in untold:
            handling(said)
            kind = said.data.kind
            self._facts(kind.fact).inc()
            self._log.info(kind.name, cause=said.causationid)
        self._open_cases.set(self._folds.open_count)

    def _now(self, fold: Fold[CaseT]) -> datetime:
        now = self._clock.now()
        return now if fold.last is None else max(now, fold.last.time)

    def hold_lease(self) -> float:
        """Seconds that the lease lasts; to be asked again just before what cannot be taken back.

        A process that stood still (stopped, swapped out) goes on in the middle of what it was doing, before
        any timer of its loop tells it how late it is.

        Raises:
            LeaseLost: it ran out.
        """
        left_s = 0.0 if self._lease is None else self._lease.remaining_s()
        if left_s <= 0:
            raise LeaseLost(f"{self._service}: the lease ran out")
        return left_s

    # ------------------------------------------------------------------ timers, and what had to wait

    def _arm(self, of: Entity, fold: Fold[CaseT]) -> None:
        at = self._decider.due(fold.case, self._policy())
        now = self._clock.now()
        if at is not None and at <= now:
            at = now + timedelta(seconds=_LOOK_AGAIN_S)
        rested_at = self._rested_at(of, fold)
        if rested_at is not None and rested_at <= now and self.caught_up:
            self._compact(of, fold.sequence)
        elif rested_at is not None:
            at = rested_at if at is None else min(at, rested_at)
        self._timers.arm(of, at)

    def _take_up(self, of: Entity) -> None:
        if self._consumption is not None and self._consumption.caught_up:
            self._consumption.submit(of.about, partial(self._timed, of))
        else:
            self._skip(of)

    def _skip(self, of: Entity) -> None:
        self._skipped[of] = None
        self._some_skipped.set()

    async def _take_up_skipped(self, consumption: Consumption) -> None:
        while True:
            await self._some_skipped.wait()
            await consumption.until_caught_up()
            self._some_skipped.clear()
            skipped, self._skipped = list(self._skipped), {}
            for of in skipped:
                consumption.submit(of.about, partial(self._timed, of))

    # ------------------------------------------------------------------ effects

    def _start_effects(self, of: Entity, fold: Fold[CaseT]) -> None:
        for effect in self._decider.effects(fold.case):
            key = (of, effect.key)
            if effect.ready and key not in self._in_flight and self._tasks is not None:
                self._in_flight[key] = self._tasks.create_task(
                    self._carry_out(of, effect), name=f"{self._service}-{of.about}-{effect.key}"
                )

    async def _carry_out(self, of: Entity, effect: Effect) -> None:
        wait_s, longest_s = _BACKOFF_S
        handling(effect.ordered)
        while True:
            await self._lease_left(effect.timeout_s)
            case = self._listed(of, effect)
            if case is None or not self.caught_up:
                self._in_flight.pop((of, effect.key), None)
                if not self.caught_up:
                    self._skip(of)
                return
            try:
                async with asyncio.timeout(effect.timeout_s):
                    outcome = await self._hands.act(effect, case)
            except (Temporary, TimeoutError) as error:
                metrics.EFFECTS.labels(self._decider.domain, "again").inc()
                log.warning("an effect has no outcome yet", of=of.about, effect=effect.key, reason=str(error))
                asked_s = error.delay_s if isinstance(error, Temporary) else 0.0
                await asyncio.sleep(max(wait_s, min(asked_s, longest_s)))
                wait_s = min(wait_s * 2, longest_s)
                continue
            except LeaseLost:
                raise
            except Exception as error:
                log.exception("an effect failed", of=of.about, effect=effect.key)
                outcome = self._hands.failed(effect, error)
                metrics.EFFECTS.labels(self._decider.domain, "failed").inc()
            else:
                metrics.EFFECTS.labels(self._decider.domain, "done").inc()
            if self._consumption is not None:
                self._consumption.submit(of.about, partial(self._record, of, effect, outcome))
            return

    def _listed(self, of: Entity, effect: Effect) -> CaseT | None:
        """The case, when it still lists this effect as ready."""
        fold = self._folds.peek(of)
        if fold is None:
            return None
        listed = {one.key: one for one in self._decider.effects(fold.case)}.get(effect.key)
        return fold.case if listed is not None and listed.ready else None

    async def _lease_left(self, needed_s: float) -> None:
        """Wait until the lease lasts longer than an effect may take."""
        while self.hold_lease() < needed_s:  # noqa: ASYNC110 - a lease tells of its end, not of its renewal
            await asyncio.sleep(_LEASE_LOOK_S)

    # ------------------------------------------------------------------ compaction

    def _rested_at(self, of: Entity, fold: Fold[CaseT]) -> datetime | None:
        """When the log has rested long enough; None when there is nothing to compact, or it is being done."""
        if (
            self._compact_after_s is None
            or fold.last is None
            or fold.unknown
            or (of, _COMPACT) in self._in_flight
        ):
            return None
        if not fold.half_compacted and self._decider.snapshot(fold.case) is None:
            return None
        return fold.last.time + timedelta(seconds=self._compact_after_s(fold.case))

    def _compact(self, of: Entity, sequence: int, *, after_s: float = 0.0) -> None:
        if self._tasks is not None:
            self._in_flight[of, _COMPACT] = self._tasks.create_task(
                self._compact_when_audited(of, sequence, after_s), name=f"{self._service}-{of.about}-compact"
            )

    async def _compact_when_audited(self, of: Entity, sequence: int, after_s: float) -> None:
        handling(None)
        await asyncio.sleep(after_s)
        while not await self._audited(of, sequence):
            await asyncio.sleep(_ASK_AUDIT_S)
            fold = self._folds.peek(of)
            if fold is None or fold.sequence != sequence:
                break
        if self._consumption is not None:
            self._consumption.submit(of.about, partial(self._purge, of, sequence))

    async def _audited(self, of: Entity, sequence: int) -> bool:
        try:
            return await self._bus.audited(of, sequence)
        except LeaseLost:
            raise
        except FleetError as error:
            log.warning("the audit gave no answer: the log stays whole", of=of.about, reason=str(error))
            return False

    async def _purge(self, of: Entity, sequence: int) -> None:
        """In the lane: a log that stands where the audit was asked about it keeps only its snapshot."""
        self._in_flight.pop((of, _COMPACT), None)
        try:
            fold = await self._known(of)
            if fold.sequence == sequence:
                await self._purge_below_snapshot(of, fold)
        except (Conflict, Disconnected, Temporary) as error:
            log.warning("the log stays whole for now", of=of.about, reason=str(error))
            fold = await self._folds.reload(of)
            self._compact(of, fold.sequence, after_s=_ASK_AUDIT_S)
        await self._timed(of)

    async def _purge_below_snapshot(self, of: Entity, fold: Fold[CaseT]) -> None:
        if not fold.half_compacted:
            snapshot = self._decider.snapshot(fold.case)
            if snapshot is None:
                return
            fold = await self._append(of, fold, snapshot, _follows(of, fold.last, snapshot))
        self.hold_lease()
        await self._bus.purge(of, below=fold.sequence)
        self._folds.keep(of, replace(fold, first=fold.sequence))
        metrics.COMPACTED.labels(self._decider.domain).inc()


def _follows(of: Entity, last: AnyEvent | None, fact: Payload) -> Cause:
    """The cause of a fact that follows from the case itself: the last fact, or the deadline that passed."""
    timer, deadline = getattr(fact, "timer", None), getattr(fact, "deadline", None)
    if isinstance(timer, str) and isinstance(deadline, datetime):
        epoch = getattr(fact, "epoch", 0)
        return Cause.timer(of.about, epoch, timer, deadline.isoformat(), since=last)
    return Cause(f"start\n{of}") if last is None else Cause.of(last)


def _first(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """The error that ended the run: the first that is no group."""
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
