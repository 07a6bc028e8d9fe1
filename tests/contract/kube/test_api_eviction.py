"""policy/v1 eviction over kubernetes_asyncio: every answer that decides what we do next."""

import json
from typing import Any

import pytest
from kubernetes_asyncio import client as kubernetes

client: Any = kubernetes  # the library takes dicts as bodies, its stubs do not


async def evict(api: Any, namespace: str, name: str, **options: Any) -> Any:
    body = {"metadata": {"name": name, "namespace": namespace}, "deleteOptions": options}
    return await client.CoreV1Api(api).create_namespaced_pod_eviction(name, namespace, body)


async def refusal(api: Any, namespace: str, name: str, **options: Any) -> tuple[int, dict[str, Any], Any]:
    with pytest.raises(client.ApiException) as refused:
        await evict(api, namespace, name, **options)
    return refused.value.status, json.loads(refused.value.body), refused.value.headers


async def make_budget(api: Any, namespace: str, name: str, status: dict[str, Any]) -> None:
    policy = client.PolicyV1Api(api)
    selector = {"matchLabels": {"app": "encoder"}}
    body = {"metadata": {"name": name}, "spec": {"minAvailable": 1, "selector": selector}}
    await policy.create_namespaced_pod_disruption_budget(namespace, body)
    if status:
        await policy.patch_namespaced_pod_disruption_budget_status(name, namespace, {"status": status})


def counted(allowed: int, healthy: int = 1, desired: int = 1) -> dict[str, Any]:
    return {
        "observedGeneration": 1,
        "disruptionsAllowed": allowed,
        "currentHealthy": healthy,
        "desiredHealthy": desired,
        "expectedPods": healthy,
    }


async def test_an_eviction_is_201_and_the_pod_gets_its_grace(api: Any, namespace: str, make_pod: Any) -> None:
    made = await make_pod("a")
    await evict(api, namespace, "a", preconditions={"uid": made.metadata.uid}, gracePeriodSeconds=7)
    read = await client.CoreV1Api(api).read_namespaced_pod("a", namespace)
    assert read.metadata.deletion_grace_period_seconds == 7


async def test_an_eviction_of_a_terminating_pod_is_accepted_again(
    api: Any, namespace: str, make_pod: Any
) -> None:
    await make_pod("a")
    await evict(api, namespace, "a")
    await evict(api, namespace, "a")


async def test_an_unknown_pod_is_404(api: Any, namespace: str) -> None:
    assert (await refusal(api, namespace, "nobody"))[0] == 404


async def test_another_uid_is_409(api: Any, namespace: str, make_pod: Any) -> None:
    await make_pod("a")
    status, said, _ = await refusal(api, namespace, "a", preconditions={"uid": "other"})
    assert (status, said["reason"]) == (409, "Conflict")
    assert "the UID in the precondition (other) does not match" in said["message"]


async def test_another_name_in_the_body_is_400(api: Any, namespace: str, make_pod: Any) -> None:
    await make_pod("a")
    with pytest.raises(client.ApiException) as refused:
        await client.CoreV1Api(api).create_namespaced_pod_eviction(
            "a", namespace, {"metadata": {"name": "b"}}
        )
    assert refused.value.status == 400


async def test_an_exhausted_budget_is_429_with_its_cause_and_without_retry_after(
    api: Any, namespace: str, make_pod: Any
) -> None:
    await make_pod("a")
    await make_budget(api, namespace, "budget", counted(0))
    status, said, headers = await refusal(api, namespace, "a")
    assert (status, said["reason"]) == (429, "TooManyRequests")
    assert said["details"]["causes"][0]["reason"] == "DisruptionBudget"
    assert headers.get("Retry-After") in (None, "0")


