from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, cast

import aiohttp
import pytest

from services.simulator.api.resources import DEPLOYMENTS, NAMESPACES, NODES, PODS
from services.simulator.cluster import Cluster
from services.simulator.hardware import NodeSpec
from services.simulator.settings import SimulatorSettings
from shared.bus.port import Bus, Disconnected, Stored
from shared.events import AnyEvent
from shared.events.world import Sampled

RESOURCE = "media.example.com/nvenc"
ENGINE = "nvidia-0000-3b-00-0-enc-0"
PluginOn = Callable[..., Awaitable[Any]]


class RecordingBus:
    def __init__(self) -> None:
        self.said: list[AnyEvent] = []
        self.away = False

    async def publish(self, event: AnyEvent) -> Stored:
        if self.away:
            raise Disconnected("away")
        self.said.append(event)
        return Stored(len(self.said), duplicate=False)

    def last(self) -> dict[str, Sampled]:
        return {event.data.workload: event.data for event in self.said if isinstance(event.data, Sampled)}


def make(**settings: Any) -> Cluster:
    settings = {"node_status_s": 0.02, "start_s": 0.0, "grace_scale": 0.0, "sample_s": 3600} | settings
    specs = () if "nodes" in settings else (NodeSpec("worker-1", ("NVIDIA L4",) * 2),)
    bus = cast("Bus", RecordingBus())
    cluster = Cluster(SimulatorSettings(**settings), specs=specs, bus=bus)
    cluster.api.store.create(NAMESPACES, "", {"metadata": {"name": "live"}})
    return cluster


def deployment(name: str, replicas: int, **annotations: str) -> dict[str, Any]:
    container = {"name": "main", "image": "x", "resources": {"limits": {RESOURCE: "1"}}}
    return {
        "metadata": {
            "name": name,
            "annotations": {f"simulator.mediafleet/{k}": v for k, v in annotations.items()},
        },
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": {"app": name}},
            "template": {
                "metadata": {
                    "labels": {"app": name},
                    "annotations": {"simulator.mediafleet/base-latency-ms": "20"},
                },
                "spec": {"containers": [container]},
            },
        },
    }


async def until(cluster: Cluster, fact: Callable[[], object], timeout_s: float = 10.0) -> None:
    changed = asyncio.Event()
    forget = cluster.api.store.listen(lambda _: changed.set())
    try:
        async with asyncio.timeout(timeout_s):
            while not fact():
                changed.clear()
                await changed.wait()
    finally:
        forget()


def phases(cluster: Cluster) -> dict[str, str]:
    return {pod["metadata"]["name"]: pod["status"]["phase"] for pod in cluster.api.store.each(PODS)}


def running(cluster: Cluster) -> int:
    return sum(phase == "Running" for phase in phases(cluster).values())


async def call(cluster: Cluster, path: str, body: object = None) -> tuple[int, Any]:
    async with aiohttp.ClientSession() as session:
        method = "GET" if body is None else "POST"
        async with session.request(method, f"{cluster.url}{path}", json=body) as response:
            return response.status, await response.json()


async def test_capacity_pods_and_device_health_are_seen_through_the_api(plugin_on: PluginOn) -> None:
    async with make() as cluster:
        kubelet, store = cluster.kubelet("worker-1"), cluster.api.store
        plugin = await plugin_on(kubelet, {f"{ENGINE}-s{n}": 0 for n in range(2)})
        store.create(DEPLOYMENTS, "live", deployment("edge", 2))
        await until(cluster, lambda: running(cluster) == 2)
        status, listed = await call(cluster, "/api/v1/namespaces/live/pods")
        assert status == 200
        (container,) = listed["items"][0]["status"]["containerStatuses"]
        (held,) = container["allocatedResourcesStatus"]
        assert held["name"] == RESOURCE
        assert held["resources"][0]["health"] == "Healthy"
        plugin.say(f"{ENGINE}-s0", f"{ENGINE}-s1")
        await until(
            cluster, lambda: store.get(NODES, "", "worker-1")["status"]["allocatable"][RESOURCE] == "0"
        )
        assert store.get(NODES, "", "worker-1")["status"]["capacity"][RESOURCE] == "2"
        _, listed = await call(cluster, "/api/v1/namespaces/live/pods")
        (container,) = listed["items"][0]["status"]["containerStatuses"]
        assert container["allocatedResourcesStatus"][0]["resources"][0]["health"] == "Unhealthy"


