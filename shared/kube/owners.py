"""Whose pods these are, asked once per owner and not once per pod.

A Deployment behind a ReplicaSet takes two requests; the pods of one ReplicaSet have the same answer, and it
does not change while the ReplicaSet lives (another owner of its pods has another uid).
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from shared.kube.models import ObjectRef

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from shared.kube.models import Pod, Workload

_MOST: Final = 8192
"""Owners remembered, the earliest forgotten first."""


class Owners:
    """Remembers what pods' owners belong to."""

    def __init__(self, ask: Callable[[Pod], Awaitable[Workload | None]]) -> None:
        """Args: ask: the port's `owner_workload`."""
        self._ask = ask
        self._known: dict[str, ObjectRef] = {}
        self._asking: dict[str, asyncio.Lock] = {}

    async def of(self, pod: Pod) -> ObjectRef | None:
        """What made this pod; None for a bare pod, and where its owner is gone or of no kind that we know.

        Raises:
            Temporary: no answer from the API server.
            Permanent: it may not be asked.
        """
        if pod.owner is None:
            return None
        uid = pod.owner.uid
        known = self._known.get(uid)
        if known is not None:
            return known
        try:
            async with self._asking.setdefault(uid, asyncio.Lock()):
                known = self._known.get(uid)
                if known is None:
                    known = self._keep(uid, await self._ask(pod))
                return known
        finally:
            self._asking.pop(uid, None)

    def _keep(self, uid: str, found: Workload | None) -> ObjectRef | None:
        if found is None:
            return None
        if len(self._known) >= _MOST:
            self._known.pop(next(iter(self._known)))
        self._known[uid] = ref = ObjectRef(found.kind, found.name, found.namespace, found.uid)
        return ref
