"""The HTTP face: the access log, faults, malformed requests, and bodies made of anything."""

import asyncio
import io
import json
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as limits
from hypothesis import strategies as st

from services.simulator.api.faults import Fault
from services.simulator.api.handlers import (
    JSON_PATCH,
    MERGE_PATCH,
    STRATEGIC_PATCH,
    Call,
    handle,
    watch_request,
)
from services.simulator.api.request import parse_path
from services.simulator.api.resources import ALL, NAMESPACES, NODES, PODS
from services.simulator.api.server import ApiServer
from services.simulator.api.status import ApiError
from services.simulator.api.store import Store
from shared.clock import ManualClock

Json = dict[str, Any]


@pytest.fixture
async def server() -> AsyncIterator[ApiServer]:
    made = ApiServer()
    await made.start()
    yield made
    await made.stop()


@pytest.fixture
async def http(server: ApiServer) -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(server.url, headers={"User-Agent": "suite/1"}) as session:
        yield session


async def answer(response: Any) -> tuple[int, Any]:
    async with response as got:
        return got.status, json.loads(await got.text())


async def test_every_request_is_in_the_access_log(server: ApiServer, http: aiohttp.ClientSession) -> None:
    await answer(
        http.post(
            "/api/v1/namespaces/default/configmaps", json={"metadata": {"name": "a"}, "data": {"k": "v"}}
        )
    )
    await answer(http.get("/api/v1/namespaces/default/configmaps", params={"labelSelector": "a=b"}))
    await answer(http.get("/api/v1/nodes/nobody"))
    status, log = await answer(http.get("/simulator/v1/access-log", params={"since": "1"}))
    assert status == 200
    assert [(entry["verb"], entry["status"]) for entry in log["entries"]] == [("list", 200), ("get", 404)]
    assert log["next"] == 3
    created = server.access_log.find("create", "/configmaps")[0]
    assert json.loads(created.body)["data"] == {"k": "v"}
    assert created.user_agent == "suite/1"
    assert (await answer(http.get("/simulator/v1/access-log", params={"since": "x"})))[0] == 400


@pytest.mark.parametrize("spelling", ["true", "True", "1"])
async def test_a_watch_is_logged_when_it_opens_however_it_is_spelled(
    server: ApiServer, http: aiohttp.ClientSession, spelling: str
) -> None:
    server.store.create(NODES, "", {"metadata": {"name": "n"}})
    async with http.get("/api/v1/nodes", params={"watch": spelling}) as response, asyncio.timeout(10):
        assert json.loads(await response.content.readline())["type"] == "ADDED"
        assert [access.status for access in server.access_log.find("watch", "/nodes")] == [200]


async def test_stopping_ends_open_watches(server: ApiServer, http: aiohttp.ClientSession) -> None:
    async with http.get("/api/v1/nodes", params={"watch": "1"}) as response, asyncio.timeout(10):
        await server.stop()
        assert await response.content.read() == b""


async def test_faults_are_injected_listed_and_cleared_over_http(http: aiohttp.ClientSession) -> None:
    fault = {"verb": "get", "path": "/nodes", "status": 429, "retry_after_s": 3}
    assert (await answer(http.post("/simulator/v1/faults", json=fault)))[0] == 201
    assert len((await answer(http.get("/simulator/v1/faults")))[1]["faults"]) == 1
    async with http.get("/api/v1/nodes/n") as response:
        assert (response.status, response.headers["Retry-After"]) == (429, "3")
    assert (await answer(http.get("/api/v1/nodes/n")))[0] == 404
    await answer(http.post("/simulator/v1/faults", json=fault))
    assert (await answer(http.delete("/simulator/v1/faults")))[1] == {"faults": []}
    status, said = await answer(http.post("/simulator/v1/faults", json={"verb": 7}))
    assert (status, said["details"]["causes"][0]["field"]) == (400, "verb")


async def test_a_hanging_request_is_answered_after_its_hang(
    server: ApiServer, http: aiohttp.ClientSession
) -> None:
    server.faults.inject(Fault(verb="list", hang_s=0.05))
    assert (await answer(http.get("/api/v1/nodes")))[0] == 200
    assert server.access_log.since(0)[-1].seconds >= 0.05


async def test_a_client_that_gives_up_is_in_the_log_as_499(
    server: ApiServer, http: aiohttp.ClientSession
) -> None:
    fault = server.faults.inject(Fault(verb="list", hang_s=30))
    with pytest.raises(TimeoutError):
        await http.get("/api/v1/nodes", timeout=aiohttp.ClientTimeout(total=0.05))
    assert fault.met == 1
    async with asyncio.timeout(10):
        while not server.access_log.since(0):
            await answer(http.get("/simulator/v1/faults"))
    assert server.access_log.since(0)[0].status == 499


