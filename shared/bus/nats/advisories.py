"""The server's own dead letters: advisories that a consumer gave up on a message, made into ours.

An advisory says stream, consumer and sequence, but carries no body, and its stream may forget the message:
so the body is copied as soon as the advisory is seen. Its dead letter has the id that the consumer's own
would have, so the two are stored once. Advisories about readers of the dead-letter stream are not captured
at all: a failing reader would feed itself.
"""

from __future__ import annotations

import asyncio
from datetime import datetime
from typing import Any

import orjson
import structlog

from shared.bus import metrics
from shared.bus.deadletters import Refusal, dead_letter
from shared.bus.nats.bucket import Bucket
from shared.bus.nats.consumers import Ordered, family_of
from shared.bus.nats.frames import Frame
from shared.bus.nats.link import ApiError, Link
from shared.bus.nats.publishing import message, publish
from shared.bus.nats.pull import Pull
from shared.bus.nats.starts import BUCKET
from shared.bus.nats.streams import ADVISORIES, DEAD_LETTERS
from shared.bus.port import Disconnected
from shared.clock import Clock
from shared.errors import Permanent

_POSITION = "advisories"
"""Where the copier stands, in the bucket of counts: it goes on there after a restart."""
_AGAIN_S = 1.0

_log = structlog.get_logger(__name__)


async def copy_bodies(link: Link, clock: Clock) -> None:
    """Copy the body of each advisory's message into a dead letter, until cancelled."""
    queue: asyncio.Queue[tuple[int, bytes]] = asyncio.Queue()

    def take(found: Frame, sequence: int, _stored_at: datetime) -> None:
        queue.put_nowait((sequence, found.data))

    bucket = Bucket(link, BUCKET)
    stands = await bucket.get(_POSITION)
    after = int(stands.body) if stands else 0
    source = Ordered(link, DEAD_LETTERS, f"{ADVISORIES}.>", take=take, current=_nothing, after=after)
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(Pull(link, source).run(), name="advisories")
        while True:
            sequence, advisory = await queue.get()
            while True:
                try:
                    await _copy(link, clock, advisory)
                    await bucket.put(_POSITION, str(sequence).encode())
                    break
                except Disconnected:
                    await asyncio.sleep(_AGAIN_S)


async def _copy(link: Link, clock: Clock, advisory: bytes) -> None:
    try:
        said: dict[str, Any] = orjson.loads(advisory)
        stream, sequence = str(said["stream"]), int(said["stream_seq"])
        consumer, attempts = family_of(str(said["consumer"])), int(said.get("deliveries", 1))
    except (orjson.JSONDecodeError, KeyError, ValueError) as error:
        _log.error("advisory_unreadable", error=str(error), body=advisory[:500].decode(errors="replace"))
        return
    try:
        found = await message(link, stream, {"seq": sequence})
    except ApiError:
        found = None
    reason = said.get("reason") or f"the server gave up after {attempts} deliveries"
    refusal = Refusal(
        consumer,
        stream,
        sequence,
        found.subject if found else "",
        found.body if found else b"",
        reason if found else f"{reason}; the stream has forgotten it",
        attempts=max(1, attempts),
    )
    service = consumer.partition("_")[0]
    try:
        await publish(link, dead_letter(refusal, service=service, source=link.source, at=clock.now()))
    except Permanent as error:
        # The consumer's own letter about it, with another reason, is there already: it is said once.
        _log.warning("advisory_not_copied", consumer=consumer, sequence=sequence, reason=error.reason)
        return
    metrics.DEAD_LETTERS.labels(service, stream.removeprefix("FLEET_").lower()).inc()


def _nothing() -> None:
    return
