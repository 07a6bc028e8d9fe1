"""What the kubelet is to be told, and what it has been told.

One board for all resources of the node. Publishing an unchanged list does nothing: every message makes the
kubelet rewrite its whole checkpoint. A fence waits until each open stream has sent a list at least as new
as the one that took the device out.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from services.bridge.decide import Offer, Offered


@dataclass(slots=True)
class Stream:
    """One ListAndWatch stream.

    Attributes:
        sent: revision of the newest list that went out; 0 before the first.
    """

    resource: str
    sent: int = 0


class Board:
    """The lists of every resource, with revisions, and the streams that carry them."""

    def __init__(self) -> None:
        self._lists: dict[str, tuple[Offered, ...]] = {}
        self._revisions: dict[str, int] = {}
        self._revision = 0
        self._streams: list[Stream] = []
        self._changed = asyncio.Event()

    @property
    def resources(self) -> tuple[str, ...]:
        """Every resource that ever had a device."""
        return tuple(sorted(self._lists))

    def list_of(self, resource: str) -> tuple[Offered, ...]:
        """The current list of a resource."""
        return self._lists.get(resource, ())

    def publish(self, offer: Offer) -> bool:
        """Replace the lists; a resource that is missing now has an empty one. True when anything changed."""
        changed = False
        for resource in {*offer, *self._lists}:
            devices = tuple(offer.get(resource, ()))
            if resource not in self._lists or self._lists[resource] != devices:
                self._revision += 1
                self._lists[resource] = devices
                self._revisions[resource] = self._revision
                changed = True
        if changed:
            self._notify()
        return changed

    @contextmanager
    def stream(self, resource: str) -> Iterator[Stream]:
        """A stream is open while inside."""
        opened = Stream(resource)
        self._streams.append(opened)
        self._notify()
        try:
            yield opened
        finally:
            self._streams.remove(opened)
            self._notify()

    def delivered(self, stream: Stream, revision: int) -> None:
        """The stream has sent the list of this revision."""
        stream.sent = revision
        self._notify()

    async def next(self, stream: Stream) -> tuple[int, tuple[Offered, ...]]:
        """The resource's list, once it is newer than what the stream has sent."""
        while (revision := self._revisions.get(stream.resource, 0)) <= stream.sent:
            await self.change()
        return revision, self._lists[stream.resource]

    async def until_told(self) -> None:
        """Return when every open stream has sent the lists as they are at this moment.

        A resource without a stream needs no telling: its kubelet holds all its devices for unhealthy, and
        gets the current list first when it comes back.
        """
        wanted: Mapping[str, int] = dict(self._revisions)
        while any(stream.sent < wanted.get(stream.resource, 0) for stream in self._streams):
            await self.change()

    async def change(self) -> None:
        """Return at the next publication, delivery, or opening or end of a stream."""
        await self._changed.wait()

    def _notify(self) -> None:
        # Who waits now holds the old event; who comes later waits for the next change.
        self._changed.set()
        self._changed = asyncio.Event()
