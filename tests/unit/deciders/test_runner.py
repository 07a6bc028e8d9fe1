"""The runner over the in-memory bus on virtual time, with a toy decider."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import timedelta

import pytest

from shared.bus.memory import Faults, MemoryBus, MemoryServer
from shared.bus.port import LeaseLost
from shared.clock import SystemClock
from shared.deciders import Outdated, Runner
from shared.errors import Temporary
from shared.events import Cause, Entity, event
from shared.events import remediation as say
from tests.unit.deciders.toy_decider import (
    ONE,
    OTHER,
    START,
    Rules,
    Toy,
    ToyDecider,
    ToyHands,
    hold,
    release,
)

pytestmark = pytest.mark.looptime


class Running:
    """A server, a runner on it, and what it does."""

    def __init__(self, rules: Rules, faults: Faults | None = None) -> None:
        self.clock = SystemClock(start=START)
        self.server = MemoryServer(clock=self.clock, faults=faults)
        self.bus = MemoryBus(self.server, "toy", instance="1")
        self.outside = MemoryBus(self.server, "outside")
        self.rules = rules
        self.hands = ToyHands()
        self.audited: bool | Exception | None = None
        self.runner: Runner[Toy, str, Rules]

    async def live(self) -> None:
        """One holding of the lease."""
        audited = None if self.audited is None else self._audited
        self.runner = Runner(
            self.bus,
            ToyDecider(self.rules),
            self.hands,
            policy=lambda: self.rules,
            clock=self.clock,
            source="/toy",
            service="toy",
            audited=audited,
        )
        async with self.bus.lease("toy") as lease:
            await self.runner.run(lease)

    async def _audited(self, of: Entity, sequence: int) -> bool:
        del of, sequence
        if isinstance(self.audited, Exception):
            raise self.audited
        return bool(self.audited)

    async def until(self, happened: Callable[[], bool], within_s: float = 100) -> None:
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


async def test_nothing_is_appended_to_a_log_with_a_fact_of_a_newer_version() -> None:
    async with running(start=False) as toy:
        unknown = ONE.address("reimagined").subject
        toy.server.store(unknown, b'{"id": "x"}')
        toy.server.store(ONE.address("reimagined-too").subject, b'{"id": "y"}')
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
        toy.server.store(ONE.address("reimagined").subject, b'{"id": "x"}')
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


async def test_a_closed_case_is_compacted_once_the_audit_holds_it() -> None:
    async with running(Rules(effect=False, snapshots=True), start=False) as toy:
        toy.audited = True
        task = asyncio.create_task(toy.live())
        await toy.outside.publish(hold())
        await toy.said("opened", "deadline-passed", "closed", "snapshotted")
        await toy.until(lambda: not toy.runner._in_flight)
        assert await toy.log() == ["snapshotted"]
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@pytest.mark.parametrize("audited", [False, Temporary("no answer")])
async def test_a_log_that_the_audit_does_not_hold_stays_whole(audited: bool | Exception) -> None:  # noqa: FBT001 - a parameter
    async with running(Rules(effect=False, snapshots=True), start=False) as toy:
        toy.audited = audited
        task = asyncio.create_task(toy.live())
        await toy.outside.publish(hold())
        await toy.said("opened", "deadline-passed", "closed")
        await toy.until(lambda: not toy.runner._in_flight)
        assert await toy.log() == ["opened", "deadline-passed", "closed"]
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
