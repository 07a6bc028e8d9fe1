"""The controllers together, on virtual time."""

import asyncio
from typing import Any

import pytest

from services.simulator.api.controllers import Controllers
from services.simulator.api.eviction import evict
from services.simulator.api.resources import (
    AUTOSCALERS,
    CONFIGMAPS,
    DEPLOYMENTS,
    DISRUPTION_BUDGETS,
    JOBS,
    NAMESPACES,
    NODES,
    PODS,
    PRIORITY_CLASSES,
    REPLICASETS,
)
from services.simulator.api.status import ApiError
from services.simulator.api.store import Change, Store

pytestmark = [pytest.mark.looptime, pytest.mark.usefixtures("controllers")]
Json = dict[str, Any]


def deploy(store: Store, template: Json, replicas: int = 2, **spec: Any) -> Json:
    selector = {"matchLabels": {"app": "edge"}}
    asked = {"replicas": replicas, "selector": selector, "template": template, **spec}
    return store.create(DEPLOYMENTS, "default", {"metadata": {"name": "edge"}, "spec": asked})


def names(bodies: list[Json]) -> set[str]:
    return {body["metadata"]["name"] for body in bodies}


def scale(store: Store, replicas: int) -> None:
    store.modify(DEPLOYMENTS, "default", "edge", lambda body: body["spec"].update(replicas=replicas))


def evict_now(store: Store, pod: Json) -> None:
    evict(
        store,
        "default",
        pod["metadata"]["name"],
        {"metadata": {"name": pod["metadata"]["name"]}},
        dry_run=False,
    )


async def test_a_deployment_becomes_ready_pods_spread_over_nodes(
    cluster: Store, make_node: Any, template: Json, pods: Any, until: Any
) -> None:
    make_node("a")
    make_node("b")
    deploy(cluster, template, 4)
    await until(lambda: len(pods(ready=True)) == 4)
    assert (len(pods(node="a")), len(pods(node="b"))) == (2, 2)
    await until(lambda: cluster.get(DEPLOYMENTS, "default", "edge")["status"].get("availableReplicas") == 4)


async def test_a_pod_that_fits_nowhere_says_so_and_is_placed_when_room_comes(
    cluster: Store, make_node: Any, template: Json, pods: Any, until: Any
) -> None:
    make_node("a", encoders=1)
    deploy(cluster, template, 2)

    def waiting() -> list[Json]:
        return [
            pod
            for pod in pods(ready=False)
            for entry in pod["status"].get("conditions") or ()
            if entry.get("reason") == "Unschedulable"
        ]

    await until(waiting)
    assert waiting()[0]["status"]["conditions"][0]["message"].startswith(
        "0/1 nodes are available: 1 Insufficient"
    )
    make_node("b", encoders=1)
    await until(lambda: len(pods(ready=True)) == 2)


async def test_more_allocatable_places_a_waiting_pod_and_a_heartbeat_does_not(
    cluster: Store, make_node: Any, template: Json, pods: Any, until: Any
) -> None:
    make_node("a", encoders=0)
    deploy(cluster, template, 1)
    await until(lambda: [c for p in pods() for c in p["status"].get("conditions") or ()])

    def beat(body: Json) -> None:
        body["status"]["conditions"] = [{"type": "Ready", "status": "True", "lastHeartbeatTime": "now"}]

    cluster.modify(NODES, "", "a", beat, subresource="status")
    assert not pods(ready=True)
    more = {"media.example.com/nvenc": "1"}
    cluster.modify(NODES, "", "a", lambda body: body["status"].update(allocatable=more), subresource="status")
    await until(lambda: pods(ready=True))


async def test_the_highest_priority_is_placed_first(
    cluster: Store, make_node: Any, template: Json, pods: Any, until: Any
) -> None:
    cluster.create(PRIORITY_CLASSES, "", {"metadata": {"name": "online"}, "value": 1000})
    for name, extra in (("low", {}), ("high", {"priorityClassName": "online"})):
        body = {"metadata": {"name": name}, "spec": template["spec"] | extra}
        cluster.create(PODS, "default", body)
    make_node("a", encoders=1)
    await until(lambda: pods(ready=True))
    assert names(pods(ready=True)) == {"high"}


async def test_an_evicted_pod_ends_after_its_grace_and_is_replaced_at_once(
    cluster: Store, make_node: Any, template: Json, pods: Any, until: Any
) -> None:
    make_node("a", encoders=4)
    deploy(cluster, template)
    await until(lambda: len(pods(ready=True)) == 2)
    victim = pods()[0]
    loop = asyncio.get_running_loop()
    started_s = loop.time()
    evict_now(cluster, victim)
    await until(lambda: len(pods(ready=True)) == 2)
    assert loop.time() - started_s < 0.5
    assert len(pods()) == 3
    await until(lambda: len(pods()) == 2)
    assert loop.time() - started_s == pytest.approx(2.0, abs=0.1)


