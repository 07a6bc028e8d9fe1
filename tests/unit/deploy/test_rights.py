"""Rights at the API server: what the code asks for is what its role gives, no less and no more."""

import ast
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from random import Random
from typing import Any, cast

import pytest

from shared.clock import SystemClock
from shared.errors import Permanent
from shared.kube.client import KubeClient
from shared.kube.models import ObjectRef, Owner, Pod, PodRef, Taint
from shared.kube.port import Kube
from shared.kube.requests import POLICY_PLURALS, WORKLOAD_KINDS
from shared.kube.transport import Answer, Transport
from tests.unit.deploy.manifests import CLUSTER_SERVICES, NODE_SERVICES, ROOT, build, named, of_kind

Right = tuple[str, str, str]
"""API group, resource with its subresource, verb."""

SCALABLE = ("Deployment", "ReplicaSet", "StatefulSet")
VERBS = {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}


class Asked:
    """A transport that keeps what was asked and answers with an empty object, or that there is none."""

    def __init__(self, *, exists: bool) -> None:
        self.rights: set[Right] = set()
        self._exists = exists

    async def request(self, method: str, path: str, **_: Any) -> Answer:
        right = right_of(method, path)
        if right is not None:
            self.rights.add(right)
        if method == "GET" and right is not None and right[2] == "get" and not self._exists:
            return Answer(404, {})
        if method == "POST" and path.endswith("/events"):
            return Answer(409, {})
        metadata = {"name": "n", "namespace": "ns", "uid": "u", "resourceVersion": "1"}
        spec = {"minReplicas": 1, "maxReplicas": 2, "scaleTargetRef": {"kind": "Deployment", "name": "n"}}
        return Answer(200, {"metadata": metadata, "spec": spec, "status": {}, "items": []})

    async def lines(self, path: str, *_: Any, **__: Any) -> AsyncIterator[bytes]:
        group, resource, _verb = cast("Right", right_of("GET", path))
        self.rights.add((group, resource, "watch"))
        if path:
            raise Permanent("that is all")
        yield b""


def right_of(method: str, path: str) -> Right | None:
    """The right that a request takes; None for the discovery of the API itself."""
    parts = path.strip("/").split("/")
    if parts == ["apis"]:
        return None
    group, rest = ("", parts[2:]) if parts[0] == "api" else (parts[1], parts[3:])
    if rest[0] == "namespaces" and len(rest) > 2:
        rest = rest[2:]
    verb = VERBS.get(method) or ("get" if len(rest) > 1 else "list")
    return group, "/".join([rest[0], *rest[2:]]), verb


def pod(owner_kind: str) -> Pod:
    return Pod("ns", "n", "u", "node", "Running", True, False, 0, Owner(owner_kind, "n", "u"), None, "1")


async def _first(changes: Any) -> None:
    async with contextlib.aclosing(changes):
        async for _ in changes:
            continue


async def _first_of(watch: Callable[[Any], Any], kind: str) -> None:
    await _first(watch(kind))


CALLS: dict[str, Callable[[KubeClient], list[Callable[[], Awaitable[object]]]]] = {
    "pods": lambda kube: [lambda: kube.pods(node="n")],
    "pod": lambda kube: [lambda: kube.pod("ns", "n")],
    "evict": lambda kube: [lambda: kube.evict(PodRef("ns", "n", "u"))],
    "nodes": lambda kube: [kube.nodes],
    "node": lambda kube: [lambda: kube.node("n")],
    "set_taint": lambda kube: [lambda: kube.set_taint("n", Taint("k"))],
    "remove_taint": lambda kube: [
        lambda: kube.remove_taint("n", "k"),
        lambda: kube.set_taint("n", Taint("k")),
    ],
    "patch_node_labels": lambda kube: [lambda: kube.patch_node_labels("n", {})],
    "patch_node_capacity": lambda kube: [lambda: kube.patch_node_capacity("n", {})],
    "owner_workload": lambda kube: [partial(kube.owner_workload, pod(kind)) for kind in WORKLOAD_KINDS],
    "workload": lambda kube: [partial(kube.workload, "ns", kind, "n") for kind in WORKLOAD_KINDS],
    "scale": lambda kube: [partial(kube.scale, "ns", kind, "n", 2) for kind in SCALABLE],
    "hpas": lambda kube: [kube.hpas],
    "patch_hpa_min": lambda kube: [lambda: kube.patch_hpa_min("ns", "n", 2, {})],
    "media_resources": lambda kube: [kube.media_resources],
    "apply_media_resource": lambda kube: [lambda: kube.apply_media_resource("n", {"a": 1})],
    "patch_media_resource_status": lambda kube: [lambda: kube.patch_media_resource_status("n", {})],
    "delete_media_resource": lambda kube: [lambda: kube.delete_media_resource("n")],
    "record_event": lambda kube: [
        lambda: kube.record_event(ObjectRef("v1", "Pod", "n", "ns", "u"), "R", "note", "Normal", "A")
    ],
    "watch_pods": lambda kube: [lambda: _first(kube.watch_pods())],
    "watch_nodes": lambda kube: [lambda: _first(kube.watch_nodes())],
    "watch_media_resources": lambda kube: [lambda: _first(kube.watch_media_resources())],
    "policies": lambda kube: [partial(kube.policies, kind) for kind in POLICY_PLURALS],
    "patch_policy_status": lambda kube: [
        partial(kube.patch_policy_status, kind, "n", {}) for kind in POLICY_PLURALS
    ],
    "delete_policy": lambda kube: [partial(kube.delete_policy, kind, "n") for kind in POLICY_PLURALS],
    "watch_policies": lambda kube: [partial(_first_of, kube.watch_policies, kind) for kind in POLICY_PLURALS],
    "definitions": lambda kube: [kube.definitions],
    "delete_definition": lambda kube: [lambda: kube.delete_definition("n")],
    "api_versions": lambda kube: [kube.api_versions],
}
"""Every call of the port, in each way that asks for another right."""


