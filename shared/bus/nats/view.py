"""A view: values with the origin they were made from, in a bucket of that name.

The stored JSON is `{"origin": {"created", "sequence"} | null, "value": ... | null}`; a null value is a
tombstone. Its one writer remembers the revisions it wrote, so a put is usually one round trip; what another
wrote in between is found by the compare-and-set, read, and judged by its origin. The watch is an ordered
consumer of our own: it is made anew after a reconnect from the last revision seen.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from datetime import datetime
from typing import Generic, TypeVar

from pydantic import AwareDatetime, BaseModel, ConfigDict, ValidationError

from shared.bus.nats.bucket import Bucket
from shared.bus.nats.consumers import Ordered
from shared.bus.nats.frames import Frame
from shared.bus.nats.link import Link
from shared.bus.nats.pull import Pull
from shared.bus.nats.reading import state, stored
from shared.bus.port import Entry, Origin
from shared.errors import Conflict
from shared.events import escape, unescape
from shared.events.envelope import bad_field

ValueT = TypeVar("ValueT", bound=BaseModel)


class _Origin(BaseModel):
    model_config = ConfigDict(frozen=True)

    created: AwareDatetime
    sequence: int


class _Stored(BaseModel, Generic[ValueT]):
    model_config = ConfigDict(frozen=True)

    origin: _Origin | None = None
    value: ValueT | None = None


class NatsView(Generic[ValueT]):
    """The port's `View`."""

    def __init__(self, link: Link, name: str, value: type[ValueT]) -> None:
        self._link = link
        self._bucket = Bucket(link, name)
        self._model = _Stored[value]  # type: ignore[valid-type] # the model of this view's values
        self._written: dict[str, tuple[int, Origin | None]] = {}

    async def get(self, key: str) -> Entry[ValueT] | None:
        """The value of a key; None when it never had one."""
        found = await self._bucket.get(escape(key))
        return None if found is None else self._entry(key, found.body, found.revision)

    async def put(
        self, key: str, value: ValueT | None, *, origin: Origin | None = None, expected: int | None = None
    ) -> int | None:
        """Write a value; see `View.put`."""
        token = escape(key)
        kept = _Origin(created=origin.created, sequence=origin.sequence) if origin else None
        body = self._model(origin=kept, value=value).model_dump_json(by_alias=True).encode()
        if expected is not None or origin is None:
            return await self._put_expected(key, body, origin, expected)
        known = self._written.get(key)
        while True:
            if known is None:
                entry = await self.get(key)
                known = (entry.revision, entry.origin) if entry else (0, None)
            if newer(known[1], origin):
                self._written[key] = known
                return None
            try:
                revision = await self._bucket.put(token, body, expected=known[0])
            except Conflict:
                known = None
                self._written.pop(key, None)
            else:
                self._written[key] = revision, origin
                return revision

    async def _put_expected(
        self, key: str, body: bytes, origin: Origin | None, expected: int | None
    ) -> int | None:
        if origin is not None:
            stands = await self.get(key)
            if stands is not None and newer(stands.origin, origin):
                return None
        token = escape(key)
        try:
            revision = await self._bucket.put(token, body, expected=expected)
        except Conflict:
            # A put whose answer got lost, said again, conflicts with itself.
            found = await self._bucket.get(token)
            if found is None or found.body != body:
                raise
            revision = found.revision
        self._written[key] = revision, origin
        return revision

    async def all(self) -> Mapping[str, Entry[ValueT]]:
        """Every key that has a value now."""
        _, last = await state(self._link, self._bucket.stream)
        entries: dict[str, Entry[ValueT]] = {}
        prefix = len(self._bucket.subject(""))
        subject = self._bucket.subject("*")
        async for found in stored(self._link, self._bucket.stream, subject, after=0, up_to=last):
            key = unescape(found.subject[prefix:])
            entries[key] = self._entry(key, found.body, found.sequence)
        return {key: entry for key, entry in entries.items() if entry.value is not None}

    async def watch(self) -> AsyncIterator[Entry[ValueT] | None]:
        """Every key's last entry, then None once, then every change."""
        queue: asyncio.Queue[Entry[ValueT] | None] = asyncio.Queue()
        told = False
        prefix = len(self._bucket.subject(""))

        def current() -> None:
            nonlocal told
            if not told:
                told = True
                queue.put_nowait(None)

        def take(message: Frame, sequence: int, _stored_at: datetime) -> None:
            key = unescape(message.subject[prefix:])
            queue.put_nowait(self._entry(key, message.data, sequence))

        subject = self._bucket.subject("*")
        source = Ordered(self._link, self._bucket.stream, subject, take=take, current=current)
        pull = Pull(self._link, source)
        running = asyncio.create_task(pull.run(), name=f"watch-{self._bucket.name}")
        try:
            while True:
                waiting = asyncio.ensure_future(queue.get())
                await asyncio.wait({waiting, running}, return_when=asyncio.FIRST_COMPLETED)
                if not waiting.done():
                    waiting.cancel()
                    running.result()
                yield waiting.result()
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)

    def _entry(self, key: str, body: bytes, revision: int) -> Entry[ValueT]:
        try:
            kept = self._model.model_validate_json(body)
        except ValidationError as error:
            raise bad_field(error, f"rebuild the view {self._bucket.name}") from error
        origin = Origin(kept.origin.created, kept.origin.sequence) if kept.origin else None
        return Entry(key, kept.value, revision, origin)


def newer(stands: Origin | None, said: Origin) -> bool:
    """Whether what stands was made from something newer; a rebuilt stream is newer whatever it counts."""
    return stands is not None and (stands.created, stands.sequence) > (said.created, said.sequence)
