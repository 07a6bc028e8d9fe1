"""The whole story on a real kubelet and a real API server: a device breaks, its pod goes, a new one serves.

The services are processes of the machine; the hardware is simulated, everything of Kubernetes is real.
"""

from __future__ import annotations

import json
import os
import shutil
import stat
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from services.console.demo.stage import Stage, stage
from services.simulator.hardware import NodeSpec
from services.simulator.trees import HostTree
from shared.devices.keys import device_key
from tests.lab.image import BUSYBOX
from tests.lab.lab import Lab
from tests.lab.system import LabError, until

NVENC = "media.example.com/nvenc"
PODS = "/api/v1/namespaces/default/pods"
CHAOS = Path(__file__).parents[1] / "chaos"
ENVIRONMENT = {
    "MEDIAFLEET_POLICY_FILE": str(CHAOS / "policy.yaml"),
    "MEDIAFLEET_DISCOVERY__HEARTBEAT_S": "0.5",
    "MEDIAFLEET_DISCOVERY__PROBE_S": "2",
    "MEDIAFLEET_DISCOVERY__FAST_PROBE_S": "0.5",
    "MEDIAFLEET_DISCOVERY__WATCH_S": "0.2",
    "MEDIAFLEET_DISCOVERY__QUIET_S": "0.3",
}


