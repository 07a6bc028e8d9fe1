"""Tasks that live and end together."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any


async def together(**parts: Coroutine[Any, Any, None]) -> None:
    """Run all of them until the first ends or this is cancelled; the rest is cancelled and waited for.

    Args:
        parts: by the name that their tasks get.

    Raises:
        BaseException: what ended the first one, as it is (no group around it).
    """
    tasks = [asyncio.create_task(part, name=name) for name, part in parts.items()]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    for task in tasks:
        if task in done:
            task.result()
