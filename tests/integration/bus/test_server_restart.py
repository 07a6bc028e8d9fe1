"""The server killed in the middle of everything: nothing lost, nothing twice, order kept."""

from __future__ import annotations

import asyncio

from pydantic import BaseModel

from shared.bus.nats import NatsBus
from shared.bus.nats.pull import Pull
from shared.bus.port import Delivery
from shared.bus.server import EmbeddedServer
from shared.events import DOMAINS
from tests.contract.bus.world import Heard, everything, report, struck, window
from tests.integration.bus.conftest import Join

STREAM = DOMAINS["health"].stream


class Seen(BaseModel):
    n: int


async def test_publishing_through_a_kill_and_restart_loses_and_doubles_nothing(
    server: EmbeddedServer, bus: NatsBus
) -> None:
    count, kill_after = 400, 100
    half = asyncio.Event()
    sequences: list[int] = []

    async def say(n: int) -> None:
        await bus.publish(report(n))
        sequences.append(n)
        if len(sequences) == kill_after:
            half.set()

    async def restart() -> None:
        await half.wait()
        await server.kill()
        await server.start()

    async def one_after_another() -> None:
        for start in range(0, count, 20):
            async with asyncio.TaskGroup() as tasks:
                for n in range(start, start + 20):
                    tasks.create_task(say(n))

    await asyncio.gather(restart(), one_after_another())
    stored = [window(event) for event in await everything(bus)]
    assert sorted(stored) == list(range(count))


async def test_appends_through_a_kill_and_restart_keep_one_unbroken_log(
    server: EmbeddedServer, bus: NatsBus
) -> None:
    last = 0
    restarted: asyncio.Task[EmbeddedServer] | None = None
    for n in range(120):
        if n == 40:
            await server.kill()
            restarted = asyncio.create_task(server.start())  # the next append waits for it
        last = await bus.append(struck(n), last)
    assert restarted is not None
    await restarted
    log = [window(r.event) async for r in bus.read(struck(0).of)]  # type: ignore[arg-type] # all known
    assert log == list(range(120))


async def test_a_consumer_goes_on_where_it_was_and_keeps_each_lane_in_order(
    server: EmbeddedServer, join: Join
) -> None:
    speaker, listener = await join("speaker"), await join("listener")
    working, go_on = asyncio.Event(), asyncio.Event()

    async def slowly(delivery: Delivery) -> None:
        if window(delivery.event) == 50:
            working.set()
            await go_on.wait()

    heard = Heard(slowly)
    for n in range(100):
        await speaker.publish(report(n, key=f"gpu-{n % 7}"))
    async with (
        listener.lease("listener") as lease,
        listener.consume("listener", (heard.health(),), lease=lease),
    ):
        await working.wait()
        await server.kill()
        await server.start()
        for n in range(100, 160):
            await speaker.publish(report(n, key=f"gpu-{n % 7}"))
        go_on.set()
        await heard.count(160)
    assert sorted(heard.windows) == list(range(160))
    for lane in range(7):
        of_lane = [n for n in heard.windows if n % 7 == lane]
        assert of_lane == sorted(of_lane)


async def test_what_was_handled_during_the_break_is_acknowledged_after_it(
    server: EmbeddedServer, bus: NatsBus
) -> None:
    working, go_on = asyncio.Event(), asyncio.Event()

    async def slowly(_: Delivery) -> None:
        working.set()
        await go_on.wait()

    heard, again = Heard(slowly), Heard()
    await bus.publish(report(1))
    async with bus.lease("listener") as lease:
        async with bus.consume("listener", (heard.health(),), lease=lease) as consumption:
            await working.wait()
            await server.kill()
            go_on.set()
            await server.start()
            await bus.publish(report(2))
            await heard.count(2)
            await asyncio.wait_for(consumption.until_caught_up(), 5)
        async with bus.consume("listener", (again.health(),), lease=lease) as consumption:
            await asyncio.wait_for(consumption.until_caught_up(), 5)
    assert heard.windows == [1, 2]
    assert again.windows == []


async def test_a_watch_sees_changes_within_two_seconds_of_the_restart(
    server: EmbeddedServer, bus: NatsBus
) -> None:
    view = bus.view("devices", Seen)
    await view.put("a", Seen(n=1))
    watch = view.watch()
    first, marker = await anext(watch), await anext(watch)
    await server.kill()
    await server.start()
    async with asyncio.timeout(2):
        await bus.link.until_connected()
        await view.put("b", Seen(n=2))
        change = await anext(watch)
    await watch.aclose()  # type: ignore[attr-defined] # the iterator is a generator
    assert first is not None
    assert first.value == Seen(n=1)
    assert marker is None
    assert change is not None
    assert (change.key, change.value) == ("b", Seen(n=2))


async def test_a_lost_delivery_is_delivered_again_before_what_follows_it(bus: NatsBus) -> None:
    """A message that got lost on its way is not overtaken by later ones, nor waited for until ack_wait."""
    heard = Heard()
    dropped = False
    take = Pull._on

    def lossy(self: Pull, frame: object) -> None:
        nonlocal dropped
        reply = frame.reply  # type: ignore[attr-defined] # a frame
        if not dropped and reply and reply.split(".")[5] == "3":
            dropped = True
            return
        take(self, frame)  # type: ignore[arg-type] # a frame

    Pull._on = lossy  # type: ignore[method-assign] # a wire that loses one message
    try:
        async with bus.consume("listener", (heard.health(),)):
            for n in range(1, 7):
                await bus.publish(report(n))
            await heard.count(6)
    finally:
        Pull._on = take  # type: ignore[method-assign]
    assert dropped
    assert heard.windows == [1, 2, 3, 4, 5, 6]


async def test_a_stream_that_was_rebuilt_is_heard_from_its_beginning(bus: NatsBus) -> None:
    heard = Heard()
    async with bus.lease("listener") as lease, bus.consume("listener", (heard.health(),), lease=lease):
        for n in (1, 2, 3):
            await bus.publish(report(n))
        first = (await heard.count(3))[-1]
        config = (await bus.link.api(f"STREAM.INFO.{STREAM}"))["config"]
        await bus.link.api(f"STREAM.DELETE.{STREAM}")
        await bus.link.api(f"STREAM.CREATE.{STREAM}", config)
        await bus.publish(report(4))
        last = (await heard.count(4))[-1]
    assert heard.windows == [1, 2, 3, 4]
    assert last.sequence == 1
    assert last.origin.created > first.origin.created
