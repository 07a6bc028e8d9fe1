"""Shared by all tests."""

import asyncio
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog
from hypothesis import settings

pytest_plugins = ["tests.lab.fixtures"]  # the `lab` fixture: one lab for the whole session

# The same examples in every run, and no verdict by the wall clock of a busy machine.
settings.register_profile("suite", deadline=None, derandomize=True)
settings.load_profile("suite")

_ONE_CLUSTER = ("chaos", "lab", "kube", "kubelet")
"""Folders whose tests share something that is expensive to start."""


def pytest_configure() -> None:
    # Otherwise pytest-asyncio's first look for "the old loop" makes one that nobody closes.
    asyncio.set_event_loop(None)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """With several workers the tests of a file stay together, and so do those that share a cluster."""
    root = Path(__file__).parent
    for item in items:
        inside = item.path.relative_to(root)
        group = next((name for name in _ONE_CLUSTER if name in inside.parts), str(inside))
        item.add_marker(pytest.mark.xdist_group(group))


@pytest.fixture(autouse=True)
def logs_of_its_own() -> Iterator[None]:
    """What a test configures of logging ends with it: the stream it wrote to is closed then."""
    yield
    structlog.reset_defaults()
    structlog.contextvars.clear_contextvars()
    root = logging.getLogger()
    for handler in [each for each in root.handlers if type(each).__module__.startswith("shared.")]:
        root.removeHandler(handler)
