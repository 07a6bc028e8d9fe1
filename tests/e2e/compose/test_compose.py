"""The image is built, compose.yaml comes up with it, and the host hears the story; on a real docker engine.

Runs with MEDIAFLEET_E2E_DOCKER=1 only: it takes minutes, and root where no engine answers.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.compose import base_image, engine
from tests.e2e.compose.engine import Engine

ROOT = Path(__file__).parents[3]
PROJECT = f"mfe2e{os.getpid() % 10_000}"
IMAGE, NATS_IMAGE = "mediafleet-e2e/mediafleet:1", "mediafleet-e2e/nats:1"
STEPS = (
    "opened",
    "struck",
    "struck",
    "struck",
    "quarantined",
    "pod-evicted",
    "drained",
    "readmitted",
    "closed",
)

log = logging.getLogger(__name__)


def why_not() -> str:
    if os.environ.get("MEDIAFLEET_E2E_DOCKER") != "1":
        return "takes minutes: set MEDIAFLEET_E2E_DOCKER=1"
    return engine.why_not() or base_image.why_not()


pytestmark = [
    pytest.mark.skipif(bool(why_not()), reason=f"no compose here: {why_not()}"),
    pytest.mark.timeout(2400),  # the first run makes a base image and downloads every wheel
]


@contextmanager
def timed(what: str) -> Iterator[None]:
    started = time.monotonic()
    yield
    log.info("%s: %.1f s", what, time.monotonic() - started)


@dataclass(frozen=True, slots=True)
class Compose:
    """This checkout's compose.yaml as a project of its own."""

    engine: Engine
    nats_port: int

    @property
    def nats_url(self) -> str:
        return f"nats://127.0.0.1:{self.nats_port}"

    def __call__(self, *arguments: str, timeout_s: float = 240) -> str:
        command = (*self.engine.compose, "--project-name", PROJECT, "--file", str(ROOT / "compose.yaml"))
        return self.engine.run((*command, *arguments), timeout_s=timeout_s)

    def left(self) -> list[str]:
        """What the engine has of the project."""
        mine = ("--quiet", "--filter", f"label=com.docker.compose.project={PROJECT}")
        docker = self.engine.docker
        found = docker("ps", "--all", *mine) + docker("volume", "ls", *mine) + docker("network", "ls", *mine)
        return found.split()

    def mediafleet(self, *arguments: str) -> list[Any]:
        """What the command line says on this host, outside of every container."""
        command = (sys.executable, "-m", "services.console", *arguments, "--json")
        return [json.loads(line) for line in self.engine.run(command, timeout_s=60).splitlines()]


@pytest.fixture(scope="module")
def docker() -> Iterator[Engine]:
    with engine.running() as found:
        yield found


@pytest.fixture(scope="module")
def images(docker: Engine) -> Engine:
    with timed("base image"):
        base = base_image.base(docker)
    for target, name in (("mediafleet", IMAGE), ("nats", NATS_IMAGE)):
        build = ("build", "--network=host", "--build-arg", f"BASE={base}", "--target", target, "-t", name)
        with timed(f"build of {name}"):
            docker.docker(*build, str(ROOT), timeout_s=1200)
    return docker


@pytest.fixture
def compose(images: Engine) -> Iterator[Compose]:
    ports = free_ports(2)
    told = {
        "MEDIAFLEET_IMAGE": IMAGE,
        "MEDIAFLEET_NATS_IMAGE": NATS_IMAGE,
        "MEDIAFLEET_NATS_PORT": str(ports[0]),
        "MEDIAFLEET_SIMULATOR_PORT": str(ports[1]),
        "MEDIAFLEET_NATS_URL": f"nats://127.0.0.1:{ports[0]}",
        "PYTHONPATH": str(ROOT),
        "PYTHONUNBUFFERED": "1",
    }
    project = Compose(Engine(images.environment | told, images.compose), ports[0])
    try:
        yield project
    finally:
        with timed("down"):
            project("down", "--volumes", "--remove-orphans", "--timeout", "10")


def free_ports(count: int) -> list[int]:
    probes = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [probe.getsockname()[1] for probe in probes]
    for probe in probes:
        probe.close()
    return ports


