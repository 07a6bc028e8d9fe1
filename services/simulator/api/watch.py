"""Watches: from a revision through the resource's ring, with selectors, bookmarks, a time limit and 410."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from services.simulator.api.status import expired

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from services.simulator.api.resources import Resource
    from services.simulator.api.store import Change, Store

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Selection:
    """Which objects a list or watch shows."""

    namespace: str
    test: Callable[[Json], bool]

    def shows(self, body: Json | None) -> bool:
        """Whether this object is shown; None is not."""
        if body is None or (self.namespace and body["metadata"].get("namespace") != self.namespace):
            return False
        return self.test(body)

    def seen(self, change: Change) -> str | None:
        """What this selection sees of a change: what starts to match is ADDED, what stops is DELETED."""
        was, now = self.shows(change.before), change.kind != "DELETED" and self.shows(change.body)
        if now:
            return "MODIFIED" if was else "ADDED"
        return "DELETED" if was else None


@dataclass(frozen=True, slots=True)
class WatchRequest:
    """One watch.

    Attributes:
        revision: start after this one; None starts with everything that stands.
        timeout_s: end after this; None is never.
        bookmark_s: a bookmark after this much silence; None sends none.
        initial_end: mark the end of what stood at the start with a bookmark (streaming lists).
    """

    resource: Resource
    selection: Selection
    revision: int | None
    timeout_s: float | None
    bookmark_s: float | None
    initial_end: bool = False


async def follow(store: Store, request: WatchRequest) -> AsyncIterator[tuple[str, Json]]:
    """Type and object of every event of a watch, until its time is over.

    Raises:
        ApiError: 410 when the history does not reach back, or the reader fell behind it.
    """
    ring, selection = store.ring(request.resource), request.selection
    revision = request.revision
    if revision is None:
        position = ring.end
        revision = store.revision
        standing = [
            body for body in store.each(request.resource, selection.namespace) if selection.shows(body)
        ]
        for body in standing:
            yield "ADDED", body
        if request.initial_end:
            yield "BOOKMARK", bookmark(request.resource, revision, initial_end=True)
    else:
        store.check_watch(request.resource, revision)
        position = ring.position_after(revision)
    loop = asyncio.get_running_loop()
    end_s = None if request.timeout_s is None else loop.time() + request.timeout_s
    woken = asyncio.Event()
    ring.waiters.add(woken)
    try:
        while True:
            woken.clear()
            while position < ring.end:
                if position < ring.dropped:
                    raise expired(f"too old resource version: {revision} ({ring.floor})")
                change = ring.changes[position - ring.dropped]
                position += 1
                revision = change.revision
                kind = selection.seen(change)
                if kind is not None:
                    yield kind, change.body
            left_s = None if end_s is None else end_s - loop.time()
            if left_s is not None and left_s <= 0:
                break
            wait_s = min((limit for limit in (left_s, request.bookmark_s) if limit is not None), default=None)
            try:
                async with asyncio.timeout(wait_s):
                    await woken.wait()
            except TimeoutError:
                if request.bookmark_s is not None and position == ring.end:
                    yield "BOOKMARK", bookmark(request.resource, store.revision)
    finally:
        ring.waiters.discard(woken)


def bookmark(resource: Resource, revision: int, *, initial_end: bool = False) -> Json:
    """An object that says only how far the watch has come."""
    meta: Json = {"resourceVersion": str(revision), "creationTimestamp": None}
    if initial_end:
        meta["annotations"] = {"k8s.io/initial-events-end": "true"}
    return {"apiVersion": resource.api_version, "kind": resource.kind, "metadata": meta}
