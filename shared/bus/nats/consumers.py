"""The consumers of a subscription, made and made anew.

A leased consumer is durable and named `<service>_<domain>-<slot>`; its metadata say of which lease it is, and
the how manieth within it. A new holder makes its own, in the next slot, from the ack floor of the old one,
then deletes the old one: the old holder's open pulls end, and its late acknowledgements count for nothing.
Two pullers on one durable would run one key's messages in parallel, and redelivery within a durable comes
out of order; this does neither.

A consumer without a lease is ephemeral, in memory, and gone half a minute after its process; it takes a free
name of its service's. Why names come from a small set: `shared.bus.names`.
"""

from __future__ import annotations

import asyncio
import random
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import structlog

from shared.bus.intake import EPOCH, Intake
from shared.bus.names import durables, reader, readers
from shared.bus.nats.frames import Frame
from shared.bus.nats.lease import NatsLease
from shared.bus.nats.link import NO_STREAM, ApiError, Link, Unavailable
from shared.bus.nats.pull import Made
from shared.bus.nats.reading import state
from shared.bus.nats.starts import NatsStarts
from shared.bus.nats.streams import make_again
from shared.bus.port import Disconnected, LeaseLost, Subscription
from shared.errors import Permanent
from shared.events import escape
from shared.events.address import PREFIX

_NANOSECONDS = 1_000_000_000
_EPHEMERAL_GONE_AFTER_S = 30
_DROP_WITHIN_S = 0.5
_MAX_BATCH = 500
_GONE = 404
"""The code of an answer about a consumer that does not exist."""
_NAME_TAKEN = (10148, 10013)
"""A consumer of that name exists, with another configuration."""
_LEASE, _PART, _MADE_BY = "mediafleet-lease", "mediafleet-part", "mediafleet-made-by"
"""Metadata of a consumer."""

_log = structlog.get_logger(__name__)


def filters(subscription: Subscription) -> list[str]:
    """The subject filters of a subscription; a single one where a place is given.

    A node's credentials allow it one filter, its place, which the server checks in the request's subject.
    """
    domain = f"{PREFIX}.{subscription.domain}"
    facts = sorted(payload.kind.fact for payload in subscription.types)
    if subscription.place is None:
        return [f"{domain}.*.*.{fact}" for fact in facts]
    place = escape(subscription.place)
    return [f"{domain}.{place}.*.{facts[0] if len(facts) == 1 else '*'}"]


@dataclass(frozen=True, slots=True)
class _Durable:
    """A durable of a family as the server has it.

    Attributes:
        name: of the consumer.
        lease: number of the lease it was made under.
        part: the how manieth under that lease.
        floor: all up to this sequence is acknowledged.
        delivered: last sequence handed out.
    """

    name: str
    lease: int
    part: int
    floor: int
    delivered: int


