"""Saying a fact, and adding to a case log.

A publish that was not answered may have been stored: it is repeated with the same id until its deadline. The
id is an optimisation with a window, so a duplicate is compared with what is stored. An append carries the
sequence its caller read; the server answers a repeated one with a conflict (the expectation is checked
before the id), so after each conflict we look whether the first fact above the expectation is our own.
"""

from __future__ import annotations

import asyncio
import base64
import random
from dataclasses import dataclass
from typing import Any

import orjson

from shared.bus import metrics
from shared.bus.deadletters import same_fact
from shared.bus.nats.link import ANSWER_WITHIN_S, STREAM_FULL, ApiError, Link, checked
from shared.bus.nats.reading import Stored as StoredMessage
from shared.bus.nats.reading import moment
from shared.bus.port import Disconnected, Stored
from shared.errors import BadInput, Conflict, Permanent, Temporary
from shared.events import DOMAINS, AnyEvent, decode
from shared.events.envelope import CONTENT_TYPE

SAY_WITHIN_S = 10.0
"""For a publish or append, repeats included; longer than a leader election takes (4-9 s)."""
_AGAIN_FIRST_S, _AGAIN_MOST_S = 0.02, 1.0
WRONG_LAST_SEQUENCE = (10071, 10164)
"""Error codes of a failed expectation; the second one does not say where the log stands."""
_NO_MESSAGE = 10037
_FULL_AGAIN_S = 5.0


@dataclass(frozen=True, slots=True)
class Message(StoredMessage):
    """One message, with the id it was published with.

    Attributes:
        origin: sequence in the stream that it was sourced from; None when it was published here.
    """

    id: str | None
    origin: int | None = None


async def publish(link: Link, event: AnyEvent, *, within_s: float = SAY_WITHIN_S) -> Stored:
    """State a fact; see `Bus.publish`."""
    address = event.address
    body = event.encode()
    stream = DOMAINS[address.domain].stream
    ack = await _say(link, address.domain, address.subject, body, _headers(event.id), within_s=within_s)
    stored = Stored(int(ack["seq"]), bool(ack.get("duplicate")))
    if stored.duplicate:
        await _check_same(link, stream, stored.sequence, event, body)
    return stored


async def append(link: Link, event: AnyEvent, expected: int, *, within_s: float = SAY_WITHIN_S) -> int:
    """Add to the event's log; see `Bus.append`."""
    address = event.address
    # The server does not check that the filter covers the subject: both are made from one entity here.
    wildcard = address.of.wildcard
    headers = _headers(event.id)
    headers["Nats-Expected-Last-Subject-Sequence-Subject"] = wildcard
    body = event.encode()
    stream = DOMAINS[address.domain].stream
    stands = expected
    while True:
        headers["Nats-Expected-Last-Subject-Sequence"] = str(stands)
        try:
            ack = await _say(link, address.domain, address.subject, body, headers, within_s=within_s)
        except ApiError as error:
            if error.err_code not in WRONG_LAST_SEQUENCE:
                raise
            found, stands = await _above(link, stream, wildcard, expected)
            if found is None and stands > expected:
                # Only what is no fact lies above: no case holds on it.
                continue
            if found is not None and found.id == event.id:
                return found.sequence
            metrics.CONFLICTS.labels(link.service, address.domain).inc()
            last = await message(link, stream, {"last_by_subj": wildcard})
            raise Conflict(str(address.of), expected=expected, last=last.sequence if last else 0) from None
        sequence = int(ack["seq"])
        if ack.get("duplicate"):
            await _check_same(link, stream, sequence, event, body)
        return sequence


async def _above(link: Link, stream: str, wildcard: str, expected: int) -> tuple[Message | None, int]:
    """The first fact of a log above a sequence, and the last sequence looked at."""
    looked_at = expected
    while True:
        found = await message(link, stream, {"seq": looked_at + 1, "next_by_subj": wildcard})
        if found is None:
            return None, looked_at
        looked_at = found.sequence
        if is_fact(found.subject, found.body):
            return found, looked_at


def is_fact(subject: str, body: bytes) -> bool:
    """Whether it is an envelope that matches its subject (of a known type or not)."""
    try:
        decode(subject, body)
    except BadInput:
        return False
    return True


async def message(link: Link, stream: str, wanted: dict[str, Any]) -> Message | None:
    """One message as the stream's leader holds it; None when there is none.

    Args:
        link: the connection.
        stream: its name.
        wanted: `seq`, `last_by_subj`, or `seq` with `next_by_subj`.
    """
    try:
        answer = await link.api(f"STREAM.MSG.GET.{stream}", wanted)
    except ApiError as error:
        if error.err_code == _NO_MESSAGE:
            return None
        raise
    found: dict[str, Any] = answer["message"]
    raw = base64.b64decode(found.get("hdrs", "")).decode()
    headers = dict(line.split(": ", 1) for line in raw.split("\r\n")[1:] if ": " in line)
    source = headers.get("Nats-Stream-Source")
    return Message(
        found["subject"],
        int(found["seq"]),
        base64.b64decode(found.get("data", "")),
        moment(found["time"]),
        headers.get("Nats-Msg-Id"),
        # `FLEET_HEALTH 17 > > fleet.v1...`: the stream, the sequence there, and how it was chosen.
        None if source is None else int(source.split(" ")[1]),
    )


async def _say(
    link: Link, domain: str, subject: str, body: bytes, headers: dict[str, str], *, within_s: float
) -> dict[str, Any]:
    """Publish until it is answered."""
    loop = asyncio.get_running_loop()
    until_s = loop.time() + within_s
    again_s = _AGAIN_FIRST_S
    while True:
        try:
            if not link.connected:
                await link.until_connected(max(0.0, until_s - loop.time()))
            left_s = until_s - loop.time()
            answer = await link.request(
                subject, body, headers=headers, within_s=min(ANSWER_WITHIN_S, max(left_s, 0.05))
            )
            ack = checked(subject, answer.data)
        except Disconnected as error:
            if loop.time() + again_s >= until_s:
                raise Disconnected(f"{subject}: not answered within {within_s:g} s: {error}") from error
            metrics.PUBLISH_RETRIES.labels(link.service, domain).inc()
            await asyncio.sleep(again_s * random.uniform(0.5, 1.0))  # noqa: S311 - jitter, no secret
            again_s = min(again_s * 2, _AGAIN_MOST_S)
        except orjson.JSONDecodeError as error:
            raise Permanent(f"{subject}: somebody else than JetStream answered") from error
        except ApiError as error:
            if error.err_code in WRONG_LAST_SEQUENCE:
                raise
            if error.err_code in STREAM_FULL:
                # Case logs refuse when they are full; nobody's decision is thrown away for that.
                metrics.ERRORS.labels(link.service, "stream full").inc()
                raise Temporary(f"{subject}: its stream is full", delay_s=_FULL_AGAIN_S) from error
            raise Permanent(f"{subject}: {error.description}") from error
        else:
            metrics.published(link.service, domain).inc()
            return ack


async def _check_same(link: Link, stream: str, sequence: int, event: AnyEvent, body: bytes) -> None:
    stored = await message(link, stream, {"seq": sequence})
    if stored is not None and not same_fact(stored.body, body):
        raise Permanent(
            f"{event.type} of {event.subject} has the id of another fact ({stream} {sequence}): "
            "its discriminator does not tell them apart",
            field="id",
        )


def _headers(id_: str) -> dict[str, str]:
    return {"Nats-Msg-Id": id_, "Content-Type": CONTENT_TYPE}
