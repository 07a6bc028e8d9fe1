"""Our port on a Kubernetes API."""

import uuid
from collections.abc import AsyncIterator, Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
import yaml
from kubernetes_asyncio import client as kubernetes

from shared.errors import Permanent
from shared.kube.client import KubeClient, connect
from shared.kube.models import ChangeKind, EvictionOutcome, ObjectRef, PodRef, Taint
from shared.kube.port import Kube, StaleWrite

client: Any = kubernetes  # the library takes dicts as bodies, its stubs do not

KEY = "media.example.com/device-quarantine"


@pytest.fixture
async def media_resource(kube: KubeClient) -> AsyncIterator[str]:
    name = f"suite-{uuid.uuid4().hex[:8]}"
    yield name
    await kube.delete_media_resource(name)


async def test_the_client_is_the_port(kube: KubeClient) -> None:
    port: Kube = kube
    assert await port.pod("default", "nobody-of-this-name") is None


async def test_pods_are_found_by_node_namespace_and_label(
    kube: KubeClient, namespace: str, node: str, make_pod: Any
) -> None:
    await make_pod("a", labels={"media.example.com/tier": "batch"})
    await make_pod("b", ready=False)
    assert [pod.name for pod in await kube.pods(node=node)] == ["a", "b"]
    assert [
        pod.name for pod in await kube.pods(namespace=namespace, labels="media.example.com/tier=batch")
    ] == ["a"]
    pod = await kube.pod(namespace, "a")
    assert pod is not None
    assert (pod.node, pod.phase, pod.ready, pod.deleting, pod.owner) == (node, "Running", True, False, None)


async def test_evicting_says_evicted_gone_and_replaced(
    kube: KubeClient, namespace: str, make_pod: Any
) -> None:
    made = await make_pod("a")
    ref = PodRef(namespace, "a", made.metadata.uid)
    assert (await kube.evict(ref, dry_run=True)).outcome is EvictionOutcome.EVICTED
    assert (await kube.evict(PodRef(namespace, "a", "another"))).outcome is EvictionOutcome.REPLACED
    assert (await kube.evict(PodRef(namespace, "nobody", "another"))).outcome is EvictionOutcome.GONE
    pod = await kube.pod(namespace, "a")
    assert pod is not None
    assert not pod.deleting
    assert (await kube.evict(ref, grace_s=5)).outcome is EvictionOutcome.EVICTED
    pod = await kube.pod(namespace, "a")
    assert pod is not None
    assert pod.deleting


async def test_a_budget_blocks_an_eviction(kube: KubeClient, api: Any, namespace: str, make_pod: Any) -> None:
    made = await make_pod("a")
    selector = {"matchLabels": {"app": "encoder"}}
    body = {"metadata": {"name": "budget"}, "spec": {"minAvailable": 1, "selector": selector}}
    await client.PolicyV1Api(api).create_namespaced_pod_disruption_budget(namespace, body)
    answer = await kube.evict(PodRef(namespace, "a", made.metadata.uid))
    assert (answer.outcome, answer.status) == (EvictionOutcome.BLOCKED, 429)
    assert "budget" in answer.message


async def test_a_taint_is_set_once_and_only_its_own_key_is_touched(
    kube: KubeClient, api: Any, node: str
) -> None:
    foreign = {"key": "other.example.com/x", "value": "y", "effect": "NoSchedule"}
    await client.CoreV1Api(api).patch_node(node, {"spec": {"taints": [foreign]}})
    assert await kube.set_taint(node, Taint(KEY, "NoSchedule", "7"))
    assert not await kube.set_taint(node, Taint(KEY, "NoSchedule", "7"))
    assert await kube.set_taint(node, Taint(KEY, "NoSchedule", "8"))
    assert await kube.set_taint(node, Taint(KEY, "NoExecute"))
    read = await kube.node(node)
    assert read is not None
    ours = {(taint.effect, taint.value) for taint in read.taints if taint.key == KEY}
    assert ours == {("NoSchedule", "8"), ("NoExecute", "")}
    assert await kube.remove_taint(node, KEY)
    assert not await kube.remove_taint(node, KEY)
    read = await kube.node(node)
    assert read is not None
    assert Taint("other.example.com/x", "NoSchedule", "y") in read.taints


async def test_a_taint_on_a_node_that_is_not_there_is_permanent(kube: KubeClient) -> None:
    with pytest.raises(Permanent) as refused:
        await kube.set_taint("nowhere", Taint(KEY))
    assert refused.value.field == "node"


