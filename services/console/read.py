"""What the command line reads from the bus."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta

from shared.bus.access import Access, shown
from shared.bus.nats import connect
from shared.bus.past import past as past_of
from shared.bus.port import Bus, Delivery, Subscription
from shared.clock import SystemClock
from shared.devices.keys import check_node, parse, parse_uid
from shared.errors import BadInput, Refused
from shared.events import CATALOGUE, DOMAINS, AnyEvent, Unknown
from shared.events.address import PREFIX
from shared.host import logging
from shared.host.settings import SharedSettings, load

_CONNECT_S = 5.0
_AGE = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)")
_WORKLOAD = re.compile(r"(?:deployment|statefulset|replicaset|daemonset|job)-[a-z0-9][-a-z0-9.]*")
_UNIT_S = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def access() -> Access:
    """Credentials from the environment, as every service takes them.

    Raises:
        BadInput: a setting is wrong.
    """
    return load(SharedSettings).access


@asynccontextmanager
async def bus(url: str) -> AsyncIterator[Bus]:
    """A connection for one command.

    Raises:
        Refused: no server answers at that URL.
    """
    logging.configure("console", "cli", "error")
    opening = connect(url, service="console", instance="cli", clock=SystemClock(), access=access())
    try:
        async with asyncio.timeout(_CONNECT_S):
            opened = await opening.__aenter__()
    except TimeoutError:
        raise Refused(f"no bus answers at {shown(url)}: start it, or give --nats-url") from None
    try:
        yield opened
    finally:
        await opening.__aexit__(None, None, None)


def entity(asked: str) -> tuple[str, str]:
    """Place and entity of a device's uid, of `node/key`, or of a workload's `namespace/kind-name`.

    Raises:
        BadInput: it is none of them.
    """
    place, slash, name = asked.partition("/")
    if not slash:
        return parse_uid(asked)
    return check_node(place), name if _WORKLOAD.fullmatch(name) else parse(name).device


def until(text: str, now: datetime) -> datetime:
    """The moment `2h` from now, or an RFC 3339 time that is still to come.

    Raises:
        BadInput: it is neither.
    """
    moment = _moment(text, now, 1, "--until")
    if moment <= now:
        raise BadInput("--until", f"{text!r} is over", "write 30m, 2h, 1d or a time to come")
    return moment


def since(text: str, now: datetime) -> datetime:
    """The moment that `10m`, `2h`, `1.5d` ago or an RFC 3339 time names.

    Raises:
        BadInput: it is neither.
    """
    return _moment(text, now, -1, "--since")


def _moment(text: str, now: datetime, direction: int, option: str) -> datetime:
    age = _AGE.fullmatch(text)
    try:
        if age:
            return now + direction * timedelta(seconds=float(age[1]) * _UNIT_S[age[2]])
        moment = datetime.fromisoformat(text)
    except OverflowError:
        raise BadInput(option, f"{text!r} is out of range", "write 10m, 2h or 1d") from None
    except ValueError:
        raise BadInput(option, f"{text!r} is no time", "write 10m, 2h, 1d or 2026-11-30T12:00:00Z") from None
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


class Filter:
    """A subject filter as NATS reads it: `*` is one token, `>` all that follow."""

    def __init__(self, subject: str) -> None:
        """Args: subject: the filter.

        Raises:
            BadInput: an empty token, `>` before the end, or no subject of ours passes.
        """
        tokens = subject.split(".")
        ours = all(
            token in ("*", ">", wanted) for token, wanted in zip(tokens, PREFIX.split("."), strict=False)
        )
        if not all(tokens) or ">" in tokens[:-1] or not ours:
            raise BadInput(
                "--subject", f"{subject!r} is no subject filter", "write e.g. fleet.v1.remediation.>"
            )
        self._tokens = tokens
        named = tokens[2] if len(tokens) > 2 else "*"  # noqa: PLR2004 - the domain is the third token
        self.domains = tuple(DOMAINS) if named in ("*", ">") else (named,)
        if named not in ("*", ">") and named not in DOMAINS:
            raise BadInput("--subject", f"there is no domain {named!r}", f"use one of {', '.join(DOMAINS)}")

    def takes(self, subject: str) -> bool:
        """Whether a subject passes."""
        tokens = subject.split(".")
        for index, wanted in enumerate(self._tokens):
            if wanted == ">":
                return len(tokens) > index
            if index >= len(tokens) or wanted not in ("*", tokens[index]):
                return False
        return len(tokens) == len(self._tokens)


async def past(bus: Bus, wanted: Filter, after: datetime | None = None) -> list[AnyEvent | Unknown]:
    """Events by the time they were stored, what was compacted since with them."""
    kept = await past_of(bus, dict.fromkeys(wanted.domains, ()), after=after)
    return [record.event for record in kept if wanted.takes(record.event.address.subject)]


async def follow(bus: Bus, wanted: Filter, *, history: bool = False) -> AsyncIterator[AnyEvent]:
    """Events as they come, for ever."""
    queue: asyncio.Queue[AnyEvent] = asyncio.Queue()

    async def take(delivery: Delivery) -> None:
        if wanted.takes(delivery.event.address.subject):
            queue.put_nowait(delivery.event)

    subscriptions = tuple(
        Subscription(domain, types, take, history=history)
        for domain in wanted.domains
        if (types := tuple(payload for (of, _), (payload, _) in CATALOGUE.items() if of == domain))
    )
    async with bus.consume("console", subscriptions) as consumption:
        ended = asyncio.create_task(consumption.wait(), name="consumption")
        try:
            while True:
                coming = asyncio.create_task(queue.get(), name="next-event")
                await asyncio.wait({coming, ended}, return_when=asyncio.FIRST_COMPLETED)
                if not coming.done():
                    coming.cancel()
                    ended.result()
                    return
                yield coming.result()
        finally:
            ended.cancel()
