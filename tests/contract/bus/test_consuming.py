"""Consuming: in order where order matters, nothing twice, nothing dropped silently."""

from __future__ import annotations

import asyncio
import base64
import contextlib

import pytest

from shared.bus.port import Bus, Delivery, Disconnected, Subscription
from shared.errors import BadInput, FleetError, Permanent, Temporary
from shared.events.remediation import HoldRequested, Struck
from shared.events.workload import Rejected
from shared.events.world import Bound, Diagnosed, HealthReported
from tests.contract.bus.world import (
    KEY,
    NODE,
    WITHIN_S,
    Heard,
    World,
    bound,
    current,
    dead_letters,
    everything,
    hold,
    leased,
    rejected,
    report,
    struck,
    window,
)

SUBJECT = f"fleet.v1.health.{NODE}.{KEY}.reported"
OTHER = "nvidia-0000-86-00-0"


def once(error: Exception, at: int) -> Heard:
    """A handler that fails on the first try of one report."""

    async def fail(delivery: Delivery) -> None:
        if window(delivery.event) == at and delivery.attempt == 1:
            raise error

    return Heard(fail)


async def test_history_comes_first_and_in_order(bus: Bus) -> None:
    for number in range(1, 11):
        await bus.publish(report(number))
    heard = Heard()
    async with bus.consume("tester", (heard.health(),)):
        await heard.count(10)
        await bus.publish(report(11))
        deliveries = await heard.count(11)
    assert heard.windows == list(range(1, 12))
    assert [delivery.sequence for delivery in deliveries] == list(range(1, 12))
    assert {(delivery.stream, delivery.attempt) for delivery in deliveries} == {("FLEET_HEALTH", 1)}


async def test_without_history_only_what_is_new_is_heard(bus: Bus) -> None:
    await bus.publish(report(1))
    heard = Heard()
    async with bus.consume("tester", (heard.health(history=False),)) as consumption:
        await current(consumption)
        await bus.publish(report(2))
        await heard.count(1)
    assert heard.windows == [2]


async def test_only_the_types_asked_for_are_heard(bus: Bus) -> None:
    await bus.publish(bound(1))
    await bus.publish(report(1))
    heard = Heard()
    subscriptions = (
        Subscription("health", (Diagnosed,), heard),
        Subscription("allocation", (Bound,), heard),
    )
    async with bus.consume("tester", subscriptions) as consumption, asyncio.timeout(WITHIN_S):
        await consumption.until_caught_up()
    assert [type(delivery.event.data) for delivery in heard.deliveries] == [Bound]


async def test_a_place_filter_lets_only_its_place_through(bus: Bus) -> None:
    places = ["worker-3", "worker.3", "*", ">", "worker-33"]
    for number, place in enumerate(places):
        await bus.publish(report(number, place=place))
    for place in places:
        heard = Heard()
        async with bus.consume("tester", (heard.health(place=place),)) as consumption:
            await current(consumption)
        assert [delivery.event.of.place for delivery in heard.deliveries] == [place]


async def test_one_lane_is_serial_and_lanes_are_parallel(bus: Bus) -> None:
    running: list[str] = []
    together: list[list[str]] = []
    both = asyncio.Event()

    async def work(delivery: Delivery) -> None:
        running.append(delivery.event.of.entity)
        together.append(sorted(running))
        if len(running) == 2:
            both.set()
        await both.wait()
        running.remove(delivery.event.of.entity)

    heard = Heard(work)
    for number in range(1, 7):
        await bus.publish(report(number, key=KEY if number <= 3 else OTHER))
    async with bus.consume("tester", (heard.health(),)):
        deliveries = await heard.count(6)
    assert [KEY, OTHER] in together
    assert all(len(set(names)) == len(names) for names in together)
    for key in (KEY, OTHER):
        mine = [window(delivery.event) for delivery in deliveries if delivery.event.of.entity == key]
        assert mine == sorted(mine)


async def test_subscriptions_share_their_lanes(bus: Bus) -> None:
    inside: list[str] = []
    together = 0

    async def alone(delivery: Delivery) -> None:
        nonlocal together
        inside.append(delivery.event.id)
        together = max(together, len(inside))
        await asyncio.sleep(0.01)
        inside.remove(delivery.event.id)

    heard = Heard(alone)
    for number in range(1, 4):
        await bus.publish(report(number))
        await bus.publish(bound(number))
    async with bus.consume("tester", (heard.health(), Subscription("allocation", (Bound,), heard))):
        await heard.count(6)
    assert together == 1


async def test_the_lane_is_what_the_key_says(bus: Bus) -> None:
    order: list[str] = []

    async def note(delivery: Delivery) -> None:
        await asyncio.sleep(0.01 if window(delivery.event) == 1 else 0)
        order.append(delivery.event.of.entity)

    heard = Heard(note)
    await bus.publish(report(1, key=KEY))
    await bus.publish(report(2, key=OTHER))
    async with bus.consume("tester", (heard.health(key=lambda event: event.of.place),)):
        await heard.count(2)
    assert order == [KEY, OTHER]


