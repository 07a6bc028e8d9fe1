"""One secured bus for a module: a server with TLS and keys, and the callout."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest
import pytest_asyncio

from tests.integration.security.site import Site, site


@pytest_asyncio.fixture(scope="module", loop_scope="module", name="here")
async def secured(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Site]:
    """A bus with everything on."""
    async with site(tmp_path_factory.mktemp("secured")) as made:
        yield made


@pytest.fixture
def nothing_refused(here: Site) -> Iterator[None]:
    """The server refuses nothing while the test runs."""
    before = len(here.violations)
    yield
    assert here.violations[before:] == []
