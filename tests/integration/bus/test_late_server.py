"""A service that starts while the bus is away works without it, and joins it when it comes."""

from __future__ import annotations

import asyncio

import pytest

from shared.bus.nats import connect
from shared.bus.port import Disconnected
from shared.bus.server import EmbeddedServer
from shared.errors import Refused
from tests.contract.bus.world import Heard, report


async def test_a_bus_that_comes_late_is_joined_and_hears_what_it_missed(server: EmbeddedServer) -> None:
    async with connect(server.url, service="early", instance="0") as speaker:
        await speaker.publish(report(1))
    await server.kill()
    heard = Heard()
    async with connect(server.url, service="tester", instance="0", within_s=None) as bus:
        assert not bus.connected
        with pytest.raises(Disconnected):
            await bus.ping()
        async with bus.consume("tester", (heard.health(),)) as consumption:
            saying = asyncio.create_task(bus.publish(report(2)))
            await server.start()
            await consumption.until_caught_up()
            await saying
            await heard.count(2)
    assert bus.connected is False


async def test_a_server_that_is_too_old_ends_what_consumes() -> None:
    async def old(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b'INFO {"server_id":"old","version":"2.11.9","headers":true,"max_payload":1048576}\r\n')
        while line := await reader.readline():
            if line.startswith(b"PING"):
                writer.write(b"PONG\r\n")
        writer.close()

    fake = await asyncio.start_server(old, "127.0.0.1", 0)
    url = f"nats://127.0.0.1:{fake.sockets[0].getsockname()[1]}"
    async with (
        connect(url, service="tester", instance="0", within_s=None) as bus,
        bus.consume("tester", (Heard().health(),)) as consumption,
    ):
        with pytest.raises(Refused, match=r"too old"):
            await consumption.wait()
    fake.close()


async def test_a_bus_that_never_comes_costs_nothing_at_the_end() -> None:
    async with connect("nats://127.0.0.1:1", service="tester", instance="0", within_s=None) as bus:
        with pytest.raises(Disconnected):
            await bus.ping()
