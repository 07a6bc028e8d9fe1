"""A lease in KV: the right to be the one active replica, while it lasts.

The key holds who has it and expires by itself after its TTL; each renewal is a compare-and-set on the one
before, so a holder that was replaced cannot renew. Its time runs on our monotonic clock from *before* the
renewal was sent, so we never believe in it longer than the server does. Its number is the revision of its
first write: it grows with every holder. A released lease leaves a mark with its number; an expired one
leaves nothing, which is how the next holder knows that what was started may have killed its process.
"""

from __future__ import annotations

import asyncio
import random
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import orjson
import structlog

from shared.bus.nats.bucket import Bucket, Value
from shared.bus.nats.link import Link
from shared.bus.port import Disconnected
from shared.errors import Conflict
from shared.events import escape

BUCKET = "leases"
TTL_S = 5
"""How long a lease outlives its last renewal; whole seconds, as the server counts them."""
_RENEWALS = 3
"""In one TTL."""
_POLLS = 10
"""Looks of a standby in one TTL."""
_AGAIN_S = 0.2
_RELEASE_WITHIN_S = 0.5

_log = structlog.get_logger(__name__)


class NatsLease:
    """A lease that is ours now; the port's `Lease`."""

    def __init__(self, name: str, revision: int, sent_s: float, *, ttl_s: int, released: int | None) -> None:
        """Take it over.

        Args:
            name: what it is a lease of.
            revision: of the write that won it; its number.
            sent_s: loop time from before that write was sent.
            ttl_s: how long it outlives a renewal.
            released: number of the holder before us if it released; None when its lease expired.
        """
        self.name = name
        self.number = revision
        self.ttl_s = ttl_s
        self.released_before = released
        self._loop = asyncio.get_running_loop()
        self._lost: asyncio.Future[None] = self._loop.create_future()
        self._until_s = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self.revision = revision
        self.renewed(revision, sent_s)

    def remaining_s(self) -> float:
        """Seconds left; 0 once lost."""
        return 0.0 if self._lost.done() else max(0.0, self._until_s - self._loop.time())

    async def lost(self) -> None:
        """Return when it is no longer ours."""
        await asyncio.shield(self._lost)

    def renewed(self, revision: int, sent_s: float) -> None:
        """It lasts until its TTL after the renewal was sent."""
        self.revision = revision
        self._until_s = sent_s + self.ttl_s
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_at(self._until_s, self.lose)

    def lose(self) -> None:
        """It is no longer ours."""
        if self._timer is not None:
            self._timer.cancel()
        if not self._lost.done():
            self._lost.set_result(None)
            _log.info("lease_over", lease=self.name, number=self.number)


@asynccontextmanager
async def hold(link: Link, name: str, *, ttl_s: int = TTL_S) -> AsyncIterator[NatsLease]:
    """Wait for a lease, renew it while inside, release it at the end."""
    bucket = Bucket(link, BUCKET)
    key = escape(name)
    holder = f"{link.instance}/{uuid.uuid4().hex}"
    lease = await _acquire(link, bucket, name, holder, ttl_s=ttl_s)
    _log.info("lease_held", lease=name, number=lease.number, taken_over=lease.released_before is None)
    renewing = asyncio.create_task(_renew(bucket, key, lease, holder), name=f"lease-{name}")
    try:
        yield lease
    finally:
        renewing.cancel()
        await asyncio.gather(renewing, return_exceptions=True)
        if lease.remaining_s() > 0:
            await _release(bucket, key, lease)
        lease.lose()


async def _acquire(link: Link, bucket: Bucket, name: str, holder: str, *, ttl_s: int) -> NatsLease:
    loop = asyncio.get_running_loop()
    key = escape(name)
    body = orjson.dumps({"holder": holder})
    while True:
        try:
            await link.until_connected()
            stands = await bucket.get(key)
            free, released = _free(stands, holder)
            if free:
                sent_s = loop.time()
                revision = await bucket.put(key, body, expected=stands.revision if stands else 0, ttl_s=ttl_s)
                return NatsLease(name, revision, sent_s, ttl_s=ttl_s, released=released)
        except (Conflict, Disconnected):
            # Another standby was first, or the answer got lost: the next look tells.
            pass
        await asyncio.sleep(ttl_s / _POLLS * random.uniform(0.8, 1.2))  # noqa: S311 - jitter, no secret


def _free(stands: Value | None, holder: str) -> tuple[bool, int | None]:
    """Whether the lease can be taken, and the number of the holder that released it."""
    if stands is None:
        return True, None
    value = orjson.loads(stands.body)
    released = value.get("released")
    # Our own write whose answer got lost counts as free: its time is not known, so it is written again.
    return released is not None or value.get("holder") == holder, released


async def _renew(bucket: Bucket, key: str, lease: NatsLease, holder: str) -> None:
    loop = asyncio.get_running_loop()
    body = orjson.dumps({"holder": holder, "number": lease.number})
    wait_s = every_s = lease.ttl_s / _RENEWALS
    while lease.remaining_s() > 0:
        await asyncio.sleep(min(wait_s, lease.remaining_s()))
        sent_s = loop.time()
        try:
            revision = await bucket.put(key, body, expected=lease.revision, ttl_s=lease.ttl_s)
        except Disconnected:
            wait_s = _AGAIN_S
        except Conflict:
            if not await _ours(bucket, key, lease, holder):
                lease.lose()
        else:
            lease.renewed(revision, sent_s)
            wait_s = every_s


async def _ours(bucket: Bucket, key: str, lease: NatsLease, holder: str) -> bool:
    """Whether the conflict was with an own renewal whose answer got lost; then go on from its revision."""
    try:
        stands = await bucket.get(key)
    except Disconnected:
        return True
    if stands is None or orjson.loads(stands.body).get("holder") != holder:
        return False
    lease.revision = stands.revision
    return True


async def _release(bucket: Bucket, key: str, lease: NatsLease) -> None:
    try:
        async with asyncio.timeout(_RELEASE_WITHIN_S):
            await bucket.put(key, orjson.dumps({"released": lease.number}), expected=lease.revision)
    except (Conflict, Disconnected, TimeoutError):
        _log.warning("lease_not_released", lease=lease.name, number=lease.number)