class Story:
    """A lab whose first node has two simulated devices, and the services."""

    def __init__(self, lab: Lab, tree: HostTree, here: Stage) -> None:
        self.lab = lab
        self.tree = tree
        self.stage = here
        self.node = lab.nodes[0]

    async def get(self, path: str) -> dict[str, Any]:
        """An object; empty when it is not there."""
        status, found = await self.lab.api.request("GET", path)
        return dict(found) if status == 200 else {}

    async def until(self, what: str, path: str, fact: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """Wait for a fact about an object; the object."""
        found: dict[str, Any] = {}

        async def true() -> bool:
            nonlocal found
            self.stage.check()
            found = await self.get(path)
            return fact(found)

        try:
            await until(true, timeout_s=40, otherwise=what)
        except LabError:
            logs = "\n".join(f"{each.name}: {each.tail()}" for each in self.stage.running)
            raise AssertionError(f"not so: {what}\n{json.dumps(found.get('status'))}\n{logs}") from None
        return found

    async def until_allocatable(self, count: int) -> None:
        """Wait until the node may give so many."""

        def offered(node: dict[str, Any]) -> bool:
            return int(node["status"]["allocatable"].get(NVENC, 0)) == count

        await self.until(f"{count} x {NVENC}", f"/api/v1/nodes/{self.node.name}", offered)

    def registered_at(self) -> list[float]:
        """When the bridge registered a resource, seconds since the epoch."""
        log = self.stage.directory / "logs/bridge.log"
        lines = [json.loads(line) for line in log.read_text().splitlines()]
        found = [line["timestamp"] for line in lines if line["event"] == "registered"]
        return [datetime.fromisoformat(each).timestamp() for each in found]

    async def until_registered(self, times: int) -> None:
        """Wait until the bridge has registered so often, and the node says what it may give."""
        late = f"the bridge has not registered {times} times"
        await until(lambda: len(self.registered_at()) >= times, timeout_s=30, otherwise=late)
        await until_devices(self)

    async def run(self, name: str) -> dict[str, Any]:
        """Run a pod with an encoder."""
        container = {
            "name": "main",
            "image": BUSYBOX,
            "command": [
                "sh",
                "-c",
                "env; ls -l /dev; trap 'exit 0' TERM; while :; do sleep 1 & wait $!; done",
            ],
            "resources": {"limits": {NVENC: "1"}},
        }
        spec = {"containers": [container], "terminationGracePeriodSeconds": 2}
        body = {"metadata": {"name": name, "labels": {"media.example.com/tier": "batch"}}, "spec": spec}
        status, said = await self.lab.api.request("POST", PODS, body)
        assert status == 201, said
        return await self.until(f"{name} runs", f"{PODS}/{name}", running)

    def device_of(self, pod: dict[str, Any]) -> str:
        """The device whose engine the kubelet gave to a pod."""
        books = json.loads((self.node.root / "device-plugins/kubelet_internal_checkpoint").read_text())
        (ids,) = (
            [id_ for ids in entry["DeviceIDs"].values() for id_ in ids]
            for entry in books["Data"]["PodDeviceEntries"]
            if entry["PodUID"] == pod["metadata"]["uid"]
        )
        keys = [device_key(each.model.vendor, each.bus_address) for each in self.tree.devices]
        return next(key for key in keys if ids[0].startswith(key))


def running(pod: dict[str, Any]) -> bool:
    return bool(pod) and pod["status"]["phase"] == "Running"


@asynccontextmanager
async def told_on(lab: Lab) -> AsyncIterator[Story]:
    node = lab.nodes[0]
    folder = Path(tempfile.mkdtemp(prefix="mf-"))
    tree = HostTree(folder / "r", NodeSpec(name=node.name, models=("NVIDIA L4", "NVIDIA L4")))
    tree.build()
    made = furnish(tree, node.root, node.host_root)
    await lab.kubectl("apply", "-k", str(Path(__file__).parents[2] / "deploy/base/crd"))
    try:
        async with stage(ENVIRONMENT | {"KUBECONFIG": str(lab.kubeconfig)}) as here:
            for service in ("manager", "remediation"):
                await here.start(service, f"services.{service}")
            of_node = {
                "MEDIAFLEET_NODE_NAME": node.name,
                "MEDIAFLEET_HOST_ROOT": str(tree.root),
                "MEDIAFLEET_STATE_DIR": str(folder / "state"),
            }
            for service in ("discovery", "bridge"):
                await here.start(service, f"services.{service}", of_node)
            story = Story(lab, tree, here)
            yield story
            for service in ("bridge", "discovery"):
                await here.kill(service)
            await story.until_allocatable(0)  # what the next test reads is not of this one
    finally:
        shutil.rmtree(folder)
        for each in made:
            each.unlink()
        await lab.api.request("DELETE", f"{PODS}?gracePeriodSeconds=0")
        await lab.api.request("DELETE", "/apis/media.example.com/v1alpha1/mediaresources")


def furnish(tree: HostTree, kubelet: Path, host_root: Path) -> list[Path]:
    """Connect the simulated hardware with the real node; the device nodes that were made there."""
    for place, real in (("var/lib/kubelet", kubelet), ("var/run/cdi", host_root / "run/cdi")):
        shutil.rmtree(tree.root / place)
        (tree.root / place).symlink_to(real)
    made = []
    for shown in (tree.root / "dev").rglob("*"):
        node = host_root / "dev" / shown.relative_to(tree.root / "dev")
        if shown.is_file() and shown.name != "kmsg" and not node.exists():
            node.parent.mkdir(exist_ok=True)
            os.mknod(node, stat.S_IFCHR | 0o666, os.makedev(1, 3))  # whoever opens it finds /dev/null
            made.append(node)
    return made


@pytest.fixture
async def story(lab: Lab) -> AsyncIterator[Story]:
    async with told_on(lab) as made:
        yield made


async def test_a_device_breaks_its_pod_is_evicted_and_its_successor_serves(story: Story) -> None:
    await until_devices(story)
    first = await story.run("first")
    broken = story.device_of(first)
    shown = await story.lab.kubectl("logs", "first")
    assert "NVENC_INSTANCE_IDS=" in shown
    resource = f"/apis/media.example.com/v1alpha1/mediaresources/{story.node.name}-{broken}"
    node = await story.get(f"/api/v1/nodes/{story.node.name}")
    offered = int(node["status"]["allocatable"][NVENC])

    break_device(story, first)
    gone = await story.until("first is going", f"{PODS}/first", lambda pod: not pod or going(pod))
    assert not gone or gone["metadata"]["uid"] == first["metadata"]["uid"]
    await story.until("first is gone", f"{PODS}/first", lambda pod: not pod)
    await story.until_allocatable(offered // 2)
    await story.until(
        "its resource says so", resource, lambda found: found["status"]["verdict"] == "unhealthy"
    )
    told = await story.get("/apis/events.k8s.io/v1/namespaces/default/events")
    about = [each for each in told["items"] if each["regarding"].get("uid") == first["metadata"]["uid"]]
    assert "DeviceEviction" in {each["reason"] for each in about}

    story.tree.replace(broken, serial="1650000000001")
    await story.until_allocatable(offered)
    await story.until("the successor is well", resource, lambda found: found["status"]["phase"] == "Healthy")
    await story.run("second")


async def test_a_killed_bridge_and_a_restarted_kubelet_leave_a_pod_alone_and_know_it_again(
    story: Story,
) -> None:
    await until_devices(story)
    before = await story.run("stays")
    await story.stage.kill("bridge")
    await story.node.restart_kubelet()
    already = len(story.registered_at())
    await story.stage.again("bridge")
    await story.until_registered(2 * already)
    after = await story.get(f"{PODS}/stays")
    assert after["status"]["containerStatuses"] == before["status"]["containerStatuses"]
    break_device(story, before)
    await story.until("the pod is evicted", f"{PODS}/stays", lambda pod: not pod or going(pod))


async def test_an_api_server_that_is_away_gets_the_eviction_when_it_is_back(story: Story) -> None:
    await until_devices(story)
    pod = await story.run("waits")
    await story.lab.api.stop()
    break_device(story, pod)

    def fenced() -> bool:
        return '"event":"fenced"' in story.stage.named("bridge").log.read_text()

    await until(fenced, timeout_s=20, otherwise="the device is not taken from the kubelet")
    await story.lab.api.start()
    gone = await story.until("the pod is evicted", f"{PODS}/waits", lambda found: not found or going(found))
    assert not gone or gone["metadata"]["uid"] == pod["metadata"]["uid"]


def break_device(story: Story, pod: dict[str, Any]) -> None:
    """What the pod works on falls off the bus."""
    broken = story.device_of(pod)
    story.tree.lose(broken)
    story.tree.fault_line(broken, 79)


async def until_devices(story: Story) -> None:
    def offered(node: dict[str, Any]) -> bool:
        return int(node["status"]["allocatable"].get(NVENC, 0)) > 0

    await story.until("devices are offered", f"/api/v1/nodes/{story.node.name}", offered)


def going(pod: dict[str, Any]) -> bool:
    conditions = {each["type"]: each.get("reason") for each in pod["status"].get("conditions", ())}
    return "deletionTimestamp" in pod["metadata"] and conditions.get("DisruptionTarget") is not None
