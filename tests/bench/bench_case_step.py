"""What a step of a case costs, beside a bare append: run `python -m tests.bench.bench_case_step`.

One step after another on one case, on file storage: the runner folds, asks the remediation decider, and
appends one fact with the sequence that must still stand. The bare loop sends prepared bodies with the same
expectation by nats-py alone. Both run by turns on one server, so that what else the machine does hits both;
the CPU time of this process for one step tells what the wall clock hides on a machine that is shared.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import cast

import nats
import structlog
from nats.aio.client import Client

from services.remediation.context import Context, NodeWord
from services.remediation.decide import Case, RemediationDecider
from services.remediation.policy import Policy
from services.remediation.routing import route
from shared.bus.nats import NatsBus, connect
from shared.bus.port import Delivery, Lease
from shared.bus.provision import provision
from shared.bus.server import EmbeddedServer
from shared.clock import SystemClock
from shared.deciders import Effect, Runner
from shared.events import AnyEvent, Cause, Entity, Event, Payload, event
from shared.events.world import HealthReported

AT = datetime(2026, 3, 1, 12, tzinfo=UTC)
POLICY = Policy()


class Hands:
    """As remediation's, with nothing to look at."""

    hears: tuple[type[Payload], ...] = (HealthReported,)

    def route(self, heard: AnyEvent) -> Entity | None:
        """As the service."""
        return route(heard)

    def observe(self, heard: AnyEvent) -> None:
        """Nothing."""

    def correlation(self, of: Entity, fact: Payload) -> str:
        """As the service."""
        del fact
        return f"remediation:{of.about}#1"

    async def gather(self, of: Entity, case: Case, cause: AnyEvent | None) -> Context:
        """Nothing is read."""
        del of, case, cause
        return Context(node=NodeWord(AT))

    async def act(self, effect: Effect, case: Case) -> Payload:
        """Never asked."""
        raise AssertionError(f"this case has no effects, not {effect.key} in {case}")

    def failed(self, effect: Effect, error: Exception) -> Payload:
        """Never asked."""
        raise AssertionError(f"this case has no effects, not {effect.key}") from error

    def said(self, fact: AnyEvent, case: Case) -> None:
        """Nothing."""


class Held:
    """A lease that lasts."""

    name, number = "bench", 1

    def remaining_s(self) -> float:
        """Enough."""
        return 5.0


def report(window_id: int, of: Entity) -> Event[HealthReported]:
    """The verdict turns with every window, so each report is one step: one fact is appended."""
    data = HealthReported(
        boot_id="b1",
        window_id=window_id,
        verdict="healthy" if window_id % 2 else "unknown",
        streak=1,
    )
    return event(data, (of.place, of.entity), cause=Cause.source("b1", window_id), source="/bench", at=AT)


@dataclass(frozen=True, slots=True)
class Figures:
    """One run.

    Attributes:
        rate: steps a second.
        cpu_us: of this process, for one step.
    """

    rate: float
    cpu_us: float


class Stopwatch:
    """Both clocks, from now on."""

    def __init__(self) -> None:
        self._wall_s, self._cpu_s = time.perf_counter(), time.process_time()

    def figures(self, count: int) -> Figures:
        """Of so many steps since then."""
        took_s, cpu_s = time.perf_counter() - self._wall_s, time.process_time() - self._cpu_s
        return Figures(count / took_s, cpu_s / count * 1e6)


async def steps(bus: NatsBus, of: Entity, count: int) -> Figures:
    """The runner's steps, and the facts that they left are counted."""
    clock = SystemClock()
    runner: Runner[Case, Context, Policy] = Runner(
        bus, RemediationDecider(), Hands(), policy=lambda: POLICY, clock=clock, source="/bench"
    )
    runner._lease = cast("Lease", Held())
    await runner._folds.recover()
    await runner._hear(_delivery(_opening(of), 0))
    reports = [_delivery(report(n + 1, of), n + 1) for n in range(count)]
    began = runner._folds.peek(of)
    watch = Stopwatch()
    for heard in reports:
        await runner._hear(heard)
    took = watch.figures(count)
    ended = runner._folds.peek(of)
    if began is None or ended is None or ended.sequence - began.sequence != count:
        raise RuntimeError("a step is one fact; the bench appended another number")
    return took


