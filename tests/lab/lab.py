"""A whole lab: up, down, and what is there."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import os
import re
import shutil
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

from tests.lab import build, cgroups, network, prerequisites
from tests.lab.certs import Authority
from tests.lab.control_plane import ApiServer, ControlPlane
from tests.lab.layout import Layout
from tests.lab.node import Node, pack_image
from tests.lab.system import Daemon, LabError, run, until

DEFAULT = "lab"
NODES = (1, 2)
READY_S = 60.0
_MOUNT_POINTS = (Path("/var/lib/kubelet"), Path("/var/lib/cni"), Path("/var/log"), Path("/run"))

Say = Callable[[str], None]


def silent(_: str) -> None:
    """For tests."""


class Lab:
    """A lab that is up, or whose files are there; made by `up`, `start` or `attach`."""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self.kubeconfig = layout.kubeconfig
        self.control_plane = ControlPlane(layout)
        self.api: ApiServer = self.control_plane.api
        self.nodes = [Node(layout, index) for index in NODES]

    @classmethod
    @asynccontextmanager
    async def up(cls, name: str = DEFAULT, say: Say = silent) -> AsyncIterator[Lab]:
        """A lab of one's own for the time of the context."""
        try:
            yield await start(name, say)
        finally:
            await down(name, say)

    async def kubectl(self, *argv: str) -> str:
        """kubectl as cluster-admin."""
        return await run(build.path("kubectl"), f"--kubeconfig={self.kubeconfig}", *argv)

    async def import_image(self, archive: Path) -> None:
        """Load an image archive on every node."""
        await asyncio.gather(*(node.import_image(archive) for node in self.nodes))

    def others(self, node: Node) -> list[int]:
        """The other nodes' numbers."""
        return [each.index for each in self.nodes if each is not node]

    async def ready(self) -> None:
        """Wait until all nodes are Ready and the first pod can be made."""
        logs = " ".join(str(node.kubelet.log) for node in self.nodes)
        late = f"nodes are not ready after {READY_S:.0f} s, see {logs}"
        await until(self._ready, timeout_s=READY_S, otherwise=late)

    async def _ready(self) -> bool:
        _, nodes = await self.api.request("GET", "/api/v1/nodes")
        ready = {
            node["metadata"]["name"]
            for node in nodes.get("items", [])
            for condition in node["status"].get("conditions", [])
            if (condition["type"], condition["status"]) == ("Ready", "True")
            and not any("not-ready" in taint["key"] for taint in node["spec"].get("taints", []))
        }
        if ready < {node.name for node in self.nodes}:
            return False
        account = "/api/v1/namespaces/default/serviceaccounts/default"
        return (await self.api.request("GET", account))[0] == 200

    def running(self) -> dict[str, int]:
        """Name and process id of every daemon that runs."""
        return {each.name: each.pid for each in self._daemons() if each.pid}

    def whole(self) -> bool:
        """Whether all of it runs."""
        return all(each.pid for each in self._daemons())

    def _daemons(self) -> list[Daemon]:
        plane = self.control_plane
        daemons = [plane.etcd, plane.api.daemon, plane.controllers, plane.scheduler, plane.dns]
        for node in self.nodes:
            daemons += [node.init, node.containerd, node.kubelet, node.proxy]
        return daemons


@contextlib.contextmanager
def _alone(name: str) -> Iterator[None]:
    """One at a time brings a lab up or down."""
    file = Layout.folder(name).with_suffix(".lock")
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("w") as held:
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise LabError(f"another process is just bringing lab {name} up or down ({file})") from None
        try:
            yield
        finally:
            file.unlink()


def attach(name: str = DEFAULT) -> Lab | None:
    """The lab of that name if all of it runs."""
    layout = Layout.read(name)
    if layout is None:
        return None
    lab = Lab(layout)
    return lab if lab.whole() else None


def obstacles() -> list[str]:
    """Why a lab cannot start here and now, one line each."""
    return build.obstacles() + prerequisites.problems()


