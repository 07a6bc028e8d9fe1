"""Pulling from a consumer: own `MSG.NEXT` requests, heartbeats, and a consumer made anew after every break.

    connected -> the source makes a consumer -> ask, refill at half -> a break -> connected -> ...

A break is: the connection went; nothing came for two heartbeats; a delivery is missing (consumer sequences
are contiguous, so a gap means that one got lost with a connection); the server says that the consumer is
gone. In each case the source makes a new consumer from the first message not yet done with, so order is kept
and what was on its way is not waited for until ack_wait runs out. Messages of a consumer that was given up
are ignored.

`fetch` of nats-py leaves orphaned requests, hides why it ended and is not woken by a reconnect.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Protocol

import orjson
import structlog

from shared.bus.nats.frames import Frame
from shared.bus.nats.link import Link
from shared.bus.port import Disconnected

EXPIRES_S = 6.0
"""Of one request; short, because a request in flight does not survive its connection."""
HEARTBEAT_S = 1.5
"""The server's sign of life while there is nothing to deliver."""
_AGAIN_FIRST_S, _AGAIN_MOST_S = 0.02, 1.0
_NANOSECONDS = 1_000_000_000
_GONE = ("Deleted", "Leadership", "Shutdown")
"""Words of reasons why a consumer delivers no more, though the server says what was left of the request."""
_V1_TOKENS = 9
"""`$JS.ACK.<stream>.<consumer>.<delivered>.<stream seq>.<consumer seq>.<time>.<pending>`; the second form,
which a server may be configured for, has domain and account in front of the stream."""

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Made:
    """A consumer that was just made."""

    name: str
    batch: int


class Source(Protocol):
    """Where a pull's consumers come from, and where its messages go."""

    stream: str

    async def make(self) -> Made:
        """Make a consumer that delivers from the first message not yet done with.

        Raises:
            Disconnected: try again.
            FleetError: it can go on no more.
        """
        ...

    def take(self, message: Frame, sequence: int, stored_at: datetime, token: str, pending: int) -> bool:
        """A message, in order. False: it is to be acknowledged at once."""
        ...

    async def idle(self, name: str) -> None:
        """Nothing came for a while: time to look whether anything is to come."""
        ...

    def broken(self) -> None:
        """The consumer delivers no more."""
        ...

    async def drop(self, name: str) -> None:
        """It ends: the consumer may go."""
        ...


class Pull:
    """One source, pulled from until cancelled."""

    def __init__(self, link: Link, source: Source) -> None:
        self._link = link
        self._source = source
        self._name = ""
        self._next = 1
        self._wanted = 0
        self._batch = 1
        self._request = b""
        self._reply = ""
        self._subject = ""
        self._alive = False
        self._delivered = False
        self._session = 0
        self._asking: asyncio.Future[None] | None = None
        self._broken: asyncio.Future[str] | None = None

    async def run(self) -> None:
        """Pull until cancelled.

        Raises:
            FleetError: the source can go on no more (its lease is lost, its stream is missing).
        """
        await self._link.until_connected()
        inbox = self._link.inbox()
        subscription = await self._link.subscribe(f"{inbox}.*", self._on)
        self._link.on_break.append(self._on_break)
        again_s = _AGAIN_FIRST_S
        try:
            while True:
                await self._link.until_connected()
                self._broken = asyncio.get_running_loop().create_future()
                self._session += 1
                self._reply = f"{inbox}.{self._session}"
                try:
                    made = await self._source.make()
                    await self._open(made)
                    why = await self._watch()
                except Disconnected as error:
                    why = str(error)
                self._name = ""
                self._source.broken()
                again_s = _AGAIN_FIRST_S if self._delivered else min(again_s * 2, _AGAIN_MOST_S)
                _log.info("pull_again", stream=self._source.stream, why=why)
                await asyncio.sleep(again_s)
        finally:
            self._link.on_break.remove(self._on_break)
            name, self._name = self._name, ""
            await self._link.unsubscribe(subscription)
            if name and self._link.connected:
                await self._source.drop(name)

    async def _open(self, made: Made) -> None:
        self._name = made.name
        self._next = 1
        self._wanted = self._batch = made.batch
        self._delivered = False
        self._subject = f"$JS.API.CONSUMER.MSG.NEXT.{self._source.stream}.{made.name}"
        await self._ask(made.batch)

    def _ask_soon(self) -> None:
        """Ask for as many as were taken; the request leaves in a task, as a frame is taken synchronously."""
        more = self._batch - self._wanted
        self._wanted = self._batch
        self._asking = asyncio.ensure_future(self._ask(more))

    async def _ask(self, more: int) -> None:
        request = {
            "batch": more,
            "expires": int(EXPIRES_S * _NANOSECONDS),
            "idle_heartbeat": int(HEARTBEAT_S * _NANOSECONDS),
        }
        try:
            await self._link.send(self._subject, orjson.dumps(request), reply=self._reply)
        except Disconnected as error:
            self._break(str(error))

    async def _watch(self) -> str:
        """Return why the consumer has to be made anew."""
        assert self._broken is not None  # noqa: S101 - set by `run` just before
        while True:
            self._alive = False
            came = self._next
            try:
                async with asyncio.timeout(2 * HEARTBEAT_S):
                    return await asyncio.shield(self._broken)
            except TimeoutError:
                if not self._alive:
                    return "no sign for two heartbeats"
                if came == self._next:
                    await self._source.idle(self._name)

    def _on(self, frame: Frame) -> None:
        self._alive = True
        token = frame.reply
        if not token:
            self._on_status(frame)
            return
        tokens = token.split(".")
        at = 2 if len(tokens) == _V1_TOKENS else 4
        if tokens[at + 1] != self._name:
            return
        number = int(tokens[at + 4])
        if number != self._next:
            self._break(f"delivery {self._next} is missing")
            return
        self._next = number + 1
        self._delivered = True
        self._wanted -= 1
        stored_at = datetime.fromtimestamp(int(tokens[at + 5]) / _NANOSECONDS, UTC)
        if not self._source.take(frame, int(tokens[at + 3]), stored_at, token, int(tokens[at + 6])):
            self._link.acknowledge(token)
        if self._wanted * 2 <= self._batch:
            self._ask_soon()

    def _on_status(self, frame: Frame) -> None:
        if frame.subject != self._reply:
            return
        headers = frame.headers
        status = headers.get("Status")
        if status == "100":
            return
        description = headers.get("Description", "")
        left = headers.get("Nats-Pending-Messages")
        if left is None or any(word in description for word in _GONE):
            self._break(f"{status} {description}")
            return
        self._wanted = max(0, self._wanted - int(left))
        if self._wanted * 2 <= self._batch:
            self._ask_soon()

    def _on_break(self) -> None:
        self._break("the connection broke")

    def _break(self, why: str) -> None:
        self._name = ""
        if self._broken is not None and not self._broken.done():
            self._broken.set_result(why)
