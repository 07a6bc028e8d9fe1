"""Time as something passed in, so that decisions can be replayed and tests run on virtual time.

`SystemClock` follows the event loop's monotonic clock from one reading of the wall clock, so a loop on
virtual time gives virtual dates too, and a jump of the wall clock never makes a deadline fire early.
"""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Protocol


class Clock(Protocol):
    """What time it is, for deadlines (`monotonic`) and for facts (`now`)."""

    def now(self) -> datetime:
        """The time of day, UTC."""
        ...

    def monotonic(self) -> float:
        """Seconds from an arbitrary origin; never goes back."""
        ...


class SystemClock:
    """The wall clock, advanced by the running loop's monotonic clock and re-read when both drift apart."""

    _RESYNC_S = 60.0
    """How long the loop's clock is followed before the wall clock is read again (NTP slews in between)."""

    def __init__(self, *, start: datetime | None = None) -> None:
        """Args: start: the date at this moment; given, the wall clock is never read (virtual time)."""
        self._virtual = start is not None
        self._origin = start or datetime.now(UTC)
        self._origin_s = self.monotonic()

    def now(self) -> datetime:
        """The time of day, UTC."""
        elapsed_s = self.monotonic() - self._origin_s
        if not self._virtual and elapsed_s > self._RESYNC_S:
            self._origin, self._origin_s, elapsed_s = datetime.now(UTC), self.monotonic(), 0.0
        return self._origin + timedelta(seconds=elapsed_s)

    def monotonic(self) -> float:
        """Seconds of the running event loop."""
        return asyncio.get_running_loop().time()


class ManualClock:
    """A clock that moves only when told; for pure tests."""

    def __init__(self, start: datetime = datetime(2026, 1, 1, tzinfo=UTC)) -> None:
        self._start = start
        self._elapsed_s = 0.0

    def advance(self, seconds: float) -> None:
        """Move forward by ``seconds``."""
        self._elapsed_s += seconds

    def now(self) -> datetime:
        """The time of day, UTC."""
        return self._start + timedelta(seconds=self._elapsed_s)

    def monotonic(self) -> float:
        """Seconds since the start."""
        return self._elapsed_s
