"""The pull by itself: what it asks for, and what it takes for a break."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime
from typing import Any

import orjson
import pytest

from shared.bus.nats import pull
from shared.bus.nats.frames import Frame
from shared.bus.nats.pull import Made, Pull
from shared.bus.port import Disconnected

INBOX = "_INBOX_t.1"


class Wire:
    """A link whose other end is the test."""

    def __init__(self) -> None:
        self.connected = True
        self.asked: list[tuple[dict[str, Any], str]] = []
        self.acknowledged: list[str] = []
        self.on_break: list[Callable[[], None]] = []
        self.down = False

    def inbox(self) -> str:
        return INBOX

    async def subscribe(self, _: str, take: Callable[[Frame], None]) -> object:
        self.deliver = take
        return object()

    async def unsubscribe(self, _: object) -> None:
        return

    async def until_connected(self) -> None:
        return

    async def send(self, _: str, body: bytes, *, reply: str) -> None:
        if self.down:
            raise Disconnected("down")
        self.asked.append((orjson.loads(body), reply))

    def acknowledge(self, token: str) -> None:
        self.acknowledged.append(token)


class Source:
    """Remembers what came; does not want what is called unwanted."""

    stream = "S"

    def __init__(self) -> None:
        self.made = 0
        self.idled: list[str] = []
        self.taken: list[tuple[int, datetime, int]] = []
        self.again = asyncio.Event()

    async def make(self) -> Made:
        self.made += 1
        if self.made > 1:
            self.again.set()
        return Made(f"c{self.made}", 4)

    def take(self, frame: Frame, sequence: int, stored_at: datetime, token: str, pending: int) -> bool:
        del token
        self.taken.append((sequence, stored_at, pending))
        return frame.data != b"unwanted"

    async def idle(self, name: str) -> None:
        self.idled.append(name)

    def broken(self) -> None:
        return

    async def drop(self, name: str) -> None:
        self.dropped = name


@pytest.fixture
async def running() -> AsyncIterator[tuple[Wire, Source]]:
    wire, source = Wire(), Source()
    task = asyncio.create_task(Pull(wire, source).run())  # type: ignore[arg-type] # as much of a link as it needs
    while not wire.asked:  # noqa: ASYNC110 - a turn of the loop, not a time
        await asyncio.sleep(0)
    yield wire, source
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


def message(number: int, *, consumer: str = "c1", body: bytes = b"x") -> Frame:
    token = f"$JS.ACK.S.{consumer}.1.{number + 10}.{number}.1764522222000000000.7"
    return Frame("fleet.v1.x", token, body, None)


def status(line: str, *, to: str = f"{INBOX}.1", **headers: str) -> Frame:
    lines = [
        f"NATS/1.0 {line}",
        *(f"{name.replace('_', '-')}: {value}" for name, value in headers.items()),
        "",
        "",
    ]
    return Frame(to, "", b"", "\r\n".join(lines).encode())


async def test_it_asks_again_when_half_is_taken(running: tuple[Wire, Source]) -> None:
    wire, source = running
    assert wire.asked[0][0]["batch"] == 4
    wire.deliver(message(1))
    await asyncio.sleep(0)
    assert len(wire.asked) == 1
    wire.deliver(message(2, body=b"unwanted"))
    await asyncio.sleep(0)
    assert wire.asked[1][0]["batch"] == 2
    assert source.taken[0] == (11, datetime(2025, 11, 30, 17, 3, 42, tzinfo=UTC), 7)
    assert wire.acknowledged == [message(2).reply]


async def test_what_an_expired_request_left_is_asked_for_again(running: tuple[Wire, Source]) -> None:
    wire, source = running
    wire.deliver(status("100 Idle Heartbeat"))
    wire.deliver(status("408 Request Timeout", to=f"{INBOX}.0", Nats_Pending_Messages="4"))
    await asyncio.sleep(0)
    assert len(wire.asked) == 1
    wire.deliver(status("408 Request Timeout", Nats_Pending_Messages="3"))
    await asyncio.sleep(0)
    assert wire.asked[1][0]["batch"] == 3
    assert source.made == 1


async def test_both_forms_of_acknowledgement_subjects_are_read(running: tuple[Wire, Source]) -> None:
    wire, source = running
    wire.deliver(Frame("s", "$JS.ACK.hub.ACCOUNT.S.c1.1.42.1.1764522222000000000.0.rnd", b"x", None))
    assert source.taken[0][0] == 42


async def test_messages_of_a_consumer_that_was_given_up_are_ignored(running: tuple[Wire, Source]) -> None:
    wire, source = running
    wire.deliver(message(1, consumer="c0"))
    assert source.taken == []


@pytest.mark.parametrize(
    "broken",
    [
        message(2),
        status("409 Consumer Deleted", Nats_Pending_Messages="4"),
        status("409 Server Shutdown"),
        status("409 Leadership Change", Nats_Pending_Messages="1"),
        status("503"),
    ],
    ids=["gap", "deleted", "shutdown", "leadership", "gone"],
)
async def test_a_break_makes_a_new_consumer(running: tuple[Wire, Source], broken: Frame) -> None:
    wire, source = running
    wire.deliver(broken)
    await asyncio.wait_for(source.again.wait(), 2)
    assert source.taken == []


async def test_a_request_that_cannot_leave_is_a_break(running: tuple[Wire, Source]) -> None:
    wire, source = running
    wire.down = True
    wire.deliver(message(1))
    wire.deliver(message(2))
    await asyncio.sleep(0)
    wire.down = False
    await asyncio.wait_for(source.again.wait(), 2)


async def test_silence_is_a_break_and_heartbeats_alone_are_a_reason_to_look(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pull, "HEARTBEAT_S", 0.05)
    wire, source = Wire(), Source()
    task = asyncio.create_task(Pull(wire, source).run())  # type: ignore[arg-type] # as above
    async with asyncio.timeout(2):
        while not source.idled:
            if wire.asked:
                wire.deliver(status("100 Idle Heartbeat"))
            await asyncio.sleep(0)
        assert source.idled == ["c1"]
        await source.again.wait()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