class Subscribed:
    """The consumers that feed one intake; a `Source` for a pull."""

    def __init__(self, link: Link, intake: Intake, lease: NatsLease | None) -> None:
        self._link = link
        self._intake = intake
        self._lease = lease
        self._begun = False
        self._last = ""
        self._before: Callable[[], Awaitable[None]] | None = None
        self.stream = intake.stream

    def wait_for(self, before: Callable[[], Awaitable[None]]) -> None:
        """Await this before each consumer is made (commands are heard first)."""
        self._before = before

    async def make(self) -> Made:
        """Make the consumer that goes on where the intake stands."""
        lease, intake = self._lease, self._intake
        if self._before is not None:
            await self._before()
        if lease is not None and lease.remaining_s() <= 0:
            raise LeaseLost(f"the lease {lease.name} is over")
        created, last = await self._state()
        if intake.stream_created not in (EPOCH, created):
            _log.warning("stream_rebuilt", stream=self.stream, consumer=intake.family)
            intake.rebuilt()
        intake.stream_created = created
        others = await self._others() if lease is not None else []
        start = intake.resume_at
        if not self._begun:
            start = 1 if intake.subscription.history else last + 1
            if lease is not None and others:
                start = self._after_predecessor(lease, others[-1])
        answer = await (self._create_reader(start) if lease is None else self._create(lease, others, start))
        name = str(answer["name"])
        after = None if self._begun else start - 1
        self._begun = True
        for old in others:
            await self._delete(old.name)
        if lease is None and self._last not in ("", name):
            await self.drop(self._last)
        self._last = name
        intake.begin(remaining=int(answer["num_pending"]), after=after)
        return Made(name, min(_MAX_BATCH, intake.subscription.max_ack_pending))

    def take(self, message: Frame, sequence: int, stored_at: datetime, token: str, pending: int) -> bool:
        """Give it to the intake."""
        self._intake.lag = pending
        return self._intake.offer(message.subject, message.data, sequence, stored_at, token)

    async def idle(self, name: str) -> None:
        """Messages that were to come may have aged away or been purged."""
        if self._intake.caught_up:
            return
        try:
            info = await self._link.api(f"CONSUMER.INFO.{self.stream}.{name}")
        except (ApiError, Disconnected, Permanent):
            return
        if not int(info["num_pending"]):
            self._intake.none_remaining()

    def broken(self) -> None:
        """Not caught up until the next consumer."""
        self._intake.interrupted()

    async def drop(self, name: str) -> None:
        """A durable stays for the next holder; an ephemeral goes, at once or by itself."""
        if self._lease is None:
            await _drop(self._link, self.stream, name)

    async def _state(self) -> tuple[datetime, int]:
        try:
            return await state(self._link, self.stream)
        except ApiError as error:
            if error.err_code == NO_STREAM and await make_again(self._link, self.stream):
                return await state(self._link, self.stream)
            raise

    async def _create(self, lease: NatsLease, others: list[_Durable], start: int) -> dict[str, Any]:
        """A durable in the slot after the newest one's."""
        part = 1 + max((other.part for other in others if other.lease == lease.number), default=0)
        names = durables(self._intake.family)
        taken = [other.name for other in others]
        after = names.index(taken[-1]) + 1 if taken else 0
        free = [name for name in (*names[after:], *names[:after]) if name not in taken]
        if not free:
            # Left by as many holders, each killed between making its own and deleting the one before.
            await self._delete(taken[0])
            free = taken[:1]
        marks = {_LEASE: str(lease.number), _PART: str(part)}
        return await self._request(
            free[0], self._config(start) | {"durable_name": free[0], "metadata": marks}
        )

    async def _create_reader(self, start: int) -> dict[str, Any]:
        """An ephemeral under a name that is free."""
        place = self._intake.subscription.place
        config = self._config(start) | _ephemeral()

        async def attempt(name: str) -> dict[str, Any]:
            return await self._request(name, dict(config))

        async def make_room(name: str) -> None:
            # All names of a place are its own agent's: the one that is in the way is of a process before.
            if place is not None:
                await _drop(self._link, self.stream, name)

        return await _first_free(readers(self._intake.family, place), attempt, make_room)

    def _config(self, start: int) -> dict[str, Any]:
        rules = self._intake.subscription
        return {
            "deliver_policy": "by_start_sequence",
            "opt_start_seq": max(1, start),
            "ack_policy": "explicit",
            "ack_wait": int(rules.ack_wait_s * _NANOSECONDS),
            "max_ack_pending": rules.max_ack_pending,
            # Attempts are counted in the lane, and what kills its process by `starts`.
            "max_deliver": -1,
            "replay_policy": "instant",
        }

    async def _request(self, name: str, config: dict[str, Any]) -> dict[str, Any]:
        wanted = filters(self._intake.subscription)
        config["name"] = name
        subject = f"CONSUMER.CREATE.{self.stream}.{name}"
        if len(wanted) == 1:
            config["filter_subject"] = wanted[0]
            subject += f".{wanted[0]}"
        else:
            config["filter_subjects"] = wanted
        request = {"stream_name": self.stream, "config": config, "action": "create"}
        return await self._link.api(subject, request)

    def _after_predecessor(self, lease: NatsLease, before: _Durable) -> int:
        """Where the holder before us stood; what it had in work is suspect if its lease expired."""
        if before.lease not in (lease.number, lease.released_before) and before.delivered > before.floor:
            self._intake.suspects_up_to = before.delivered
            self._intake.starts = NatsStarts(self._link, self._intake.family, self._intake.stream_created)
            _log.warning(
                "lease_expired_before", consumer=before.name, floor=before.floor, up_to=before.delivered
            )
        return before.floor + 1

    async def _others(self) -> list[_Durable]:
        """The durables of this family, oldest first."""
        asked = await asyncio.gather(*(self._durable(name) for name in durables(self._intake.family)))
        return sorted(filter(None, asked), key=lambda found: (found.lease, found.part))

    async def _durable(self, name: str) -> _Durable | None:
        try:
            info = await self._link.api(f"CONSUMER.INFO.{self.stream}.{name}")
        except ApiError as error:
            if error.code == _GONE:
                return None
            raise
        marks: dict[str, str] = info["config"].get("metadata") or {}
        return _Durable(
            name,
            int(marks.get(_LEASE, "0")),
            int(marks.get(_PART, "1")),
            int(info["ack_floor"]["stream_seq"]),
            int(info["delivered"]["stream_seq"]),
        )

    async def _delete(self, name: str) -> None:
        try:
            await self._link.api(f"CONSUMER.DELETE.{self.stream}.{name}")
        except ApiError as error:
            if error.code != _GONE:
                raise


