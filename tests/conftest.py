"""Shared by all tests."""

import asyncio

pytest_plugins = ["tests.lab.fixtures"]  # the `lab` fixture: one lab for the whole session


def pytest_configure() -> None:
    # Otherwise pytest-asyncio's first look for "the old loop" makes one that nobody closes.
    asyncio.set_event_loop(None)
