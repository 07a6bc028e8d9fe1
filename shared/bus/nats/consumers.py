"""The consumers of a subscription, made and made anew.

A leased consumer is durable and named `<service>_<domain>-<number of the lease>` (made anew within one lease:
`-<number>-<n>`). A new holder makes its own from the ack floor of the old one, then deletes the old one: the
old holder's open pulls end, and its late acknowledgements count for nothing. Two pullers on one durable
would run one key's messages in parallel, and redelivery within a durable comes out of order; this does
neither.

A consumer without a lease is ephemeral, in memory, and gone half a minute after its process.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import Any

import structlog

from shared.bus.intake import EPOCH, Intake
from shared.bus.nats.frames import Frame
from shared.bus.nats.lease import NatsLease
from shared.bus.nats.link import NO_STREAM, ApiError, Link
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
_PAGE = 1024
"""Consumer names that the server lists at once."""

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
        others = await self._others() if lease is not None else {}
        start = intake.resume_at
        if not self._begun:
            start = 1 if intake.subscription.history else last + 1
            if lease is not None and others:
                start = await self._after_predecessor(lease, others)
        name = self._name(others)
        answer = await self._create(name, start)
        after = None if self._begun else start - 1
        self._begun = True
        for old in others.values():
            await self._delete(old)
        if lease is None and self._last:
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

    def _name(self, others: dict[tuple[int, int], str]) -> str:
        family = self._intake.family
        if self._lease is None:
            return f"{family}_{uuid.uuid4().hex[:12]}"
        number = self._lease.number
        part = 1 + max((part for lease, part in others if lease == number), default=0)
        return f"{family}-{number}" if part == 1 else f"{family}-{number}-{part}"

    async def _create(self, name: str, start: int) -> dict[str, Any]:
        rules = self._intake.subscription
        wanted = filters(rules)
        config: dict[str, Any] = {
            "name": name,
            "deliver_policy": "by_start_sequence",
            "opt_start_seq": max(1, start),
            "ack_policy": "explicit",
            "ack_wait": int(rules.ack_wait_s * _NANOSECONDS),
            "max_ack_pending": rules.max_ack_pending,
            # Attempts are counted in the lane, and what kills its process by `starts`.
            "max_deliver": -1,
            "replay_policy": "instant",
        }
        subject = f"CONSUMER.CREATE.{self.stream}.{name}"
        if len(wanted) == 1:
            config["filter_subject"] = wanted[0]
            subject += f".{wanted[0]}"
        else:
            config["filter_subjects"] = wanted
        if self._lease is None:
            config |= {"mem_storage": True, "inactive_threshold": _EPHEMERAL_GONE_AFTER_S * _NANOSECONDS}
        else:
            config["durable_name"] = name
        request = {"stream_name": self.stream, "config": config, "action": "create"}
        return await self._link.api(subject, request)

    async def _after_predecessor(self, lease: NatsLease, others: dict[tuple[int, int], str]) -> int:
        """Where the holder before us stood; what it had in work is suspect if its lease expired."""
        number, part = max(others)
        info = await self._link.api(f"CONSUMER.INFO.{self.stream}.{others[number, part]}")
        floor = int(info["ack_floor"]["stream_seq"])
        delivered = int(info["delivered"]["stream_seq"])
        if number not in (lease.number, lease.released_before) and delivered > floor:
            self._intake.suspects_up_to = delivered
            self._intake.starts = NatsStarts(self._link, self._intake.family, self._intake.stream_created)
            _log.warning("lease_expired_before", consumer=others[number, part], floor=floor, up_to=delivered)
        return floor + 1

    async def _others(self) -> dict[tuple[int, int], str]:
        """The durables of this family: (lease number, part) to name."""
        found: dict[tuple[int, int], str] = {}
        offset, total = 0, 1
        while offset < total:
            page = await self._link.api(f"CONSUMER.NAMES.{self.stream}", {"offset": offset})
            names: list[str] = page.get("consumers") or []
            for name in names:
                number = _number(name, self._intake.family)
                if number is not None:
                    found[number] = name
            total = int(page["total"])
            offset += len(names) or _PAGE
        return found

    async def _delete(self, name: str) -> None:
        try:
            await self._link.api(f"CONSUMER.DELETE.{self.stream}.{name}")
        except ApiError as error:
            if error.code != 404:  # noqa: PLR2004 - it is gone already
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
        name = f"{self._link.service}_{uuid.uuid4().hex[:12]}"
        config = {
            "name": name,
            "deliver_policy": "by_start_sequence",
            "opt_start_seq": self._position + 1,
            "ack_policy": "none",
            "replay_policy": "instant",
            "filter_subject": self._subject,
            "mem_storage": True,
            "num_replicas": 1,
            "inactive_threshold": _EPHEMERAL_GONE_AFTER_S * _NANOSECONDS,
        }
        request = {"stream_name": self.stream, "config": config, "action": "create"}
        answer = await self._link.api(f"CONSUMER.CREATE.{self.stream}.{name}.{self._subject}", request)
        self._is_current = False
        if not int(answer["num_pending"]):
            self._tell_current()
        return Made(name, _MAX_BATCH)

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


def _number(name: str, family: str) -> tuple[int, int] | None:
    """(lease number, part) of a durable of this family; None for any other."""
    if not name.startswith(f"{family}-"):
        return None
    parts = name[len(family) + 1 :].split("-")
    if not all(part.isdigit() for part in parts):
        return None
    return int(parts[0]), int(parts[1]) if len(parts) > 1 else 1
