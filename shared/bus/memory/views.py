"""Views of the in-memory server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Generic

from shared.bus.memory.server import Bucket, Cell, Link
from shared.bus.port import Entry, Origin, ValueT


class MemoryView(Generic[ValueT]):
    """The port's `View` over a bucket."""

    def __init__(
        self, bucket: Bucket, model: type[ValueT], link: Link, settle: Callable[[], Awaitable[None]]
    ) -> None:
        """Args: settle: waits for the link and the time that a call takes; raises `Disconnected`."""
        self._bucket = bucket
        self._model = model
        self._link = link
        self._settle = settle

    async def get(self, key: str) -> Entry[ValueT] | None:
        """The value of a key; None when it never had one."""
        await self._settle()
        cell = self._bucket.cells.get(key)
        return None if cell is None else self._entry(cell)

    async def put(
        self, key: str, value: ValueT | None, *, origin: Origin | None = None, expected: int | None = None
    ) -> int | None:
        """Write a value (None: a tombstone); returns its revision, or None when a newer one stands."""
        await self._settle()
        body = None if value is None else value.model_dump_json(by_alias=True).encode()
        return self._bucket.put(key, body, origin, expected)

    async def all(self) -> Mapping[str, Entry[ValueT]]:
        """Every key that has a value now."""
        await self._settle()
        return {key: self._entry(cell) for key, cell in self._bucket.cells.items() if cell.value is not None}

    async def watch(self) -> AsyncIterator[Entry[ValueT] | None]:
        """Every key's last entry, then None once, then every change, also what a broken link hid."""
        changes: asyncio.Queue[Cell | None] = asyncio.Queue()
        seen = 0
        first = True

        def wake() -> None:
            changes.put_nowait(None)

        try:
            self._bucket.watchers.add(changes)
            self._link.listeners.add(wake)
            while True:
                await self._link.up.wait()
                broken = self._link.broken
                for cell in sorted(self._bucket.cells.values(), key=lambda cell: cell.revision):
                    if cell.revision > seen:
                        seen = cell.revision
                        yield self._entry(cell)
                if first:
                    first = False
                    yield None
                while not broken.is_set():
                    change = await changes.get()
                    if change is not None and change.revision > seen and not broken.is_set():
                        seen = change.revision
                        yield self._entry(change)
        finally:
            self._bucket.watchers.discard(changes)
            self._link.listeners.discard(wake)

    def _entry(self, cell: Cell) -> Entry[ValueT]:
        value = None if cell.value is None else self._model.model_validate_json(cell.value)
        return Entry(cell.key, value, cell.revision, cell.origin)