async def test_labels_annotations_and_capacity_of_a_node_are_set_and_removed(
    kube: KubeClient, node: str
) -> None:
    await kube.patch_node_labels(
        node, {"media.example.com/gpu-vendor": "nvidia"}, {"media.example.com/note": "x"}
    )
    await kube.patch_node_capacity(node, {"media.example.com/gpu-memory": "8Gi"})
    read = await kube.node(node)
    assert read is not None
    assert read.labels["media.example.com/gpu-vendor"] == "nvidia"
    assert read.annotations["media.example.com/note"] == "x"
    assert read.capacity["media.example.com/gpu-memory"] == Decimal(8 << 30)
    await kube.patch_node_labels(node, {"media.example.com/gpu-vendor": None})
    await kube.patch_node_capacity(node, {"media.example.com/gpu-memory": None})
    read = await kube.node(node)
    assert read is not None
    assert "media.example.com/gpu-vendor" not in read.labels
    assert "media.example.com/gpu-memory" not in read.capacity
    assert node in [each.name for each in await kube.nodes()]


async def test_the_owner_of_a_pod_is_its_deployment_through_the_replica_set(
    kube: KubeClient, api: Any, namespace: str
) -> None:
    apps = client.AppsV1Api(api)
    above = await apps.create_namespaced_deployment(namespace, workload("edge"))
    below = workload("edge-1")
    below["metadata"]["ownerReferences"] = [reference("Deployment", above)]
    replica_set = await apps.create_namespaced_replica_set(namespace, below)
    body = {
        "metadata": {
            "name": "edge-1-a",
            "labels": {"app": "x"},
            "ownerReferences": [reference("ReplicaSet", replica_set)],
        },
        "spec": {"containers": [{"name": "main", "image": "registry.invalid/edge:1"}]},
    }
    await client.CoreV1Api(api).create_namespaced_pod(namespace, body)
    pod = await kube.pod(namespace, "edge-1-a")
    assert pod is not None
    found = await kube.owner_workload(pod)
    assert found is not None
    assert (found.kind, found.name, found.replicas) == ("Deployment", "edge", 0)


async def test_scaling_expects_the_version_that_was_read(kube: KubeClient, api: Any, namespace: str) -> None:
    await client.AppsV1Api(api).create_namespaced_deployment(namespace, workload("edge"))
    read = await kube.workload(namespace, "Deployment", "edge")
    assert read is not None
    version = read.resource_version
    scaled = await kube.scale(namespace, "Deployment", "edge", 1)
    assert scaled.replicas == 1
    with pytest.raises(StaleWrite):
        await kube.scale(namespace, "Deployment", "edge", 2, expected_resource_version=version)
    with pytest.raises(Permanent):
        await kube.scale(namespace, "Deployment", "nobody", 2)
    with pytest.raises(Permanent) as refused:
        await kube.workload(namespace, "Gadget", "edge")
    assert refused.value.field == "kind"


async def test_an_autoscalers_minimum_is_raised_with_its_annotation(
    kube: KubeClient, api: Any, namespace: str
) -> None:
    target = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "edge"}
    body = {
        "metadata": {"name": "edge"},
        "spec": {"scaleTargetRef": target, "minReplicas": 1, "maxReplicas": 4},
    }
    await client.AutoscalingV2Api(api).create_namespaced_horizontal_pod_autoscaler(namespace, body)
    found = [hpa for hpa in await kube.hpas(namespace) if hpa.target_name == "edge"]
    assert [(hpa.min_replicas, hpa.max_replicas) for hpa in found] == [(1, 4)]
    raised = await kube.patch_hpa_min(namespace, "edge", 3, {"media.example.com/lease": "r-1"})
    assert (raised.min_replicas, raised.annotations["media.example.com/lease"]) == (3, "r-1")
    with pytest.raises(StaleWrite):
        await kube.patch_hpa_min(
            namespace, "edge", 2, {}, expected_resource_version=found[0].resource_version
        )
    with pytest.raises(Permanent) as refused:
        await kube.patch_hpa_min(namespace, "edge", 9, {})
    assert refused.value.field == "spec.maxReplicas"


async def test_a_media_resource_is_applied_and_its_status_merged(
    kube: KubeClient, media_resource: str
) -> None:
    name = media_resource
    assert await kube.patch_media_resource_status(name, {"phase": "Healthy"}) is None
    made = await kube.apply_media_resource(name, gpu("worker-1"), labels={"media.example.com/vendor": "amd"})
    await kube.patch_media_resource_status(name, {"phase": "Suspect", "epoch": 3})
    same = await kube.apply_media_resource(name, gpu("worker-1"))
    changed = await kube.apply_media_resource(name, gpu("worker-2"))
    assert (made.generation, same.generation, changed.generation) == (1, 1, 2)
    assert changed.labels["media.example.com/vendor"] == "amd"
    merged = await kube.patch_media_resource_status(name, {"phase": "Quarantined"})
    assert merged is not None
    assert merged.status == {"phase": "Quarantined", "epoch": 3}
    assert merged.spec == gpu("worker-2")
    assert name in [each.name for each in await kube.media_resources()]
    assert await kube.delete_media_resource(name)
    assert not await kube.delete_media_resource(name)


