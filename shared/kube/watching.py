"""List, watch, and list again: a stream of changes that never ends and never lies.

The server may close a watch at any time, forget the resourceVersion we stand at (410) or restart. A watch
that ends well goes on from the last resourceVersion seen (bookmarks keep it young); after 410 everything is
listed again and what changed meanwhile, deletions included, is told as changes. Now and then it is listed
again unasked, so that a change which something on the way swallowed is not missing for ever. Waits after
failures grow with jitter, so that a thousand clients do not come back at once.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

import orjson

from shared.errors import Temporary
from shared.kube.models import Change, ChangeKind
from shared.kube.transport import Expired, Transport, raise_for

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Mapping
    from random import Random

T = TypeVar("T")

_PAGE: Final = 500
"""Objects per list request: the API server's usual chunk."""
_WATCH_S: Final = 60
"""How long one watch request lasts. client-go takes 5 to 10 minutes; a minute finds a hanging server sooner,
and five services that ask once a minute are no load."""
_RESYNC_S: Final = 1800.0
"""Listed again after half of this to all of it; a list costs the server as much as minutes of changes."""
_SHORT_S: Final = 1.0
"""A watch that ends sooner and told nothing has failed: a broken proxy must not be asked in a loop."""
_SILENCE_S: Final = _WATCH_S + 15.0
"""A watch that outlives its own timeout by this much is dead (a half-open connection)."""
_BACKOFF_FIRST_S: Final = 0.1
_BACKOFF_LAST_S: Final = 15.0
_GONE: Final = 410


@dataclass(slots=True)
class Watching(Generic[T]):
    """One watched collection."""

    transport: Transport
    path: str
    query: Mapping[str, str]
    decode: Callable[[Mapping[str, Any]], T]
    random: Random
    _known: dict[str, tuple[str, T]] = field(default_factory=dict)
    _version: str = ""

    async def changes(self) -> AsyncGenerator[Change[T], None]:
        """Everything that stands, SYNCED, then every change; survives whatever `Temporary` stands for.

        Raises:
            Permanent: the server refuses the watch (no right, no such resource).
        """
        failures, loop = 0, asyncio.get_running_loop()
        resync_s = loop.time()
        while True:
            try:
                if not self._version or loop.time() >= resync_s:
                    async for change in self._list():
                        yield change
                    failures = 0
                    resync_s = loop.time() + _RESYNC_S * self.random.uniform(0.5, 1.0)
                opened_s, told = loop.time(), False
                async for change in self._watch():
                    failures, told = 0, True
                    yield change
                if not told and loop.time() - opened_s < _SHORT_S:
                    raise Temporary(f"watch {self.path}: closed as soon as it was open", delay_s=0.0)  # noqa: TRY301
            except Expired:
                self._version = ""
            except Temporary as error:
                failures += 1
                await asyncio.sleep(self._backoff_s(failures, error.delay_s if failures > 1 else 0.0))

    def _backoff_s(self, failures: int, asked_s: float) -> float:
        ceiling_s = min(_BACKOFF_LAST_S, _BACKOFF_FIRST_S * 2.0 ** min(failures, 16))
        return max(asked_s, ceiling_s * self.random.uniform(0.5, 1.0))

    async def _list(self) -> AsyncGenerator[Change[T], None]:
        found: dict[str, tuple[str, T]] = {}
        version, token = "", ""
        while True:
            query = {**self.query, "limit": str(_PAGE)} | ({"continue": token} if token else {})
            answer = await self.transport.request("GET", self.path, query=query)
            raise_for(answer, f"list {self.path}")
            meta = answer.body.get("metadata") or {}
            version = version or str(meta.get("resourceVersion", ""))
            for body in answer.body.get("items") or ():
                key, at = _key(body), _version(body)
                known = self._known.get(key)
                # What has not changed stays the same object: a second list costs no second cache.
                found[key] = known if known and known[0] == at else (at, self.decode(body))
            token = meta.get("continue") or ""
            if not token:
                break
        before, self._known, self._version = self._known, found, version
        for key, (_, item) in before.items():
            if key not in found:
                yield Change(ChangeKind.DELETED, item)
        for key, (at, item) in found.items():
            if key not in before:
                yield Change(ChangeKind.ADDED, item)
            elif before[key][0] != at:
                yield Change(ChangeKind.MODIFIED, item)
        yield Change(ChangeKind.SYNCED, None)

    async def _watch(self) -> AsyncGenerator[Change[T], None]:
        query = {
            **self.query,
            "watch": "true",
            "allowWatchBookmarks": "true",
            "resourceVersion": self._version,
            "timeoutSeconds": str(_WATCH_S),
        }
        async for line in self.transport.lines(self.path, query, silence_s=_SILENCE_S):
            try:
                event = orjson.loads(line)
                kind, body = event["type"], event["object"]
            except (ValueError, KeyError, TypeError) as error:
                raise Temporary(f"watch {self.path}: malformed line {line[:200]!r}") from error
            if kind == "ERROR":
                if body.get("code") == _GONE:
                    raise Expired(f"watch {self.path}: {body.get('message')}", delay_s=0.0)
                raise Temporary(f"watch {self.path}: {body.get('code')} {body.get('message')}")
            self._version = _version(body) or self._version
            if kind == "BOOKMARK":
                continue
            yield self._told(kind, body)

    def _told(self, kind: str, body: Mapping[str, Any]) -> Change[T]:
        key, item = _key(body), self.decode(body)
        if kind == "DELETED":
            self._known.pop(key, None)
            return Change(ChangeKind.DELETED, item)
        new = key not in self._known
        self._known[key] = (_version(body), item)
        return Change(ChangeKind.ADDED if new else ChangeKind.MODIFIED, item)


def _key(body: Mapping[str, Any]) -> str:
    """By uid: an object that was replaced between two lists is one deleted and one added."""
    meta = body.get("metadata") or {}
    return str(meta.get("uid") or f"{meta.get('namespace', '')}/{meta.get('name', '')}")


def _version(body: Mapping[str, Any]) -> str:
    return str((body.get("metadata") or {}).get("resourceVersion", ""))