@pytest.mark.parametrize(
    ("method", "path", "body", "content_type", "code"),
    [
        ("POST", "/api/v1/namespaces", b"{", "application/json", 400),
        ("POST", "/api/v1/namespaces", b"NaN", "application/json", 400),
        ("POST", "/api/v1/namespaces", b"[]", "application/json", 400),
        ("POST", "/api/v1/namespaces", b"", "application/json", 400),
        ("POST", "/api/v1/namespaces", b"a: b", "application/yaml", 415),
        ("POST", "/api/v1/namespaces", b'{"kind": "Pod"}', "application/json", 400),
        ("POST", "/api/v1/namespaces", b'{"metadata": 7}', "application/json", 400),
        ("POST", "/api/v1/namespaces", b'{"metadata": {"labels": {"a": 7}}}', "application/json", 400),
        ("POST", "/api/v1/namespaces", b'{"metadata": {"name": 7}}', "application/json", 400),
        ("POST", "/api/v1/pods", b"{}", "application/json", 405),
        ("PATCH", "/api/v1/namespaces/default", b"{}", "text/plain", 415),
        ("PATCH", "/api/v1/namespaces/default", b"7", MERGE_PATCH, 400),
        ("PATCH", "/api/v1/namespaces/default", b"{}", JSON_PATCH, 400),
        ("GET", "/api/v1/gadgets", b"", "", 404),
        ("GET", "/apis/media.example.com/v9/mediaresources", b"", "", 404),
        ("GET", "/api/v1/namespaces/default/pods?limit=many", b"", "", 400),
        ("GET", "/api/v1/pods?watch=1&resourceVersion=abc", b"", "", 400),
        ("GET", "/api/v1/pods?continue=xyz", b"", "", 400),
        ("GET", "/api/v1/pods?resourceVersion=99999999", b"", "", 504),
        ("POST", "/api/v1/namespaces/default/pods/a/launch", b"{}", "application/json", 404),
        ("GET", "/simulator/v1/nothing", b"", "", 404),
    ],
)
async def test_a_malformed_request_is_a_status(  # noqa: PLR0917 - a table
    http: aiohttp.ClientSession, method: str, path: str, body: bytes, content_type: str, code: int
) -> None:
    headers = {"Content-Type": content_type} if content_type else {}
    status, said = await answer(http.request(method, path, data=body or None, headers=headers))
    assert (status, said["kind"], said["code"]) == (code, "Status", code)


async def test_a_body_that_is_too_large_is_413(http: aiohttp.ClientSession) -> None:
    body = json.dumps({"metadata": {"name": "a"}, "data": {"k": "x" * (3 << 20)}}).encode()
    headers = {"Content-Type": "application/json"}
    assert (
        await answer(
            http.post("/api/v1/namespaces/default/configmaps", data=io.BytesIO(body), headers=headers)
        )
    )[0] == 413


async def test_health_and_discovery_are_served(http: aiohttp.ClientSession) -> None:
    async with http.get("/healthz") as response:
        assert await response.text() == "ok"
    assert (await answer(http.get("/apis/policy")))[1]["kind"] == "APIGroup"
    served = (await answer(http.get("/apis/apps/v1")))[1]["resources"]
    assert "deployments/scale" in [resource["name"] for resource in served]
    assert (await answer(http.get("/apis/nothing.example.com")))[0] == 404


# --- anything ------------------------------------------------------------------------------------------

WORDS = """
    name labels containers resources limits requests spec template metadata selector matchLabels
    replicas taints key effect tolerations minAvailable scaleTargetRef maxReplicas memory totalBytes
    series regarding preconditions dryRun conditions status operator matchExpressions values
    ownerReferences finalizers metrics capacity x/y
"""
VALUES: Any = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-2, 2)
    | st.text(max_size=4)
    | st.sampled_from(["1", "All", "x/y"]),
    lambda inner: (
        st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(WORDS.split()), inner, max_size=4)
    ),
    max_leaves=12,
)
OBJECTS: Any = st.fixed_dictionaries(
    {}, optional={"spec": VALUES, "status": VALUES, "data": VALUES, "deleteOptions": VALUES}
)
POD = {"metadata": {"name": "a"}, "spec": {"nodeName": "n", "containers": [{"name": "c", "image": "i"}]}}


@limits(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    resource=st.sampled_from(ALL),
    body=OBJECTS,
    meta=VALUES,
    patch=VALUES,
    kind=st.sampled_from([JSON_PATCH, MERGE_PATCH, STRATEGIC_PATCH]),
)
def test_a_body_of_anything_is_stored_or_refused(
    resource: Any, body: Json, meta: Any, patch: Any, kind: str
) -> None:
    store = Store(ManualClock())
    store.create(NAMESPACES, "", {"metadata": {"name": "default"}})
    store.create(PODS, "default", POD)
    where = f"/apis/{resource.group}/{resource.version}" if resource.group else f"/api/{resource.version}"
    if resource.namespaced:
        where += "/namespaces/default"
    name = "default" if resource is NAMESPACES else "a"
    created = body | {"metadata": {"name": "a", **meta} if isinstance(meta, dict) else meta}
    for verb, tail, sent in (
        ("create", "", created),
        ("patch", f"/{name}", patch),
        ("patch", f"/{name}/status", patch),
        ("update", f"/{name}", created),
        ("patch", f"/{name}/scale", patch),
        ("create", f"/{name}/eviction", created),
        ("create", f"/{name}/binding", created),
        ("delete", f"/{name}", patch),
        ("deletecollection", "", patch),
    ):
        target = parse_path(f"{where}/{resource.plural}{tail}")
        if target is None:
            continue  # namespaces have no such subresource
        try:
            status, shown = handle(store, Call(verb, target, {}, sent, kind))
        except ApiError as error:
            assert 400 <= error.code < 500  # noqa: PT017 - either is right
        else:
            assert status in (200, 201)
            assert isinstance(shown, dict)


@limits(max_examples=100, deadline=None)
@given(
    query=st.dictionaries(
        st.sampled_from(
            ["labelSelector", "fieldSelector", "limit", "continue", "resourceVersion", "timeoutSeconds"]
        ),
        st.text(max_size=8),
    )
)
def test_a_query_of_anything_is_answered_or_refused(query: dict[str, str]) -> None:
    store = Store(ManualClock())
    target = parse_path("/api/v1/pods")
    assert target is not None
    try:
        handle(store, Call("list", target, query))
        watch_request(Call("watch", target, query), bookmark_s=1.0)
    except ApiError as error:
        assert error.code in (400, 410, 504)  # noqa: PT017 - either is right
