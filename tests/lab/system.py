"""Commands and daemons of the lab.

A daemon is known by a file with its process id and start time, so another process can stop what `make lab`
started, and a reused id is never mistaken for it.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import json
import os
import signal
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

POLL_S = 0.03


class LabError(Exception):
    """The lab cannot go on; the message is one line that says what to do."""


async def run(*argv: str | Path, env: Mapping[str, str] | None = None, timeout_s: float = 60) -> str:
    """Run a command to its end; its output. `LabError` with what it said when it fails."""
    process = await asyncio.create_subprocess_exec(
        *map(str, argv),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=env,
    )
    try:
        async with asyncio.timeout(timeout_s):
            out, said = await process.communicate()
    except TimeoutError:
        process.kill()
        await process.wait()
        raise LabError(f"{' '.join(map(str, argv))}: no answer in {timeout_s:.0f} s") from None
    if process.returncode:
        last = (said or out).decode(errors="replace").strip().splitlines()[-3:]
        raise LabError(f"{' '.join(map(str, argv))}: {' | '.join(last) or process.returncode}")
    return out.decode(errors="replace")


async def until(
    fact: Callable[[], bool] | Callable[[], Awaitable[bool]], *, timeout_s: float, otherwise: str
) -> None:
    """Wait until a fact is true; `LabError` with `otherwise` after the deadline."""
    try:
        async with asyncio.timeout(timeout_s):
            while True:
                answer = fact()
                if await answer if inspect.isawaitable(answer) else answer:
                    return
                await asyncio.sleep(POLL_S)
    except TimeoutError:
        raise LabError(otherwise) from None


def _stat(pid: int) -> tuple[str, int, int] | None:
    """State, parent and start time (clock ticks since boot) of a process; proc_pid_stat(5)."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return fields[0], int(fields[1]), int(fields[19])


def children(pid: int) -> list[int]:
    """Processes whose parent this is."""
    found = (int(each.name) for each in Path("/proc").iterdir() if each.name.isdigit())
    return [each for each in found if (stat := _stat(each)) is not None and stat[1] == pid]


def _alive(pid: int, born: int) -> bool:
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)  # reaps it if it is ours
    stat = _stat(pid)
    return stat is not None and stat[2] == born and stat[0] not in "ZX"


@dataclass(frozen=True, slots=True)
class Daemon:
    """A long-lived process, in a session of its own, with a log."""

    name: str
    folder: Path

    @property
    def log(self) -> Path:
        """What it wrote, of all its lives."""
        return self.folder / f"{self.name}.log"

    @property
    def _record(self) -> Path:
        return self.folder / f"{self.name}.pid"

    @property
    def pid(self) -> int:
        """Its process id as the machine sees it; 0 when it does not run."""
        try:
            pid, born = json.loads(self._record.read_text())
        except (FileNotFoundError, ValueError):
            return 0
        return pid if _alive(pid, born) else 0

    async def start(
        self, *argv: str | Path, env: Mapping[str, str] | None = None, nested: bool = False
    ) -> None:
        """Start it unless it runs; `nested` where the command forks the real one (nsenter, unshare --pid)."""
        if self.pid:
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        words = [str(each) for each in argv]
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        actions: Sequence[tuple[int, ...] | tuple[int, int, str, int, int]] = [
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_OPEN, 1, str(self.log), flags, 0o644),
            (os.POSIX_SPAWN_DUP2, 1, 2),
        ]
        pid = os.posix_spawnp(  # noqa: ASYNC221 - spawned, not waited for
            words[0],
            words,
            dict(os.environ if env is None else env),
            file_actions=actions,
            setsid=True,
            setsigmask=(),
            setsigdef=(signal.SIGPIPE, signal.SIGXFSZ),  # Python ignores them; what it starts should not
        )
        if nested:
            await until(
                lambda: bool(children(pid)) or not _alive(pid, (_stat(pid) or ("", 0, -1))[2]),
                timeout_s=10,
                otherwise=f"{self.name} did not start, see {self.log}",
            )
            pid = next(iter(children(pid)), pid)
        stat = _stat(pid)
        if stat is not None:
            self._record.write_text(json.dumps([pid, stat[2]]))

    async def stop(self, *, by: signal.Signals = signal.SIGTERM, patience_s: float = 5) -> None:
        """Ask it to end, then kill it; returns when it is gone."""
        if pid := self.pid:
            os.kill(pid, by)
            try:
                await until(lambda: not self.pid, timeout_s=patience_s, otherwise="")
            except LabError:
                os.kill(pid, signal.SIGKILL)
                await until(lambda: not self.pid, timeout_s=10, otherwise=f"{self.name} ({pid}) does not end")
        self._record.unlink(missing_ok=True)

    def last_words(self, lines: int = 3) -> str:
        """The end of its log, for an error."""
        try:
            return " | ".join(self.log.read_text(errors="replace").splitlines()[-lines:])
        except FileNotFoundError:
            return "nothing"