async def test_a_deleted_pod_ends_and_its_successor_gets_its_device(plugin_on: PluginOn) -> None:
    async with make() as cluster:
        plugin = await plugin_on(cluster.kubelet("worker-1"), {f"{ENGINE}-s0": 0})
        cluster.api.store.create(DEPLOYMENTS, "live", deployment("edge", 1))
        await until(cluster, lambda: running(cluster) == 1)
        (first,) = phases(cluster)
        cluster.api.store.delete(PODS, "live", first)
        await until(cluster, lambda: running(cluster) == 1 and first not in phases(cluster))
        assert plugin.allocated == [[f"{ENGINE}-s0"]] * 2


async def test_a_pod_that_is_refused_fails_for_good(plugin_on: PluginOn) -> None:
    async with make() as cluster:
        plugin = await plugin_on(cluster.kubelet("worker-1"), {f"{ENGINE}-s0": 0})
        plugin.refuse = "fenced"
        body = deployment("edge", 1)["spec"]["template"]
        body["metadata"]["name"] = "bare"
        cluster.api.store.create(PODS, "live", body)
        await until(cluster, lambda: phases(cluster).get("bare") == "Failed")
        status = cluster.api.store.get(PODS, "live", "bare")["status"]
        assert status["reason"] == "UnexpectedAdmissionError"
        assert "fenced" in status["message"]
        cluster.api.store.delete(PODS, "live", "bare")
        await until(cluster, lambda: "bare" not in phases(cluster))


async def test_a_job_runs_and_completes(plugin_on: PluginOn) -> None:
    async with make() as cluster:
        await plugin_on(cluster.kubelet("worker-1"), {f"{ENGINE}-s0": 0})
        body = deployment("x", 1)["spec"]["template"]
        body["metadata"] |= {"name": "job", "annotations": {"simulator.mediafleet/run-for-s": "0"}}
        cluster.api.store.create(PODS, "live", body)
        await until(cluster, lambda: phases(cluster).get("job") == "Succeeded")
        (shown,) = cluster.kubelet("worker-1").snapshot()["pods"]
        assert (shown["phase"], shown["devices"]) == ("ended", {})


async def test_latency_falls_when_the_neighbour_goes_and_when_the_workload_is_scaled(
    plugin_on: PluginOn,
) -> None:
    async with make() as cluster:
        bus, store = cast("RecordingBus", cluster.bus), cluster.api.store
        slots: dict[str, int | None] = {f"{ENGINE}-s{n}": 0 for n in range(2)}
        await plugin_on(cluster.kubelet("worker-1"), slots | {"nvidia-0000-3b-00-0-enc-1-s0": 0})
        store.create(DEPLOYMENTS, "live", deployment("edge", 1, **{"workload-load": "0.6"}))
        await until(cluster, lambda: running(cluster) == 1)
        await cluster.publish_samples()
        alone = bus.last()["deployment-edge"].latency_p99_ms or 0
        body = deployment("x", 1)["spec"]["template"]
        body["metadata"] |= {"name": "batch", "annotations": {"simulator.mediafleet/load": "0.35"}}
        store.create(PODS, "live", body)
        await until(cluster, lambda: running(cluster) == 2)
        await cluster.publish_samples()
        crowded = bus.last()["deployment-edge"].latency_p99_ms or 0
        assert crowded > 4 * alone
        assert bus.last()["pod-batch"].latency_p99_ms == pytest.approx(crowded, rel=0.05)
        _, loads = await call(cluster, "/simulator/v1/load")
        assert loads["utilisation"]["worker-1"][ENGINE] == pytest.approx(0.95)
        assert loads["pods"]["live/batch"]["latency_p99_ms"] == pytest.approx(20 / 0.05)
        store.modify(DEPLOYMENTS, "live", "edge", lambda d: d["spec"].update(replicas=2))
        await until(cluster, lambda: running(cluster) == 3)
        await cluster.publish_samples()
        spread = bus.last()["deployment-edge"].latency_p99_ms or 0
        assert spread < crowded / 2
        store.delete(PODS, "live", "batch")
        await until(cluster, lambda: running(cluster) == 2)
        await cluster.publish_samples()
        assert (bus.last()["deployment-edge"].latency_p99_ms or 0) < alone


