"""Watches over kubernetes_asyncio."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from typing import Any

from kubernetes_asyncio import client as kubernetes
from kubernetes_asyncio import watch

client: Any = kubernetes  # the library takes dicts as bodies, its stubs do not


def settings(name: str, label: str = "x") -> dict[str, Any]:
    return {"metadata": {"name": name, "labels": {"l": label}}, "data": {}}


async def raw_events(api: Any, namespace: str, **query: Any) -> AsyncIterator[dict[str, Any]]:
    """The lines of a watch as they come, bookmarks and errors included."""
    response = await client.CoreV1Api(api).list_namespaced_config_map(
        namespace, watch=True, _preload_content=False, **query
    )
    async with response:
        async for line in response.content:
            yield json.loads(line)


async def test_a_watch_from_a_list_tells_every_change_once(
    api: Any, namespace: str, deadline: Callable[[], Any]
) -> None:
    core = client.CoreV1Api(api)
    listed = await core.list_namespaced_config_map(namespace)
    await core.create_namespaced_config_map(namespace, settings("a"))
    await core.patch_namespaced_config_map("a", namespace, {"data": {"k": "v"}})
    await core.delete_namespaced_config_map("a", namespace)
    seen = []
    async with deadline(), watch.Watch() as watching:
        stream = watching.stream(
            core.list_namespaced_config_map,
            namespace,
            resource_version=listed.metadata.resource_version,
            label_selector="l",
        )
        async for event in stream:
            seen.append((event["type"], event["object"].metadata.name))
            if event["type"] == "DELETED":
                break
    assert seen == [("ADDED", "a"), ("MODIFIED", "a"), ("DELETED", "a")]


async def test_a_watch_without_resource_version_starts_with_what_stands(
    api: Any, namespace: str, deadline: Callable[[], Any]
) -> None:
    core = client.CoreV1Api(api)
    await core.create_namespaced_config_map(namespace, settings("a"))
    async with deadline():
        async for event in raw_events(api, namespace, label_selector="l"):
            assert (event["type"], event["object"]["metadata"]["name"]) == ("ADDED", "a")
            break


async def test_what_starts_or_stops_to_match_is_added_or_deleted(
    api: Any, namespace: str, deadline: Callable[[], Any]
) -> None:
    core = client.CoreV1Api(api)
    listed = await core.list_namespaced_config_map(namespace)
    await core.create_namespaced_config_map(namespace, settings("a", "other"))
    for label in ("x", "other"):
        await core.patch_namespaced_config_map("a", namespace, {"metadata": {"labels": {"l": label}}})
    kinds = []
    async with deadline():
        query = {"resource_version": listed.metadata.resource_version, "label_selector": "l=x"}
        async for event in raw_events(api, namespace, **query):
            kinds.append(event["type"])
            if len(kinds) == 2:
                break
    assert kinds == ["ADDED", "DELETED"]


async def test_a_watch_ends_after_its_timeout(api: Any, namespace: str, deadline: Callable[[], Any]) -> None:
    async with deadline():
        events = [event async for event in raw_events(api, namespace, timeout_seconds=1, label_selector="l")]
    assert events == []


async def test_a_pod_that_is_evicted_is_seen_terminating_then_gone(
    api: Any, namespace: str, make_pod: Any, deadline: Callable[[], Any]
) -> None:
    core = client.CoreV1Api(api)
    made = await make_pod("a")
    await core.create_namespaced_pod_eviction("a", namespace, {"metadata": {"name": "a"}})
    await core.delete_namespaced_pod("a", namespace, grace_period_seconds=0)
    seen = []
    async with deadline(), watch.Watch() as watching:
        version = made.metadata.resource_version
        async for event in watching.stream(core.list_namespaced_pod, namespace, resource_version=version):
            seen.append((event["type"], event["object"].metadata.deletion_timestamp is not None))
            if event["type"] == "DELETED":
                break
    assert seen[:2] == [("MODIFIED", False), ("MODIFIED", True)]  # why it goes is said first
    assert seen[-1] == ("DELETED", True)


async def test_two_watches_hear_the_same(api: Any, namespace: str, deadline: Callable[[], Any]) -> None:
    core = client.CoreV1Api(api)
    version = (await core.list_namespaced_config_map(namespace)).metadata.resource_version

    async def first() -> str:
        async for event in raw_events(api, namespace, resource_version=version, label_selector="l"):
            return str(event["object"]["metadata"]["uid"])
        return ""

    async with deadline(), asyncio.TaskGroup() as group:
        watching = [group.create_task(first()) for _ in range(2)]
        made = await core.create_namespaced_config_map(namespace, settings("a"))
    assert [task.result() for task in watching] == [made.metadata.uid] * 2
