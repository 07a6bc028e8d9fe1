"""Holders as real processes: paused, killed by what they handle, replaced."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest

from shared.bus import names
from shared.bus.nats import NatsBus
from shared.bus.server import EmbeddedServer
from shared.events import DOMAINS
from tests.contract.bus.world import Heard, dead_letters, rejected, report
from tests.integration.bus.conftest import Join, pull_one

STREAM = DOMAINS["health"].stream
ROOT = Path(__file__).parents[3]
WITHIN_S = 30.0


class Holder:
    """The process of `holder.py`."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.lines: list[str] = []

    async def until(self, line: str) -> None:
        """Read what it tells until a line that begins so."""
        assert self.process.stdout is not None
        async with asyncio.timeout(WITHIN_S):
            while not (self.lines and self.lines[-1].startswith(line)):
                told = await self.process.stdout.readline()
                assert told, f"it ended after {self.lines}"
                if not told.startswith(b"20"):  # log lines begin with a date
                    self.lines.append(told.decode().strip())

    async def ended(self) -> int:
        """Read the rest and return its exit code."""
        assert self.process.stdout is not None
        async with asyncio.timeout(WITHIN_S):
            rest = await self.process.stdout.read()
            self.lines += [line for line in rest.decode().splitlines() if not line.startswith("20")]
            return await self.process.wait()


@asynccontextmanager
async def holding(server: EmbeddedServer, *, kill: int = -1, wait: int = -1) -> AsyncIterator[Holder]:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "tests.integration.bus.holder",
        server.url,
        str(kill),
        str(wait),
        stdout=asyncio.subprocess.PIPE,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    try:
        yield Holder(process)
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()
        process._transport.close()  # type: ignore[attr-defined] # asyncio leaves it open after a kill


async def durables(bus: NatsBus) -> list[str]:
    names = await bus.link.api(f"CONSUMER.NAMES.{STREAM}", {"offset": 0})
    return sorted(name for name in names["consumers"] or [] if name.startswith("worker_"))


async def test_a_message_that_kills_its_process_three_times_is_a_dead_letter(
    server: EmbeddedServer, bus: NatsBus
) -> None:
    for n in (1, 2, 3):
        await bus.publish(report(n, key=f"gpu-{n}"))
    async with dead_letters(bus) as letters:
        for _ in range(3):
            async with holding(server, kill=2) as holder:
                assert await holder.ended() == -signal.SIGKILL
                assert "start 2" in holder.lines
        async with holding(server, kill=2) as holder:
            await holder.until("caught up")
            assert "start 2" not in holder.lines
        (letter,) = await letters.count(1)
    said = rejected(letter)
    assert said.attempts == 3
    assert "died 3 times" in said.reason
    assert '"window_id":2' in said.raw


async def test_a_rollout_counts_for_nothing(
    bus: NatsBus, join: Join, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shared.bus.nats.bus.STOP_WITHIN_S", 0.05)
    await bus.publish(report(1))
    never = asyncio.Event()

    async def forever(_: object) -> None:
        await never.wait()

    for n in range(4):
        heard = Heard(forever)
        replica = await join("worker", str(n))
        async with (
            replica.lease("worker") as lease,
            replica.consume("worker", (heard.health(),), lease=lease),
        ):
            await heard.count(1)
    heard = Heard()
    async with bus.lease("worker") as lease, bus.consume("worker", (heard.health(),), lease=lease):
        (delivery,) = await heard.count(1)
    assert delivery.sequence == 1


async def test_a_paused_holder_that_wakes_after_its_lease_does_no_more(
    server: EmbeddedServer, bus: NatsBus
) -> None:
    for n in (1, 2):
        await bus.publish(report(n))
    async with holding(server, wait=2) as first:
        await first.until("start 2")
        old = await durables(bus)
        first.process.send_signal(signal.SIGSTOP)
        async with holding(server) as second:
            await second.until("done 2")
            new = await durables(bus)
            await bus.publish(report(3))
            await second.until("done 3")
            first.process.send_signal(signal.SIGCONT)
            assert await first.ended() == 0
            await bus.publish(report(4))
            await second.until("done 4")
            info = await bus.link.api(f"CONSUMER.INFO.{STREAM}.{new[0]}")
    assert len(old) == len(new) == 1
    assert old != new
    assert first.lines[-1] == "lost"
    assert "start 3" not in first.lines
    # What the old holder had open came to the new one, in order (1 too, if it was not yet acknowledged).
    started = [line for line in second.lines if line.startswith("start") and line != "start 1"]
    assert started == ["start 2", "start 3", "start 4"]
    assert info["num_redelivered"] == 0


async def test_a_late_acknowledgement_of_the_old_holder_changes_nothing(bus: NatsBus, join: Join) -> None:
    await bus.publish(report(1))
    await bus.link.api(
        f"CONSUMER.CREATE.{STREAM}.worker_health-0",
        {
            "stream_name": STREAM,
            "config": {
                "name": "worker_health-0",
                "durable_name": "worker_health-0",
                "ack_policy": "explicit",
                "deliver_policy": "all",
                "filter_subject": "fleet.v1.health.*.*.reported",
            },
        },
    )
    pulled = await pull_one(bus, STREAM, "worker_health-0")
    heard = Heard()
    replica = await join("worker")
    async with replica.lease("worker") as lease, replica.consume("worker", (heard.health(),), lease=lease):
        await heard.count(1)
        await bus.link.send(pulled.reply)
        assert await durables(bus) == ["worker_health-1"]


async def test_names_that_holders_left_behind_are_used_again(bus: NatsBus, join: Join) -> None:
    """Each was killed between making its own consumer and deleting the one before."""
    for name in names.durables("worker_health"):
        config = {"name": name, "durable_name": name, "ack_policy": "explicit", "deliver_policy": "all"}
        await bus.link.api(
            f"CONSUMER.CREATE.{STREAM}.{name}", {"stream_name": STREAM, "config": config, "action": "create"}
        )
    await bus.publish(report(1))
    heard = Heard()
    replica = await join("worker")
    async with replica.lease("worker") as lease, replica.consume("worker", (heard.health(),), lease=lease):
        await heard.count(1)
        assert len(await durables(bus)) == 1


async def test_a_reader_too_many_waits_until_one_leaves(join: Join) -> None:
    replica = await join("worker")
    await replica.publish(report(1))
    async with AsyncExitStack() as readers:
        for _ in range(names.READER_SLOTS):
            heard = Heard()
            await readers.enter_async_context(replica.consume("worker", (heard.health(),)))
            await heard.count(1)
        waiting = Heard()
        async with replica.consume("worker", (waiting.health(),)) as consumption:
            async with asyncio.timeout(WITHIN_S):
                await readers.aclose()
                await consumption.until_caught_up()
    assert waiting.windows == [1]
