"""The server's own dead letters: copied with their body, said once, and never about themselves."""

from __future__ import annotations

from typing import Any

from shared.bus.nats import NatsBus
from shared.bus.port import Subscription
from shared.errors import Permanent
from shared.events import DOMAINS
from shared.events.workload import Rejected
from tests.contract.bus.world import Heard, rejected, report
from tests.integration.bus.conftest import Join, pull_one

HEALTH = DOMAINS["health"].stream
LETTERS = DOMAINS["deadletter"].stream


async def give_up(bus: NatsBus, stream: str, name: str, *, terminate: bool) -> None:
    """A consumer of somebody else's, on which the server gives up."""
    config: dict[str, Any] = {
        "name": name,
        "durable_name": name,
        "ack_policy": "explicit",
        "deliver_policy": "all",
        "max_deliver": 1,
        "ack_wait": 100_000_000,
    }
    request = {"stream_name": stream, "config": config}
    await bus.link.api(f"CONSUMER.CREATE.{stream}.{name}", request)
    pulled = await pull_one(bus, stream, name)
    if terminate:
        await bus.link.send(pulled.reply, b"+TERM no such pod")


async def test_a_message_the_server_gave_up_on_becomes_a_dead_letter_with_its_body(
    bus: NatsBus, join: Join
) -> None:
    await bus.publish(report(7))
    heard = Heard()
    alerting = await join("alerting")
    letters = Subscription("deadletter", (Rejected,), heard)
    async with alerting.lease("alerting") as lease, alerting.consume("alerting", (letters,), lease=lease):
        await give_up(bus, HEALTH, "outsider_health-4", terminate=False)
        await heard.count(1)
        await give_up(bus, HEALTH, "other", terminate=True)
        first, second = await heard.count(2)
    said = rejected(first)
    assert (said.consumer, said.stream, said.sequence) == ("outsider_health", HEALTH, 1)
    assert '"window_id":7' in said.raw
    assert "gave up after 1 deliveries" in said.reason
    assert "no such pod" in rejected(second).reason


async def test_a_consumers_own_letter_and_the_advisory_about_it_are_one(bus: NatsBus, join: Join) -> None:
    async def refuse(_: object) -> None:
        raise Permanent("never")

    await bus.publish(report(7))
    heard = Heard()
    alerting = await join("alerting")
    letters = Subscription("deadletter", (Rejected,), heard)
    async with alerting.lease("alerting") as lease, alerting.consume("alerting", (letters,), lease=lease):
        async with bus.consume("outsider", (Heard(refuse).health(),)):
            await heard.count(1)
        await give_up(bus, HEALTH, "outsider_health-1", terminate=True)
        await give_up(bus, HEALTH, "marker", terminate=True)
        first, second = await heard.count(2)
    assert rejected(first).reason == "never"
    assert rejected(second).consumer == "marker"


async def test_a_failing_reader_of_dead_letters_does_not_feed_itself(bus: NatsBus) -> None:
    async def refuse(_: object) -> None:
        raise Permanent("never")

    await bus.link.request("fleet.v1.deadletter.fleet.tester.rejected", b"no envelope")
    async with bus.consume("reader", (Subscription("deadletter", (Rejected,), Heard(refuse)),)) as reading:
        await give_up(bus, LETTERS, "failing", terminate=True)
        await reading.until_caught_up()
    assert (await bus.link.api(f"STREAM.INFO.{LETTERS}"))["state"]["messages"] == 1
