"""The lab does what tests on it rely on, and goes without a trace."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from tests.lab import cgroups, image
from tests.lab import lab as labs
from tests.lab.fixtures import why_not
from tests.lab.lab import Lab, leftovers
from tests.lab.node import Node
from tests.lab.system import until

SETTINGS = ("vm/overcommit_memory", "vm/panic_on_oom", "kernel/panic", "kernel/panic_on_oops")


def machine() -> dict[str, Any]:
    """What a lab might change on the machine beside things with its name."""
    return {
        "settings": [(Path("/proc/sys") / each).read_text() for each in SETTINGS],
        "folders": [Path(each).exists() for each in ("/var/lib/kubelet", "/var/lib/cni")],
        "controllers": [
            (top / "cgroup.subtree_control").read_text()
            for top in cgroups.hierarchies().all
            if (top / "cgroup.subtree_control").exists()
        ],
    }


@pytest.mark.skipif(bool(why_not()), reason=f"no lab here: {why_not()}")
async def test_a_lab_comes_up_and_goes_without_a_trace() -> None:
    name, before = f"u{os.getpid() % 10_000}", machine()
    async with Lab.up(name) as lab:
        assert "worker-2" in await lab.kubectl("get", "nodes")
        assert lab.whole()
        assert machine()["settings"] == before["settings"]
        assert leftovers(name) != []
    assert leftovers(name) == []
    assert machine() == before
    await labs.down(name)  # again is no error


def pod(name: str, node: str, script: str = "exec sleep 3600") -> dict[str, Any]:
    container = {"name": "main", "image": image.BUSYBOX, "command": ["sh", "-c", script]}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {
            "nodeName": node,
            "terminationGracePeriodSeconds": 0,
            "restartPolicy": "Never",
            "containers": [container],
        },
    }


PODS = "/api/v1/namespaces/default/pods"


async def until_pod(lab: Lab, name: str, fact: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    found: dict[str, Any] = {}

    async def true() -> bool:
        nonlocal found
        status, found = await lab.api.request("GET", f"{PODS}/{name}")
        return status == 200 and fact(found)

    await until(true, timeout_s=30, otherwise=f"pod {name} is not as expected")
    return found


def phase(wanted: str) -> Callable[[dict[str, Any]], bool]:
    return lambda found: found["status"].get("phase") == wanted


async def node_is(lab: Lab, node: Node, ready: str) -> None:
    async def true() -> bool:
        _, found = await lab.api.request("GET", f"/api/v1/nodes/{node.name}")
        return ready in (each["status"] for each in found["status"]["conditions"] if each["type"] == "Ready")

    await until(true, timeout_s=90, otherwise=f"{node.name} is not Ready={ready}")


@pytest.fixture
async def tidy(lab: Lab) -> AsyncIterator[Lab]:
    """The lab, without this test's pods afterwards."""
    yield lab
    await lab.api.request("DELETE", f"{PODS}?gracePeriodSeconds=0")


async def test_pods_of_both_nodes_run_and_reach_each_other(tidy: Lab) -> None:
    first, second = tidy.nodes
    serve = "while :; do echo hello | nc -l -p 8080; done"
    await tidy.api.request("POST", PODS, pod("server", first.name, serve))
    running = await until_pod(tidy, "server", phase("Running"))
    ask = f"until nc -w 2 {running['status']['podIP']} 8080 </dev/null | grep hello; do :; done"
    await tidy.api.request("POST", PODS, pod("client", second.name, ask))
    await until_pod(tidy, "client", phase("Succeeded"))


async def test_a_pod_reaches_the_api_server_at_its_service_address(tidy: Lab) -> None:
    ask = "nc -w 5 $KUBERNETES_SERVICE_HOST $KUBERNETES_SERVICE_PORT </dev/null"
    await tidy.api.request("POST", PODS, pod("asks", tidy.nodes[0].name, ask))
    await until_pod(tidy, "asks", phase("Succeeded"))