async def test_a_temporary_failure_is_tried_again_in_order(bus: Bus) -> None:
    heard = once(Temporary("not yet", delay_s=0.05), at=1)
    for number in range(1, 4):
        await bus.publish(report(number))
    async with bus.consume("tester", (heard.health(),)):
        deliveries = await heard.count(4)
    assert heard.windows == [1, 1, 2, 3]
    assert [delivery.attempt for delivery in deliveries] == [1, 2, 1, 1]


async def test_other_lanes_go_on_while_one_waits(bus: Bus) -> None:
    heard = once(Temporary("not yet", delay_s=0.2), at=1)
    await bus.publish(report(1))
    await bus.publish(report(2, key=OTHER))
    async with bus.consume("tester", (heard.health(),)):
        await heard.count(3)
    assert heard.windows == [1, 2, 1]


async def test_a_lost_bus_in_a_handler_is_waited_for_and_not_counted(bus: Bus) -> None:
    tries = 0

    async def fail_once(_: Delivery) -> None:
        nonlocal tries
        tries += 1
        if tries == 1:
            raise Disconnected("away")

    heard = Heard(fail_once)
    await bus.publish(report(1))
    async with bus.consume("tester", (heard.health(attempts=1),)):
        deliveries = await heard.count(2)
    assert [delivery.attempt for delivery in deliveries] == [1, 1]


async def test_attempts_run_out_into_a_dead_letter(bus: Bus) -> None:
    async def never(delivery: Delivery) -> None:
        if window(delivery.event) == 1:
            raise Temporary("the device sleeps", delay_s=0.01)

    heard = Heard(never)
    await bus.publish(report(1))
    await bus.publish(report(2))
    async with dead_letters(bus) as letters, bus.consume("tester", (heard.health(attempts=3),)):
        letter = rejected((await letters.count(1))[0])
        await heard.count(4)
    assert heard.windows == [1, 1, 1, 2]
    assert "the device sleeps" in letter.reason
    assert letter.attempts == 3
    assert letter.raw.encode() == report(1).encode()


async def test_time_runs_out_into_a_dead_letter(bus: Bus) -> None:
    async def never(_: Delivery) -> None:
        raise Temporary("the device sleeps", delay_s=0.1)

    heard = Heard(never)
    await bus.publish(report(1))
    async with dead_letters(bus) as letters, bus.consume("tester", (heard.health(give_up_after_s=0.25),)):
        letter = rejected((await letters.count(1))[0])
    assert "gave up" in letter.reason
    assert 1 < letter.attempts < 20


@pytest.mark.parametrize(
    ("error", "field", "reason"),
    [
        (Permanent("cannot ever work", field="data.serial"), "data.serial", "cannot ever work"),
        (BadInput("data.streak", "is odd", "make it even"), "data.streak", "make it even"),
        (ValueError("a bug"), "", "ValueError: a bug"),
        (FleetError("of another kind"), "", "of another kind"),
        (asyncio.CancelledError(), "", "cancellation"),
        (TimeoutError(), "", "TimeoutError"),
    ],
)
async def test_any_other_failure_is_a_dead_letter_and_the_rest_goes_on(
    bus: Bus, error: Exception, field: str, reason: str
) -> None:
    heard = once(error, at=1)
    await bus.publish(report(1))
    await bus.publish(report(2))
    async with dead_letters(bus) as letters, bus.consume("tester", (heard.health(),)):
        await heard.count(2)
        delivery = (await letters.count(1))[0]
    letter = rejected(delivery)
    assert heard.windows == [1, 2]
    assert reason in letter.reason
    assert (letter.field, letter.attempts) == (field, 1)
    assert (letter.stream, letter.sequence, letter.subject) == ("FLEET_HEALTH", 1, SUBJECT)
    assert letter.raw.encode() == report(1).encode()
    assert "tester" in letter.consumer
    assert delivery.event.causationid == report(1).id
    assert (delivery.event.of.place, delivery.event.of.entity) == (NODE, "tester")


NO_ENVELOPES = [
    (b"+ACK", "body"),
    (b"", "body"),
    (b"\xff\xfe\x00", "body"),
    (b'{"specversion": "1.0"}', "id"),
    (report(1, place="worker-4").encode(), "subject"),
    (report(1).encode().replace(b'"window_id":1', b'"window_id":-1'), "data.window_id"),
    (report(1).encode().replace(b'"streak":1', b'"streak":NaN'), "data.streak"),
    (b"x" * 600_000, "data"),
]


