"""Tasks that somebody owns: named, ended together, their failures in the log."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import structlog

from shared.errors import FleetError

if TYPE_CHECKING:
    from collections.abc import Coroutine

log = structlog.get_logger(__name__)


class OwnedTasks:
    """What one owner has running; an owner that may be entered and left in different tasks."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    def spawn(self, name: str, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run ``work`` in a task of its own."""
        task = asyncio.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if isinstance(error, FleetError):
            log.warning("task failed", task=task.get_name(), error=str(error))
        elif error is not None:
            task.get_loop().call_exception_handler(
                {"message": f"task {task.get_name()} failed", "exception": error, "task": task}
            )

    async def cancel(self) -> None:
        """End all of them."""
        await ended(*self._tasks)


async def ended(*tasks: asyncio.Task[None]) -> None:
    """Cancel tasks and wait for their end."""
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks)
