"""Defaults and refusals, each by the field that it names."""

from typing import Any

import pytest

from services.simulator.api.resources import (
    AUTOSCALERS,
    DEPLOYMENTS,
    DISRUPTION_BUDGETS,
    EVENTS,
    JOBS,
    NODES,
    PODS,
    PRIORITY_CLASSES,
    Resource,
)
from services.simulator.api.status import ApiError
from services.simulator.api.store import Store

Json = dict[str, Any]
CONTAINER = {"name": "c", "image": "i"}
TEMPLATE = {
    "metadata": {"labels": {"app": "a"}},
    "spec": {"containers": [CONTAINER], "restartPolicy": "Never"},
}
SELECTOR = {"matchLabels": {"app": "a"}}
TARGET = {"kind": "Deployment", "name": "a"}
EVENT = {
    "eventTime": "2026-01-01T00:00:00.000000Z",
    "reportingController": "media.example.com/suite",
    "reportingInstance": "suite-1",
    "action": "Evict",
    "reason": "SLAEviction",
    "type": "Warning",
    "regarding": {"kind": "Pod", "name": "a", "namespace": "default"},
}


def with_resources(**resources: Any) -> Json:
    return {"spec": {"containers": [{**CONTAINER, "resources": resources}]}}


@pytest.mark.parametrize(
    ("resource", "body", "field"),
    [
        (PODS, {"spec": {"containers": [{"name": "c"}]}}, "spec.containers[0].image"),
        (PODS, {"spec": {"containers": [CONTAINER], "priorityClassName": "none"}}, "spec.priorityClassName"),
        (
            PODS,
            {"spec": {"containers": [CONTAINER], "tolerations": [{"operator": "Near"}]}},
            "spec.tolerations[0].operator",
        ),
        (PODS, with_resources(limits={"cpu": "many"}), "spec.containers[0].resources.limits[cpu]"),
        (PODS, with_resources(limits={"cpu": "-1"}), "spec.containers[0].resources.limits[cpu]"),
        (NODES, {"spec": {"taints": [{"key": "a b", "effect": "NoSchedule"}]}}, "spec.taints[0].key"),
        (NODES, {"spec": {"taints": [{"key": "a", "effect": "NoSchedule"}] * 2}}, "spec.taints[1]"),
        (NODES, {"status": {"capacity": {"a/b": "many"}}}, "status.capacity[a/b]"),
        (EVENTS, {}, "eventTime"),
        (EVENTS, EVENT | {"regarding": {"namespace": "elsewhere"}}, "regarding.namespace"),
        (EVENTS, EVENT | {"series": {"count": 1}}, "series.count"),
        (DEPLOYMENTS, {"spec": {"template": TEMPLATE}}, "spec.selector"),
        (DEPLOYMENTS, {"spec": {"selector": SELECTOR, "template": {}}}, "spec.template.metadata.labels"),
        (
            DEPLOYMENTS,
            {"spec": {"replicas": -1, "selector": SELECTOR, "template": TEMPLATE}},
            "spec.replicas",
        ),
        (
            JOBS,
            {"spec": {"template": {"spec": {"containers": [CONTAINER]}}}},
            "spec.template.spec.restartPolicy",
        ),
        (JOBS, {"spec": {"parallelism": -1, "template": TEMPLATE}}, "spec.parallelism"),
        (DISRUPTION_BUDGETS, {"spec": {"minAvailable": 1, "maxUnavailable": 1}}, "spec"),
        (DISRUPTION_BUDGETS, {"spec": {"minAvailable": "half"}}, "spec.minAvailable"),
        (DISRUPTION_BUDGETS, {"spec": {"maxUnavailable": -1}}, "spec.maxUnavailable"),
        (AUTOSCALERS, {"spec": {"scaleTargetRef": TARGET, "maxReplicas": 0}}, "spec.maxReplicas"),
        (
            AUTOSCALERS,
            {"spec": {"scaleTargetRef": TARGET, "maxReplicas": 1, "minReplicas": 0}},
            "spec.minReplicas",
        ),
        (AUTOSCALERS, {"spec": {"maxReplicas": 1}}, "spec.scaleTargetRef.kind"),
        (NODES, {"metadata": {"name": "a", "labels": {"-bad": "x"}}}, "metadata.labels[-bad]"),
        (NODES, {"metadata": {"name": "a", "annotations": {"a": 7}}}, "metadata.annotations[a]"),
    ],
)
def test_what_is_not_valid_is_422_and_names_its_field(
    store: Store, resource: Resource, body: Json, field: str
) -> None:
    namespace = "default" if resource.namespaced else ""
    with pytest.raises(ApiError) as refused:
        store.create(resource, namespace, {"metadata": {"name": "a"}, **body})
    assert refused.value.code == 422
    assert field in [cause.field for cause in refused.value.causes]


def test_a_class_gives_a_pod_its_priority(store: Store) -> None:
    store.create(
        PRIORITY_CLASSES, "", {"metadata": {"name": "online"}, "value": 1000, "preemptionPolicy": "Never"}
    )
    spec = {"containers": [CONTAINER], "priorityClassName": "online"}
    made = store.create(PODS, "default", {"metadata": {"name": "a"}, "spec": spec})
    assert (made["spec"]["priority"], made["spec"]["preemptionPolicy"]) == (1000, "Never")


@pytest.mark.parametrize(
    ("resources", "quality"),
    [
        ({"limits": {"media.example.com/nvenc": "1"}}, "BestEffort"),
        ({"requests": {"cpu": "1"}}, "Burstable"),
        ({"limits": {"cpu": "1", "memory": "1Gi"}}, "Guaranteed"),
    ],
)
def test_quality_of_service_looks_at_cpu_and_memory_only(store: Store, resources: Json, quality: str) -> None:
    made = store.create(PODS, "default", {"metadata": {"name": "a"}, **with_resources(**resources)})
    assert made["status"]["qosClass"] == quality


def test_a_pod_may_get_more_tolerations_and_another_image(store: Store) -> None:
    store.create(PODS, "default", {"metadata": {"name": "a"}, "spec": {"containers": [CONTAINER]}})

    def change(body: Json) -> None:
        body["spec"]["containers"][0]["image"] = "other"
        body["spec"]["tolerations"] = [{"operator": "Exists"}]

    assert store.modify(PODS, "default", "a", change)["metadata"]["generation"] == 2
    with pytest.raises(ApiError) as refused:
        store.modify(PODS, "default", "a", lambda body: body["spec"].pop("tolerations"))
    assert refused.value.causes[0].field == "spec"


def test_a_selector_and_an_events_facts_may_not_change(store: Store) -> None:
    spec = {"selector": SELECTOR, "template": TEMPLATE}
    store.create(DEPLOYMENTS, "default", {"metadata": {"name": "a"}, "spec": spec})
    wider = {"matchExpressions": [{"key": "app", "operator": "Exists"}]}
    with pytest.raises(ApiError) as refused:
        store.modify(DEPLOYMENTS, "default", "a", lambda body: body["spec"].update(selector=wider))
    assert refused.value.causes[0].field == "spec.selector"
    store.create(EVENTS, "default", {"metadata": {"name": "a"}, **EVENT})
    with pytest.raises(ApiError) as refused:
        store.modify(EVENTS, "default", "a", lambda body: body.update(note="other"))
    assert refused.value.causes[0].field == "note"


def test_a_budget_without_numbers_keeps_one_pod(store: Store) -> None:
    made = store.create(
        DISRUPTION_BUDGETS, "default", {"metadata": {"name": "a"}, "spec": {"selector": SELECTOR}}
    )
    assert made["spec"]["minAvailable"] == 1