async def rights_of(call: str) -> set[Right]:
    """What one call of the port asks of the API server, whether the object is there or not."""
    rights: set[Right] = set()
    for exists in (True, False):
        asked = Asked(exists=exists)
        kube = KubeClient(
            cast("Transport", asked),
            component="t",
            instance="t",
            clock=SystemClock(),
            random=Random(0),  # noqa: S311 - jitter, no secret
        )
        for ask in CALLS[call](kube):
            with contextlib.suppress(Exception):  # the answers are empty: only what was asked counts
                await ask()
        rights |= asked.rights
    return rights


def port() -> set[str]:
    return {name for name in vars(Kube) if not name.startswith("_")}


def called(service: str) -> set[str]:
    """The calls of the port in a service's code: attributes of what is named `kube` or `_kube`."""
    found = set()
    for path in (ROOT / "services" / service).rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Attribute):
                of = node.value
                name = of.id if isinstance(of, ast.Name) else of.attr if isinstance(of, ast.Attribute) else ""
                if name in ("kube", "_kube") and node.attr in port():
                    found.add(node.attr)
    return found


def foreign_policies(service: str) -> set[str]:
    """Resources of the policies whose kind a service's code does not name."""
    named = {
        node.value
        for path in (ROOT / "services" / service).rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Constant)
    }
    return {plural for kind, plural in POLICY_PLURALS.items() if kind not in named}


def granted(service: str) -> set[Right]:
    roles = [
        each
        for each in of_kind(build("base"), "ClusterRole")
        if each["metadata"]["name"] == f"mediafleet-{service}"
    ]
    return {
        (group, resource, verb)
        for role in roles
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


def test_every_call_of_the_port_is_covered() -> None:
    assert CALLS.keys() == port()


async def test_a_call_is_known_by_what_it_asks() -> None:
    assert await rights_of("evict") == {("", "pods/eviction", "create")}
    assert await rights_of("scale") >= {
        ("apps", "deployments/scale", "patch"),
        ("apps", "deployments", "get"),
    }
    assert await rights_of("set_taint") == {("", "nodes", "get"), ("", "nodes", "patch")}
    assert await rights_of("api_versions") == set()


@pytest.mark.parametrize("service", CLUSTER_SERVICES)
async def test_a_service_has_the_rights_that_its_code_uses_and_no_other(service: str) -> None:
    used: set[Right] = set()
    for call in called(service):
        used |= await rights_of(call)
    foreign = foreign_policies(service)
    used = {right for right in used if right[1].partition("/")[0] not in foreign}
    assert granted(service) == used


def test_node_agents_and_alerting_have_no_rights_at_all() -> None:
    bound = {
        subject["name"]
        for binding in of_kind(build("base"), "ClusterRoleBinding", "RoleBinding")
        for subject in binding["subjects"]
    }
    assert not bound & {*NODE_SERVICES, "alerting"}
    for service in (*NODE_SERVICES, "alerting"):
        assert called(service) == set()


def test_no_role_has_a_wildcard_and_every_binding_binds_its_own_service() -> None:
    objects = build("base")
    for role in of_kind(objects, "ClusterRole", "Role"):
        for rule in role["rules"]:
            assert "*" not in rule["verbs"] + rule["resources"] + rule["apiGroups"]
    for service in set(CLUSTER_SERVICES) - {"alerting"}:
        binding = named(objects, "ClusterRoleBinding", f"mediafleet-{service}")
        assert binding["roleRef"]["name"] == f"mediafleet-{service}"
        assert binding["subjects"] == [{"kind": "ServiceAccount", "name": service, "namespace": "mediafleet"}]
