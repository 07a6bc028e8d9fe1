"""What was asked of the API server, in order: the witness that demo and tests believe, not our own events."""

from __future__ import annotations

from collections import deque
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from shared.clock import Clock

BODY_LIMIT: Final = 2_048
"""Characters of a request's body that are kept."""


@dataclass(frozen=True, slots=True)
class Access:
    """One request.

    ``verb`` is the Kubernetes verb (get, list, watch, create, update, patch, delete, deletecollection).
    ``at`` is the wall time of its arrival and ``monotonic_s`` the event loop's (CLOCK_MONOTONIC on a real
    loop). A watch is logged when it opens, everything else when it is answered; ``seconds`` is how long the
    answer took.
    """

    number: int
    at: str
    monotonic_s: float
    verb: str
    method: str
    path: str
    query: str
    status: int
    user_agent: str
    seconds: float
    body: str = ""

    def to_json(self) -> dict[str, Any]:
        """As JSON."""
        return asdict(self)


class AccessLog:
    """The last requests, bounded; numbers go on growing."""

    def __init__(self, clock: Clock, *, capacity: int = 20_000) -> None:
        self._clock = clock
        self._kept: deque[Access] = deque(maxlen=capacity)
        self.count = 0

    def add(
        self,
        *,
        verb: str,
        method: str,
        path: str,
        query: str,
        status: int,
        user_agent: str,
        arrived_s: float,
        arrived_at: str,
        body: str,
    ) -> None:
        """Log a request that arrived at ``arrived_s`` and is answered now."""
        self.count += 1
        self._kept.append(
            Access(
                number=self.count,
                at=arrived_at,
                monotonic_s=arrived_s,
                verb=verb,
                method=method,
                path=path,
                query=query,
                status=status,
                user_agent=user_agent,
                seconds=round(self._clock.monotonic() - arrived_s, 6),
                body=body[:BODY_LIMIT],
            )
        )

    def since(self, number: int = 0) -> list[Access]:
        """Requests after this number, oldest first."""
        return [access for access in self._kept if access.number > number]

    def find(self, verb: str, path_part: str) -> list[Access]:
        """Requests with this verb whose path contains ``path_part``."""
        return [access for access in self._kept if access.verb == verb and path_part in access.path]
