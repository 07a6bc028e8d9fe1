"""Shared by all tests."""

import asyncio
from pathlib import Path

import pytest

pytest_plugins = ["tests.lab.fixtures"]  # the `lab` fixture: one lab for the whole session

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
