"""Leases of the in-memory server: one holder, counted on the clock from before each renewal was sent."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from shared.bus.memory.server import Link, MemoryServer, Seat


class MemoryLease:
    """A lease that is held, until it is not."""

    def __init__(self, server: MemoryServer, link: Link, name: str, seat: Seat, *, expired: bool) -> None:
        """Args: expired: the holder before let it run out instead of giving it back."""
        self.name = name
        self.number = seat.number
        self.expired = expired
        self._server = server
        self._link = link
        self._seat = seat
        self._until_s = seat.until_s
        self._lost = asyncio.Event()

    def remaining_s(self) -> float:
        """Seconds left; 0 once it is lost."""
        if self._lost.is_set():
            return 0.0
        return max(0.0, self._until_s - self._server.clock.monotonic())

    async def lost(self) -> None:
        """Return when it is no longer ours."""
        await self._lost.wait()

    async def keep(self) -> None:
        """Renew it every third of its time, until it is lost."""
        ttl_s = self._server.lease_ttl_s
        while True:
            left_s = self._until_s - self._server.clock.monotonic()
            if left_s <= 0 or not self._ours:
                self._lost.set()
                return
            changed = self._server.seat_freed
            try:
                async with asyncio.timeout(min(ttl_s / 3, left_s)):
                    await changed.wait()
            except TimeoutError:
                pass
            sent_s = self._server.clock.monotonic()
            if self._link.up.is_set() and self._ours and sent_s < self._until_s:
                self._seat.until_s = self._until_s = sent_s + ttl_s

    def release(self) -> None:
        """Give it back, where the server can be reached."""
        if self._link.up.is_set() and self._ours and not self._lost.is_set():
            self._seat.holder, self._seat.released = None, True
            self._server.seat_changed()

    @property
    def _ours(self) -> bool:
        return self._seat.holder is self


@asynccontextmanager
async def hold(server: MemoryServer, link: Link, name: str) -> AsyncIterator[MemoryLease]:
    """Wait for a lease, hold it, give it back."""
    lease = await _take(server, link, name)
    keeper = asyncio.create_task(lease.keep(), name=f"lease-{name}-{lease.number}")
    try:
        yield lease
    finally:
        keeper.cancel()
        await asyncio.gather(keeper, return_exceptions=True)
        lease.release()


async def _take(server: MemoryServer, link: Link, name: str) -> MemoryLease:
    seat = server.seats.setdefault(name, Seat())
    while True:
        await link.up.wait()
        now_s = server.clock.monotonic()
        if seat.holder is None or seat.until_s <= now_s:
            expired = not seat.released
            seat.number += 1
            seat.until_s = now_s + server.lease_ttl_s
            seat.released = False
            lease = MemoryLease(server, link, name, seat, expired=expired)
            seat.holder = lease
            server.seat_changed()
            return lease
        changed = server.seat_freed
        try:
            async with asyncio.timeout(seat.until_s - now_s):
                await changed.wait()
        except TimeoutError:
            continue
