"""The demo's story on a bus that refuses what was not declared: every service, as the process it is."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from services.console import demo, read
from services.console.demo.stage import Running, Stage
from tests.integration.security.site import Site

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(180)]


@dataclass(slots=True)
class Secured(Stage):
    """Every process gets the credentials it would have in a cluster."""

    site: Site | None = None

    async def start(self, name: str, module: str, more: Mapping[str, str] | None = None) -> Running:
        """With a key for a service, a token for an agent."""
        assert self.site is not None
        service, _, node = name.partition("@")
        given = {"MEDIAFLEET_NATS_CA_FILE": str(self.site.authority.ca_file)}
        if node:
            token = self.site.token_file(self.site.api.token(service, node))
            given["MEDIAFLEET_NATS_TOKEN_FILE"] = str(token)
        else:
            given["MEDIAFLEET_NATS_NKEY_FILE"] = str(self.site.keys / f"{service}.nk")
        return await Stage.start(self, name, module, {**(more or {}), **given})


async def test_the_story_is_told_with_credentials_and_nothing_is_refused(
    here: Site, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    @asynccontextmanager
    async def stage(environment: Mapping[str, str]) -> AsyncIterator[Stage]:
        # Socket paths have 107 bytes, and pytest's own directories are long.
        directory = Path(tempfile.mkdtemp(prefix="mfs-", dir="/tmp"))
        (directory / "logs").mkdir()
        common = {
            "MEDIAFLEET_NATS_URL": here.server.url,
            "MEDIAFLEET_HEALTH_HOST": "127.0.0.1",
            "MEDIAFLEET_HEALTH_PORT": "0",
            **environment,
        }
        playing = Secured(directory, here.server, common, site=here)
        try:
            yield playing
        finally:
            await playing.stop()
            shutil.rmtree(directory)

    monkeypatch.setattr(demo, "stage", stage)
    monkeypatch.setattr(read, "access", lambda: here.access("console"))
    code = await demo.play(seed=1, keep=False, machine=True)
    said = capsys.readouterr().out
    assert here.violations == []
    assert code == 0, said[-3000:]
