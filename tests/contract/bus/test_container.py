"""Says why the suite did not run on a server in a container, where it did not."""

from __future__ import annotations

import pytest

from tests.contract.bus.conftest import SERVERS
from tests.contract.bus.container import IMAGE, missing


def test_the_suite_runs_on_a_server_in_a_container_too() -> None:
    if missing():
        pytest.skip(f"{IMAGE}: {missing()}")
    assert "container" in SERVERS
