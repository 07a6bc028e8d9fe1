"""Objects over kubernetes_asyncio: what every client of a Kubernetes API relies on."""

import json
from typing import Any

import pytest
from kubernetes_asyncio import client as kubernetes

client: Any = kubernetes  # the library takes dicts as bodies, its stubs do not

JSON_PATCH = "application/json-patch+json"
MERGE_PATCH = "application/merge-patch+json"


def status_of(error: Any) -> dict[str, Any]:
    parsed: dict[str, Any] = json.loads(error.body)
    return parsed


def settings(name: str = "", **extra: Any) -> dict[str, Any]:
    metadata = {"name": name} if name else {}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"a": "1"}, **extra}


async def test_a_created_object_gets_uid_time_and_resource_version(api: Any, namespace: str) -> None:
    core = client.CoreV1Api(api)
    made = await core.create_namespaced_config_map(namespace, settings("policy"))
    assert made.metadata.uid
    assert made.metadata.creation_timestamp.utcoffset().total_seconds() == 0
    assert int(made.metadata.resource_version) > 0
    read = await core.read_namespaced_config_map("policy", namespace)
    assert read.metadata.resource_version == made.metadata.resource_version


async def test_generate_name_makes_a_new_name_each_time(api: Any, namespace: str) -> None:
    core = client.CoreV1Api(api)
    body = settings()
    body["metadata"]["generateName"] = "policy-"
    names = {(await core.create_namespaced_config_map(namespace, body)).metadata.name for _ in range(3)}
    assert len(names) == 3
    assert all(name.startswith("policy-") for name in names)


async def test_a_name_that_is_taken_is_409_already_exists(api: Any, namespace: str) -> None:
    core = client.CoreV1Api(api)
    await core.create_namespaced_config_map(namespace, settings("policy"))
    with pytest.raises(client.ApiException) as refused:
        await core.create_namespaced_config_map(namespace, settings("policy"))
    assert refused.value.status == 409
    assert status_of(refused.value)["reason"] == "AlreadyExists"


async def test_a_missing_object_is_a_404_status_with_its_name(api: Any, namespace: str) -> None:
    with pytest.raises(client.ApiException) as refused:
        await client.CoreV1Api(api).read_namespaced_pod("nobody", namespace)
    said = status_of(refused.value)
    assert said["kind"] == "Status"
    assert (said["code"], said["reason"], said["message"]) == (404, "NotFound", 'pods "nobody" not found')
    assert said["details"] == {"name": "nobody", "kind": "pods"}


async def test_put_with_a_stale_resource_version_is_409_conflict(api: Any, namespace: str) -> None:
    core = client.CoreV1Api(api)
    made = await core.create_namespaced_config_map(namespace, settings("policy"))
    made.data["a"] = "2"
    await core.replace_namespaced_config_map("policy", namespace, made)
    made.data["a"] = "3"
    with pytest.raises(client.ApiException) as refused:
        await core.replace_namespaced_config_map("policy", namespace, made)
    assert refused.value.status == 409
    assert status_of(refused.value)["reason"] == "Conflict"


async def test_put_without_a_resource_version_wins(api: Any, namespace: str) -> None:
    core = client.CoreV1Api(api)
    await core.create_namespaced_config_map(namespace, settings("policy"))
    replaced = await core.replace_namespaced_config_map(
        "policy", namespace, settings("policy", data={"b": "2"})
    )
    assert replaced.data == {"b": "2"}


async def test_a_write_that_changes_nothing_keeps_the_resource_version(api: Any, namespace: str) -> None:
    core = client.CoreV1Api(api)
    made = await core.create_namespaced_config_map(namespace, settings("policy"))
    again = await core.patch_namespaced_config_map("policy", namespace, {"data": {"a": "1"}})
    assert again.metadata.resource_version == made.metadata.resource_version