async def test_samples_are_numbered_and_a_bus_that_is_away_costs_them_only(plugin_on: PluginOn) -> None:
    async with make(sample_s=0.01) as cluster:
        bus = cast("RecordingBus", cluster.bus)
        await plugin_on(cluster.kubelet("worker-1"), {f"{ENGINE}-s0": 0})
        cluster.api.store.create(DEPLOYMENTS, "live", deployment("edge", 1))
        await until(cluster, lambda: running(cluster) == 1)
        bus.away = True
        assert await cluster.publish_samples() == 1
        bus.away = False
        await cluster.publish_samples()
        await cluster.publish_samples()
        numbers = [event.data.n for event in bus.said if isinstance(event.data, Sampled)]
        assert numbers == sorted(set(numbers))
        assert len({event.id for event in bus.said}) == len(bus.said)
        assert bus.said[0].address.subject.startswith("fleet.v1.sample.live.edge-")


async def test_a_fault_makes_the_pods_on_the_device_slow_and_no_others(plugin_on: PluginOn) -> None:
    async with make() as cluster:
        bus = cast("RecordingBus", cluster.bus)
        await plugin_on(cluster.kubelet("worker-1"), {f"{ENGINE}-s0": 0, "nvidia-0000-5e-00-0-enc-0-s0": 1})
        for name in ("edge", "other"):
            cluster.api.store.create(DEPLOYMENTS, "live", deployment(name, 1, **{"workload-load": "0.2"}))
        await until(cluster, lambda: running(cluster) == 2)
        held = {pod["metadata"]["labels"]["app"]: entries[0].ids for pod, entries in cluster.running()}
        (sick,) = (name for name, ids in held.items() if ids == {f"{ENGINE}-s0"})
        (well,) = {"edge", "other"} - {sick}
        fault = {"node": "worker-1", "device": "nvidia-0000-3b-00-0", "kind": "xid", "code": 79}
        assert (await call(cluster, "/simulator/v1/device-faults", fault))[0] == 200
        await cluster.publish_samples()
        assert bus.last()[f"deployment-{sick}"].fps == 0
        assert bus.last()[f"deployment-{well}"].fps == 30
        assert "Xid (PCI:0000:3b:00): 79" in (cluster.tree("worker-1").root / "dev/kmsg").read_text()
        _, state = await call(cluster, "/simulator/v1/state")
        assert [device["condition"] for device in state["nodes"][0]["devices"]] == ["dead", "ok"]
        _, loads = await call(cluster, "/simulator/v1/load")
        assert loads["utilisation"]["worker-1"][ENGINE] is None


async def test_a_fault_can_repeat() -> None:
    async with make() as cluster:
        fault = {"node": "worker-1", "device": "0", "kind": "ecc", "times": 3, "every_s": 0}
        assert (await call(cluster, "/simulator/v1/device-faults", fault))[0] == 202
        async with asyncio.timeout(5):
            while cluster.tree("worker-1").devices[0].uncorrectable < 3:
                await call(cluster, "/simulator/v1/state")


async def test_kubelets_restart_and_machines_reboot_on_demand(plugin_on: PluginOn) -> None:
    async with make() as cluster:
        plugin = await plugin_on(cluster.kubelet("worker-1"), {f"{ENGINE}-s0": 0})
        cluster.api.store.create(
            PODS, "live", deployment("x", 1)["spec"]["template"] | {"metadata": {"name": "edge"}}
        )
        await until(cluster, lambda: phases(cluster) == {"edge": "Running"})
        boot_id = cluster.tree("worker-1").boot_id
        status, _ = await call(cluster, "/simulator/v1/kubelet", {"node": "worker-1", "action": "restart"})
        assert status == 200
        await plugin.stream_ended.wait()
        assert phases(cluster) == {"edge": "Running"}
        status, shown = await call(cluster, "/simulator/v1/kubelet", {"node": "worker-1", "action": "reboot"})
        assert status == 200
        assert shown["bootId"] != boot_id
        await until(cluster, lambda: phases(cluster) == {"edge": "Failed"})
        node = cluster.api.store.get(NODES, "", "worker-1")
        assert node["status"]["nodeInfo"]["bootID"] == shown["bootId"]


