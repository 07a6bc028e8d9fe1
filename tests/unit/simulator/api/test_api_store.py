"""The store and its watches, without HTTP."""

import asyncio
from contextlib import aclosing
from random import Random
from typing import Any

import pytest

from services.simulator.api.access_log import AccessLog
from services.simulator.api.controllers import running
from services.simulator.api.faults import Fault, Faults, fault_from
from services.simulator.api.resources import CONFIGMAPS, DEPLOYMENTS, EVENTS, MEDIA_RESOURCES, NODES, PODS
from services.simulator.api.status import ApiError
from services.simulator.api.store import Change, Store
from services.simulator.api.watch import Selection, WatchRequest, follow
from shared.clock import ManualClock

Json = dict[str, Any]


def settings(name: str, **meta: Any) -> Json:
    return {"metadata": {"name": name, **meta}, "data": {}}


def everything(**more: Any) -> WatchRequest:
    asked: Json = {"revision": None, "timeout_s": None, "bookmark_s": None} | more
    return WatchRequest(resource=CONFIGMAPS, selection=Selection("", lambda _: True), **asked)


def test_one_counter_numbers_every_write(store: Store) -> None:
    first = store.create(CONFIGMAPS, "default", settings("a"))
    second = store.create(NODES, "", {"metadata": {"name": "n"}})
    assert int(second["metadata"]["resourceVersion"]) == int(first["metadata"]["resourceVersion"]) + 1


def test_the_same_seed_gives_the_same_names_and_uids() -> None:
    def made() -> Json:
        store = Store(ManualClock(), random=Random(3))  # noqa: S311 - names, no secrets
        return store.create(NODES, "", {"metadata": {"generateName": "worker-"}})

    assert made() == made()


def test_what_the_caller_passed_stays_as_it_was(store: Store) -> None:
    body = settings("a")
    store.create(CONFIGMAPS, "default", body)
    assert body == settings("a")


def test_an_object_in_an_unknown_namespace_is_404(store: Store) -> None:
    with pytest.raises(ApiError) as refused:
        store.create(CONFIGMAPS, "nowhere", settings("a"))
    assert refused.value.code == 404


@pytest.mark.parametrize("name", ["", "A", "a_b", "-a", "a" * 254, "a..b"])
def test_a_name_that_is_none_is_refused(store: Store, name: str) -> None:
    with pytest.raises(ApiError) as refused:
        store.create(CONFIGMAPS, "default", settings(name))
    assert refused.value.causes[0].field == "metadata.name"


def test_a_media_resource_needs_its_resource_version_for_put(store: Store) -> None:
    store.create(MEDIA_RESOURCES, "", {"metadata": {"name": "a"}, "spec": {"node": "n"}})
    with pytest.raises(ApiError) as refused:
        store.replace(MEDIA_RESOURCES, "", "a", {"metadata": {"name": "a"}, "spec": {}})
    assert refused.value.causes[0].field == "metadata.resourceVersion"


@pytest.mark.parametrize(
    ("spec", "field"),
    [
        (None, "spec"),
        ({"node": 7}, "spec.node"),
        ({"memory": {"totalBytes": -1}}, "spec.memory.totalBytes"),
        ({"memory": {"totalBytes": "8Gi"}}, "spec.memory.totalBytes"),
    ],
)
def test_a_media_resource_that_breaks_its_schema_names_the_field(store: Store, spec: Any, field: str) -> None:
    with pytest.raises(ApiError) as refused:
        store.create(MEDIA_RESOURCES, "", {"metadata": {"name": "a"}, "spec": spec})
    assert refused.value.causes[0].field == field


def test_a_pod_that_never_got_a_node_goes_at_once(store: Store) -> None:
    spec = {"containers": [{"name": "c", "image": "i"}]}
    store.create(PODS, "default", {"metadata": {"name": "a"}, "spec": spec})
    _, gone = store.delete(PODS, "default", "a")
    assert gone
    assert store.find(PODS, "default", "a") is None


def test_a_second_delete_can_only_shorten_the_grace(store: Store) -> None:
    spec = {"nodeName": "n", "containers": [{"name": "c", "image": "i"}]}
    store.create(PODS, "default", {"metadata": {"name": "a"}, "spec": spec})

    def grace_s() -> int:
        return int(store.get(PODS, "default", "a")["metadata"]["deletionGracePeriodSeconds"])

    for asked_s, stands_s in ((30, 30), (60, 30), (5, 5)):
        store.delete(PODS, "default", "a", {"gracePeriodSeconds": asked_s})
        assert grace_s() == stands_s
    assert store.get(PODS, "default", "a")["metadata"]["deletionTimestamp"] == "2026-01-01T00:00:05Z"