async def test_merge_patch_sets_and_removes(api: Any, namespace: str) -> None:
    core = client.CoreV1Api(api)
    await core.create_namespaced_config_map(namespace, settings("policy"))
    patch = {"data": {"a": None, "b": "2"}, "metadata": {"labels": {"x": "y"}}}
    patched = await core.patch_namespaced_config_map("policy", namespace, patch, _content_type=MERGE_PATCH)
    assert patched.data == {"b": "2"}
    assert patched.metadata.labels == {"x": "y"}


async def test_merge_patch_with_a_stale_resource_version_is_409(api: Any, namespace: str) -> None:
    core = client.CoreV1Api(api)
    made = await core.create_namespaced_config_map(namespace, settings("policy"))
    await core.patch_namespaced_config_map("policy", namespace, {"data": {"a": "2"}})
    stale = {"metadata": {"resourceVersion": made.metadata.resource_version}, "data": {"a": "3"}}
    with pytest.raises(client.ApiException) as refused:
        await core.patch_namespaced_config_map("policy", namespace, stale, _content_type=MERGE_PATCH)
    assert refused.value.status == 409


async def test_json_patch_applies_and_a_failed_test_is_422(api: Any, namespace: str) -> None:
    core = client.CoreV1Api(api)
    await core.create_namespaced_config_map(namespace, settings("policy"))
    add = [{"op": "add", "path": "/metadata/annotations", "value": {}}]
    add += [{"op": "add", "path": "/metadata/annotations/b.example.com~1c", "value": "2"}]
    patched = await core.patch_namespaced_config_map("policy", namespace, add, _content_type=JSON_PATCH)
    assert patched.metadata.annotations == {"b.example.com/c": "2"}
    test = [{"op": "test", "path": "/metadata/resourceVersion", "value": "1"}, *add]
    with pytest.raises(client.ApiException) as refused:
        await core.patch_namespaced_config_map("policy", namespace, test, _content_type=JSON_PATCH)
    assert refused.value.status == 422


async def test_taints_are_one_list_and_a_patch_without_a_version_loses_the_others(
    api: Any, node: str
) -> None:
    core = client.CoreV1Api(api)
    for key in ("a.example.com/x", "b.example.com/x"):
        patch = {"spec": {"taints": [{"key": key, "effect": "NoSchedule"}]}}
        patched = await core.patch_node(node, patch)
        assert [taint.key for taint in patched.spec.taints] == [key]
    stale = patch | {"metadata": {"resourceVersion": "1"}}
    with pytest.raises(client.ApiException) as refused:
        await core.patch_node(node, stale)
    assert refused.value.status == 409


async def test_strategic_patch_merges_conditions_by_type(api: Any, node: str) -> None:
    core = client.CoreV1Api(api)
    for kind in ("Ready", "MediaReady", "Ready"):
        condition = {"type": kind, "status": "True", "reason": "Said", "message": "so"}
        await core.patch_node_status(node, {"status": {"conditions": [condition]}})
    kinds = sorted(condition.type for condition in (await core.read_node(node)).status.conditions)
    assert kinds == ["MediaReady", "Ready"]


async def test_status_and_spec_are_written_apart(api: Any, node: str) -> None:
    core = client.CoreV1Api(api)
    await core.patch_node(
        node, {"spec": {"unschedulable": True}, "status": {"capacity": {"x.example.com/y": "1"}}}
    )
    patch = {"spec": {"unschedulable": False}, "status": {"capacity": {"z.example.com/y": "1"}}}
    await core.patch_node_status(node, patch)
    read = await core.read_node(node)
    assert read.spec.unschedulable is True
    assert "x.example.com/y" not in read.status.capacity
    assert read.status.capacity["z.example.com/y"] == "1"


async def test_generation_grows_with_the_spec_only(api: Any, namespace: str) -> None:
    apps = client.AppsV1Api(api)
    made = await apps.create_namespaced_deployment(namespace, deployment("edge"))
    assert made.metadata.generation == 1
    labelled = await apps.patch_namespaced_deployment("edge", namespace, {"metadata": {"labels": {"x": "y"}}})
    assert labelled.metadata.generation == 1
    scaled = await apps.patch_namespaced_deployment("edge", namespace, {"spec": {"replicas": 1}})
    assert scaled.metadata.generation == 2


