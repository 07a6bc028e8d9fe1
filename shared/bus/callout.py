"""Answering the server's question who a client is: the auth callout, on core NATS.

For every connection that shows no key of the configuration the server asks on `$SYS.REQ.USER.AUTH`, in the
AUTH account. The question is a JWT that holds what the client sent and a key that the server made for this
connection; the answer is a JWT about that key, signed with the issuer's account key, and holds either a user
(account, permissions, expiry), itself a JWT, or an error. JWTs of NATS are signed with Ed25519 keys in its
own text form; their ids are the hash of their claims.

Replicas share a queue, so each question reaches one of them; one that says nothing costs the client a try.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Any, Self

import orjson
import structlog

from shared.bus.access import Access
from shared.bus.nats.frames import Frame
from shared.bus.nats.link import Link
from shared.bus.permissions import AUTH_REQUEST, Permissions
from shared.bus.port import Disconnected
from shared.clock import Clock
from shared.errors import BadInput, FleetError, Refused

QUEUE = "authcallout"
_ASKED_AT_ONCE = 256
"""Questions in work; more are left to the other replica, and their clients try again."""
_AUDIENCE = "nats-authorization-request"
_HEADER = {"typ": "JWT", "alg": "ed25519-nkey"}

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Question:
    """What the server wants to know.

    Attributes:
        user: public key that the server made for this connection.
        server: id of the server.
        token: what the client sent as its token; empty when it sent none.
        client: name and address it gave, for the log.
    """

    user: str
    server: str
    token: str = field(repr=False)
    client: str


@dataclass(frozen=True, slots=True)
class Grant:
    """Who it is.

    Attributes:
        name: for the server's log.
        permissions: what it may do, and in which account.
        until: when the server closes the connection, so that it shows itself anew.
    """

    name: str
    permissions: Permissions
    until: datetime


Decide = Callable[[Question], Awaitable[Grant]]
"""Raises a `FleetError` that says why not."""


class Signer:
    """Signs with an nkey.

    The account key whose public half stands in the servers' configuration.
    """

    def __init__(self, seed: bytes) -> None:
        """Args: seed: of an account nkey (`SA...`).

        Raises:
            BadInput: it is none.
            Refused: the library is missing.
        """
        try:
            import nkeys  # noqa: PLC0415 - loaded only where something is signed
        except ImportError:
            raise Refused("the auth callout needs nkeys: install mediafleet[callout]") from None
        try:
            self._key = nkeys.from_seed(bytearray(seed.strip()))
        except nkeys.NkeysError as error:
            raise BadInput(
                "issuer seed", f"is none: {error}", "give an account nkey's seed (SA...)"
            ) from error
        self.public = str(self._key.public_key.decode()).rstrip("=")
        if not self.public.startswith("A"):
            raise BadInput("issuer seed", "is no account's", "give an account nkey's seed (SA...)")

    @classmethod
    def read(cls, path: Path) -> Self:
        """The key in a file.

        Raises:
            BadInput: it cannot be read, or holds none.
        """
        try:
            return cls(path.read_bytes())
        except OSError as error:
            raise BadInput(
                str(path), f"cannot be read: {error.strerror}", "mount the issuer's seed"
            ) from error

    def sign(self, claims: dict[str, Any]) -> str:
        """A JWT of these claims; its id and issuer are added."""
        said = {**claims, "iss": self.public}
        digest = hashlib.sha256(orjson.dumps(said)).digest()
        said["jti"] = base64.b32encode(digest).decode().rstrip("=")
        text = f"{_text(orjson.dumps(_HEADER))}.{_text(orjson.dumps(said))}"
        return f"{text}.{_text(self._key.sign(text.encode()))}"


def read(body: bytes) -> Question:
    """The server's question.

    Its signature is not checked: only a server may publish there, and the key in it proves nothing more.

    Raises:
        BadInput: it is none.
    """
    try:
        _, payload, _ = body.split(b".")
        claims = orjson.loads(base64.urlsafe_b64decode(payload + b"=" * (-len(payload) % 4)))
        if claims["aud"] != _AUDIENCE:
            raise BadInput("aud", f"is {claims['aud']!r}", "run nats-server 2.12 or newer")
        asked = claims["nats"]
        options, info = asked["connect_opts"], asked["client_info"]
        return Question(
            user=str(asked["user_nkey"]),
            server=str(asked["server_id"]["id"]),
            token=str(options.get("auth_token") or ""),
            client=f"{options.get('name', '')} at {info.get('host', '')}",
        )
    except (ValueError, KeyError, TypeError) as error:
        raise BadInput("auth request", f"is none: {error}", "run nats-server 2.12 or newer") from error


def answer(question: Question, grant: Grant | str, signer: Signer, now: datetime) -> bytes:
    """The signed answer: a user, or why not."""
    issued = int(now.timestamp())
    said: dict[str, Any] = {"type": "authorization_response", "version": 2}
    if isinstance(grant, str):
        said["error"] = grant
    else:
        may = grant.permissions
        user = {
            "iat": issued,
            "exp": int(grant.until.timestamp()),
            "name": grant.name,
            "sub": question.user,
            "aud": may.account,
            "nats": {
                "pub": {"allow": list(may.publish)},
                "sub": {"allow": list(may.subscribe)},
                "subs": -1,
                "data": -1,
                "payload": -1,
                "type": "user",
                "version": 2,
            },
        }
        said["jwt"] = signer.sign(user)
    return signer.sign({"iat": issued, "sub": question.user, "aud": question.server, "nats": said}).encode()


class Callout:
    """The responder."""

    def __init__(self, link: Link, signer: Signer, clock: Clock, decide: Decide) -> None:
        """Args: link: to open; signer: of the answers; clock: the time; decide: who a client is."""
        self._link = link
        self._signer = signer
        self._clock = clock
        self._decide = decide
        self._answering: set[asyncio.Task[None]] = set()

    @property
    def connected(self) -> bool:
        """Whether questions can reach us."""
        return self._link.connected

    async def run(self, url: str, *, within_s: float = 30.0) -> None:
        """Answer until cancelled.

        Args:
            url: of the servers.
            within_s: until the first connection stands.

        Raises:
            Disconnected: no server answers there.
            Refused: it does not let us in, or closed the connection for good.
        """
        await self._link.open(url, within_s=within_s)
        try:
            await self._link.subscribe(AUTH_REQUEST, self._take, queue=QUEUE)
            log.info("answering", issuer=self._signer.public)
            if self._link.dead is not None:
                await asyncio.shield(self._link.dead)
        finally:
            for task in self._answering:
                task.cancel()
            await asyncio.gather(*self._answering, return_exceptions=True)
            await self._link.close()

    def _take(self, frame: Frame) -> None:
        if len(self._answering) >= _ASKED_AT_ONCE:
            log.warning("too many at once: left to the other replica")
            return
        task = asyncio.create_task(self._reply(frame), name="auth-question")
        self._answering.add(task)
        task.add_done_callback(self._answering.discard)

    async def _reply(self, frame: Frame) -> None:
        try:
            question = read(frame.data)
        except BadInput as error:
            log.error("unreadable", reason=error.reason)
            return
        granted: Grant | str
        try:
            granted = await self._decide(question)
        except FleetError as error:
            granted = str(error)
        try:
            body = answer(question, granted, self._signer, self._clock.now())
            await self._link.send(frame.reply, body)
        except Disconnected as error:
            log.warning("not answered", client=question.client, reason=str(error))


def _text(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


def over(access: Access, *, instance: str) -> Link:
    """The callout's connection."""
    return Link("authcallout", instance, replace(access, place=""))
