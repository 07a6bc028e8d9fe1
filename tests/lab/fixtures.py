"""The lab as a fixture: one for the whole test session.

Only where MEDIAFLEET_LAB=1 asks for it (`make test-lab`): a lab takes minutes. One that is already up
(`make lab`) is used and left up; otherwise one is built where that is still to do, started and taken down.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from tests.lab import build, prerequisites

if TYPE_CHECKING:
    from tests.lab.lab import Lab


def why_not() -> str:
    """Why tests on a lab are skipped here; empty when they run."""
    if os.environ.get("MEDIAFLEET_LAB") != "1":
        return "make test-lab runs this on a real Kubernetes"
    return "; ".join(prerequisites.problems())


@pytest.fixture(scope="session")
def lab() -> Iterator[Lab]:
    """A lab that is up."""
    if reason := why_not():
        pytest.skip(f"no lab here: {reason}")
    from tests.lab.lab import attach, down, start  # noqa: PLC0415 - not for test runs without a lab

    if (running := attach()) is not None:
        yield running
        return
    asyncio.run(build.build(print))
    name = f"t{os.getpid() % 10_000}"  # test sessions at the same time have one each
    yield asyncio.run(start(name))
    asyncio.run(down(name))
