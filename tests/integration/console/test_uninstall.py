"""`mediafleet uninstall` against the simulated API server."""

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from random import Random
from typing import Any

import orjson
import pytest

from services.autoscaler.lease import KEY, lease
from services.console.removal import remove
from services.console.uninstall import STARTUP_TAINT
from services.manager.fleet import Known, node_labels
from services.manager.settings import ManagerSettings
from services.simulator.api.faults import Fault
from services.simulator.api.resources import (
    AUTOSCALERS,
    GUARDIAN_POLICIES,
    MEDIA_RESOURCES,
    NAMESPACES,
    NODES,
    PODS,
    Resource,
)
from services.simulator.api.server import ApiServer
from shared.devices.model import RawDevice
from shared.errors import Refused, Temporary
from shared.vendors.adapter import translate

DOMAIN = "media.example.com"
NODE = "worker-1"
FOREIGN_TAINT = {"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"}


def labels() -> dict[str, str]:
    """What the manager writes onto a node with two vendors, and onto one with a single."""
    raw = RawDevice.observed(
        "nvidia-0000-3b-00-0", serial="S", parent=None, raw={"pci": {"pci_id": "10de:1eb8"}}, sources=("pci",)
    )
    nvidia = translate(raw, NODE)
    one = Known(NODE, "a", nvidia, "registered")
    other = Known(NODE, "b", nvidia.model_copy(update={"vendor": "amd"}), "registered")
    written = {**node_labels(DOMAIN, [one, other]), **node_labels(DOMAIN, [one])}
    return {key: value for key, value in written.items() if value is not None}


def hpa(name: str, least: int, annotations: dict[str, str]) -> dict[str, Any]:
    target = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "edge"}
    return {
        "metadata": {"name": name, "annotations": annotations},
        "spec": {"minReplicas": least, "maxReplicas": 9, "scaleTargetRef": target},
    }


class Cluster:
    """An API server with everything of ours in it, and something of others beside each."""

    def __init__(self, server: ApiServer) -> None:
        self.server = server
        store = server.store
        store.create(NAMESPACES, "", {"metadata": {"name": "media"}})
        taints = [
            {"key": f"{DOMAIN}/device-quarantine", "effect": "NoSchedule", "value": "x"},
            {"key": STARTUP_TAINT, "effect": "NoSchedule"},
            FOREIGN_TAINT,
        ]
        capacity = {"cpu": "4", "nvidia.com/gpu": "1", f"{DOMAIN}/nvenc": "4", f"{DOMAIN}/gpu-memory": "8Gi"}
        meta = {"name": NODE, "labels": {**labels(), f"{DOMAIN}/rack": "r7"}}
        status = {"capacity": capacity}
        store.create(NODES, "", {"metadata": meta, "spec": {"taints": taints}, "status": status})
        store.create(NODES, "", {"metadata": {"name": "plain"}})
        spec = {"type": "GPU", "vendor": "NVIDIA", "model": "T4"}
        store.create(MEDIA_RESOURCES, "", {"metadata": {"name": "worker-1-a"}, "spec": spec})
        store.create(GUARDIAN_POLICIES, "", {"metadata": {"name": "default"}, "spec": {}})
        text = lease(2, 5, datetime(2026, 11, 30, tzinfo=UTC), "r").text()
        for name, least in (("lent", 5), ("changed", 3)):
            store.create(AUTOSCALERS, "media", hpa(name, least, {f"{DOMAIN}/{KEY}": text}))
        store.create(AUTOSCALERS, "media", hpa("foreign", 4, {}))
        self.pod("clip", {})

    def pod(self, name: str, marks: dict[str, str]) -> None:
        container = {"name": "c", "image": "i"}
        body = {
            "metadata": {"name": name, "labels": marks},
            "spec": {"nodeName": NODE, "containers": [container]},
        }
        self.server.store.create(PODS, "media", body)

    def of(self, resource: Resource) -> list[dict[str, Any]]:
        return list(self.server.store.each(resource))

    def floors(self) -> dict[str, tuple[int, bool]]:
        return {
            each["metadata"]["name"]: (
                each["spec"]["minReplicas"],
                f"{DOMAIN}/{KEY}" in (each["metadata"].get("annotations") or {}),
            )
            for each in self.of(AUTOSCALERS)
        }

    async def remove(
        self, *, yes: bool = True, dry_run: bool = False, machine: bool = False, definitions: bool = False
    ) -> bool:
        return await remove(
            self.server.url,
            domain=DOMAIN,
            startup_taint="",
            definitions=definitions,
            yes=yes,
            dry_run=dry_run,
            machine=machine,
        )

    async def run(self, *arguments: str) -> tuple[int, str, str]:
        command = [sys.executable, "-m", "services.console", "uninstall", "--kube-url", self.server.url]
        process = await asyncio.create_subprocess_exec(
            *command,
            *arguments,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env={key: value for key, value in os.environ.items() if not key.startswith("MEDIAFLEET_")},
        )
        out, err = await process.communicate()
        return process.returncode or 0, out.decode(), err.decode()


