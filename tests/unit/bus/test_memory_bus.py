"""What only the in-memory bus can show: days in an instant, and bad luck from a seed."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from shared.bus.memory import Faults, MemoryBus, MemoryServer
from shared.bus.memory.consumer import Consumer
from shared.bus.memory.stream import Message
from shared.bus.port import Delivery, Disconnected, LeaseLost, Subscription
from shared.clock import SystemClock
from shared.errors import BadInput, Temporary
from shared.events import DOMAINS
from shared.events.remediation import Struck
from shared.events.world import HealthReported, Heartbeat
from tests.contract.bus.world import (
    AT,
    LOG,
    Heard,
    current,
    everything,
    leased,
    report,
    struck,
    window,
)

pytestmark = pytest.mark.looptime


def make(faults: Faults | None = None, *, max_bytes: int | None = None) -> MemoryServer:
    return MemoryServer(clock=SystemClock(start=AT), faults=faults, max_bytes=max_bytes)


async def test_facts_of_the_world_age_away_and_case_logs_do_not() -> None:
    bus = MemoryBus(make(), "tester")
    await bus.publish(report(1))
    sequence = await bus.append(struck(1), 0)
    max_age = DOMAINS["health"].max_age
    assert max_age is not None
    await asyncio.sleep((max_age - timedelta(hours=1)).total_seconds())
    await bus.publish(report(2))
    assert len(await everything(bus)) == 2
    await asyncio.sleep(2 * 3600)
    assert [window(made) for made in await everything(bus)] == [2]
    last = await bus.last(LOG)
    assert last is not None
    assert last.sequence == sequence


async def test_what_ages_away_before_it_is_heard_is_not_waited_for() -> None:
    server = make()
    bus = MemoryBus(server, "tester")
    go = asyncio.Event()

    async def wait(_: Delivery) -> None:
        await go.wait()

    heard = Heard(wait)
    for number in range(1, 4):
        await bus.publish(report(number))
    async with bus.consume("tester", (heard.health(max_ack_pending=1, ack_wait_s=10 * 86400),)) as running:
        await heard.count(1)
        await asyncio.sleep(40 * 86400)
        go.set()
        await current(running)
    assert heard.windows == [1]


async def test_an_id_is_known_for_the_window_and_no_longer() -> None:
    bus = MemoryBus(make(), "tester")
    await bus.publish(report(1))
    await asyncio.sleep(119)
    assert (await bus.publish(report(1))).duplicate
    await asyncio.sleep(2)
    assert not (await bus.publish(report(1))).duplicate


async def test_a_full_log_refuses_for_now_and_goes_on_when_it_is_compacted() -> None:
    size = len(struck(1).encode()) + 200
    bus = MemoryBus(make(max_bytes=3 * size), "tester")
    sequences = [0]

    async def fill() -> None:
        for number in range(1, 9):
            sequences.append(await bus.append(struck(number), sequences[-1]))

    with pytest.raises(Temporary, match="FLEET_REMEDIATION is full"):
        await fill()
    kept = len(sequences) - 1
    assert kept >= 2
    await bus.purge(LOG, below=sequences[-1])
    await bus.append(struck(kept + 1), sequences[-1])


async def test_a_full_stream_of_facts_forgets_its_oldest() -> None:
    size = len(report(1).encode()) + 200
    bus = MemoryBus(make(max_bytes=3 * size), "tester")
    for number in range(1, 9):
        await bus.publish(report(number))
    kept = [window(made) for made in await everything(bus)]
    assert kept[-1] == 8
    assert 2 <= len(kept) < 8
    assert kept == sorted(kept)


async def test_a_subject_of_no_domain_goes_to_no_stream() -> None:
    server = make()
    for subject in ("fleet.v1.weather.a.b.rained", "other.v1.health.a.b.reported", "fleet.v1.health"):
        with pytest.raises(BadInput, match="no stream takes"):
            server.store(subject, b"")


def consumer(
    server: MemoryServer, got: list[int], *, ack_wait_s: float = 10, max_ack_pending: int = 10
) -> Consumer:
    rules = Subscription(
        "health", (HealthReported,), Heard(), ack_wait_s=ack_wait_s, max_ack_pending=max_ack_pending
    )
    made = Consumer(server.streams["health"], rules, start=1, number=1, clock=server.clock)
    server.consumers["health"].add(made)

    def take(message: Message) -> None:
        got.append(message.sequence)

    made.attach(take, lambda: None)
    return made


async def test_what_is_not_acknowledged_comes_again_out_of_order() -> None:
    server, got = make(), list[int]()
    bus = MemoryBus(server, "tester")
    made = consumer(server, got)
    await bus.publish(report(1))
    await bus.publish(report(2))
    made.acknowledge(2)
    await asyncio.sleep(5)
    await bus.publish(report(3))
    assert made.floor == 0
    await asyncio.sleep(6)
    assert got == [1, 2, 3, 1]
    made.acknowledge(1)
    assert (made.floor, made.delivered) == (2, 3)
    made.delete()


async def test_a_sign_of_life_starts_the_wait_anew_and_a_missing_one_does_not() -> None:
    server, got = make(), list[int]()
    bus = MemoryBus(server, "tester")
    made = consumer(server, got)
    await bus.publish(report(1))
    await bus.publish(report(2))
    for _ in range(5):
        await asyncio.sleep(6)
        made.in_progress(1)
    assert got.count(1) == 1
    assert got.count(2) > 1
    made.delete()


async def test_a_message_that_was_purged_does_not_come_again() -> None:
    server, got = make(), list[int]()
    bus = MemoryBus(server, "tester")
    made = consumer(server, got)
    await bus.publish(report(1))
    await bus.publish(report(2))
    server.streams["health"].remove(1)
    await asyncio.sleep(11)
    assert got == [1, 2, 2]
    made.delete()


async def test_a_deleted_consumer_takes_no_acknowledgement() -> None:
    server, got = make(), list[int]()
    bus = MemoryBus(server, "tester")
    made = consumer(server, got, max_ack_pending=1)
    await bus.publish(report(1))
    await bus.publish(report(2))
    made.delete()
    made.acknowledge(1)
    await bus.publish(report(3))
    assert got == [1]
    assert made.floor == 0


async def test_who_pulls_anew_gets_again_what_was_not_acknowledged() -> None:
    server, got = make(), list[int]()
    bus = MemoryBus(server, "tester")
    made = consumer(server, got, max_ack_pending=1)
    await bus.publish(report(1))
    made.detach()
    await asyncio.sleep(20)
    await bus.publish(report(2))
    made.attach(lambda message: got.append(-message.sequence), lambda: None)
    made.acknowledge(1)
    assert got == [1, -1, -2]
    made.delete()


@pytest.mark.parametrize("seed", range(8))
async def test_bad_luck_changes_nothing_of_what_is_handled(seed: int) -> None:
    faults = Faults(seed, duplicate=0.3, lost_answer=0.2, lost_ack=0.2, delay_s=0.4)
    server = make(faults)
    bus, writer = MemoryBus(server, "tester"), MemoryBus(server, "writer")
    heard = Heard()
    async with bus.consume("tester", (heard.health(ack_wait_s=2),)) as running:
        for number in range(1, 31):
            await writer.publish(report(number))
            if number in (10, 20):
                bus.partition()
                await asyncio.sleep(3)
                bus.heal()
        await heard.count(30)
        await current(running)
        await asyncio.sleep(10)
    assert heard.windows == list(range(1, 31))
    assert [window(made) for made in await everything(writer)] == list(range(1, 31))


@pytest.mark.parametrize("seed", range(4))
async def test_an_append_whose_answer_is_lost_is_no_conflict(seed: int) -> None:
    bus = MemoryBus(make(Faults(seed, lost_answer=0.5)), "tester")
    last = 0
    for number in range(1, 21):
        last = await bus.append(struck(number), last)
    assert [recorded.sequence async for recorded in bus.read(LOG)] == list(range(1, 21))


async def test_the_same_seed_gives_the_same_run() -> None:
    async def run(seed: int) -> list[tuple[int, float]]:
        server = make(Faults(seed, duplicate=0.3, lost_answer=0.3, delay_s=1.0))
        started_s = server.clock.monotonic()
        bus = MemoryBus(server, "tester")
        trace: list[tuple[int, float]] = []

        async def note(delivery: Delivery) -> None:
            trace.append((window(delivery.event), round(server.clock.monotonic() - started_s, 6)))

        heard = Heard(note)
        async with bus.consume("tester", (heard.health(),)):
            for number in range(1, 11):
                await bus.publish(report(number))
            await heard.count(10)
        return trace

    assert await run(3) == await run(3)
    assert await run(3) != await run(4)


async def test_twenty_minutes_without_the_bus_lose_nothing() -> None:
    server = make()
    node, cluster = MemoryBus(server, "discovery"), MemoryBus(server, "remediation")
    heard = Heard()
    async with leased(cluster, heard.health()) as running:
        await current(running)
        node.partition()
        tries = 0
        for _ in range(120):
            try:
                await node.publish(report(1))
            except Disconnected:
                tries += 1
                await asyncio.sleep(0.1)
        assert tries == 120
        assert heard.windows == []
        node.heal()
        await node.publish(report(1))
        await heard.count(1)


async def test_a_lease_taken_away_ends_its_holder_and_frees_the_next() -> None:
    server = make()
    one, other = MemoryBus(server, "tester", instance="0"), MemoryBus(server, "tester", instance="1")
    heard = Heard()
    async with one.lease("tester") as lease, one.consume("tester", (heard.health(),), lease=lease) as running:
        server.expire("tester")
        with pytest.raises(LeaseLost):
            await running.wait()
        assert lease.remaining_s() == 0
        async with asyncio.timeout(1), other.lease("tester") as taken:
            assert taken.number == lease.number + 1


async def test_a_durable_that_another_deletes_ends_its_consumption() -> None:
    server = make()
    bus = MemoryBus(server, "tester")
    async with leased(bus, Heard().health()) as running:
        await current(running)
        server.durables["tester", "health"].delete()
        with pytest.raises(LeaseLost, match="another holder deleted"):
            await running.wait()


async def test_standbys_wait_out_a_partition() -> None:
    server = make()
    one, other = MemoryBus(server, "tester", instance="0"), MemoryBus(server, "tester", instance="1")
    other.partition()

    async def stand_by() -> int:
        async with other.lease("tester") as lease:
            return lease.number

    async with one.lease("tester"):
        standing = asyncio.create_task(stand_by())
        await asyncio.sleep(60)
        other.heal()
        await asyncio.sleep(60)
        assert not standing.done()
    assert await standing == 2


async def test_a_restart_empties_what_is_in_memory_and_keeps_the_rest() -> None:
    server = make()
    bus = MemoryBus(server, "tester")
    cut_off = MemoryBus(server, "other")
    cut_off.partition()
    created = server.streams["sample"].created
    await bus.publish(report(1))
    server.restart()
    assert bus.connected
    assert not cut_off.connected
    assert server.streams["sample"].created > created
    assert len(await everything(bus)) == 1


async def test_a_bus_says_who_it_is_and_calls_take_their_time() -> None:
    bus = MemoryBus(make(Faults(delay_s=1.0)), "tester", instance="7")
    assert bus.source == "/mediafleet/tester/7"
    assert 0 < await bus.ping() <= 1


async def test_a_link_that_breaks_during_a_call_fails_it() -> None:
    bus = MemoryBus(make(Faults(delay_s=5.0)), "tester")
    pinging = asyncio.create_task(bus.ping())
    await asyncio.sleep(0)
    bus.partition()
    with pytest.raises(Disconnected):
        await pinging


async def test_subscriptions_of_many_domains_share_one_server() -> None:
    server = make()
    bus = MemoryBus(server, "tester")
    heard = Heard()
    subscriptions = (
        heard.health(),
        Subscription("node", (Heartbeat,), heard),
        Subscription("remediation", (Struck,), heard),
    )
    await bus.append(struck(1), 0)
    await bus.publish(report(2))
    async with leased(bus, *subscriptions) as running:
        await current(running)
    assert sorted(heard.windows) == [1, 2]