async def test_a_media_resource_that_is_not_valid_names_the_field(kube: KubeClient) -> None:
    with pytest.raises(Permanent) as refused:
        await kube.apply_media_resource("suite-wrong", gpu("worker-1") | {"vendor": 7})
    assert refused.value.field == "spec.vendor"


async def test_what_is_not_granted_is_permanent_and_says_what_to_grant(
    api: Any, namespace: str, real: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not real:
        pytest.skip("the simulator grants everything")
    made = await client.CoreV1Api(api).create_namespaced_service_account_token("default", namespace, {})
    monkeypatch.setenv("KUBECONFIG", with_token(real, made.status.token, tmp_path / "kubeconfig"))
    async with connect("", component="contract-suite") as nobody:
        with pytest.raises(Permanent, match="grant this service account"):
            await nobody.pods(namespace=namespace)
        answer = await nobody.evict(PodRef(namespace, "a", "x"))
        assert (answer.outcome, answer.status) == (EvictionOutcome.FAILED, 403)


async def test_an_event_said_twice_is_one_event_with_a_count(
    kube: KubeClient, api: Any, namespace: str, make_pod: Any
) -> None:
    made = await make_pod("a")
    regarding = ObjectRef("Pod", "a", namespace, made.metadata.uid)
    for _ in range(3):
        await kube.record_event(
            regarding, "SLAEviction", "x" * 2000, "Warning", "Evict", ObjectRef("Pod", "b", namespace)
        )
    found = (await client.EventsV1Api(api).list_namespaced_event(namespace)).items
    ours = [event for event in found if event.reason == "SLAEviction"]
    assert len(ours) == 1
    assert len(ours[0].note.encode()) == 1024
    assert ours[0].series.count == 3
    assert ours[0].reporting_controller == "media.example.com/contract-suite"


async def test_an_event_on_a_node_goes_to_the_default_namespace(
    kube: KubeClient, api: Any, node: str
) -> None:
    await kube.record_event(ObjectRef("Node", node), "DeviceQuarantined", "why", "Warning", "Quarantine")
    found = await client.EventsV1Api(api).list_namespaced_event(
        "default", field_selector=f"regarding.name={node}"
    )
    assert [event.reason for event in found.items] == ["DeviceQuarantined"]


async def test_watched_pods_are_told_then_synced_then_followed(
    kube: KubeClient, api: Any, namespace: str, make_pod: Any, deadline: Callable[[], Any]
) -> None:
    await make_pod("a")
    told = []
    async with deadline():
        async for change in kube.watch_pods(namespace=namespace):
            told.append((change.kind, change.item.name if change.item else ""))
            if change.kind is ChangeKind.SYNCED:
                await client.CoreV1Api(api).delete_namespaced_pod("a", namespace, grace_period_seconds=0)
            if change.kind is ChangeKind.DELETED:
                break
    assert told[:2] == [(ChangeKind.ADDED, "a"), (ChangeKind.SYNCED, "")]
    assert told[-1] == (ChangeKind.DELETED, "a")


async def test_nodes_and_media_resources_are_watched_too(
    kube: KubeClient, node: str, media_resource: str, deadline: Callable[[], Any]
) -> None:
    await kube.apply_media_resource(media_resource, gpu(node))
    async with deadline():
        async for change in kube.watch_nodes():
            if change.item is not None and change.item.name == node:
                break
        async for resource in kube.watch_media_resources():
            if resource.item is not None and resource.item.name == media_resource:
                break


async def test_the_server_lists_its_group_versions(kube: KubeClient) -> None:
    assert {"policy/v1", "apps/v1", "events.k8s.io/v1"} <= set(await kube.api_versions())


def with_token(kubeconfig: str, token: str, target: Path) -> str:
    """A kubeconfig of the same server for somebody else."""
    document = yaml.safe_load(Path(kubeconfig).read_text())
    document["users"][0]["user"] = {"token": token}
    target.write_text(yaml.safe_dump(document))
    return str(target)


def gpu(node: str) -> dict[str, Any]:
    return {"type": "GPU", "vendor": "NVIDIA", "model": "A100", "topology": {"node": node}}


def workload(name: str) -> dict[str, Any]:
    template = {
        "metadata": {"labels": {"app": name}},
        "spec": {"containers": [{"name": "main", "image": "registry.invalid/edge:1"}]},
    }
    spec = {"replicas": 0, "selector": {"matchLabels": {"app": name}}, "template": template}
    return {"metadata": {"name": name}, "spec": spec}


def reference(kind: str, owner: Any) -> dict[str, Any]:
    return {
        "apiVersion": "apps/v1",
        "kind": kind,
        "name": owner.metadata.name,
        "uid": owner.metadata.uid,
        "controller": True,
    }
