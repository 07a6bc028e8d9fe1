"""nats-server from its container image: the suite on another version than the wheel's.

`MEDIAFLEET_TEST_NATS_IMAGE` names the image, by default of the oldest server that we run on. It is used only
when docker runs and has the image; nothing is pulled.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import subprocess
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from testcontainers.core.container import DockerContainer

IMAGE = os.environ.get("MEDIAFLEET_TEST_NATS_IMAGE", "nats:2.12-alpine")
_READY_WITHIN_S = 20.0
_PROBE_EVERY_S = 0.05
_CONFIGURATION = """
max_payload: 2MB
jetstream { store_dir: "/data" }
"""


@cache
def missing() -> str:
    """Why there is no container to run; empty when there is one."""
    docker = shutil.which("docker")
    if docker is None:
        return "docker is not installed"
    try:
        found = subprocess.run(
            [docker, "image", "inspect", IMAGE], capture_output=True, text=True, timeout=10, check=False
        )
    except subprocess.TimeoutExpired:
        return "docker does not answer"
    if found.returncode:
        return (found.stderr.strip().splitlines() or ["docker failed"])[-1]
    return ""


class ContainerServer:
    """One nats-server in a container, on a port of this machine that it keeps over restarts."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._container: DockerContainer | None = None
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port: int = probe.getsockname()[1]

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"nats://127.0.0.1:{self.port}"

    async def __aenter__(self) -> Self:
        # Imported only here: it takes half a second, and most runs have no docker.
        from testcontainers.core.config import testcontainers_config  # noqa: PLC0415 - as said
        from testcontainers.core.container import DockerContainer  # noqa: PLC0415 - as said

        testcontainers_config.ryuk_disabled = True
        configuration = self._directory / "nats-server.conf"
        configuration.write_text(_CONFIGURATION)
        # The server may be another user in its container, and pytest's directories are private.
        self._directory.chmod(0o755)
        configuration.chmod(0o644)
        self._container = (
            DockerContainer(IMAGE)
            .with_bind_ports(4222, self.port)
            .with_volume_mapping(str(self._directory), "/mediafleet", "ro")
            .with_command(["-c", "/mediafleet/nats-server.conf"])
        )
        try:
            await asyncio.to_thread(self._container.start)
            await self._ready()
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._container is not None:
            await asyncio.to_thread(self._container.stop)

    async def restart(self) -> None:
        """Stop it and start it again, with its store."""
        if self._container is not None:
            await asyncio.to_thread(self._container.get_wrapped_container().restart)
        await self._ready()

    async def _ready(self) -> None:
        async with asyncio.timeout(_READY_WITHIN_S):
            while not await self._answers():  # noqa: ASYNC110 - nobody tells when a container is ready
                await asyncio.sleep(_PROBE_EVERY_S)

    async def _answers(self) -> bool:
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        except OSError:
            return False
        try:
            return (await reader.readline()).startswith(b"INFO ")
        except OSError:
            return False
        finally:
            writer.close()
