"""What the bus costs, beside bare nats-py on the same server: run `python -m tests.bench.bench_bus`.

Server and client share the machine. Every figure is the median of `--runs` runs with its spread.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import statistics
import sys
import tempfile
import time
import uuid
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import nats
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.js.api import AckPolicy

from shared.bus.nats import NatsBus, connect
from shared.bus.port import Delivery, Subscription
from shared.bus.provision import provision
from shared.bus.server import EmbeddedServer
from shared.events import Cause, Entity, Event, event
from shared.events.parts import Evidence
from shared.events.remediation import Struck
from shared.events.world import HealthReported
from shared.host.process import COLLECT_AFTER

DEVICES = 64
BATCH = 500
STREAM = "FLEET_HEALTH"
AT = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
SOURCE = "/mediafleet/bench/0"


def report(window_id: int, device: int) -> Event[HealthReported]:
    """A health report as a faulty device makes one a second: about 800 bytes."""
    evidence = Evidence.model_validate(
        {
            "id": f"b1-{window_id}",
            "kind": "kernel-line",
            "code": "79",
            "class": "fatal",
            "at": AT,
            "raw": "NVRM: Xid (PCI:0000:3b:00): 79, pid=1234, GPU has fallen off the bus.",
        }
    )
    data = HealthReported(
        boot_id="b1", window_id=window_id, verdict="unhealthy", streak=3, evidence=(evidence,)
    )
    of = ("worker-3", f"nvidia-0000-{device:02x}-00-0")
    return event(data, of, cause=Cause.source("b1", window_id), source=SOURCE, at=AT)


def struck(window_id: int, of: Entity) -> Event[Struck]:
    """A strike for a case log."""
    data = Struck(
        epoch=1, strike=1, of=3, boot_id="b1", window_id=window_id, evidence_ids=(f"e{window_id}",), at=AT
    )
    return event(data, of, cause=Cause.source(uuid.uuid4().hex, window_id), source=SOURCE, at=AT)


@contextmanager
def quiet_gc() -> Iterator[None]:
    """What was made before is not searched again, and garbage is looked for as seldom as in a service."""
    before = gc.get_threshold()
    gc.collect()
    gc.freeze()
    gc.set_threshold(*COLLECT_AFTER)
    try:
        yield
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()


async def fill(nc: Client, count: int) -> None:
    """Put reports on the stream, many at a time."""
    bodies = [
        (made.address.subject, made.encode()) for made in (report(n, n % DEVICES) for n in range(count))
    ]
    for at in range(0, count, BATCH):
        await asyncio.gather(
            *(nc.request(subject, body, timeout=10) for subject, body in bodies[at : at + BATCH])
        )


async def bare_pull(nc: Client, count: int) -> float:
    """Messages a second of a bare loop: own MSG.NEXT requests, ack, nothing decoded."""
    js = nc.jetstream()
    name = uuid.uuid4().hex
    await js.add_consumer(
        STREAM,
        name=name,
        filter_subject="fleet.v1.health.*.*.reported",
        ack_policy=AckPolicy.EXPLICIT,
        max_ack_pending=1000,
        mem_storage=True,
    )
    inbox = nc.new_inbox()
    done = asyncio.Event()
    seen = wanted = 0
    subject = f"$JS.API.CONSUMER.MSG.NEXT.{STREAM}.{name}"

    async def ask() -> None:
        nonlocal wanted
        more, wanted = BATCH - wanted, BATCH
        await nc.publish(subject, json.dumps({"batch": more, "expires": 6_000_000_000}).encode(), reply=inbox)

    async def on(message: Msg) -> None:
        nonlocal seen, wanted
        if not message.reply:
            return
        await nc.publish(message.reply)
        seen += 1
        wanted -= 1
        if wanted * 2 <= BATCH:
            await ask()
        if seen == count:
            done.set()

    subscription = await nc.subscribe(inbox, cb=on)
    with quiet_gc():
        started = time.perf_counter()
        await ask()
        await done.wait()
        took = time.perf_counter() - started
    await subscription.unsubscribe()
    await js.delete_consumer(STREAM, name)
    return count / took


async def bare_fetch(nc: Client, count: int) -> float:
    """Messages a second of nats-py's own way: `fetch(256)` and ack, nothing decoded."""
    js = nc.jetstream()
    name = uuid.uuid4().hex
    subscription = await js.pull_subscribe("fleet.v1.health.*.*.reported", name, stream=STREAM)
    seen = 0
    with quiet_gc():
        started = time.perf_counter()
        while seen < count:
            for message in await subscription.fetch(256, timeout=5):
                await message.ack()
                seen += 1
        took = time.perf_counter() - started
    await subscription.unsubscribe()
    await js.delete_consumer(STREAM, name)
    return count / took


async def our_consume(bus: NatsBus, count: int) -> float:
    """Events a second of the bus: pulled, decoded, through a lane, acknowledged."""
    done = asyncio.Event()
    seen = 0

    async def handle(_: Delivery) -> None:
        nonlocal seen
        seen += 1
        if seen == count:
            done.set()

    subscription = Subscription("health", (HealthReported,), handle)
    with quiet_gc():
        started = time.perf_counter()
        async with bus.consume("bench", (subscription,)):
            await done.wait()
            took = time.perf_counter() - started
    return count / took


