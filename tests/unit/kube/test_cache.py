"""Caches over watches, and owners asked once."""

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import replace

import pytest

from shared.errors import Temporary
from shared.kube.cache import NodeCache, PodCache
from shared.kube.models import Change, ChangeKind, Node, Owner, Pod, Workload
from shared.kube.owners import Owners

SYNCED: Change[Pod] = Change(ChangeKind.SYNCED, None)


def pod(name: str, node: str = "worker-1", owner: str = "rs-1", version: str = "1") -> Pod:
    return Pod(
        "media",
        name,
        f"uid-{name}",
        node,
        "Running",
        True,
        False,
        0,
        Owner("ReplicaSet", "rs", owner) if owner else None,
        None,
        version,
    )


def added(each: Pod) -> Change[Pod]:
    return Change(ChangeKind.ADDED, each)


async def test_a_cache_stands_as_of_the_change_that_it_tells_on() -> None:
    async def changes() -> AsyncGenerator[Change[Pod], None]:
        yield added(pod("a"))
        yield SYNCED
        yield Change(ChangeKind.DELETED, pod("a"))

    pods = PodCache()
    seen = [(change.kind.value, len(pods), pods.synced) async for change in pods.follow(changes())]
    assert seen == [("added", 1, False), ("synced", 1, True), ("deleted", 0, True)]


def test_pods_are_found_by_uid_node_namespace_and_owner() -> None:
    pods = PodCache()
    for each in (pod("a"), pod("b", node="worker-2"), pod("c", node="", owner="")):
        pods.take(added(each))
    assert pods.get("uid-a") == pod("a")
    assert [each.name for each in pods.on_node("worker-1")] == ["a"]
    assert [each.name for each in pods.in_namespace("media")] == ["a", "b", "c"]
    assert [each.name for each in pods.owned_by("rs-1")] == ["a", "b"]
    assert pods.on_node("") == ()
    assert len(list(pods)) == len(pods) == 3


def test_a_pod_that_is_bound_moves_in_the_index_and_a_deleted_one_leaves_every_index() -> None:
    pods = PodCache()
    pods.take(added(pod("a", node="")))
    pods.take(Change(ChangeKind.MODIFIED, pod("a", version="2")))
    assert [each.resource_version for each in pods.on_node("worker-1")] == ["2"]
    pods.take(Change(ChangeKind.MODIFIED, replace(pod("a"), phase="Failed")))
    assert [each.phase for each in pods.owned_by("rs-1")] == ["Failed"]
    pods.take(Change(ChangeKind.DELETED, pod("a")))
    pods.take(Change(ChangeKind.DELETED, pod("never-seen")))
    assert (pods.on_node("worker-1"), pods.owned_by("rs-1"), pods.in_namespace("media")) == ((), (), ())


def test_a_node_made_anew_takes_the_place_of_its_namesake() -> None:
    nodes = NodeCache()
    old, new = (Node("n", uid, "1", ready=True, unschedulable=False) for uid in ("old", "new"))
    assert nodes.named("n") is None
    nodes.take(Change(ChangeKind.ADDED, old))
    nodes.take(Change(ChangeKind.ADDED, new))
    assert nodes.named("n") == new
    nodes.take(Change(ChangeKind.DELETED, old))
    assert nodes.named("n") == new


async def test_the_owner_of_many_pods_is_asked_once() -> None:
    asked: list[str] = []

    async def ask(about: Pod) -> Workload | None:
        asked.append(about.name)
        await asyncio.sleep(0)
        return Workload("media", "Deployment", "edge", "d", "1", 2, 2)

    owners = Owners(ask)
    found = await asyncio.gather(*(owners.of(pod(name)) for name in "abc"))
    assert {each.name for each in found if each is not None} == {"edge"}
    assert len(asked) == 1
    await owners.of(pod("d", owner="rs-2"))
    assert len(asked) == 2
    assert await owners.of(pod("bare", owner="")) is None


async def test_an_owner_that_was_not_found_or_not_answered_is_asked_again() -> None:
    answers: list[Workload | Exception | None] = [
        Temporary("away"),
        None,
        Workload("media", "Job", "clip", "j", "1", 1, 1),
    ]

    async def ask(about: Pod) -> Workload | None:
        del about
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    owners = Owners(ask)
    with pytest.raises(Temporary):
        await owners.of(pod("a"))
    assert await owners.of(pod("a")) is None
    found = await owners.of(pod("a"))
    assert found is not None
    assert (found.kind, found.name, found.namespace) == ("Job", "clip", "media")


async def test_owners_are_forgotten_earliest_first(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    async def ask(about: Pod) -> Workload | None:
        asked.append(about.name)
        return Workload("media", "Deployment", about.name, about.uid, "1", 2, 2)

    monkeypatch.setattr("shared.kube.owners._MOST", 2)
    owners = Owners(ask)
    for number in (1, 2, 3, 1):
        await owners.of(pod(f"p{number}", owner=f"rs-{number}"))
    assert asked == ["p1", "p2", "p3", "p1"]