@pytest.fixture
async def cluster() -> AsyncIterator[Cluster]:
    server = ApiServer(random=Random(1))  # noqa: S311 - uids of a simulation
    await server.start()
    yield Cluster(server)
    await server.stop()


def test_the_managers_default_startup_taint_is_the_one_that_goes() -> None:
    assert ManagerSettings().startup_taint == STARTUP_TAINT


async def test_everything_of_ours_goes_and_everything_else_stays(cluster: Cluster) -> None:
    code, out, err = await cluster.run("--yes")
    assert (code, err) == (0, "")
    assert f"removed  taint {NODE} {DOMAIN}/device-quarantine" in out
    node = cluster.server.store.get(NODES, "", NODE)
    assert node["spec"]["taints"] == [FOREIGN_TAINT]
    left = {key: value for key, value in node["metadata"]["labels"].items() if key.startswith(DOMAIN)}
    assert left == {f"{DOMAIN}/rack": "r7"}
    assert set(node["status"]["capacity"]) == {"cpu", "nvidia.com/gpu"}
    assert cluster.of(MEDIA_RESOURCES) == []
    assert cluster.of(GUARDIAN_POLICIES) == []
    assert cluster.floors() == {"lent": (2, False), "changed": (3, False), "foreign": (4, False)}
    assert [pod["metadata"]["name"] for pod in cluster.of(PODS)] == ["clip"]
    assert cluster.server.access_log.find("delete", "pods") == []
    code, out, _ = await cluster.run("--yes")
    assert code == 0
    assert "nothing of mediafleet is in this cluster" in out


async def test_bad_input_is_exit_2_and_a_refusal_exit_1(cluster: Cluster) -> None:
    revision = cluster.server.store.revision
    code, out, err = await cluster.run()
    assert code == 2
    assert "--yes" in err
    assert "MediaResource" in out
    cluster.pod("manager-0", {"app.kubernetes.io/part-of": "mediafleet"})
    code, _, err = await cluster.run("--yes")
    assert code == 1
    assert "mediafleet still runs (media/manager-0)" in err
    assert cluster.server.store.revision == revision + 1


async def test_a_look_writes_nothing_and_is_said_for_machines_too(
    cluster: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster.pod("manager-0", {"app.kubernetes.io/part-of": "mediafleet"})
    revision = cluster.server.store.revision
    assert await cluster.remove(dry_run=True)
    assert "still running: media/manager-0" in capsys.readouterr().out
    assert await cluster.remove(dry_run=True, machine=True)
    assert cluster.server.store.revision == revision
    said = orjson.loads(capsys.readouterr().out)
    assert said["dry_run"]
    assert said["running"] == ["media/manager-0"]
    assert {"taint", "label", "capacity", "hpa floor", "MediaResource", "GuardianPolicy"} == {
        step["what"] for step in said["steps"]
    }
    assert {step["outcome"] for step in said["steps"]} == {"planned"}


@pytest.mark.parametrize("answer", [True, False])
async def test_a_person_is_asked(cluster: Cluster, monkeypatch: pytest.MonkeyPatch, answer: bool) -> None:  # noqa: FBT001 - a parameter of the test
    asked: list[str] = []

    def confirm(text: str) -> bool:
        asked.append(text)
        return answer

    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr("typer.confirm", confirm)
    if answer:
        assert await cluster.remove(yes=False)
    else:
        with pytest.raises(Refused, match="not confirmed"):
            await cluster.remove(yes=False)
    assert len(asked) == 1
    assert (cluster.of(MEDIA_RESOURCES) == []) is answer


async def test_what_cannot_be_removed_is_told_and_the_rest_goes_on(
    cluster: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster.server.faults.inject(Fault(verb="delete", path="mediaresources/worker-1-a", status=403))
    assert not await cluster.remove(machine=True, definitions=True)
    steps = orjson.loads(capsys.readouterr().out)["steps"]
    failed = [step for step in steps if step["outcome"] == "failed"]
    assert [(step["what"], step["of"]) for step in failed] == [("MediaResource", "worker-1-a")]
    assert "ClusterRole" in failed[0]["detail"]
    assert cluster.server.store.get(NODES, "", NODE)["spec"]["taints"] == [FOREIGN_TAINT]


async def test_an_api_server_that_does_not_answer_is_an_error_and_not_an_empty_cluster(
    cluster: Cluster,
) -> None:
    cluster.server.faults.inject(Fault(path="/api", times=50, status=503))
    with pytest.raises(Temporary, match="503"):
        await cluster.remove()


async def test_a_floor_lent_with_a_broken_note_stays_and_loses_the_note(cluster: Cluster) -> None:
    broken = hpa("broken", 5, {f"{DOMAIN}/{KEY}": "{"})
    cluster.server.store.create(AUTOSCALERS, "media", broken)
    assert await cluster.remove()
    assert cluster.floors()["broken"] == (5, False)