async def test_what_is_no_envelope_is_a_dead_letter_and_the_rest_goes_on(world: World, bus: Bus) -> None:
    heard = Heard()
    for body, _ in NO_ENVELOPES:
        await world.raw(SUBJECT, body)
    await bus.publish(report(2))
    async with dead_letters(bus) as letters, bus.consume("tester", (heard.health(),)) as consumption:
        await heard.count(1)
        found = [rejected(delivery) for delivery in await letters.count(len(NO_ENVELOPES))]
        await current(consumption)
    assert heard.windows == [2]
    for letter in found:
        body, field = NO_ENVELOPES[letter.sequence - 1]
        assert letter.field == field
        assert letter.reason
        raw = base64.b64decode(letter.raw) if letter.encoding == "base64" else letter.raw.encode()
        assert body.startswith(raw)
        assert bool(raw) == bool(body)
    assert len({letter.sequence for letter in found}) == len(NO_ENVELOPES)


async def test_a_dead_letter_is_said_once_by_every_copy(world: World) -> None:
    heard = once(Permanent("never"), at=1)
    one, other = await world.bus(instance="0"), await world.bus(instance="1")
    await one.publish(report(1))
    async with one.consume("tester", (heard.health(),)), other.consume("tester", (heard.health(),)):
        await heard.count(2)
    letters = [recorded async for recorded in one.history("deadletter")]
    assert len(letters) == 1


async def test_who_fails_on_dead_letters_does_not_make_more_of_them(bus: Bus) -> None:
    async def fail(_: Delivery) -> None:
        raise Permanent("cannot even read this")

    failing = Heard(fail)
    heard = once(Permanent("never"), at=1)
    await bus.publish(report(1))
    undertaker = Subscription("deadletter", (Rejected,), failing)
    async with bus.consume("undertaker", (undertaker,)) as burial, bus.consume("tester", (heard.health(),)):
        await failing.count(1)
        async with asyncio.timeout(WITHIN_S):
            await burial.until_caught_up()
    assert len(await everything(bus, "deadletter")) == 1


async def test_a_lane_that_cannot_be_named_is_a_dead_letter(bus: Bus) -> None:
    heard = Heard()
    await bus.publish(report(1))
    lane = heard.health(key=lambda event: str({}[event.id]))
    async with dead_letters(bus) as letters, bus.consume("tester", (lane,)):
        letter = rejected((await letters.count(1))[0])
    assert "KeyError" in letter.reason
    assert heard.deliveries == []


async def test_a_slow_handler_keeps_what_it_holds_from_being_delivered_again(bus: Bus) -> None:
    async def slow(_: Delivery) -> None:
        await asyncio.sleep(0.5)

    heard = Heard(slow)
    for number in range(1, 4):
        await bus.publish(report(number))
    async with bus.consume("tester", (heard.health(ack_wait_s=0.4),)) as consumption:
        await current(consumption)
    assert heard.windows == [1, 2, 3]


async def test_no_more_is_held_than_asked_for(bus: Bus) -> None:
    most = inside = 0
    enough = asyncio.Event()

    async def count(_: Delivery) -> None:
        nonlocal inside, most
        inside += 1
        most = max(most, inside)
        if inside == 3:
            enough.set()
        await enough.wait()
        inside -= 1

    heard = Heard(count)
    for number in range(1, 13):
        await bus.publish(report(number, key=f"nvidia-0000-{number:02x}-00-0"))
    async with bus.consume("tester", (heard.health(max_ack_pending=3),)):
        await heard.count(12)
    assert most == 3


async def test_caught_up_says_that_the_head_was_reached(bus: Bus) -> None:
    go = asyncio.Event()

    async def wait(_: Delivery) -> None:
        await go.wait()

    heard = Heard(wait)
    await bus.publish(report(1))
    await bus.publish(report(2))
    async with bus.consume("tester", (heard.health(),)) as consumption:
        await heard.count(1)
        assert not consumption.caught_up
        go.set()
        await current(consumption)
        assert heard.windows == [1, 2]
        assert consumption.caught_up


async def test_an_empty_stream_is_caught_up_with_at_once(bus: Bus) -> None:
    heard = Heard()
    subscriptions = (heard.health(), Subscription("allocation", (Bound,), heard))
    async with bus.consume("tester", subscriptions) as consumption:
        await current(consumption)
        assert consumption.caught_up


async def test_commands_are_heard_before_everything_else(bus: Bus) -> None:
    heard = Heard()
    await bus.publish(report(1))
    await bus.publish(hold("h1"))
    await bus.publish(hold("h2"))
    commands = Subscription("command", (HoldRequested,), heard, key=lambda event: event.id)
    async with bus.consume("tester", (heard.health(), commands)) as consumption:
        await current(consumption)
    kinds = [type(delivery.event.data) for delivery in heard.deliveries]
    assert kinds == [HoldRequested, HoldRequested, HealthReported]