async def test_the_scale_subresource_changes_replicas_only(api: Any, namespace: str) -> None:
    apps = client.AppsV1Api(api)
    await apps.create_namespaced_deployment(namespace, deployment("edge"))
    scale = await apps.read_namespaced_deployment_scale("edge", namespace)
    assert (scale.spec.replicas, scale.status.selector) == (None, "app=edge")  # none at all is left out
    scale.spec.replicas = 3
    assert (await apps.replace_namespaced_deployment_scale("edge", namespace, scale)).spec.replicas == 3
    with pytest.raises(client.ApiException) as refused:
        await apps.replace_namespaced_deployment_scale("edge", namespace, scale)
    assert refused.value.status == 409


async def test_lists_are_filtered_by_labels_and_fields(
    api: Any, namespace: str, node: str, make_pod: Any
) -> None:
    core = client.CoreV1Api(api)
    await make_pod("a", labels={"tier": "batch", "app": "x"})
    await make_pod("b", labels={"tier": "online"})
    await make_pod("c", labels={"tier": "besteffort"})

    async def names(**selectors: str) -> list[str]:
        return [pod.metadata.name for pod in (await core.list_namespaced_pod(namespace, **selectors)).items]

    assert await names(label_selector="tier=batch") == ["a"]
    assert await names(label_selector="tier in (batch, online)") == ["a", "b"]
    assert await names(label_selector="tier!=batch") == ["b", "c"]
    assert await names(label_selector="app") == ["a"]
    assert await names(label_selector="!app") == ["b", "c"]
    assert await names(label_selector="tier notin (batch),!app") == ["b", "c"]
    assert await names(field_selector=f"spec.nodeName={node},metadata.name=b") == ["b"]
    assert await names(field_selector="status.phase!=Running") == []
    with pytest.raises(client.ApiException) as refused:
        await names(field_selector="spec.hostname=x")
    assert refused.value.status == 400


async def test_long_lists_come_in_pages_of_one_resource_version(api: Any, namespace: str) -> None:
    core = client.CoreV1Api(api)
    for index in range(5):
        await core.create_namespaced_config_map(namespace, settings(f"page-{index}"))
    selector = {"field_selector": "metadata.name!=kube-root-ca.crt"}
    first = await core.list_namespaced_config_map(namespace, limit=2, **selector)
    await core.create_namespaced_config_map(namespace, settings("page-9"))
    names, page = [item.metadata.name for item in first.items], first
    while page.metadata._continue:
        token = page.metadata._continue
        page = await core.list_namespaced_config_map(namespace, limit=2, _continue=token, **selector)
        assert page.metadata.resource_version == first.metadata.resource_version
        names += [item.metadata.name for item in page.items]
    assert names[:5] == [f"page-{index}" for index in range(5)]


async def test_a_running_pod_terminates_and_goes_when_its_kubelet_says_so(
    api: Any, namespace: str, make_pod: Any
) -> None:
    core = client.CoreV1Api(api)
    made = await make_pod("a", terminationGracePeriodSeconds=30)
    going = await core.delete_namespaced_pod("a", namespace)
    assert going.metadata.deletion_timestamp is not None
    assert going.metadata.deletion_grace_period_seconds == 30
    assert (await core.read_namespaced_pod("a", namespace)).metadata.uid == made.metadata.uid
    await core.delete_namespaced_pod("a", namespace, grace_period_seconds=0)
    with pytest.raises(client.ApiException) as refused:
        await core.read_namespaced_pod("a", namespace)
    assert refused.value.status == 404


async def test_delete_with_another_uid_is_409(api: Any, namespace: str, make_pod: Any) -> None:
    await make_pod("a")
    with pytest.raises(client.ApiException) as refused:
        await client.CoreV1Api(api).delete_namespaced_pod(
            "a", namespace, body={"preconditions": {"uid": "00000000-0000-0000-0000-000000000000"}}
        )
    assert refused.value.status == 409


