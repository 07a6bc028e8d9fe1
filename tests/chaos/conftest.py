"""One cluster for all tests here; each leaves it well, and what was seen is judged after each.

`MEDIAFLEET_CHAOS_KEEP=DIR` keeps the processes' logs and the nodes' state there.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest_asyncio

from tests.chaos.invariants import Judge
from tests.chaos.site import Site
from tests.chaos.site import site as a_site


@pytest_asyncio.fixture(scope="package", loop_scope="session")
async def judge() -> AsyncIterator[Judge]:
    """The cluster, and who judges it."""
    async with a_site() as made:
        try:
            yield Judge(made)
        finally:
            keep = os.environ.get("MEDIAFLEET_CHAOS_KEEP")
            for part in ("logs", "state") if keep else ():
                shutil.copytree(made.stage.directory / part, Path(str(keep)) / part, dirs_exist_ok=True)


@pytest_asyncio.fixture(loop_scope="session")
async def site(judge: Judge) -> AsyncIterator[Site]:
    """The cluster, for one test."""
    site = judge.site
    yield site
    await site.clear()
    wrong = await judge.judge()
    assert not wrong, "\n".join([*wrong, site.story()])