async def test_a_budget_that_nobody_counted_yet_is_429_with_retry_after(
    api: Any, namespace: str, make_pod: Any
) -> None:
    await make_pod("a")
    await make_budget(api, namespace, "budget", {})
    status, said, headers = await refusal(api, namespace, "a")
    assert status == 429
    assert said["details"]["causes"][0]["reason"] == "DisruptionBudget"
    assert headers["Retry-After"] == "10"


async def test_a_budget_is_spent_by_an_eviction_and_not_by_a_dry_run(
    api: Any, namespace: str, make_pod: Any
) -> None:
    await make_pod("a")
    await make_pod("b")
    await make_budget(api, namespace, "budget", counted(1, healthy=2))
    await evict(api, namespace, "a", dryRun=["All"])
    assert (
        await client.CoreV1Api(api).read_namespaced_pod("a", namespace)
    ).metadata.deletion_timestamp is None
    await evict(api, namespace, "a")
    status, _, _ = await refusal(api, namespace, "b")
    assert status == 429
    budget = await client.PolicyV1Api(api).read_namespaced_pod_disruption_budget("budget", namespace)
    assert budget.status.disruptions_allowed == 0
    assert list(budget.status.disrupted_pods) == ["a"]


async def test_two_budgets_for_one_pod_are_500(api: Any, namespace: str, make_pod: Any) -> None:
    await make_pod("a")
    await make_budget(api, namespace, "one", counted(1))
    await make_budget(api, namespace, "two", counted(1))
    assert (await refusal(api, namespace, "a"))[0] == 500


async def test_a_budget_that_nobody_settles_is_403(api: Any, namespace: str, make_pod: Any) -> None:
    await make_pod("a")
    unsettled = dict.fromkeys((f"p-{number}" for number in range(2001)), "2026-01-01T00:00:00Z")
    await make_budget(api, namespace, "budget", counted(1) | {"disruptedPods": unsettled})
    assert (await refusal(api, namespace, "a"))[0] == 403


async def test_a_budget_that_allows_less_than_nothing_is_422(api: Any, namespace: str) -> None:
    with pytest.raises(client.ApiException) as refused:
        await make_budget(api, namespace, "budget", counted(-1))
    assert refused.value.status == 422


async def test_a_uid_is_asked_for_after_the_budget_is_spent(api: Any, namespace: str, make_pod: Any) -> None:
    await make_pod("a")
    await make_budget(api, namespace, "budget", counted(1))
    assert (await refusal(api, namespace, "a", preconditions={"uid": "other"}))[0] == 409
    budget = await client.PolicyV1Api(api).read_namespaced_pod_disruption_budget("budget", namespace)
    assert budget.status.disruptions_allowed == 0


async def test_an_evicted_pod_says_why_it_goes(api: Any, namespace: str, make_pod: Any) -> None:
    await make_pod("a")
    await evict(api, namespace, "a")
    read = await client.CoreV1Api(api).read_namespaced_pod("a", namespace)
    found = {each.type: each.reason for each in read.status.conditions}
    assert found["DisruptionTarget"] == "EvictionByEvictionAPI"


async def test_an_unready_pod_passes_a_budget_that_is_met_without_it(
    api: Any, namespace: str, make_pod: Any
) -> None:
    await make_pod("a", ready=False)
    await make_budget(api, namespace, "budget", counted(0, healthy=1, desired=1))
    await evict(api, namespace, "a")


async def test_an_unready_pod_counts_where_the_budget_is_not_met(
    api: Any, namespace: str, make_pod: Any
) -> None:
    await make_pod("a", ready=False)
    await make_budget(api, namespace, "budget", counted(0, healthy=0, desired=1))
    assert (await refusal(api, namespace, "a"))[0] == 429


async def test_a_pod_that_has_ended_is_not_asked_for_its_budget(
    api: Any, namespace: str, make_pod: Any
) -> None:
    await make_pod("a")
    await make_budget(api, namespace, "budget", counted(0))
    await client.CoreV1Api(api).patch_namespaced_pod_status("a", namespace, {"status": {"phase": "Failed"}})
    await evict(api, namespace, "a")
