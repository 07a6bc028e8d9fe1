"""The connection: nats-py, narrowed to what can be trusted of it.

Only `publish`, `subscribe` and `close` of nats-py are used; what arrives is taken by `frames`. Requests have
a reply table of their own, so that everything that waits is told at once when the connection breaks, and
asks again as soon as it is back (nats-py leaves it waiting for its timeout). Nothing is published while the
connection is down: nats-py would keep it and send it later, long after its caller has given up.

What nats-py does that this module is built around: a refused publish shows up only in `error_cb`,
lower-cased; after 60 tries a lost connection is closed for ever unless `max_reconnect_attempts` is -1; a
broken read loop is noticed only by pings; a callback that leaks `CancelledError` ends its subscription
without a word.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson
import structlog
from nats.aio.subscription import Subscription
from nats.errors import Error, MaxPayloadError

from shared.bus import metrics
from shared.bus.access import Access, shown
from shared.bus.names import inbox
from shared.bus.nats.frames import Frame, FrameClient
from shared.bus.port import Disconnected
from shared.errors import FleetError, Permanent, Refused

OLDEST_SERVER = (2, 12)
"""Expected sequence over a wildcard (`Nats-Expected-Last-Subject-Sequence-Subject`) came with it."""
NO_STREAM = 10059
"""The stream does not exist."""
STREAM_FULL = (10077, 10047, 10023)
"""The stream could not store it (maximum bytes or messages exceeded), or the server has no room left."""
ANSWER_WITHIN_S = 2.0
"""For one request; a retry has the same id, so asking again is safe."""
_ALONE = 2
"""Requests under way up to which each is written at once; more leave together, as one write."""
_EXPIRE_EVERY_S = 0.05
"""How exactly the end of a wait is kept."""
_PING_EVERY_S = 10
_PENDING_BYTES = 8 << 20
_RECONNECT_FIRST_S, _RECONNECT_MOST_S = 0.05, 2.0
_NOT_LET_IN = "authorization"
_VIOLATION = re.compile(r'permissions violation for (publish|subscription) to "([^"]*)"')

_log = structlog.get_logger(__name__)


class Unavailable(Disconnected):
    """Nobody answers there now: no stream, no leader, JetStream not up yet."""


class ApiError(FleetError):
    """JetStream refused a request.

    Attributes:
        code: like HTTP.
        err_code: JetStream's own.
    """

    def __init__(self, subject: str, code: int, err_code: int, description: str) -> None:
        super().__init__(f"{subject}: {description} ({code}, {err_code})")
        self.code = code
        self.err_code = err_code
        self.description = description


@dataclass(slots=True)
class _Waiting:
    """Who waits for replies."""

    subject: str
    done: asyncio.Future[Frame]
    several: list[Frame] | None = None
    until_s: float = 0.0


@dataclass
class Link:
    """One connection of one service."""

    service: str
    instance: str
    access: Access = field(default_factory=Access, repr=False)
    _nc: FrameClient = field(default_factory=FrameClient, repr=False)
    _waiting: dict[str, _Waiting] = field(default_factory=dict, repr=False)
    _numbers: itertools.count[int] = field(default_factory=itertools.count, repr=False)
    _inbox: str = ""
    _up: asyncio.Event = field(default_factory=asyncio.Event, repr=False)
    _acks: list[str] = field(default_factory=list, repr=False)
    _flushing: asyncio.Future[None] | None = field(default=None, repr=False)
    _expiring: bool = False
    _tries: int = 0
    _closing: bool = False
    _last_error: str = ""
    _turned_away: bool = False
    dead: asyncio.Future[None] = field(
        default_factory=lambda: asyncio.get_running_loop().create_future(), repr=False
    )
    """Done with an error when there is no connection and will be none: refused, or closed for good."""
    on_break: list[Callable[[], None]] = field(default_factory=list, repr=False)
    """Called when the connection breaks."""

    @property
    def source(self) -> str:
        """The CloudEvents source of what is said over it."""
        return f"/mediafleet/{self.service}/{self.instance}"

    @property
    def connected(self) -> bool:
        """Whether it is up."""
        return self._up.is_set()

    async def open(self, url: str, *, within_s: float | None) -> None:
        """Connect, and check the server.

        Args:
            url: of one server, or several separated by commas.
            within_s: until the first connection stands; None: for ever.

        Raises:
            Disconnected: no server answers there.
            Refused: the server is too old, or does not let us in.
        """
        refused: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        async def note(error: Exception) -> None:
            if _NOT_LET_IN in str(error).lower() and not self._up.is_set():
                self._turned_away = True
                # A token may be too old just now, or who checks it not be there yet: that passes.
                if self.access.token_file is None and not refused.done():
                    refused.set_result(None)
            await self._on_error(error)

        credentials = self.access.options()
        self._nc.only_tls = "tls" in credentials
        connecting = asyncio.ensure_future(
            self._nc.connect(
                [part.strip() for part in url.split(",")],
                name=f"{self.service}/{self.instance}",
                error_cb=note,
                disconnected_cb=self._on_disconnected,
                reconnected_cb=self._on_reconnected,
                closed_cb=self._on_closed,
                connect_timeout=2,
                reconnect_time_wait=1,
                max_reconnect_attempts=-1,
                ping_interval=_PING_EVERY_S,
                max_outstanding_pings=2,
                pending_size=_PENDING_BYTES,
                inbox_prefix=inbox(self.service, self.access.place),
                reconnect_to_server_handler=self._reconnect,
                # Every subject is built by `shared.events.address` or from a JetStream name.
                skip_subject_validation=True,
                **credentials,
            )
        )
        try:
            await asyncio.wait({connecting, refused}, timeout=within_s, return_when=asyncio.FIRST_COMPLETED)
            self._check_let_in(url, refused=refused.done(), answered=connecting.done())
            connecting.result()
            self._check_server()
            self._inbox = f"{self._nc.new_inbox()}."
            await self.subscribe(f"{self._inbox}*", self._on_reply)
            self._up.set()
        except (Error, ValueError) as error:
            await self._give_up(connecting)
            raise Refused(f"{shown(url)}: {error}") from error
        except BaseException:
            await self._give_up(connecting)
            raise

    async def close(self) -> None:
        """Close it; what was published before has left (`drain` of nats-py may hang, so it is not used)."""
        if not self.dead.done():
            self.dead.cancel()
        elif not self.dead.cancelled():
            self.dead.exception()  # told to whoever consumed; nobody else is left to tell
        await self._shut()

    def opened(self, opening: asyncio.Future[None]) -> None:
        """Take the end of an `open` that nobody awaits: its error is the connection's."""
        error = None if opening.cancelled() else opening.exception()
        if error is not None and not self.dead.done():
            self.dead.set_exception(error)

    async def _shut(self) -> None:
        self._closing = True
        self._up.clear()
        self._fail_all("the connection is closed")
        if self._nc._flush_queue is not None:  # noqa: SLF001 - nats-py fails to close what never began to connect
            await self._nc.close()

    async def until_connected(self, within_s: float | None = None) -> None:
        """Wait for the connection.

        Raises:
            Disconnected: not within the time.
            Refused: the server closed it for good.
        """
        if self._up.is_set():
            return
        if self.dead.done() and not self.dead.cancelled():
            self.dead.result()
        try:
            async with asyncio.timeout(within_s):
                await self._up.wait()
        except TimeoutError:
            raise Disconnected("the bus is not reachable") from None

    async def send(
        self, subject: str, body: bytes = b"", *, reply: str = "", headers: dict[str, str] | None = None
    ) -> None:
        """Publish without an answer, together with what else is published in this turn of the loop.

        Raises:
            Disconnected: the connection is down; nothing is kept for later.
            Permanent: larger than the server takes.
        """
        if not self._up.is_set():
            raise Disconnected("the bus is not reachable")
        try:
            await self._nc.publish(subject, body, reply, headers)
        except MaxPayloadError:
            raise Permanent(f"{len(body)} bytes are more than the server takes", field="data") from None
        except (Error, OSError) as error:
            raise Disconnected(str(error)) from error

    def acknowledge(self, token: str, /) -> None:
        """Acknowledge a message soon; lost with the connection, after which it is delivered again.

        Acknowledgements of one turn of the loop leave as one write. nats-py has no public way to do so; its
        `publish` for each would be a tenth of what an event costs.
        """
        self._acks.append(token)
        if len(self._acks) == 1:
            asyncio.get_running_loop().call_soon(self._flush_soon)

    async def flush_acknowledgements(self) -> None:
        """Hand over what waits to be acknowledged."""
        acks, self._acks = self._acks, []
        if acks and self._up.is_set():
            commands = "PUB " + " 0\r\n\r\nPUB ".join(acks) + " 0\r\n\r\n"
            await self._nc._send_command(commands.encode())  # noqa: SLF001 - as said in `acknowledge`
            await self._nc._flush_pending()  # noqa: SLF001 - the same

    async def request(
        self,
        subject: str,
        body: bytes = b"",
        *,
        headers: dict[str, str] | None = None,
        within_s: float = ANSWER_WITHIN_S,
    ) -> Frame:
        """Publish and wait for the answer.

        Raises:
            Disconnected: no answer in time, or the connection broke; it may have been done.
            Unavailable: nobody listens there.
            Permanent: we may not publish there.
        """
        waiting = _Waiting(subject, asyncio.get_running_loop().create_future())
        answer = await self._ask(waiting, body, headers, within_s)
        if not answer.data and answer.headers.get("Status") == "503":
            raise Unavailable(f"{subject}: nobody answers")
        return answer

    async def request_several(
        self, subject: str, body: bytes, *, within_s: float = ANSWER_WITHIN_S * 2
    ) -> tuple[list[Frame], Frame]:
        """Publish and gather the answers; the last one, which carries a status, comes apart.

        Raises:
            Disconnected: as for `request`.
        """
        several: list[Frame] = []
        waiting = _Waiting(subject, asyncio.get_running_loop().create_future(), several)
        last = await self._ask(waiting, body, None, within_s)
        if last.headers.get("Status") == "503":
            raise Unavailable(f"{subject}: nobody answers")
        return several, last

    async def api(self, name: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Ask JetStream for something, in JSON.

        Args:
            name: what follows `$JS.API.`.
            body: of the request.

        Raises:
            ApiError: it refused.
            Disconnected: no answer; also while JetStream is starting or has no leader.
        """
        subject = f"$JS.API.{name}"
        answer = await self.request(subject, orjson.dumps(body) if body is not None else b"")
        return checked(subject, answer.data)

    async def subscribe(
        self, subject: str, take: Callable[[Frame], None], *, queue: str = ""
    ) -> Subscription:
        """Hear a subject; `take` is called in order, within the read of the socket.

        Args:
            subject: to hear.
            take: gets each message.
            queue: given, each message goes to one of those who name the same.
        """
        subscription = await self._nc.subscribe(subject, queue, cb=_unused)
        self._nc.takers[subscription._id] = take  # noqa: SLF001 - nats-py shows its number nowhere else
        return subscription

    async def unsubscribe(self, subscription: Subscription) -> None:
        """Hear it no more."""
        self._nc.takers.pop(subscription._id, None)  # noqa: SLF001 - as above
        if self._up.is_set():
            await subscription.unsubscribe()

    def inbox(self) -> str:
        """A new subject of our own."""
        return self._nc.new_inbox()

    async def _ask(
        self, waiting: _Waiting, body: bytes, headers: dict[str, str] | None, within_s: float
    ) -> Frame:
        token = str(next(self._numbers))
        loop = asyncio.get_running_loop()
        waiting.until_s = loop.time() + within_s
        self._waiting[token] = waiting
        if not self._expiring:
            self._expiring = True
            loop.call_later(_EXPIRE_EVERY_S, self._expire)
        try:
            self._send_request(waiting.subject, body, token, headers)
            return await waiting.done
        finally:
            del self._waiting[token]

    def _expire(self) -> None:
        """One timer for all: one for each request would cost more than the rest of its waiting."""
        loop = asyncio.get_running_loop()
        now_s = loop.time()
        for waiting in self._waiting.values():
            if waiting.until_s <= now_s and not waiting.done.done():
                waiting.done.set_exception(Disconnected(f"{waiting.subject}: no answer in time"))
        self._expiring = bool(self._waiting)
        if self._expiring:
            loop.call_later(_EXPIRE_EVERY_S, self._expire)

    def _send_request(self, subject: str, body: bytes, token: str, headers: dict[str, str] | None) -> None:
        alone = len(self._waiting) <= _ALONE
        try:
            sent = self._up.is_set() and self._nc.ask(
                subject, body, self._inbox + token, headers, at_once=alone
            )
        except MaxPayloadError:
            raise Permanent(f"{len(body)} bytes are more than the server takes", field="data") from None
        except (OSError, RuntimeError) as error:
            raise Disconnected(f"{subject}: {error}") from error
        if not sent:
            raise Disconnected("the bus is not reachable")

    def _on_reply(self, message: Frame) -> None:
        waiting = self._waiting.get(message.subject.rpartition(".")[2])
        if waiting is None or waiting.done.done():
            return
        if waiting.several is None or "Status" in message.headers:
            waiting.done.set_result(message)
        else:
            waiting.several.append(message)

    async def _on_error(self, error: Exception) -> None:
        text = str(error) or type(error).__name__
        self._last_error = text
        violation = _VIOLATION.search(text)
        kind = f"{violation[1]} refused" if violation else type(error).__name__
        metrics.ERRORS.labels(self.service, kind).inc()
        if violation is None:
            _log.warning("bus_error", service=self.service, error=text)
            return
        _log.error("bus_refused", service=self.service, error=text)
        for waiting in self._waiting.values():
            if waiting.subject.lower() == violation[2] and not waiting.done.done():
                waiting.done.set_exception(
                    Permanent(f"{self.service} may not publish on {waiting.subject}", field="subject")
                )

    async def _on_disconnected(self) -> None:
        self._up.clear()
        self._fail_all("the connection broke")
        for told in tuple(self.on_break):
            told()

    async def _on_reconnected(self) -> None:
        self._tries = 0
        metrics.RECONNECTS.labels(self.service).inc()
        self._up.set()

    async def _on_closed(self) -> None:
        if self._closing:
            return
        await self._on_disconnected()
        if not self.dead.done():
            self.dead.set_exception(Refused(f"the server closed the connection: {self._last_error}"))

    def _flush_soon(self) -> None:
        self._flushing = asyncio.ensure_future(self.flush_acknowledgements())

    def _fail_all(self, why: str) -> None:
        for waiting in self._waiting.values():
            if not waiting.done.done():
                waiting.done.set_exception(Disconnected(f"{waiting.subject}: {why}"))

    def _reconnect(self, servers: list[Any], _info: dict[str, Any]) -> tuple[Any, float]:
        # nats-py forgets the socket of a try that was refused: without this each leaks until it is collected.
        if self._nc._transport is not None:  # noqa: SLF001 - as said
            self._nc._transport.close()  # type: ignore[no-untyped-call] # noqa: SLF001 - the same
        most_s = min(_RECONNECT_MOST_S, _RECONNECT_FIRST_S * 2**self._tries)
        self._tries = min(self._tries + 1, 16)
        # Jitter keeps a fleet from coming back in one instant; no secret depends on it.
        return random.choice(servers), random.uniform(most_s / 2, most_s)  # noqa: S311 - as said

    async def _give_up(self, connecting: asyncio.Future[None]) -> None:
        connecting.cancel()
        await asyncio.gather(connecting, return_exceptions=True)
        # nats-py asserts that it was connected once.
        with contextlib.suppress(AssertionError):
            await self._shut()

    def _check_let_in(self, url: str, *, refused: bool, answered: bool) -> None:
        if refused or (not answered and self._turned_away):
            token = self.access.token_file
            why = f"check its credentials{'; the auth callout logs why it refuses a token' if token else ''}"
            raise Refused(f"{shown(url)} does not let {self.service} in: {why}")
        if not answered:
            raise Disconnected(f"no NATS server answers at {shown(url)}: {self._last_error or 'no answer'}")

    def _check_server(self) -> None:
        version = self._nc.connected_server_version
        if (version.major, version.minor) < OLDEST_SERVER:
            raise Refused(
                f"nats-server {version.major}.{version.minor}.{version.patch} is too old: "
                f"mediafleet needs {OLDEST_SERVER[0]}.{OLDEST_SERVER[1]} or newer"
            )


def checked(subject: str, body: bytes) -> dict[str, Any]:
    """The JSON answer of JetStream.

    Raises:
        ApiError: it is a refusal.
        Unavailable: it is a passing one.
    """
    answer: dict[str, Any] = orjson.loads(body)
    error = answer.get("error")
    if error:
        code, err_code = int(error.get("code", 0)), int(error.get("err_code", 0))
        if code == 503 and err_code not in STREAM_FULL:  # noqa: PLR2004 - as in HTTP: not now
            raise Unavailable(f"{subject}: {error.get('description')}")
        hint = ": run `mediafleet provision`" if err_code == NO_STREAM else ""
        raise ApiError(subject, code, err_code, str(error.get("description", "")) + hint)
    return answer


async def _unused(_: object) -> None:
    """What nats-py would call; frames are taken before."""