async def test_loads_can_be_changed() -> None:
    async with make() as cluster:
        cluster.api.store.create(DEPLOYMENTS, "live", deployment("edge", 0))
        change = {"namespace": "live", "deployment": "edge", "workload_load": 1.5}
        assert (await call(cluster, "/simulator/v1/load", change))[0] == 200
        body = cluster.api.store.get(DEPLOYMENTS, "live", "edge")
        assert body["metadata"]["annotations"]["simulator.mediafleet/workload-load"] == "1.5"
        assert (await call(cluster, "/simulator/v1/load", change | {"deployment": "none"}))[0] == 404


@pytest.mark.parametrize(
    ("path", "body", "field"),
    [
        ("device-faults", {"node": "worker-1", "device": "0", "kind": "melt"}, "kind"),
        ("device-faults", {"node": "nowhere", "device": "0", "kind": "heal"}, "node"),
        ("device-faults", {"node": "worker-1", "device": "9", "kind": "heal"}, "device"),
        ("kubelet", {"node": "worker-1", "action": "explode"}, "action"),
        ("kubelet", {"node": "nowhere", "action": "restart"}, "node"),
        ("load", {"namespace": "live", "pod": "x"}, "body"),
        ("load", {"namespace": "live", "pod": "x", "load": -1}, "load"),
    ],
)
async def test_bad_requests_name_the_field(path: str, body: dict[str, Any], field: str) -> None:
    async with make() as cluster:
        status, answer = await call(cluster, f"/simulator/v1/{path}", body)
        assert status == 400
        assert answer["field"] == field
        assert answer["fix"]


async def test_a_large_cluster_has_nodes_without_kubelets_whose_pods_run() -> None:
    async with make(nodes=200) as cluster:
        assert len(list(cluster.api.store.each(NODES))) == 200
        cluster.api.store.create(DEPLOYMENTS, "live", deployment("edge", 300))
        await until(cluster, lambda: running(cluster) == 300)
        status, answer = await call(
            cluster, "/simulator/v1/device-faults", {"node": "node-0001", "device": "0", "kind": "heal"}
        )
        assert (status, answer["field"]) == (400, "node")


async def test_a_capacity_that_somebody_else_wrote_is_allocatable() -> None:
    async with make() as cluster:
        store, memory = cluster.api.store, "media.example.com/gpu-memory"
        store.modify(
            NODES,
            "",
            "worker-1",
            lambda n: n["status"]["capacity"].update({memory: "8Gi"}),
            subresource="status",
        )
        await until(
            cluster, lambda: store.get(NODES, "", "worker-1")["status"]["allocatable"].get(memory) == "8Gi"
        )
        kubelet, before = cluster.kubelet("worker-1"), store.get(NODES, "", "worker-1")
        assert before["status"]["capacity"][memory] == "8Gi"
        await kubelet.sync_node()
        assert store.get(NODES, "", "worker-1") is before, "nothing new is not written"


async def test_the_process_serves_and_leaves_nothing_behind_at_sigterm() -> None:
    environment = os.environ | {
        "MEDIAFLEET_NATS_URL": "nats://127.0.0.1:1",
        "MEDIAFLEET_SIMULATOR__SEED": "7",
    }
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "services.simulator", env=environment, stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    try:
        async with asyncio.timeout(20):
            started = json.loads(await process.stdout.readline())
            assert [node["name"] for node in started["nodes"]] == ["worker-1", "worker-2", "worker-3"]
            roots = [Path(node["host_root"]) for node in started["nodes"]]
            assert all((root / "var/lib/kubelet/device-plugins/kubelet.sock").exists() for root in roots)
            async with (
                aiohttp.ClientSession() as session,
                session.get(f"{started['url']}/api/v1/nodes") as answer,
            ):
                assert len((await answer.json())["items"]) == 3
    finally:
        process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(5):
            await process.communicate()
    assert process.returncode == 0
    assert not any(root.parent.exists() for root in roots)


async def test_bad_settings_stop_the_start_with_one_line() -> None:
    environment = os.environ | {"MEDIAFLEET_SIMULATOR__PORT": "99999"}
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "services.simulator", env=environment, stderr=asyncio.subprocess.PIPE
    )
    _, said = await process.communicate()
    assert process.returncode == 2
    assert b"MEDIAFLEET_SIMULATOR__PORT" in said