def _opening(of: Entity) -> AnyEvent:
    from shared.events.remediation import HoldRequested  # noqa: PLC0415 - only here

    data = HoldRequested(request_id=of.entity, owner="bench", reason="a case to step through")
    return event(data, (of.place, of.entity), cause=Cause.source("b1", "open"), source="/bench", at=AT)


def _delivery(heard: AnyEvent, sequence: int) -> Delivery:
    return Delivery(event=heard, stream="FLEET_HEALTH", sequence=sequence, stored_at=AT, stream_created=AT)


async def bare(nc: Client, bus: NatsBus, of: Entity, count: int) -> Figures:
    """A bare loop that appends the bodies of the same facts."""
    bodies = [found.event async for found in bus.read(of)]
    said = [one for one in bodies if isinstance(one, Event)][2:]
    elsewhere = of.wildcard.replace(of.entity, f"{of.entity}-bare")
    prepared = [
        (f"{elsewhere.removesuffix('*')}health-noted", f"{one.id}-bare", one.encode()) for one in said[:count]
    ]
    last = 0
    watch = Stopwatch()
    for subject, id_, body in prepared:
        answer = await nc.request(
            subject,
            body,
            timeout=5,
            headers={
                "Nats-Msg-Id": id_,
                "Nats-Expected-Last-Subject-Sequence": str(last),
                "Nats-Expected-Last-Subject-Sequence-Subject": elsewhere,
            },
        )
        last = json.loads(answer.data)["seq"]
    return watch.figures(len(prepared))


async def measure(count: int, runs: int) -> None:
    """Both by turns, and the ratio of each pair."""
    with tempfile.TemporaryDirectory() as directory:
        async with EmbeddedServer(Path(directory)) as server:
            await provision(server.url)
            nc = await nats.connect(server.url)
            async with connect(server.url, service="bench", instance="0") as bus:
                ours: list[Figures] = []
                theirs: list[Figures] = []
                for run in range(runs + 1):
                    of = Entity("remediation", "worker-3", f"nvidia-{run:04x}-3b-00-0")
                    step, append = await steps(bus, of, count), await bare(nc, bus, of, count)
                    if run:  # the first warms both up
                        ours.append(step)
                        theirs.append(append)
            await nc.close()
    ratios = [our.rate / their.rate for our, their in zip(ours, theirs, strict=True)]
    _print("case step, one after another", [each.rate for each in ours], "/s   (reach >= 1200/s)")
    _print("bare append loop", [each.rate for each in theirs], "/s")
    _print("ratio of each pair", ratios, "     (reach >= 0.7)", digits=2)
    _print("CPU of the client, case step", [each.cpu_us for each in ours], "us")
    _print("CPU of the client, bare append", [each.cpu_us for each in theirs], "us")


def _print(what: str, figures: list[float], unit: str, *, digits: int = 0) -> None:
    middle, low, high = statistics.median(figures), min(figures), max(figures)
    sys.stdout.write(f"{what:<32} {middle:,.{digits}f} [{low:,.{digits}f}..{high:,.{digits}f}] {unit}\n")


def main() -> None:
    """Print the bench."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=2000, help="steps in a run")
    parser.add_argument("--runs", type=int, default=5, help="runs of each")
    given = parser.parse_args()
    structlog.configure(
        wrapper_class=structlog.make_filtering_bound_logger(20),
        processors=[structlog.processors.JSONRenderer()],
        logger_factory=structlog.WriteLoggerFactory(file=Path("/dev/null").open("w", encoding="utf-8")),  # noqa: SIM115 - as long as the process
    )
    asyncio.run(measure(given.count, given.runs))


if __name__ == "__main__":
    main()
