from datetime import UTC, datetime
from decimal import Decimal

import pytest

from shared.kube.decode import (
    hpa_from,
    media_resource_from,
    node_from,
    pod_from,
    policy_from,
    timestamp,
    workload_from,
)
from shared.kube.models import EvictionOutcome, Keep, Owner, PodRef, Taint
from shared.kube.requests import classify_eviction
from shared.kube.transport import Answer, raise_for


def test_an_empty_object_is_read_as_empty() -> None:
    pod = pod_from({})
    assert (pod.phase, pod.ready, pod.node, pod.owner, pod.requests, pod.created_at) == (
        "Unknown",
        False,
        "",
        None,
        {},
        None,
    )
    assert node_from({}).ready is None
    assert media_resource_from({}).status == {}
    assert hpa_from({}).min_replicas == 1


def test_a_pod_is_read() -> None:
    pod = pod_from(
        {
            "metadata": {
                "name": "a",
                "namespace": "live",
                "uid": "u",
                "resourceVersion": "7",
                "creationTimestamp": "2026-01-01T00:00:00Z",
                "deletionTimestamp": "2026-01-01T00:00:30Z",
                "ownerReferences": [
                    {"kind": "Node", "name": "n", "uid": "1"},
                    {"kind": "Job", "name": "j", "uid": "2", "controller": True, "apiVersion": "batch/v1"},
                ],
            },
            "spec": {
                "nodeName": "worker-1",
                "priority": 100,
                "containers": [{"name": "c", "resources": {"limits": {"media.example.com/nvenc": "1"}}}],
            },
            "status": {"phase": "Failed", "conditions": [{"type": "Ready", "status": "True"}]},
        }
    )
    assert pod.ref == PodRef("live", "a", "u")
    assert pod.owner == Owner("Job", "j", "2", "batch/v1")
    assert pod.created_at == datetime(2026, 1, 1, tzinfo=UTC)
    assert (pod.deleting, pod.ready, pod.terminal, pod.priority) == (True, True, True, 100)
    assert pod.requests == {"media.example.com/nvenc": 1}


def test_a_quantity_that_does_not_parse_is_absent_and_not_zero() -> None:
    node = node_from({"status": {"capacity": {"a/b": "many", "c/d": "2"}}})
    assert node.capacity == {"c/d": Decimal(2)}
    broken = {"spec": {"containers": [{"name": "c", "resources": {"limits": {"a/b": "many"}}}]}}
    assert pod_from(broken).requests == {}


def test_a_node_is_read() -> None:
    node = node_from(
        {
            "metadata": {"name": "n", "uid": "u"},
            "spec": {"taints": [{"key": "k", "effect": "NoExecute"}], "unschedulable": True},
            "status": {
                "conditions": [{"type": "Ready", "status": "Unknown"}],
                "nodeInfo": {"bootID": "b", "kubeletVersion": "v1.37.2"},
            },
        }
    )
    assert node.taints == (Taint("k", "NoExecute"),)
    assert (node.ready, node.unschedulable, node.boot_id, node.kubelet_version) == (
        None,
        True,
        "b",
        "v1.37.2",
    )


def test_each_kind_of_workload_has_its_own_numbers() -> None:
    assert workload_from({"spec": {}, "status": {"readyReplicas": 2}}, "Deployment").replicas == 1
    job = workload_from({"spec": {"parallelism": 3}, "status": {"ready": 2}}, "Job")
    assert (job.replicas, job.ready_replicas) == (3, 2)
    daemons = workload_from({"spec": {}, "status": {"numberReady": 4}}, "DaemonSet")
    assert (daemons.replicas, daemons.ready_replicas) == (None, 4)


@pytest.mark.parametrize("text", [None, "", "yesterday"])
def test_a_time_that_is_not_there_is_none(text: str | None) -> None:
    assert timestamp(text) is None


def test_a_time_without_zone_is_utc() -> None:
    assert timestamp("2026-01-01T00:00:00") == datetime(2026, 1, 1, tzinfo=UTC)


def test_retry_after_of_the_body_counts_where_the_header_is_missing() -> None:
    body = {"details": {"retryAfterSeconds": 10, "causes": [{"reason": "DisruptionBudget"}]}}
    answer = classify_eviction(Answer(429, body))
    assert (answer.outcome, answer.retry_after_s) == (EvictionOutcome.BLOCKED, 10.0)


def test_an_accepted_answer_raises_nothing() -> None:
    raise_for(Answer(201, {}), "anything")


def test_a_409_means_another_pod_only_when_it_speaks_of_the_uid() -> None:
    evicting = (
        "the UID in the precondition (a) does not match the UID in record (b). The object might have been"
    )
    stored = "Precondition failed: UID in precondition: a, UID in object meta: b"
    race = "the object has been modified; please apply your changes to the latest version and try again"
    answers = [classify_eviction(Answer(409, {"message": text})).outcome for text in (evicting, stored, race)]
    assert answers == [EvictionOutcome.REPLACED, EvictionOutcome.REPLACED, EvictionOutcome.THROTTLED]


def of_replica_set(name: str) -> dict[str, object]:
    owner = {"kind": "ReplicaSet", "name": "rs", "uid": "1", "controller": True}
    return {
        "metadata": {
            "name": name,
            "labels": {"app": "edge"},
            "annotations": {"sla/latency-p99-ms": "50", "kubectl.kubernetes.io/last-applied": "x" * 1000},
            "ownerReferences": [owner],
        },
        "spec": {"containers": [{"name": "c", "resources": {"requests": {"cpu": "500m"}}}]},
    }


def test_what_pods_have_in_common_is_one_object_that_nobody_can_write_to() -> None:
    first, second = pod_from(of_replica_set("a")), pod_from(of_replica_set("b"))
    assert first.labels is second.labels
    assert first.requests is second.requests
    assert first.owner is second.owner
    with pytest.raises(TypeError):
        first.labels["app"] = "other"  # type: ignore[index]


def test_a_watch_keeps_what_it_is_told_to_keep() -> None:
    keep = Keep(labels=frozenset(), annotations=frozenset({"sla/latency-p99-ms"}), quantities=False)
    pod = pod_from(of_replica_set("a"), keep=keep)
    assert (pod.labels, pod.requests) == ({}, {})
    assert pod.annotations == {"sla/latency-p99-ms": "50"}
    assert len(pod_from(of_replica_set("a")).annotations) == 2
    node = node_from({"status": {"capacity": {"cpu": "4"}}}, keep=keep)
    assert node.capacity == {}


def test_a_policy_is_read() -> None:
    meta = {"name": "default", "uid": "u", "generation": 3, "resourceVersion": "9"}
    policy = policy_from({"metadata": meta, "spec": {"dry_run": True}}, "GuardianPolicy")
    assert (policy.kind, policy.name, policy.generation, policy.spec, policy.status) == (
        "GuardianPolicy",
        "default",
        3,
        {"dry_run": True},
        {},
    )
