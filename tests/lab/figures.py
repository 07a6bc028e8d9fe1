"""Figures of the product on a real kubelet: `python -m tests.lab.figures` on a lab that is up.

Time to a running pod with and without a device, kubelet restart to registered again, fault to evicted pod.
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import time
from typing import Any

from tests.lab.image import BUSYBOX
from tests.lab.lab import Lab, attach
from tests.lab.system import until
from tests.lab.test_story import NVENC, PODS, Story, going, running, told_on, until_devices

PAIRS = 10
RESTARTS = 5


def say(what: str) -> None:
    """A line of the report."""
    sys.stdout.write(what + "\n")
    sys.stdout.flush()


def spread(seconds: list[float]) -> str:
    """Median and extremes, milliseconds."""
    low, middle, high = min(seconds), statistics.median(seconds), max(seconds)
    return f"median {middle * 1000:6.0f} ms   ({low * 1000:.0f} to {high * 1000:.0f}, {len(seconds)} times)"


async def pod_s(lab: Lab, name: str, limits: dict[str, str]) -> float:
    """From the request to Running, of a pod that is bound already."""
    container: dict[str, Any] = {"name": "main", "image": BUSYBOX, "resources": {"limits": limits}}
    spec = {"nodeName": lab.nodes[0].name, "terminationGracePeriodSeconds": 0, "containers": [container]}
    began = time.monotonic()
    await lab.api.request("POST", PODS, {"metadata": {"name": name}, "spec": spec})

    async def runs() -> bool:
        return running((await lab.api.request("GET", f"{PODS}/{name}"))[1])

    await until(runs, timeout_s=30, otherwise=f"{name} does not run")
    took = time.monotonic() - began
    await lab.api.request("DELETE", f"{PODS}/{name}?gracePeriodSeconds=0")
    return took


async def pods(lab: Lab) -> None:
    """With and without, by turns."""
    plain, device = [], []
    for number in range(PAIRS):
        plain.append(await pod_s(lab, f"plain-{number}", {}))
        device.append(await pod_s(lab, f"device-{number}", {NVENC: "1"}))
    say(f"pod to Running, no device     {spread(plain)}")
    say(f"pod to Running, one encoder   {spread(device)}")


async def restarts(story: Story) -> None:
    """From the new kubelet's socket to the last resource registered."""
    took = []
    resources = len(story.registered_at())
    for _ in range(RESTARTS):
        before = len(story.registered_at())
        await story.node.kill_kubelet()
        await story.node.start_kubelet()

        def again(wanted: int = before + resources) -> bool:
            return len(story.registered_at()) >= wanted

        await until(again, timeout_s=30, otherwise="the bridge does not register again")
        socket = story.node.root / "device-plugins/kubelet.sock"
        took.append(max(story.registered_at()) - socket.stat().st_ctime)
    say(f"kubelet's socket to registered {spread(took)}")


async def fault(story: Story) -> None:
    """From the line in the kernel log to the pod's deletion in the API."""
    await until_devices(story)
    pod = await story.run("held")
    broken = story.device_of(pod)
    began = time.monotonic()
    story.tree.fault_line(broken, 79)

    async def evicted() -> bool:
        status, found = await story.lab.api.request("GET", f"{PODS}/held")
        return status != 200 or going(found)

    await until(evicted, timeout_s=30, otherwise="nothing is evicted")
    say(f"fatal kernel line to eviction  {spread([time.monotonic() - began])}")


async def main() -> None:
    """All of them."""
    lab = attach()
    if lab is None:
        sys.exit("no lab is up: make lab")
    async with told_on(lab) as story:
        await until_devices(story)
        await pods(lab)
        await restarts(story)
        await fault(story)


if __name__ == "__main__":
    asyncio.run(main())