async def start(name: str = DEFAULT, say: Say = silent) -> Lab:
    """Bring a lab up from nothing; the binaries must be there."""
    if found := obstacles():
        raise LabError("; ".join(found))
    with _alone(name):
        if Layout.folder(name).exists():
            await _down(name)
        layout = Layout(name, await network.free_block())
        layout.write()
        lab = Lab(layout)
        began = time.monotonic()
        try:
            await _bring_up(lab, lambda what: say(f"{time.monotonic() - began:5.1f} s  {what}"))
        except BaseException:
            with contextlib.suppress(LabError):  # the first error is the one to read
                await _down(name, keep_logs=True)
            raise
        return lab


async def _bring_up(lab: Lab, say: Say) -> None:
    layout, plane = lab.layout, lab.control_plane
    nodes = {node.name: node.address for node in lab.nodes}
    _make_mount_points(layout)
    cgroups.make(layout.bridge, list(nodes), layout.root / "cgroups.json")
    await network.make_bridge(layout)
    async with asyncio.TaskGroup() as group:
        group.create_task(Authority(layout).make(nodes))
        group.create_task(pack_image(layout))
        group.create_task(plane.start_etcd())
    say("etcd is ready")
    await plane.api.launch()
    async with asyncio.TaskGroup() as group:
        booting = [group.create_task(node.boot(lab.others(node))) for node in lab.nodes]
        await plane.api.ready()
        await plane.api.announce()
        say("API server is ready")
        await plane.start_controllers()
        await plane.start_dns()
        for task, node in zip(booting, lab.nodes, strict=True):
            await task
            await node.start_kubelet()
            await node.start_proxy()
    say("kubelets are started")
    await lab.ready()
    say("nodes are ready")


def _make_mount_points(layout: Layout) -> None:
    made = [str(each) for each in _MOUNT_POINTS if not each.exists()]
    (layout.root / "made.json").write_text(json.dumps(made))
    for each in made:
        Path(each).mkdir(parents=True, exist_ok=True)


def _remove_mount_points(layout: Layout) -> None:
    try:
        made = json.loads((layout.root / "made.json").read_text())
    except FileNotFoundError:
        return
    for each in made:
        with contextlib.suppress(OSError):  # somebody else uses it by now
            Path(each).rmdir()


def _named(folder: Path) -> re.Pattern[str]:
    """The folder of this lab, and not of another whose name begins alike."""
    return re.compile(re.escape(str(folder)) + r"(?![-\w])")


def _mounts(folder: Path) -> list[str]:
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    return [line.split()[4] for line in lines if _named(folder).search(line)]


async def down(name: str = DEFAULT, say: Say = silent) -> None:
    """Take a lab down, whatever state it is in, and leave nothing behind."""
    with _alone(name):
        if await _down(name):
            say(f"lab {name} is down")
        else:
            say(f"there is no lab {name}")


async def _down(name: str, *, keep_logs: bool = False) -> bool:
    layout = Layout.read(name)
    if layout is None:
        return False
    lab = Lab(layout)
    await asyncio.gather(lab.control_plane.stop(), *(node.kill() for node in lab.nodes))
    await cgroups.remove(layout.bridge, layout.root / "cgroups.json")
    await network.remove(layout)
    _remove_mount_points(layout)
    if mounts := _mounts(layout.root):
        raise LabError(f"mounts are left under {layout.root}: {mounts[0]}")
    if keep_logs:
        kept = layout.root.with_name(f"{layout.root.name}-log")
        shutil.rmtree(kept, ignore_errors=True)
        shutil.copytree(layout.daemons, kept, ignore=shutil.ignore_patterns("*.pid"))
    await asyncio.to_thread(shutil.rmtree, layout.root)
    return True


def leftovers(name: str) -> list[str]:
    """Anything of a lab that is still there: processes, groups, mounts, network devices, files."""
    folder = Layout.folder(name)
    found = [str(each) for each in cgroups.groups(f"mf-{name}")]
    found += [f"mount {each}" for each in _mounts(folder)]
    devices = Path("/sys/class/net")
    found += [f"device {each.name}" for own in ("", "-*") for each in devices.glob(f"mf-{name}{own}")]
    for each in Path("/proc").iterdir():
        if each.name.isdigit() and int(each.name) != os.getpid():
            with contextlib.suppress(OSError):
                command = (each / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                if _named(folder).search(command):
                    found.append(f"process {each.name} {command[:80]}")
    if folder.exists():
        found.append(str(folder))
    return found