def test_events_are_bounded_oldest_first(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("services.simulator.api.store._EVENTS_KEPT", 2)
    for name in ("a", "b", "c"):
        body = {"metadata": {"name": name}, "deprecatedCount": 1, "regarding": {"namespace": "default"}}
        store.create(EVENTS, "default", body)
    assert [event["metadata"]["name"] for event in store.each(EVENTS)] == ["b", "c"]


def test_listeners_hear_within_the_write_until_they_are_forgotten(store: Store) -> None:
    heard: list[Change] = []
    forget = store.listen(heard.append)
    store.create(CONFIGMAPS, "default", settings("a"))
    forget()
    store.create(CONFIGMAPS, "default", settings("b"))
    assert [(change.kind, change.key) for change in heard] == [("ADDED", ("default", "a"))]


async def test_a_watch_from_before_the_history_is_410(store: Store) -> None:
    for index in range(300):
        store.create(CONFIGMAPS, "default", settings(f"a{index}"))
    assert len(store.ring(CONFIGMAPS).changes) <= 200
    with pytest.raises(ApiError) as refused:
        await anext(follow(store, everything(revision=1)))
    assert (refused.value.code, refused.value.reason) == (410, "Expired")


async def test_a_watch_from_the_future_is_refused(store: Store) -> None:
    with pytest.raises(ApiError) as refused:
        await anext(follow(store, everything(revision=10_000)))
    assert refused.value.code == 504


async def test_a_reader_that_falls_behind_the_history_is_told(store: Store) -> None:
    async with aclosing(follow(store, everything(revision=store.revision))) as events:  # type: ignore[type-var]
        store.create(CONFIGMAPS, "default", settings("a"))
        assert (await anext(events))[0] == "ADDED"
        for index in range(300):
            store.create(CONFIGMAPS, "default", settings(f"b{index}"))
        with pytest.raises(ApiError) as refused:
            await anext(events)
    assert refused.value.code == 410


@pytest.mark.looptime
async def test_a_quiet_watch_gets_bookmarks_and_ends_after_its_time(store: Store) -> None:
    request = everything(revision=store.revision, timeout_s=25.0, bookmark_s=10.0)
    store.create(NODES, "", {"metadata": {"name": "n"}})
    events = [event async for event in follow(store, request)]
    assert [kind for kind, _ in events] == ["BOOKMARK"] * 3
    assert events[-1][1]["metadata"]["resourceVersion"] == str(store.revision)
    assert asyncio.get_running_loop().time() == 25.0
    assert not store.ring(CONFIGMAPS).waiters


async def test_a_streaming_list_marks_its_end(store: Store) -> None:
    store.create(CONFIGMAPS, "default", settings("a"))
    request = everything(bookmark_s=60.0, initial_end=True)
    async with aclosing(follow(store, request)) as events:  # type: ignore[type-var]
        assert (await anext(events))[0] == "ADDED"
        kind, body = await anext(events)
    assert kind == "BOOKMARK"
    assert body["metadata"]["annotations"] == {"k8s.io/initial-events-end": "true"}


@pytest.mark.looptime
async def test_controllers_take_up_what_stands_when_they_start(
    cluster: Store, make_node: Any, template: Json, pods: Any, until: Any
) -> None:
    make_node("a")
    spec = {"replicas": 2, "selector": {"matchLabels": {"app": "edge"}}, "template": template}
    cluster.create(DEPLOYMENTS, "default", {"metadata": {"name": "edge"}, "spec": spec})
    async with running(cluster):
        await until(lambda: len(pods(ready=True)) == 2)
    scaled = {"replicas": 1}
    cluster.modify(DEPLOYMENTS, "default", "edge", lambda body: body["spec"].update(scaled))
    async with running(cluster, grace_s=0.0) as second:
        await until(lambda: len(pods()) == 1)
        await until(lambda: cluster.get(DEPLOYMENTS, "default", "edge")["status"]["replicas"] == 1)
        assert isinstance(second.idle, bool)


def test_the_access_log_is_bounded_and_numbered() -> None:
    log = AccessLog(ManualClock(), capacity=2)
    for path in ("/a", "/b", "/c"):
        log.add(
            verb="get",
            method="GET",
            path=path,
            query="",
            status=200,
            user_agent="suite",
            arrived_s=0.0,
            arrived_at="",
            body="x" * 5000,
        )
    assert [access.path for access in log.since()] == ["/b", "/c"]
    assert [access.number for access in log.since(2)] == [3]
    assert len(log.since()[0].body) == 2048
    assert log.find("get", "/c")[0].to_json()["status"] == 200


def test_a_fault_meets_the_next_requests_that_match_and_no_more() -> None:
    faults = Faults()
    fault = faults.inject(Fault(verb="PATCH", path=r"/nodes/worker-\d", times=2, status=500))
    assert faults.take("patch", "PATCH", "/api/v1/nodes/other") is None
    assert [faults.take("patch", "PATCH", "/api/v1/nodes/worker-1") for _ in range(3)] == [fault, fault, None]
    assert fault.met == 2
    faults.inject(Fault(status=500))
    faults.clear()
    assert faults.waiting() == []


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ([], "body"),
        ({"color": 1}, "color"),
        ({"times": "2"}, "times"),
        ({"status": True}, "status"),
        ({"path": "("}, "path"),
    ],
)
def test_a_malformed_fault_names_its_field(body: Any, field: str) -> None:
    with pytest.raises(ApiError) as refused:
        fault_from(body)
    assert refused.value.causes[0].field == field