async def test_a_service_is_reached_by_its_name_from_both_nodes(tidy: Lab) -> None:
    serve = "while :; do echo hello | nc -l -p 8080; done"
    server = pod("server", tidy.nodes[0].name, serve)
    server["metadata"]["labels"] = {"app": "server"}
    service = {
        "metadata": {"name": "hello"},
        "spec": {"selector": {"app": "server"}, "ports": [{"port": 8080}]},
    }
    services = "/api/v1/namespaces/default/services"
    await tidy.api.request("POST", services, service)
    await tidy.api.request("POST", PODS, server)
    for node in tidy.nodes:
        ask = "until nc -w 2 hello 8080 </dev/null | grep hello; do :; done"
        await tidy.api.request("POST", PODS, pod(f"asks-{node.index}", node.name, ask))
    for node in tidy.nodes:
        await until_pod(tidy, f"asks-{node.index}", phase("Succeeded"))
    await tidy.api.request("DELETE", f"{services}/hello")


async def test_a_pod_outlives_its_kubelet(tidy: Lab) -> None:
    node = tidy.nodes[0]
    await tidy.api.request("POST", PODS, pod("stays", node.name))
    before = await until_pod(tidy, "stays", phase("Running"))
    await node.kill_kubelet()
    await node.start_kubelet()
    await node.restart_kubelet()
    await tidy.api.request("POST", PODS, pod("next", node.name, "true"))
    await until_pod(tidy, "next", phase("Succeeded"))
    after = await until_pod(tidy, "stays", phase("Running"))
    assert after["status"]["containerStatuses"] == before["status"]["containerStatuses"]


async def test_a_quantity_put_into_capacity_is_allocatable_and_outlives_kubelet_and_boot(tidy: Lab) -> None:
    node = tidy.nodes[1]
    path, memory = f"/api/v1/nodes/{node.name}", "media.example.com/gpu-memory"

    async def shows(quantity: str | None, since: str = "") -> None:
        async def true() -> bool:
            status = (await tidy.api.request("GET", path))[1]["status"]
            beaten = max(each["lastHeartbeatTime"] for each in status["conditions"])
            found = {kind: status[kind].get(memory) for kind in ("capacity", "allocatable")}
            return beaten > since and found == {"capacity": quantity, "allocatable": quantity}

        await until(true, timeout_s=30, otherwise=f"{memory} is not {quantity}")

    async def last_beat() -> str:
        conditions = (await tidy.api.request("GET", path))[1]["status"]["conditions"]
        return str(max(each["lastHeartbeatTime"] for each in conditions))

    await tidy.api.request("PATCH", f"{path}/status", {"status": {"capacity": {memory: "8Gi"}}})
    await shows("8Gi")
    before = await last_beat()
    await node.restart_kubelet()
    await shows("8Gi", before)
    before = await last_beat()
    await node.reboot(tidy.others(node))
    await shows("8Gi", before)
    await tidy.api.request("PATCH", f"{path}/status", {"status": {"capacity": {memory: None}}})
    await shows(None)


async def test_the_api_server_can_be_away(tidy: Lab) -> None:
    await tidy.api.stop()
    await tidy.api.start()
    await tidy.api.request("POST", PODS, pod("later", tidy.nodes[1].name, "true"))
    await until_pod(tidy, "later", phase("Succeeded"))


async def test_a_node_boots_again_with_another_boot_id(tidy: Lab) -> None:
    node = tidy.nodes[1]

    async def boot_id() -> str:
        _, found = await tidy.api.request("GET", f"/api/v1/nodes/{node.name}")
        return str(found["status"]["nodeInfo"]["bootID"])

    before = await boot_id()
    await node.reboot(tidy.others(node))

    async def changed() -> bool:
        return await boot_id() != before

    await until(changed, timeout_s=30, otherwise="the boot id stays")
    await node_is(tidy, node, "True")


async def test_a_node_cut_off_is_not_ready_until_it_is_connected_again(tidy: Lab) -> None:
    node = tidy.nodes[1]
    await node.cut_network()
    await node_is(tidy, node, "Unknown")
    await node.heal_network()
    await node_is(tidy, node, "True")