async def test_a_job_runs_in_its_lane_after_what_is_queued(bus: Bus) -> None:
    order: list[str] = []
    go = asyncio.Event()

    async def wait(delivery: Delivery) -> None:
        await go.wait()
        order.append(f"report {window(delivery.event)}")

    async def job() -> None:
        order.append("job")

    async def other_job() -> None:
        order.append("other lane")
        go.set()

    heard = Heard(wait)
    await bus.publish(report(1))
    async with bus.consume("tester", (heard.health(),)) as consumption:
        deliveries = await heard.count(1)
        consumption.submit(deliveries[0].event.subject, job)
        consumption.submit("elsewhere", other_job)
    assert order == ["other lane", "report 1", "job"]


async def test_a_job_that_fails_for_now_is_tried_again(bus: Bus) -> None:
    tries: list[int] = []
    done = asyncio.Event()

    async def job() -> None:
        tries.append(1)
        if len(tries) < 3:
            raise Temporary("not yet", delay_s=0.01)
        done.set()

    async with bus.consume("tester", (Heard().health(),)) as consumption, asyncio.timeout(WITHIN_S):
        consumption.submit("lane", job)
        await done.wait()
    assert len(tries) == 3


async def test_a_job_that_fails_ends_the_consumption_with_its_error(bus: Bus) -> None:
    async def job() -> None:
        raise ValueError("a bug")

    async with bus.consume("tester", (Heard().health(),)) as consumption:
        consumption.submit("lane", job)
        with pytest.raises(ValueError, match="a bug"):
            async with asyncio.timeout(WITHIN_S):
                await consumption.wait()


async def test_leaving_finishes_what_is_queued(bus: Bus) -> None:
    async def slow(_: Delivery) -> None:
        await asyncio.sleep(0.05)

    heard, rest = Heard(slow), Heard()
    for number in range(1, 4):
        await bus.publish(report(number))
    async with leased(bus, heard.health()) as running:
        await current(running)
        for number in range(4, 7):
            await bus.publish(report(number))
        await heard.count(4)
    finished = list(heard.windows)
    async with leased(bus, rest.health()) as running:
        await current(running)
    assert finished + rest.windows == [1, 2, 3, 4, 5, 6]


async def test_a_holder_may_consume_anew_under_its_lease(bus: Bus) -> None:
    first, second = Heard(), Heard()
    await bus.publish(report(1))
    async with bus.lease("tester") as lease:
        async with bus.consume("tester", (first.health(),), lease=lease) as running:
            await current(running)
        await bus.publish(report(2))
        async with bus.consume("tester", (second.health(),), lease=lease) as running:
            await current(running)
            await bus.publish(report(3))
            await second.count(2)
    assert (first.windows, second.windows) == ([1], [2, 3])


async def test_leaving_waits_no_longer_than_its_deadline(bus: Bus) -> None:
    async def hang(_: Delivery) -> None:
        await asyncio.Event().wait()

    hanging, heard = Heard(hang), Heard()
    await bus.publish(report(1))
    async with asyncio.timeout(WITHIN_S), leased(bus, hanging.health()):
        await hanging.count(1)
    async with leased(bus, heard.health()):
        await heard.count(1)
    assert heard.windows == [1]


async def test_leaving_leaves_what_waits_for_another_try(bus: Bus) -> None:
    async def later(_: Delivery) -> None:
        raise Temporary("in an hour", delay_s=3600)

    waiting, heard = Heard(later), Heard()
    await bus.publish(report(1))
    async with asyncio.timeout(2), leased(bus, waiting.health(give_up_after_s=9999)):
        await waiting.count(1)
    async with leased(bus, heard.health()):
        await heard.count(1)
    assert heard.windows == [1]


async def test_being_cancelled_ends_it_in_order(bus: Bus) -> None:
    heard = Heard()
    await bus.publish(report(1))

    async def serve() -> None:
        async with bus.consume("tester", (heard.health(),)) as consumption:
            await consumption.wait()

    serving = asyncio.create_task(serve())
    await heard.count(1)
    serving.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        async with asyncio.timeout(WITHIN_S):
            await serving
    assert serving.cancelled()


async def test_two_subscriptions_of_one_domain_are_refused(bus: Bus) -> None:
    heard = Heard()
    with pytest.raises(ValueError, match="at most one subscription per domain"):
        async with bus.consume("tester", (heard.health(), heard.health())):
            pass


async def test_a_case_log_is_heard_like_any_stream(bus: Bus) -> None:
    heard = Heard()
    first = await bus.append(struck(1), 0)
    await bus.append(struck(2), first)
    async with bus.consume("tester", (Subscription("remediation", (Struck,), heard),)):
        await heard.count(2)
    assert heard.windows == [1, 2]
