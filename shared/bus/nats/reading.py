"""Reading what a stream keeps, in order, without a consumer.

A batched direct get answers hundreds of messages to one request and leaves nothing behind on the server. It
may be served by a replica that is behind; whoever lost an append to a `Conflict` asks the leader for the
rest.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import orjson

from shared.bus.nats.frames import Frame
from shared.bus.nats.link import Link
from shared.errors import FleetError

BATCH = 500
_ANSWERED_BATCH = "204"
_NOTHING = "404"


@dataclass(frozen=True, slots=True)
class Stored:
    """One message of a stream."""

    subject: str
    sequence: int
    body: bytes
    stored_at: datetime


async def stored(link: Link, stream: str, subject: str, *, after: int, up_to: int) -> AsyncIterator[Stored]:
    """Messages of a subject (wildcards allowed) with a sequence above `after`, up to `up_to`, in order.

    Raises:
        Disconnected: as for every request.
    """
    position = after
    while position < up_to:
        wanted = {"seq": position + 1, "next_by_subj": subject, "batch": BATCH}
        messages, last = await link.request_several(f"$JS.API.DIRECT.GET.{stream}", orjson.dumps(wanted))
        for found in messages:
            message = _parse(found)
            if message.sequence > up_to:
                return
            position = message.sequence
            yield message
        headers = last.headers
        status = headers.get("Status")
        if status == _NOTHING:
            return
        if status != _ANSWERED_BATCH:
            raise FleetError(f"{stream}: {status} {headers.get('Description', '')}")
        if not int(headers.get("Nats-Num-Pending", "0")):
            return


async def state(link: Link, stream: str) -> tuple[datetime, int]:
    """When a stream was made, and its last sequence."""
    info: dict[str, Any] = await link.api(f"STREAM.INFO.{stream}")
    return moment(info["created"]), int(info["state"]["last_seq"])


def moment(text: str) -> datetime:
    """A time as the server writes it (nanoseconds are cut to microseconds)."""
    whole, _, fraction = text.removesuffix("Z").partition(".")
    return datetime.fromisoformat(f"{whole}.{fraction[:6].ljust(6, '0')}+00:00").astimezone(UTC)


def _parse(found: Frame) -> Stored:
    headers = found.headers
    return Stored(
        headers["Nats-Subject"],
        int(headers["Nats-Sequence"]),
        found.data,
        moment(headers["Nats-Time-Stamp"]),
    )
