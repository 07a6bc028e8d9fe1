"""The demo's processes: a nats-server, the simulated cluster, every service, each a real process of its own.

Everything lives under one short temporary directory (socket paths have 108 bytes). Leaving the stage stops
all processes, kills what does not stop in time, and removes the directory.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import orjson

from shared.bus.provision import provision
from shared.bus.server import EmbeddedServer
from shared.errors import FleetError

_START_WITHIN_S = 20.0
_STOP_WITHIN_S = 6.0


class ServiceDied(FleetError):  # noqa: N818 - says what happened
    """A process of the demo ended by itself."""


@dataclass(slots=True)
class Running:
    """One process.

    Attributes:
        name: service, or service@node.
        log: its standard error, of every start under this name.
        module: what was started.
        more: its additional environment.
    """

    name: str
    process: asyncio.subprocess.Process
    log: Path
    module: str
    more: Mapping[str, str]

    def tail(self, lines: int = 15) -> str:
        """The last lines of its log."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])


@dataclass(slots=True)
class Stage:
    """Where the demo plays.

    Attributes:
        directory: everything that the processes write.
        server: the bus.
        environment: what every process is told.
        running: the processes, in the order of their start.
    """

    directory: Path
    server: EmbeddedServer
    environment: dict[str, str]
    running: list[Running] = field(default_factory=list)
    _killed: dict[str, Running] = field(default_factory=dict)

    @property
    def nats_url(self) -> str:
        """Where the bus is."""
        return self.server.url

    async def start(self, name: str, module: str, more: Mapping[str, str] | None = None) -> Running:
        """Start `python -m module` with additional environment."""
        log = self.directory / "logs" / f"{name}.log"
        with log.open("ab") as stderr:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                module,
                env={**os.environ, **self.environment, "MEDIAFLEET_INSTANCE": name, **(more or {})},
                stdin=asyncio.subprocess.DEVNULL,
                stdout=stderr,
                stderr=stderr,
                start_new_session=True,  # Ctrl-C reaches only the demo, which stops them in order
            )
        running = Running(name, process, log, module, more or {})
        self.running.append(running)
        return running

    def named(self, name: str) -> Running:
        """A running process.

        Raises:
            KeyError: none has that name.
        """
        for each in self.running:
            if each.name == name:
                return each
        raise KeyError(name)

    async def kill(self, name: str) -> None:
        """End a process with SIGKILL, as a crash would; `again` starts it once more."""
        killed = self.named(name)
        self.running.remove(killed)
        self._killed[name] = killed
        _signal(killed.process, signal.SIGKILL)
        await killed.process.wait()

    async def again(self, name: str) -> Running:
        """Start a killed process as it was started before."""
        before = self._killed.pop(name)
        return await self.start(name, before.module, before.more)

    def pause(self, name: str) -> None:
        """Let a process stand still, as one that is swapped out or starved; `resume` wakes it."""
        _signal(self.named(name).process, signal.SIGSTOP)

    def resume(self, name: str) -> None:
        """Wake a paused process."""
        _signal(self.named(name).process, signal.SIGCONT)

    async def simulator(self, more: Mapping[str, str]) -> tuple[str, dict[str, str]]:
        """Start the simulated cluster; its URL, and the host root of every node."""
        running = await self.start("simulator", "services.simulator", more)
        async with asyncio.timeout(_START_WITHIN_S):
            while True:
                self.check()
                for line in running.log.read_bytes().splitlines():
                    if line.startswith(b'{"url"'):
                        said = orjson.loads(line)
                        return said["url"], {node["name"]: node["host_root"] for node in said["nodes"]}
                await asyncio.sleep(0.05)

    def check(self) -> None:
        """See that all are alive.

        Raises:
            ServiceDied: one ended; shows the end of its log.
        """
        for each in self.running:
            if each.process.returncode is not None:
                raise ServiceDied(f"{each.name} ended with {each.process.returncode}:\n{each.tail()}")

    async def stop(self) -> None:
        """Stop all, the ones that hear first."""
        for each in reversed(self.running):
            _signal(each.process, signal.SIGTERM)
            _signal(each.process, signal.SIGCONT)
        waiting = [asyncio.create_task(each.process.wait()) for each in self.running]
        if waiting:
            await asyncio.wait(waiting, timeout=_STOP_WITHIN_S)
        for each in self.running:
            _signal(each.process, signal.SIGKILL)
        await asyncio.gather(*waiting)


def _signal(process: asyncio.subprocess.Process, number: signal.Signals) -> None:
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError):  # it ended by itself just now
            os.killpg(process.pid, number)


@asynccontextmanager
async def stage(environment: Mapping[str, str]) -> AsyncIterator[Stage]:
    """A provisioned bus and a place for processes; nothing is left of them afterwards."""
    directory = Path(tempfile.mkdtemp(prefix="mf-"))
    (directory / "logs").mkdir()
    try:
        server = await EmbeddedServer(directory / "nats").start()
        common = {
            "MEDIAFLEET_NATS_URL": server.url,
            "MEDIAFLEET_HEALTH_HOST": "127.0.0.1",
            "MEDIAFLEET_HEALTH_PORT": "0",
            **environment,
        }
        here = Stage(directory, server, common)
        try:
            await provision(server.url)
            yield here
        finally:
            await asyncio.shield(here.stop())
            await asyncio.shield(server.stop())
    finally:
        shutil.rmtree(directory, ignore_errors=True)