async def latency(bus: NatsBus, rate: int, seconds: float) -> list[float]:
    """Seconds from before an event is built and published until its handler starts, at a steady rate."""
    sent: dict[int, float] = {}
    took: list[float] = []

    all_heard = asyncio.Event()

    async def handle(delivery: Delivery) -> None:
        data = delivery.event.data
        if isinstance(data, HealthReported):
            took.append(time.perf_counter() - sent.pop(data.window_id))
            if len(took) == int(rate * seconds):
                all_heard.set()

    base = int(time.time() * 1000)
    subscription = Subscription("health", (HealthReported,), handle, history=False)
    loop = asyncio.get_running_loop()
    with quiet_gc():
        async with bus.consume("bench", (subscription,)) as flow:
            await flow.until_caught_up()
            started = loop.time()
            async with asyncio.TaskGroup() as tasks:
                for n in range(int(rate * seconds)):
                    await asyncio.sleep(max(0.0, started + n / rate - loop.time()))
                    sent[base + n] = time.perf_counter()
                    tasks.create_task(bus.publish(report(base + n, n % DEVICES)))
            await all_heard.wait()
    return took


async def bare_append(nc: Client, count: int) -> float:
    """Appends a second, one after another: prepared bodies, nc.request with the expected sequence."""
    of = Entity("remediation", "worker-3", f"bare-{uuid.uuid4().hex[:8]}")
    made = [struck(n, of) for n in range(count)]
    ready = [(one.address.subject, one.encode(), one.id) for one in made]
    last = 0
    with quiet_gc():
        started = time.perf_counter()
        for subject, body, id_ in ready:
            headers = {
                "Nats-Msg-Id": id_,
                "Nats-Expected-Last-Subject-Sequence": str(last),
                "Nats-Expected-Last-Subject-Sequence-Subject": of.wildcard,
            }
            answer = await nc.request(subject, body, headers=headers, timeout=5)
            last = int(json.loads(answer.data)["seq"])
        return count / (time.perf_counter() - started)


async def our_append(bus: NatsBus, count: int) -> float:
    """The same through the bus, encoding included."""
    of = Entity("remediation", "worker-3", f"ours-{uuid.uuid4().hex[:8]}")
    made = [struck(n, of) for n in range(count)]
    last = 0
    with quiet_gc():
        started = time.perf_counter()
        for one in made:
            last = await bus.append(one, last)
        return count / (time.perf_counter() - started)


async def repeated(runs: int, measure: Callable[[], Awaitable[float]]) -> list[float]:
    """The same measurement several times."""
    return [await measure() for _ in range(runs)]


def spread(name: str, values: list[float], unit: str, digits: int = 0) -> float:
    """Print a median with its spread, and return it."""
    middle = statistics.median(values)
    low, high = min(values), max(values)
    sys.stdout.write(f"{name:<52} {middle:>9.{digits}f} [{low:.{digits}f} .. {high:.{digits}f}] {unit}\n")
    sys.stdout.flush()
    return middle


async def main(runs: int, count: int) -> None:
    """Run everything and print it."""
    with tempfile.TemporaryDirectory() as directory:
        async with EmbeddedServer(Path(directory)) as server:
            await provision(server.url)
            nc = await nats.connect(server.url)
            async with connect(server.url, service="bench", instance="0") as bus:
                await fill(nc, count)
                fetched: list[float] = []
                pulled: list[float] = []
                consumed: list[float] = []
                bare_cpu_us: list[float] = []
                our_cpu_us: list[float] = []
                for _ in range(runs):  # taken in turns, so that a noisy neighbour hits all alike
                    fetched.append(await bare_fetch(nc, min(count, 10_000)))
                    before_s = time.process_time()
                    pulled.append(await bare_pull(nc, count))
                    between_s = time.process_time()
                    consumed.append(await our_consume(bus, count))
                    bare_cpu_us.append((between_s - before_s) / count * 1e6)
                    our_cpu_us.append((time.process_time() - between_s) / count * 1e6)
                spread("bare nats-py fetch(256) + ack", fetched, "msg/s")
                bare = spread("bare MSG.NEXT loop + ack", pulled, "msg/s")
                ours = spread("ours: pull + decode + lane + ack", consumed, "events/s")
                sys.stdout.write(f"{'ours / bare MSG.NEXT loop':<52} {ours / bare:>9.2f}\n")

                # The clock of the process, where the clock on the wall shares its cores with others.
                bare_cpu = spread("CPU of the client for one: bare MSG.NEXT loop", bare_cpu_us, "us", 1)
                our_cpu = spread("CPU of the client for one: ours", our_cpu_us, "us", 1)
                sys.stdout.write(f"{'bare / ours, by CPU':<52} {bare_cpu / our_cpu:>9.2f}\n")

                p50s, p99s = [], []
                for _ in range(runs):
                    took = sorted(await latency(bus, 500, 4.0))
                    p50s.append(took[len(took) // 2] * 1000)
                    p99s.append(took[int(len(took) * 0.99)] * 1000)
                spread("publish -> handler at 500/s, p50", p50s, "ms", 2)
                spread("publish -> handler at 500/s, p99", p99s, "ms", 2)

                bare_appends, our_appends = [], []
                for _ in range(runs):
                    bare_appends.append(await bare_append(nc, 2000))
                    our_appends.append(await our_append(bus, 2000))
                bare = spread("bare append loop", bare_appends, "appends/s")
                ours = spread("ours: append loop", our_appends, "appends/s")
                sys.stdout.write(f"{'ours / bare append loop':<52} {ours / bare:>9.2f}\n")
            await nc.close()


if __name__ == "__main__":
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--runs", type=int, default=5)
    arguments.add_argument("--count", type=int, default=40_000)
    given = arguments.parse_args()
    asyncio.run(main(given.runs, given.count))
