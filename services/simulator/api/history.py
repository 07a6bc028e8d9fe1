"""What has changed: the writes of a resource, the last of them, in order of revision."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import asyncio

    from services.simulator.api.resources import Resource

Json = dict[str, Any]
Key = tuple[str, str]
"""Namespace (empty for cluster-scoped resources) and name."""


@dataclass(frozen=True, slots=True)
class Change:
    """One write: ADDED, MODIFIED or DELETED, the object after it and before it."""

    revision: int
    kind: str
    resource: Resource
    body: Json
    before: Json | None

    @property
    def key(self) -> Key:
        """Namespace and name."""
        return key_of(self.body)


@dataclass(slots=True)
class Ring:
    """The last changes of one resource."""

    capacity: int
    changes: list[Change] = field(default_factory=list)
    dropped: int = 0
    """How many changes left the ring before ``changes[0]``."""
    floor: int = 0
    """The revision of the last change that left: a watch from an older one cannot be served."""
    waiters: set[asyncio.Event] = field(default_factory=set)

    def append(self, change: Change) -> None:
        """Add a change and wake everybody who waits."""
        self.changes.append(change)
        if len(self.changes) > 2 * self.capacity:
            self.forget(len(self.changes) - self.capacity)
        for waiter in self.waiters:
            waiter.set()

    def forget(self, count: int) -> None:
        """Drop the oldest changes."""
        if count:
            self.floor = self.changes[count - 1].revision
            self.dropped += count
            del self.changes[:count]

    def position_after(self, revision: int) -> int:
        """The absolute index of the first change newer than ``revision``."""
        low, high = 0, len(self.changes)
        while low < high:
            middle = (low + high) // 2
            if self.changes[middle].revision <= revision:
                low = middle + 1
            else:
                high = middle
        return self.dropped + low

    @property
    def end(self) -> int:
        """The absolute index after the last change."""
        return self.dropped + len(self.changes)


def key_of(body: Json) -> Key:
    """Namespace and name of an object."""
    meta = body["metadata"]
    return meta.get("namespace", ""), meta["name"]
