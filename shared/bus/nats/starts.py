"""How often a message was started by holders whose lease expired, counted in KV.

Only what an expired holder may have started is counted, so the usual message costs nothing and a rollout,
which releases its lease, counts for nothing. The bucket forgets by itself what nobody asks for again.
"""

from __future__ import annotations

from datetime import datetime

from shared.bus.nats.bucket import Bucket
from shared.bus.nats.link import Link

BUCKET = "attempts"


class NatsStarts:
    """The counts of one consumer family on one incarnation of its stream."""

    def __init__(self, link: Link, family: str, created: datetime) -> None:
        self._bucket = Bucket(link, BUCKET)
        self._prefix = f"{family}.{int(created.timestamp())}"

    async def counted(self, sequence: int) -> int:
        """Starts counted so far."""
        found = await self._bucket.get(f"{self._prefix}.{sequence}")
        return int(found.body) if found else 0

    async def count(self, sequence: int) -> None:
        """Count one more."""
        so_far = await self.counted(sequence)
        await self._bucket.put(f"{self._prefix}.{sequence}", str(so_far + 1).encode())

    async def forget(self, sequence: int) -> None:
        """It was handled."""
        await self._bucket.forget(f"{self._prefix}.{sequence}")