async def test_a_collection_is_deleted_by_selector(api: Any, namespace: str) -> None:
    core = client.CoreV1Api(api)
    for name, label in (("a", "x"), ("b", "x"), ("c", "y")):
        await core.create_namespaced_config_map(
            namespace, settings(name) | {"metadata": {"name": name, "labels": {"l": label}}}
        )
    await core.delete_collection_namespaced_config_map(namespace, label_selector="l=x")
    left = await core.list_namespaced_config_map(namespace, label_selector="l")
    assert [item.metadata.name for item in left.items] == ["c"]


async def test_an_object_with_a_finalizer_stays_until_it_has_none(api: Any, namespace: str) -> None:
    core = client.CoreV1Api(api)
    body = settings("held")
    body["metadata"]["finalizers"] = ["media.example.com/drain"]
    await core.create_namespaced_config_map(namespace, body)
    await core.delete_namespaced_config_map("held", namespace)
    assert (await core.read_namespaced_config_map("held", namespace)).metadata.deletion_timestamp is not None
    await core.patch_namespaced_config_map(
        "held", namespace, {"metadata": {"finalizers": None}}, _content_type=MERGE_PATCH
    )
    with pytest.raises(client.ApiException) as refused:
        await core.read_namespaced_config_map("held", namespace)
    assert refused.value.status == 404


async def test_a_config_key_with_a_slash_is_422(api: Any, namespace: str) -> None:
    with pytest.raises(client.ApiException) as refused:
        await client.CoreV1Api(api).create_namespaced_config_map(namespace, settings("a", data={"b/c": "2"}))
    assert refused.value.status == 422


async def test_dry_run_changes_nothing(api: Any, namespace: str) -> None:
    core = client.CoreV1Api(api)
    tried = await core.create_namespaced_config_map(namespace, settings("tried"), dry_run="All")
    assert tried.metadata.name == "tried"
    with pytest.raises(client.ApiException) as refused:
        await core.read_namespaced_config_map("tried", namespace)
    assert refused.value.status == 404


async def test_a_pod_without_containers_is_422_and_names_the_field(api: Any, namespace: str) -> None:
    with pytest.raises(client.ApiException) as refused:
        await client.CoreV1Api(api).create_namespaced_pod(
            namespace, {"metadata": {"name": "a"}, "spec": {"containers": []}}
        )
    assert refused.value.status == 422
    assert status_of(refused.value)["details"]["causes"][0]["field"] == "spec.containers"


async def test_an_extended_resource_needs_a_whole_number_and_an_equal_limit(api: Any, namespace: str) -> None:
    core = client.CoreV1Api(api)
    for resources in (
        {"limits": {"media.example.com/nvenc": "500m"}},
        {"requests": {"media.example.com/nvenc": "1"}},
        {"requests": {"media.example.com/nvenc": "1"}, "limits": {"media.example.com/nvenc": "2"}},
        {"limits": {"nvenc": "1"}},
    ):
        container = {"name": "main", "image": "registry.invalid/encoder:1", "resources": resources}
        with pytest.raises(client.ApiException) as refused:
            await core.create_namespaced_pod(
                namespace, {"metadata": {"name": "a"}, "spec": {"containers": [container]}}
            )
        assert refused.value.status == 422


async def test_a_pods_spec_may_not_change(api: Any, namespace: str, make_pod: Any) -> None:
    await make_pod("a")
    with pytest.raises(client.ApiException) as refused:
        await client.CoreV1Api(api).patch_namespaced_pod("a", namespace, {"spec": {"nodeName": "elsewhere"}})
    assert refused.value.status == 422