async def test_scaling_down_takes_unplaced_pods_before_running_ones(
    cluster: Store, make_node: Any, template: Json, pods: Any, until: Any
) -> None:
    make_node("a", encoders=1)
    deploy(cluster, template, 3)
    await until(lambda: len(pods(ready=True)) == 1 and len(pods()) == 3)
    survivor = names(pods(ready=True))
    scale(cluster, 1)
    await until(lambda: len(pods()) == 1)
    assert names(pods()) == survivor


async def test_a_new_template_rolls_out_without_losing_more_than_allowed(
    cluster: Store, make_node: Any, template: Json, pods: Any, until: Any
) -> None:
    make_node("a", encoders=20)
    deploy(cluster, template, 4, strategy={"rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}})
    await until(lambda: len(pods(ready=True)) == 4)
    least = 4

    def watch(change: Change) -> None:
        nonlocal least
        if change.resource is PODS:
            least = min(least, len(pods(ready=True)))

    forget = cluster.listen(watch)

    def renew(body: Json) -> None:
        body["spec"]["template"]["spec"]["containers"][0]["image"] = "registry.invalid/edge:2"

    cluster.modify(DEPLOYMENTS, "default", "edge", renew)

    def renewed() -> bool:
        images = [pod["spec"]["containers"][0]["image"] for pod in pods(ready=True)]
        return images == ["registry.invalid/edge:2"] * 4 and len(pods()) == 4

    await until(renewed)
    forget()
    assert least == 4
    assert sorted(rs["spec"]["replicas"] for rs in cluster.each(REPLICASETS)) == [0, 4]


async def test_recreate_ends_the_old_before_it_starts_the_new(
    cluster: Store, make_node: Any, template: Json, pods: Any, until: Any
) -> None:
    make_node("a", encoders=20)
    deploy(cluster, template, 2, strategy={"type": "Recreate"})
    await until(lambda: len(pods(ready=True)) == 2)

    def renew(body: Json) -> None:
        body["spec"]["template"]["metadata"]["labels"]["version"] = "2"

    cluster.modify(DEPLOYMENTS, "default", "edge", renew)
    await until(lambda: len([pod for pod in pods(ready=True) if "version" in pod["metadata"]["labels"]]) == 2)
    assert not [pod for pod in pods(ready=True) if "version" not in pod["metadata"]["labels"]]


def run_job(store: Store, template: Json, **spec: Any) -> Json:
    once = {**template, "spec": {**template["spec"], "restartPolicy": "Never"}}
    return store.create(JOBS, "default", {"metadata": {"name": "render"}, "spec": {"template": once, **spec}})


def end(store: Store, pod: Json, phase: str) -> None:
    name = pod["metadata"]["name"]

    def change(body: Json) -> None:
        body["status"]["phase"] = phase
        body["status"]["conditions"] = []

    store.modify(PODS, "default", name, change, subresource="status")


async def test_a_job_is_complete_after_enough_successes(
    cluster: Store, make_node: Any, template: Json, pods: Any, until: Any
) -> None:
    make_node("a", encoders=9)
    run_job(cluster, template, completions=3, parallelism=2)
    for done in range(1, 4):
        await until(lambda: pods(ready=True))
        assert len(pods(ready=True)) <= 2
        end(cluster, pods(ready=True)[0], "Succeeded")
        await until(
            lambda done=done: cluster.get(JOBS, "default", "render")["status"].get("succeeded") == done
        )
    kinds = [entry["type"] for entry in cluster.get(JOBS, "default", "render")["status"]["conditions"]]
    assert kinds == ["Complete"]


async def test_an_evicted_job_pod_is_made_again_at_once_and_a_failed_one_after_a_wait(
    cluster: Store, make_node: Any, template: Json, pods: Any, until: Any
) -> None:
    make_node("a", encoders=9)
    run_job(cluster, template)
    loop = asyncio.get_running_loop()
    await until(lambda: pods(ready=True))
    started_s = loop.time()
    evict_now(cluster, pods()[0])
    await until(lambda: pods(ready=True))
    assert loop.time() - started_s < 0.5
    await until(lambda: len(pods()) == 1)
    started_s = loop.time()
    end(cluster, pods()[0], "Failed")
    await until(lambda: pods(ready=True))
    assert 0.9 <= loop.time() - started_s <= 1.5
    assert cluster.get(JOBS, "default", "render")["status"]["failed"] == 1


async def test_a_job_that_fails_too_often_fails(
    cluster: Store, make_node: Any, template: Json, pods: Any, until: Any
) -> None:
    make_node("a", encoders=9)
    run_job(cluster, template, backoffLimit=0)
    await until(lambda: pods(ready=True))
    end(cluster, pods()[0], "Failed")
    await until(lambda: "conditions" in cluster.get(JOBS, "default", "render")["status"])
    assert cluster.get(JOBS, "default", "render")["status"]["conditions"][0]["type"] == "Failed"


async def test_a_suspended_job_has_no_pods(
    cluster: Store, make_node: Any, template: Json, pods: Any, until: Any
) -> None:
    make_node("a")
    run_job(cluster, template)
    await until(lambda: pods(ready=True))
    cluster.modify(JOBS, "default", "render", lambda body: body["spec"].update(suspend=True))
    await until(lambda: not pods())


async def test_a_budget_counts_what_may_go(
    cluster: Store, make_node: Any, template: Json, pods: Any, until: Any
) -> None:
    make_node("a", encoders=3)
    deploy(cluster, template, 3)
    selector = {"matchLabels": {"app": "edge"}}
    body = {"metadata": {"name": "edge"}, "spec": {"maxUnavailable": 1, "selector": selector}}
    cluster.create(DISRUPTION_BUDGETS, "default", body)

    def allowed() -> int | None:
        status = cluster.get(DISRUPTION_BUDGETS, "default", "edge").get("status") or {}
        return status.get("disruptionsAllowed")

    await until(lambda: allowed() == 1)
    evict_now(cluster, pods(ready=True)[0])
    with pytest.raises(ApiError) as refused:
        evict_now(cluster, pods(ready=True)[0])
    assert refused.value.code == 429
    await until(lambda: allowed() == 0)
    await until(lambda: allowed() == 1)
    assert "disruptedPods" not in cluster.get(DISRUPTION_BUDGETS, "default", "edge")["status"]


@pytest.mark.parametrize(("least", "allowed"), [(2, 1), ("50%", 1), ("100%", 0), (0, 3)])
async def test_a_minimum_is_a_number_or_a_share(  # noqa: PLR0917 - fixtures
    cluster: Store, make_node: Any, template: Json, until: Any, least: Any, allowed: int
) -> None:
    make_node("a", encoders=3)
    deploy(cluster, template, 3)
    selector = {"matchLabels": {"app": "edge"}}
    body = {"metadata": {"name": "edge"}, "spec": {"minAvailable": least, "selector": selector}}
    cluster.create(DISRUPTION_BUDGETS, "default", body)

    def counted() -> bool:
        status = cluster.get(DISRUPTION_BUDGETS, "default", "edge").get("status") or {}
        return bool(status.get("currentHealthy") == 3 and status["disruptionsAllowed"] == allowed)

    await until(counted)


async def test_a_budget_over_bare_pods_by_share_allows_nothing(
    cluster: Store, make_node: Any, template: Json, pods: Any, until: Any
) -> None:
    make_node("a")
    cluster.create(
        PODS, "default", {"metadata": {"name": "bare", "labels": {"app": "edge"}}, "spec": template["spec"]}
    )
    selector = {"matchLabels": {"app": "edge"}}
    body = {"metadata": {"name": "edge"}, "spec": {"maxUnavailable": 1, "selector": selector}}
    cluster.create(DISRUPTION_BUDGETS, "default", body)
    await until(lambda: pods(ready=True) and cluster.get(DISRUPTION_BUDGETS, "default", "edge").get("status"))
    status = cluster.get(DISRUPTION_BUDGETS, "default", "edge")["status"]
    assert (status["disruptionsAllowed"], status["conditions"][0]["reason"]) == (0, "SyncFailed")


async def test_a_raised_minimum_scales_the_workload_up(
    cluster: Store, make_node: Any, template: Json, pods: Any, until: Any
) -> None:
    make_node("a", encoders=9)
    deploy(cluster, template, 1)
    target = {"kind": "Deployment", "name": "edge"}
    spec = {"scaleTargetRef": target, "minReplicas": 1, "maxReplicas": 3}
    cluster.create(AUTOSCALERS, "default", {"metadata": {"name": "edge"}, "spec": spec})
    await until(lambda: len(pods(ready=True)) == 1)
    cluster.modify(AUTOSCALERS, "default", "edge", lambda body: body["spec"].update(minReplicas=2))
    await until(lambda: len(pods(ready=True)) == 2)
    scale(cluster, 7)
    await until(lambda: len(pods(ready=True)) == 3)
    await until(lambda: cluster.get(AUTOSCALERS, "default", "edge")["status"]["currentReplicas"] == 3)
    scale(cluster, 0)
    await until(lambda: not pods())
    reasons = {
        c["type"]: c["reason"] for c in cluster.get(AUTOSCALERS, "default", "edge")["status"]["conditions"]
    }
    assert reasons["ScalingActive"] == "ScalingDisabled"


async def test_an_autoscaler_without_its_target_says_so(cluster: Store, until: Any) -> None:
    spec = {"scaleTargetRef": {"kind": "Deployment", "name": "nobody"}, "maxReplicas": 3}
    cluster.create(AUTOSCALERS, "default", {"metadata": {"name": "edge"}, "spec": spec})
    await until(lambda: "status" in cluster.get(AUTOSCALERS, "default", "edge"))
    assert (
        cluster.get(AUTOSCALERS, "default", "edge")["status"]["conditions"][0]["reason"] == "FailedGetScale"
    )


async def test_deleting_a_deployment_deletes_what_it_made(
    cluster: Store, make_node: Any, template: Json, pods: Any, until: Any
) -> None:
    make_node("a")
    deploy(cluster, template)
    await until(lambda: len(pods(ready=True)) == 2)
    cluster.delete(DEPLOYMENTS, "default", "edge")
    await until(lambda: not pods() and not list(cluster.each(REPLICASETS)))


async def test_a_deployment_deleted_in_the_foreground_goes_last(
    cluster: Store, make_node: Any, template: Json, pods: Any, until: Any
) -> None:
    make_node("a")
    deploy(cluster, template)
    await until(lambda: len(pods(ready=True)) == 2)
    cluster.delete(DEPLOYMENTS, "default", "edge", {"propagationPolicy": "Foreground"})
    gone: list[str] = []
    forget = cluster.listen(
        lambda change: gone.append(change.resource.kind) if change.kind == "DELETED" else None
    )
    await until(lambda: cluster.find(DEPLOYMENTS, "default", "edge") is None)
    forget()
    assert gone == ["Pod", "Pod", "ReplicaSet", "Deployment"]


async def test_orphans_stay_without_their_owner(
    cluster: Store, make_node: Any, template: Json, pods: Any, until: Any
) -> None:
    make_node("a")
    deploy(cluster, template)
    await until(lambda: len(pods(ready=True)) == 2)
    cluster.delete(DEPLOYMENTS, "default", "edge", {"propagationPolicy": "Orphan"})
    await until(lambda: cluster.find(DEPLOYMENTS, "default", "edge") is None)
    assert [rs["metadata"]["ownerReferences"] for rs in cluster.each(REPLICASETS)] == [[]]
    assert len(pods(ready=True)) == 2


async def test_pods_of_a_deleted_node_are_removed_and_made_elsewhere(
    cluster: Store, make_node: Any, template: Json, pods: Any, until: Any
) -> None:
    make_node("a")
    deploy(cluster, template)
    await until(lambda: len(pods(ready=True)) == 2)
    cluster.delete(NODES, "", "a")
    make_node("b")
    await until(lambda: len(pods(ready=True, node="b")) == 2)


async def test_a_deleted_namespace_takes_its_objects_along(cluster: Store, until: Any) -> None:
    cluster.create(NAMESPACES, "", {"metadata": {"name": "live"}})
    cluster.create(CONFIGMAPS, "live", {"metadata": {"name": "a"}})
    cluster.delete(NAMESPACES, "", "live")
    await until(lambda: not list(cluster.each(CONFIGMAPS, "live")))


async def test_a_registered_runner_has_its_nodes_pods_to_itself(  # noqa: PLR0917 - fixtures
    cluster: Store, controllers: Controllers, make_node: Any, template: Json, pods: Any, until: Any
) -> None:
    seen: list[tuple[str, bool]] = []

    class Recorder:
        def observe(self, change: Change) -> None:
            seen.append((change.kind, bool(change.body["metadata"].get("deletionTimestamp"))))

    make_node("a")
    controllers.dispatch.register("a", Recorder())
    cluster.create(PODS, "default", {"metadata": {"name": "x"}, "spec": template["spec"]})
    await until(lambda: seen)
    uid = pods()[0]["metadata"]["uid"]
    cluster.delete(PODS, "default", "x")
    assert pods(ready=True) == []
    assert cluster.finish("default", "x", uid)
    assert not cluster.finish("default", "x", uid)
    assert seen == [("MODIFIED", False), ("MODIFIED", True), ("DELETED", True)]
    controllers.dispatch.unregister("a")
    cluster.create(PODS, "default", {"metadata": {"name": "y"}, "spec": template["spec"]})
    await until(lambda: pods(node="a"))
    assert not pods(ready=True)
