"""The runner over the in-memory bus on virtual time, with a toy decider."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import datetime, timedelta

import pytest

from shared.bus.handling import add_event
from shared.bus.memory import Faults, MemoryBus, MemoryServer
from shared.bus.port import Disconnected, LeaseLost
from shared.clock import SystemClock
from shared.deciders import Effect, Outdated, Runner
from shared.errors import Permanent, Temporary
from shared.events import AnyEvent, Cause, Entity, Payload, event
from shared.events import remediation as say
from tests.unit.deciders.toy_decider import (
    ONE,
    OTHER,
    POD,
    START,
    Rules,
    Toy,
    ToyDecider,
    ToyHands,
    hold,
    release,
)

pytestmark = pytest.mark.looptime


REST_S = 600.0


class Running:
    """A server, a runner on it, and what it does."""

    def __init__(self, rules: Rules, faults: Faults | None = None) -> None:
        self.clock = SystemClock(start=START)
        self.server = MemoryServer(clock=self.clock, faults=faults)
        self.bus = MemoryBus(self.server, "toy", instance="1")
        self.outside = MemoryBus(self.server, "outside")
        self.rules = rules
        self.hands = ToyHands()
        self.decider = ToyDecider(rules)
        self.runner: Runner[Toy, str, Rules]

    async def live(self) -> None:
        """One holding of the lease."""
        self.runner = Runner(
            self.bus,
            self.decider,
            self.hands,
            policy=lambda: self.rules,
            clock=self.clock,
            source="/toy",
            service="toy",
            compact_after_s=lambda _: REST_S,
        )
        async with self.bus.lease("toy") as lease:
            await self.runner.run(lease)

    async def until(self, happened: Callable[[], bool], within_s: float = 3600) -> None:
        async with asyncio.timeout(within_s):
            while not happened():
                self.hands.changed.clear()
                try:
                    async with asyncio.timeout(1):
                        await self.hands.changed.wait()
                except TimeoutError:
                    continue

    async def said(self, *names: str, of: Entity = ONE) -> None:
        await self.until(lambda: self.hands.names(of) == list(names))

    async def log(self, of: Entity = ONE) -> list[str]:
        return [found.event.address.fact for found in [one async for one in self.outside.read(of)]]


@asynccontextmanager
async def running(
    rules: Rules | None = None, *, start: bool = True, faults: Faults | None = None
) -> AsyncIterator[Running]:
    made = Running(rules or Rules(), faults)
    task = asyncio.create_task(made.live(), name="toy") if start else None
    try:
        yield made
    finally:
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


WHOLE = ("opened", "eviction-ordered", "pod-evicted")


async def test_a_cause_an_effect_and_its_outcome_each_append_one_fact() -> None:
    async with running() as toy:
        await toy.outside.publish(hold())
        await toy.said(*WHOLE)
        opened, ordered, evicted = toy.hands.said_facts
        assert opened.causationid == hold().id
        assert ordered.causationid == opened.id
        assert evicted.causationid == ordered.id
        assert {fact.correlationid for fact in toy.hands.said_facts} == {f"remediation:{ONE.about}#1"}
        await toy.outside.publish(release())
        await toy.said(*WHOLE, "closed")
        assert toy.runner.case(ONE) is not None
        assert list(toy.runner.open_cases()) == []


async def test_a_deadline_fires_inside_the_lane_with_a_timer_s_id() -> None:
    async with running(Rules(effect=False)) as toy:
        await toy.outside.publish(hold())
        await toy.said("opened", "deadline-passed", "closed")
        passed = toy.hands.said_facts[1]
        assert passed.causationid == toy.hands.said_facts[0].id
        deadline = (START + timedelta(seconds=60)).isoformat()
        cause = Cause.timer(ONE.about, 1, "wait", deadline, since=toy.hands.said_facts[0])
        rebuilt = event(passed.data, ONE, cause=cause, source="/toy", at=START)
        assert (passed.id, passed.time >= START + timedelta(seconds=60)) == (rebuilt.id, True)


async def test_deadlines_and_effects_without_an_outcome_are_taken_up_by_the_next_holder() -> None:
    async with running(start=False) as toy:
        first = asyncio.create_task(toy.live())
        toy.hands.answers = ["hang"]
        await toy.outside.publish(hold())
        await toy.said("opened", "eviction-ordered")
        toy.bus.partition()
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)
        toy.bus.heal()
        second = asyncio.create_task(toy.live())
        await toy.said(*WHOLE, "deadline-passed", "closed")
        second.cancel()
        await asyncio.gather(second, return_exceptions=True)
        assert await toy.log() == [*WHOLE, "deadline-passed", "closed"]


async def test_an_effect_is_tried_again_until_it_has_an_outcome() -> None:
    async with running() as toy:
        toy.hands.answers = [Temporary("away", delay_s=3), "hang", "evicted"]
        await toy.outside.publish(hold())
        await toy.said(*WHOLE)
        assert len(toy.hands.acts) == 3


async def test_an_effect_that_breaks_has_failed() -> None:
    async with running() as toy:
        toy.hands.answers = [ValueError("a mistake")]
        await toy.outside.publish(hold())
        await toy.said(*WHOLE)
        data = toy.hands.said_facts[-1].data
        assert isinstance(data, say.PodEvicted)
        assert (data.outcome, data.detail) == ("failed", "a mistake")


async def test_an_effect_that_is_no_longer_listed_is_given_up() -> None:
    async with running() as toy:
        toy.hands.answers = [Temporary("away")] * 500
        await toy.outside.publish(hold())
        await toy.said("opened", "eviction-ordered")
        await toy.outside.publish(release())
        await toy.said("opened", "eviction-ordered", "closed")
        tried = len(toy.hands.acts)
        await asyncio.sleep(30)
        assert len(toy.hands.acts) <= tried + 1


async def test_an_effect_that_is_not_ready_is_not_started() -> None:
    async with running(Rules(ready=False)) as toy:
        await toy.outside.publish(hold())
        await toy.said("opened", "eviction-ordered", "deadline-passed", "closed")
        assert toy.hands.acts == []


async def test_no_effect_starts_with_less_lease_left_than_it_may_take() -> None:
    async with running(Rules(timeout_s=60, wait_s=20)) as toy:
        await toy.outside.publish(hold())
        await toy.said("opened", "eviction-ordered", "deadline-passed", "closed")
        assert toy.hands.acts == []


async def test_a_mistake_in_one_case_does_not_stop_the_others() -> None:
    async with running(Rules(breaks=True, effect=False, wait_s=20)) as toy:
        await toy.outside.publish(hold())
        await toy.outside.publish(hold(5, OTHER))
        await toy.said("opened", "deadline-passed", "closed", of=OTHER)
        toy.rules.breaks = False
        await toy.said("opened", "deadline-passed", "closed")


async def test_a_decider_that_does_not_come_to_rest_is_stopped_and_the_cause_becomes_a_dead_letter() -> None:
    async with running(Rules(endless=True)) as toy:
        await toy.outside.publish(hold())
        await toy.until(lambda: toy.server.streams["deadletter"].last_sequence > 0)
        assert len(toy.hands.names()) == 64


async def test_a_cause_waits_while_what_it_needs_is_not_known() -> None:
    async with running(Rules(effect=False)) as toy:
        toy.hands.gather_fails = [Temporary("the API is away", delay_s=1)] * 5
        await toy.outside.publish(hold())
        await toy.said("opened", "deadline-passed", "closed")


async def test_a_timer_waits_while_what_it_needs_is_not_known() -> None:
    async with running(Rules(effect=False)) as toy:
        await toy.outside.publish(hold())
        await toy.said("opened")
        toy.hands.gather_fails = [Temporary("the API is away", delay_s=1)] * 5
        await toy.said("opened", "deadline-passed", "closed")


async def test_another_writer_makes_the_log_be_read_again() -> None:
    async with running(Rules(effect=False)) as toy:
        await toy.outside.publish(hold())
        await toy.said("opened")
        last = await toy.outside.last(ONE)
        assert last is not None
        foreign = say.Cleared(epoch=1, streak=9)
        said = event(foreign, ONE, cause=Cause.source("x", 1), source="/x", at=START)
        await toy.outside.append(said, last.sequence)
        await toy.outside.publish(release())
        await toy.said("opened", "closed")
        assert await toy.log() == ["opened", "cleared", "closed"]


def newer(fact: str) -> tuple[str, bytes]:
    """A fact of a version to come, and the subject it is said on."""
    address = ONE.address(fact)
    kind = f"io.mediafleet.{address.domain}.{fact}.v1"
    return address.subject, f'{{"id": "{fact}", "type": "{kind}", "subject": "{address.about}"}}'.encode()


async def test_nothing_is_appended_to_a_log_with_a_fact_of_a_newer_version() -> None:
    async with running(start=False) as toy:
        toy.server.store(*newer("reimagined"))
        toy.server.store(*newer("reimagined-too"))
        opened = event(
            say.Opened(epoch=1, state="suspect", reason="r"),
            OTHER,
            cause=Cause.of(hold()),
            source="/x",
            at=START,
        )
        await toy.outside.append(opened, 0)
        await toy.outside.publish(hold())
        with pytest.raises(Outdated, match="reimagined"):
            await toy.live()
        assert await toy.log() == ["reimagined", "reimagined-too"]


async def test_a_newer_version_that_comes_between_makes_it_yield() -> None:
    async with running(Rules(effect=False), start=False) as toy:
        task = asyncio.create_task(toy.live())
        await toy.outside.publish(hold())
        await toy.said("opened")
        toy.server.store(*newer("reimagined"))
        await toy.outside.publish(release())
        with pytest.raises(Outdated):
            await asyncio.wait_for(task, 100)


async def test_a_lost_lease_ends_the_run() -> None:
    async with running(start=False) as toy:
        task = asyncio.create_task(toy.live())
        await toy.outside.publish(hold())
        await toy.said(*WHOLE)
        toy.bus.partition()
        with pytest.raises(LeaseLost):
            await asyncio.wait_for(task, 100)
        assert toy.runner.listening_since_s is None
        assert not toy.runner.caught_up


async def test_lost_answers_and_duplicates_append_nothing_twice() -> None:
    async with running(
        faults=Faults(seed=3, duplicate=0.4, lost_answer=0.3, lost_ack=0.3, delay_s=0.05)
    ) as toy:
        await toy.outside.publish(hold())
        await toy.outside.publish(release(7, OTHER))
        await toy.said(*WHOLE, "deadline-passed", "closed")
        assert await toy.log() == [*WHOLE, "deadline-passed", "closed"]


async def test_what_concerns_no_case_is_only_observed() -> None:
    async with running() as toy:
        await toy.outside.publish(hold(3, Entity("command", "nobody", "x")))
        await toy.until(lambda: len(toy.hands.observed) == 1)
        assert toy.hands.said_facts == []


async def test_a_nudge_asks_a_case_again() -> None:
    async with running(Rules(effect=False)) as toy:
        await toy.outside.publish(hold())
        await toy.said("opened")
        toy.rules.effect = True
        toy.runner.nudge(ONE)
        await toy.said(*WHOLE)


CLOSED = ("opened", "deadline-passed", "closed")
SNAPSHOTS = Rules(effect=False, snapshots=True)


async def compacted(toy: Running) -> None:
    """Only the snapshot is left."""
    async with asyncio.timeout(3600):
        while await toy.log() != ["snapshotted"]:  # noqa: ASYNC110 - a purge tells nobody
            await asyncio.sleep(1)


async def test_a_closed_case_is_compacted_when_it_has_rested() -> None:
    async with running(SNAPSHOTS) as toy:
        await toy.outside.publish(hold())
        await toy.said(*CLOSED)
        closed_at = toy.clock.now()
        await toy.said(*CLOSED, "snapshotted")
        assert toy.clock.now() - closed_at >= timedelta(seconds=REST_S)
        await compacted(toy)
        assert [each.event.address.fact async for each in toy.outside.audit(ONE.place, ONE.entity)] == [
            "hold-requested",
            *CLOSED,
            "snapshotted",
        ]


async def test_a_log_that_the_audit_does_not_hold_stays_whole_until_it_does() -> None:
    async with running(SNAPSHOTS) as toy:
        toy.server.audit_lags = True
        await toy.outside.publish(hold())
        await toy.said(*CLOSED)
        await asyncio.sleep(3 * REST_S)
        assert await toy.log() == [*CLOSED]
        toy.server.audit_lags = False
        await compacted(toy)


async def test_an_audit_that_gives_no_answer_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    async with running(SNAPSHOTS) as toy:
        answers = [Disconnected("away"), Permanent("not allowed")]
        ask = toy.bus.audited

        async def audited(of: Entity, sequence: int) -> bool:
            if answers:
                raise answers.pop()
            return await ask(of, sequence)

        monkeypatch.setattr(toy.bus, "audited", audited)
        await toy.outside.publish(hold())
        await compacted(toy)
        assert answers == []


async def test_a_case_that_opens_again_while_the_audit_is_asked_keeps_its_log() -> None:
    async with running(SNAPSHOTS) as toy:
        toy.server.audit_lags = True
        await toy.outside.publish(hold())
        await toy.said(*CLOSED)
        await asyncio.sleep(REST_S + 10)
        await toy.outside.publish(hold(2))
        await toy.said(*CLOSED, "opened")
        toy.server.audit_lags = False
        await toy.said(*CLOSED, *CLOSED, "snapshotted")
        assert toy.hands.said_facts[-1].time - toy.hands.said_facts[-2].time >= timedelta(seconds=REST_S)
        await compacted(toy)


async def test_a_crash_between_snapshot_and_purge_is_made_up_for_by_the_next_holder(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with running(SNAPSHOTS, start=False) as toy:
        purged = asyncio.Event()

        async def dies(of: Entity, *, below: int) -> None:
            del of, below
            purged.set()
            await asyncio.Event().wait()

        with monkeypatch.context() as broken:
            broken.setattr(toy.bus, "purge", dies)
            first = asyncio.create_task(toy.live())
            await toy.outside.publish(hold())
            await purged.wait()
            first.cancel()
            await asyncio.gather(first, return_exceptions=True)
        assert await toy.log() == [*CLOSED, "snapshotted"]
        second = asyncio.create_task(toy.live())
        await compacted(toy)
        assert toy.hands.names() == [*CLOSED, "snapshotted"]
        await toy.outside.publish(hold(2))
        await toy.until(lambda: toy.hands.names()[4:] == ["opened"])
        second.cancel()
        await asyncio.gather(second, return_exceptions=True)


async def test_a_purge_that_fails_is_tried_again_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    async with running(SNAPSHOTS) as toy:
        failures = [Temporary("full"), Disconnected("away")]
        purge = toy.bus.purge

        async def fails(of: Entity, *, below: int) -> None:
            if failures:
                raise failures.pop()
            await purge(of, below=below)

        monkeypatch.setattr(toy.bus, "purge", fails)
        await toy.outside.publish(hold())
        await compacted(toy)
        assert toy.hands.names() == [*CLOSED, "snapshotted"]


async def test_closed_cases_of_before_are_compacted_after_a_start() -> None:
    async with running(SNAPSHOTS, start=False) as toy:
        first = asyncio.create_task(toy.live())
        await toy.outside.publish(hold())
        await toy.said(*CLOSED)
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)
        await asyncio.sleep(2 * REST_S)
        second = asyncio.create_task(toy.live())
        await compacted(toy)
        second.cancel()
        await asyncio.gather(second, return_exceptions=True)


async def test_lines_logged_by_an_effect_carry_its_order_and_its_case() -> None:
    lines: list[dict[str, object]] = []

    async def logs(effect: Effect, case: Toy) -> say.PodEvicted:
        del effect, case
        lines.append(dict(add_event(None, "info", {})))
        return say.PodEvicted(epoch=1, pod=POD, attempt=1, outcome="evicted")

    async with running() as toy:
        toy.hands.act = logs  # type: ignore[method-assign] # the double's own
        await toy.outside.publish(hold())
        await toy.said(*WHOLE)
        ordered = toy.hands.said_facts[1]
        assert ordered.traceparent is not None
        assert lines == [
            {
                "event_id": ordered.id,
                "about": ONE.about,
                "case": f"remediation:{ONE.about}#1",
                "trace_id": ordered.traceparent.split("-")[1],
            }
        ]


class Neighbours(ToyDecider):
    """The other case answers once that one was opened."""

    def decide(
        self, case: Toy, cause: AnyEvent, context: str | None, now: datetime, policy: Rules
    ) -> Payload | None:
        if isinstance(cause.data, say.Opened):
            return None if cause.id in case.applied else say.Opened(epoch=1, state="suspect", reason="too")
        return super().decide(case, cause, context, now, policy)


class NextDoor(ToyHands):
    """Hears its own `opened`, for the other case."""

    def route(self, heard: AnyEvent) -> Entity | None:
        if isinstance(heard.data, say.Opened):
            return OTHER if heard.of == ONE else None
        return super().route(heard)


@pytest.mark.parametrize("fails", [False, True])
async def test_an_own_fact_reaches_another_case_once_whichever_way_it_comes_first(fails: bool) -> None:  # noqa: FBT001 - a parameter
    async with running(Rules(effect=False), start=False, faults=Faults(delay_s=0.1)) as toy:
        toy.hands = NextDoor(hears=(say.HoldRequested, say.Opened))
        toy.decider = Neighbours(toy.rules)
        task = asyncio.create_task(toy.live())
        await toy.until(lambda: hasattr(toy, "runner") and toy.runner.caught_up)
        await toy.outside.publish(hold())
        if fails:
            gather = toy.hands.gather

            async def away(of: Entity, case: Toy, cause: AnyEvent | None) -> str | None:
                if of == OTHER:
                    toy.hands.gather = gather  # type: ignore[method-assign] # the double's own
                    raise Temporary("not yet")
                return await gather(of, case, cause)

            toy.hands.gather = away  # type: ignore[method-assign] # the double's own
        await toy.said("opened", of=OTHER)
        await toy.until(lambda: not toy.runner._heard_own)
        answered = [fact for fact in toy.hands.said_facts if fact.of == OTHER]
        assert [fact.causationid for fact in answered] == [toy.hands.said_facts[0].id]
        seen = [
            fact.id for fact in toy.hands.observed if fact.of == ONE and isinstance(fact.data, say.Opened)
        ]
        assert len(seen) == (2 if fails else 1)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