async def test_an_event_is_one_object_in_both_apis(api: Any, namespace: str) -> None:
    body = {
        "metadata": {"name": "a.1"},
        "eventTime": "2026-01-01T00:00:00.000000Z",
        "reportingController": "media.example.com/suite",
        "reportingInstance": "suite-1",
        "action": "Evict",
        "reason": "SLAEviction",
        "type": "Warning",
        "note": "why",
        "regarding": {"kind": "Pod", "name": "a", "namespace": namespace},
    }
    await client.EventsV1Api(api).create_namespaced_event(namespace, body)
    core = await client.CoreV1Api(api).read_namespaced_event("a.1", namespace)
    assert (core.message, core.involved_object.name, core.reporting_component) == (
        "why",
        "a",
        "media.example.com/suite",
    )
    found = await client.CoreV1Api(api).list_namespaced_event(
        namespace, field_selector="involvedObject.name=a"
    )
    assert [event.reason for event in found.items] == ["SLAEviction"]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("note", "x" * 1025),
        ("action", ""),
        ("reason", "x" * 129),
        ("type", "Alarm"),
        ("reportingController", ""),
    ],
)
async def test_an_event_outside_the_apis_limits_is_422(
    api: Any, namespace: str, field: str, value: str
) -> None:
    body = {
        "metadata": {"name": "a.1"},
        "eventTime": "2026-01-01T00:00:00.000000Z",
        "reportingController": "media.example.com/suite",
        "reportingInstance": "suite-1",
        "action": "Evict",
        "reason": "SLAEviction",
        "type": "Warning",
        "regarding": {"kind": "Pod", "name": "a", "namespace": namespace},
        field: value,
    }
    with pytest.raises(client.ApiException) as refused:
        await client.EventsV1Api(api).create_namespaced_event(namespace, body)
    assert refused.value.status == 422


async def test_a_lease_is_taken_by_compare_and_swap(api: Any, namespace: str) -> None:
    leases = client.CoordinationV1Api(api)
    made = await leases.create_namespaced_lease(
        namespace,
        {"metadata": {"name": "active"}, "spec": {"holderIdentity": "a", "leaseDurationSeconds": 5}},
    )
    made.spec.holder_identity = "b"
    taken = await leases.replace_namespaced_lease("active", namespace, made)
    assert taken.spec.holder_identity == "b"
    with pytest.raises(client.ApiException) as refused:
        await leases.replace_namespaced_lease("active", namespace, made)
    assert refused.value.status == 409


async def test_an_autoscaler_reads_the_same_in_both_versions(api: Any, namespace: str) -> None:
    target = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "edge"}
    spec = {"scaleTargetRef": target, "maxReplicas": 5, "targetCPUUtilizationPercentage": 60}
    await client.AutoscalingV1Api(api).create_namespaced_horizontal_pod_autoscaler(
        namespace, {"metadata": {"name": "edge"}, "spec": spec}
    )
    read = await client.AutoscalingV2Api(api).read_namespaced_horizontal_pod_autoscaler("edge", namespace)
    assert read.spec.min_replicas == 1
    assert read.spec.metrics[0].resource.target.average_utilization == 60
    with pytest.raises(client.ApiException) as refused:
        await client.AutoscalingV2Api(api).patch_namespaced_horizontal_pod_autoscaler(
            "edge", namespace, {"spec": {"minReplicas": 9}}
        )
    assert refused.value.status == 422


async def test_the_server_says_what_it_serves(api: Any) -> None:
    assert (await client.VersionApi(api).get_code()).major == "1"
    groups = {group.name for group in (await client.ApisApi(api).get_api_versions()).groups}
    assert {"apps", "policy", "events.k8s.io", "autoscaling"} <= groups
    core = {resource.name for resource in (await client.CoreV1Api(api).get_api_resources()).resources}
    assert {"pods", "pods/eviction", "nodes/status"} <= core


def deployment(name: str, replicas: int = 0) -> dict[str, Any]:
    template = {
        "metadata": {"labels": {"app": name}},
        "spec": {"containers": [{"name": "main", "image": "registry.invalid/edge:1"}]},
    }
    spec = {"replicas": replicas, "selector": {"matchLabels": {"app": name}}, "template": template}
    return {"metadata": {"name": name}, "spec": spec}
