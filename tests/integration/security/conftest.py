"""A secured bus for each test, from one template of store, keys and certificates."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.integration.security.site import Site, site


@pytest.fixture(scope="session")
def secured_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the store, the keys and the certificates are kept."""
    return tmp_path_factory.mktemp("secured")


@pytest.fixture
async def here(secured_template: Path, tmp_path: Path) -> AsyncIterator[Site]:
    """A bus with everything on."""
    async with site(secured_template, tmp_path) as made:
        yield made
