"""One task that watches every case's deadline."""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable
from datetime import datetime

from shared.clock import Clock
from shared.events import Entity

_LONGEST_WAIT_S = 3600.0
"""The heap is looked at this often even when nothing is due: a clock that is set back costs at most this."""


class Timers:
    """Deadlines by case; each calls `fire` once, unless it was moved before."""

    def __init__(self, clock: Clock, fire: Callable[[Entity], None]) -> None:
        self._clock = clock
        self._fire = fire
        self._at: dict[Entity, datetime] = {}
        self._heap: list[tuple[datetime, int, Entity]] = []
        self._count = 0
        self._sooner = asyncio.Event()

    def arm(self, of: Entity, at: datetime | None) -> None:
        """Set, move or (None) remove the deadline of a case."""
        if at is None:
            self._at.pop(of, None)
            return
        if self._at.get(of) == at:
            return
        self._at[of] = at
        self._count += 1
        heapq.heappush(self._heap, (at, self._count, of))
        if self._heap[0][2] is of:
            self._sooner.set()

    def __len__(self) -> int:
        return len(self._at)

    async def run(self) -> None:
        """Fire what is due, for ever."""
        while True:
            self._sooner.clear()
            wait_s = self._due()
            try:
                async with asyncio.timeout(wait_s):
                    await self._sooner.wait()
            except TimeoutError:
                continue

    def _due(self) -> float:
        while self._heap:
            at, _, of = self._heap[0]
            if self._at.get(of) != at:
                heapq.heappop(self._heap)
                continue
            wait_s = (at - self._clock.now()).total_seconds()
            if wait_s > 0:
                return min(wait_s, _LONGEST_WAIT_S)
            heapq.heappop(self._heap)
            del self._at[of]
            self._fire(of)
        return _LONGEST_WAIT_S