class Ordered:
    """Consumers for a reader that acknowledges nothing: every message of a subject once, in order."""

    def __init__(
        self,
        link: Link,
        stream: str,
        subject: str,
        *,
        take: Callable[[Frame, int, datetime], None],
        current: Callable[[], None],
        after: int = 0,
    ) -> None:
        """Read from the beginning, or after a sequence.

        Args:
            link: the connection.
            stream: its name.
            subject: filter.
            take: gets each message, its sequence, and when it was stored.
            current: called when all that was there is delivered (again after each break).
            after: sequence to start above.
        """
        self._link = link
        self._subject = subject
        self._take = take
        self._current = current
        self._position = after
        self._created: datetime | None = None
        self._is_current = False
        self.stream = stream

    async def make(self) -> Made:
        """Make one that goes on above the last message taken."""
        created, _ = await state(self._link, self.stream)
        if self._created not in (None, created):
            self._position = 0
        self._created = created
        config = {
            "deliver_policy": "by_start_sequence",
            "opt_start_seq": self._position + 1,
            "ack_policy": "none",
            "replay_policy": "instant",
            "filter_subject": self._subject,
            "num_replicas": 1,
            **_ephemeral(),
        }

        async def attempt(name: str) -> dict[str, Any]:
            request = {"stream_name": self.stream, "config": {**config, "name": name}, "action": "create"}
            return await self._link.api(f"CONSUMER.CREATE.{self.stream}.{name}.{self._subject}", request)

        answer = await _first_free(readers(reader(self._link.service)), attempt)
        self._is_current = False
        if not int(answer["num_pending"]):
            self._tell_current()
        return Made(str(answer["name"]), _MAX_BATCH)

    def take(self, message: Frame, sequence: int, stored_at: datetime, token: str, pending: int) -> bool:  # noqa: ARG002 - a source's
        """Hand it on."""
        self._position = sequence
        self._take(message, sequence, stored_at)
        if not pending and not self._is_current:
            self._tell_current()
        return True

    async def idle(self, name: str) -> None:
        """Nothing left to come is nothing to wait for; asked only until all that was there is delivered."""
        if self._is_current:
            return
        try:
            info = await self._link.api(f"CONSUMER.INFO.{self.stream}.{name}")
        except (ApiError, Disconnected, Permanent):
            return
        if not int(info["num_pending"]):
            self._tell_current()

    def broken(self) -> None:
        """The next one goes on."""

    async def drop(self, name: str) -> None:
        """Nobody needs it any more."""
        await _drop(self._link, self.stream, name)

    def _tell_current(self) -> None:
        self._is_current = True
        self._current()


def _ephemeral() -> dict[str, Any]:
    """Configuration of a consumer that is gone soon after its process."""
    return {
        "mem_storage": True,
        "inactive_threshold": _EPHEMERAL_GONE_AFTER_S * _NANOSECONDS,
        # Without it two readers that ask for the same would be given one consumer.
        "metadata": {_MADE_BY: uuid.uuid4().hex},
    }


async def _first_free(
    names: tuple[str, ...],
    attempt: Callable[[str], Awaitable[dict[str, Any]]],
    make_room: Callable[[str], Awaitable[None]] | None = None,
) -> dict[str, Any]:
    """Make a consumer under the first name that nobody has.

    Raises:
        Unavailable: all are taken now.
    """
    first = random.randrange(len(names))  # noqa: S311 - spreads readers, no secret
    for name in (*names[first:], *names[:first]):
        try:
            return await attempt(name)
        except ApiError as error:
            if error.err_code not in _NAME_TAKEN:
                raise
    if make_room is not None:
        await make_room(names[first])
    raise Unavailable(f"all {len(names)} readers {names[0]} to {names[-1]} are in use")


async def _drop(link: Link, stream: str, name: str) -> None:
    """Delete an ephemeral consumer; where that fails or is not allowed, the server does it after a while."""
    try:
        async with asyncio.timeout(_DROP_WITHIN_S):
            await link.api(f"CONSUMER.DELETE.{stream}.{name}")
    except (ApiError, Disconnected, Permanent, TimeoutError):
        return


def family_of(name: str) -> str:
    """A durable's name without the number of its lease."""
    family, _, rest = name.partition("-")
    while rest and not all(part.isdigit() for part in rest.split("-")):
        more, _, rest = rest.partition("-")
        family = f"{family}-{more}"
    return family if rest else name