def test_an_image_runs_nothing_as_root_and_holds_nothing_to_build_with(images: Engine) -> None:
    look = (
        "id -u; find / -xdev -name 'gcc*' -perm -1 -type f -o -name grpc_tools -o -name nats-server; ls /src"
    )
    seen = images.run(
        ("docker", "run", "--rm", "--entrypoint", "sh", IMAGE, "-c", f"{look} 2>&1 || true"), timeout_s=60
    )
    assert [line for line in seen.splitlines() if "/src" not in line] == ["65532"]
    uncompiled = (
        "import importlib.util as u, pathlib, services;"
        "root = pathlib.Path(services.__file__).parents[1];"
        "ours = [p for n in ('services', 'shared', 'protos', 'nats') for p in (root / n).rglob('*.py')];"
        "print(len(ours) > 100, [p for p in ours if not pathlib.Path(u.cache_from_source(p)).exists()])"
    )
    seen = images.docker("run", "--rm", "--read-only", "--entrypoint", "python3", IMAGE, "-c", uncompiled)
    assert seen.strip() == "True []"


def test_an_image_has_what_every_service_imports(images: Engine) -> None:
    script = (
        "import importlib, pkgutil, services;"
        "names = [m.name for m in pkgutil.walk_packages(services.__path__, 'services.')];"
        "[importlib.import_module(name) for name in names if not name.endswith('__main__')]"
    )
    images.docker("run", "--rm", "--read-only", "--entrypoint", "python3", IMAGE, "-c", script)


def test_compose_plays_the_story_and_the_host_hears_it(compose: Compose, tmp_path: Path) -> None:
    with timed("up to healthy"):
        compose("up", "--detach")
    follow = (sys.executable, "-m", "services.console", "events", "--follow", "--since", "1h", "--json")
    with (tmp_path / "heard").open("wb") as said:
        heard = subprocess.Popen(follow, stdout=said, env=compose.engine.environment)
    try:
        with timed("story"):
            # 0 when every step was seen at the API server and the kubelets.
            ended = compose.engine.docker(
                "wait", compose("ps", "--all", "--quiet", "story").strip(), timeout_s=150
            )
        told = compose("logs", "story", "--no-log-prefix")
        assert ended.strip() == "0", told
        assert "every step was seen" in told
        states = [json.loads(line) for line in compose("ps", "--all", "--format", "json").splitlines()]
        assert {each["Service"] for each in states if each["Health"] != "healthy"} == {"provision", "story"}
        assert {each["ExitCode"] for each in states} == {0}
    finally:
        heard.terminate()
        heard.wait(20)
    live = {json.loads(line)["type"] for line in (tmp_path / "heard").read_text().splitlines()}
    assert "io.mediafleet.remediation.readmitted.v1" in live

    kept = compose.mediafleet("events", "--subject", "fleet.v1.remediation.>")
    facts = iter(each["type"].removeprefix("io.mediafleet.remediation.").removesuffix(".v1") for each in kept)
    assert all(step in facts for step in STEPS), [each["type"] for each in kept]
    assert {each["state"] for each in compose.mediafleet("devices")[0]} == {"registered"}

    containers = compose("ps", "--all", "--quiet").split()
    for each in json.loads(compose.engine.docker("inspect", *containers)):
        assert each["RestartCount"] == 0, each["Name"]
        assert each["Config"]["User"] == "65532:65532", each["Name"]
        assert each["HostConfig"]["ReadonlyRootfs"], each["Name"]
    assert compose.left() != []
    with timed("down"):
        compose("down", "--volumes")
    assert compose.left() == []


def test_the_bus_contract_holds_on_the_server_of_the_image(images: Engine) -> None:
    suite = Engine(images.environment | {"MEDIAFLEET_TEST_NATS_IMAGE": NATS_IMAGE}, images.compose)
    command = (
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "tests/contract/bus",
        "-k",
        "container",
    )
    with timed("bus contract"):
        seen = suite.run(("env", f"--chdir={ROOT}", *command), timeout_s=900)
    assert " passed" in seen
    assert " skipped" not in seen
