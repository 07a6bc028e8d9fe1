"""Shared by all tests."""

import asyncio


def pytest_configure() -> None:
    # Otherwise pytest-asyncio's first look for "the old loop" makes one that nobody closes.
    asyncio.set_event_loop(None)
