"""Policies as custom resources, on every API server."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from typing import Any, Final

import pytest
from kubernetes_asyncio import client as kubernetes

from services.guardian.policy import GuardianPolicy
from shared.clock import SystemClock
from shared.host.cluster_policy import ClusterPolicy
from shared.host.policy import PolicyFile
from shared.host.tasks import together
from shared.kube.client import KubeClient
from shared.kube.models import ChangeKind

client: Any = kubernetes  # the library takes dicts as bodies, its stubs do not
KIND: Final = "GuardianPolicy"
WHERE: Final = ("media.example.com", "v1alpha1", "guardianpolicies")

Apply = Callable[..., Awaitable[Any]]


@pytest.fixture
async def apply(api: Any, kube: KubeClient) -> AsyncIterator[Apply]:
    """Create the policy, or merge into it, as kubectl does."""
    custom = client.CustomObjectsApi(api)

    async def go(spec: Any, name: str = "default") -> Any:
        if any(policy.name == name for policy in await kube.policies(KIND)):
            return await custom.patch_cluster_custom_object(
                *WHERE, name, {"spec": spec}, _content_type="application/merge-patch+json"
            )
        body = {"apiVersion": "/".join(WHERE[:2]), "kind": KIND, "metadata": {"name": name}, "spec": spec}
        return await custom.create_cluster_custom_object(*WHERE, body)

    yield go
    await kube.delete_policy(KIND, "default")


async def test_a_policys_status_is_replaced_and_changes_no_generation(kube: KubeClient, apply: Apply) -> None:
    assert await kube.policies(KIND) == []
    assert await kube.patch_policy_status(KIND, "default", {}) is None
    await apply({"dry_run": True, "grace_s": 40})
    await kube.patch_policy_status(KIND, "default", {"lastGood": {"spec": {"a": 1, "b": 2}}})
    shown = await kube.patch_policy_status(KIND, "default", {"lastGood": {"spec": {"b": 3}}})
    assert shown is not None
    assert shown.status == {"lastGood": {"spec": {"b": 3}}}
    (found,) = await kube.policies(KIND)
    assert (found.generation, found.spec, found.status) == (
        1,
        {"dry_run": True, "grace_s": 40},
        shown.status,
    )
    await apply({"grace_s": 50})
    (found,) = await kube.policies(KIND)
    assert (found.generation, found.status) == (2, shown.status)
    assert await kube.delete_policy(KIND, "default")
    assert not await kube.delete_policy(KIND, "default")


async def test_a_policy_of_another_name_or_without_a_spec_is_refused(apply: Apply) -> None:
    with pytest.raises(client.ApiException, match="its name is default") as refused:
        await apply({}, "another")
    assert refused.value.status == 422
    with pytest.raises(client.ApiException, match="spec") as refused:
        await apply(None)
    assert refused.value.status == 422


async def test_policies_are_watched(kube: KubeClient, apply: Apply, deadline: Callable[[], Any]) -> None:
    seen = []
    async with deadline(), aclosing(kube.watch_policies(KIND)) as changes:
        async for change in changes:
            seen.append((change.kind, change.item.generation if change.item else 0))
            if change.kind is ChangeKind.SYNCED:
                await apply({"grace_s": 40})
            elif change.kind is ChangeKind.ADDED:
                await apply({"grace_s": 50})
            elif change.kind is ChangeKind.MODIFIED:
                await kube.delete_policy(KIND, "default")
            else:
                break
    assert [kind for kind, _ in seen] == [
        ChangeKind.SYNCED,
        ChangeKind.ADDED,
        ChangeKind.MODIFIED,
        ChangeKind.DELETED,
    ]
    assert [generation for _, generation in seen[1:3]] == [1, 2]


async def test_a_service_says_on_its_policy_that_it_is_in_force(
    kube: KubeClient, apply: Apply, deadline: Callable[[], Any]
) -> None:
    policy = ClusterPolicy(PolicyFile(None, "guardian", GuardianPolicy), KIND, SystemClock())

    async def said() -> None:
        await policy.known()
        async with aclosing(kube.watch_policies(KIND)) as changes:
            async for change in changes:
                if change.item is not None and change.item.status.get("conditions"):
                    return

    await apply({"grace_s": 40})
    async with deadline():
        await together(
            watch=policy.watch(lambda: kube.watch_policies(KIND)),
            answer=policy.answer(kube.patch_policy_status, kube.record_event),
            said=said(),
        )
    assert policy.current().grace_s == 40
    (found,) = await kube.policies(KIND)
    (condition,) = found.status["conditions"]
    assert (condition["type"], condition["status"], condition["observedGeneration"]) == (
        "Accepted",
        "True",
        1,
    )
    assert found.status["lastGood"] == {"generation": 1, "spec": {"grace_s": 40}}


async def test_our_definitions_are_known_where_there_are_definitions(kube: KubeClient, real: str) -> None:
    ours = ["guardianpolicies", "mediaresources", "remediationpolicies"]
    assert await kube.definitions() == (ours if real else [])
    assert not await kube.delete_definition("nobodys")
