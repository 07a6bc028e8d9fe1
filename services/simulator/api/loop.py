"""The loop that every controller is: keys that may need work, each looked at once, in order.

A controller says which keys a change concerns and what to do for one key. It decides from the store as it
stands, never from the change, so that many changes of one key are one look and a lost one does no harm.
Reconciling is synchronous: no task sees it half done.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, Protocol

import structlog

from services.simulator.api.status import ApiError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from services.simulator.api.store import Change, Key, Store

_RETRY_S: Final = 0.5
"""Wait before a key that was refused is looked at again."""
_BATCH: Final = 50
"""Keys looked at before others may run."""
_REST: Final = 1.0
"""Rest after a batch, as a multiple of the time it took: what changes meanwhile is one look, and a controller
of very many pods never takes the process for itself."""

_log = structlog.get_logger(__name__)


class Controller(Protocol):
    """What a controller does."""

    name: str

    def concerns(self, change: Change) -> Iterable[Key]:
        """The keys that this change may concern."""
        ...

    def standing(self) -> Iterable[Key]:
        """Every key, for the start."""
        ...

    def reconcile(self, key: Key) -> float | None:
        """Bring the key's object nearer to what is asked; seconds after which to look again, or None."""
        ...


class ControlLoop:
    """Runs one controller on one store."""

    def __init__(self, store: Store, controller: Controller) -> None:
        self._controller = controller
        self._due: dict[Key, None] = {}
        self._later: dict[Key, asyncio.TimerHandle] = {}
        self._wake = asyncio.Event()
        self._store = store

    async def run(self) -> None:
        """Until cancelled."""
        forget = self._store.listen(self._heard)
        try:
            for key in self._controller.standing():
                self._mark(key)
            while True:
                await self._wake.wait()
                self._wake.clear()
                await self._look_at_due()
        finally:
            forget()
            for timer in self._later.values():
                timer.cancel()

    @property
    def idle(self) -> bool:
        """Nothing is to be looked at now."""
        return not self._due

    def _heard(self, change: Change) -> None:
        for key in self._controller.concerns(change):
            self._mark(key)

    def _mark(self, key: Key) -> None:
        self._due[key] = None
        self._wake.set()

    async def _look_at_due(self) -> None:
        loop = asyncio.get_running_loop()
        while self._due:
            started_s = loop.time()
            for key in tuple(self._due)[:_BATCH]:
                del self._due[key]
                self._look_at(key)
            await asyncio.sleep(_REST * (loop.time() - started_s))

    def _look_at(self, key: Key) -> None:
        try:
            again_s = self._controller.reconcile(key)
        except ApiError as error:
            _log.warning("reconcile refused", controller=self._controller.name, key=key, reason=error.message)
            again_s = _RETRY_S
        old = self._later.pop(key, None)
        if old is not None:
            old.cancel()
        if again_s is not None:
            self._later[key] = asyncio.get_running_loop().call_later(again_s, self._again, key)

    def _again(self, key: Key) -> None:
        self._later.pop(key, None)
        self._mark(key)
