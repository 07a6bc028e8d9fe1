"""The documents by which clients find out what is served: versions, groups, resources, health."""

from __future__ import annotations

from typing import Any, Final

from services.simulator.api.resources import groups, of_group

Json = dict[str, Any]

VERSION: Final = {
    "major": "1",
    "minor": "37",
    "gitVersion": "v1.37.2-simulated",
    "gitCommit": "simulated",
    "gitTreeState": "clean",
    "buildDate": "2026-01-01T00:00:00Z",
    "goVersion": "none",
    "compiler": "none",
    "platform": "linux/amd64",
}
"""A version that clients may compare; the suffix says what it is."""

_VERBS: Final = ["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"]
_STATUS_VERBS: Final = ["get", "patch", "update"]


def discovery(path: str) -> Any | None:
    """The document at this path, or None."""
    path = path.rstrip("/")
    match path:
        case "/version":
            return VERSION
        case "/healthz" | "/livez" | "/readyz":
            return "ok"
        case "/api":
            return {"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": []}
        case "/apis":
            return {
                "kind": "APIGroupList",
                "apiVersion": "v1",
                "groups": [_group(name) for name in sorted(groups())],
            }
        case "/api/v1":
            return _resources("", "v1")
    parts = path.split("/")
    if parts[:2] == ["", "apis"] and len(parts) == 3 and parts[2] in groups():  # noqa: PLR2004 - "", apis, group
        return _group(parts[2]) | {"kind": "APIGroup", "apiVersion": "v1"}
    if parts[:2] == ["", "apis"] and len(parts) == 4 and parts[3] in groups().get(parts[2], ()):  # noqa: PLR2004
        return _resources(parts[2], parts[3])
    return None


def _group(name: str) -> Json:
    versions = [{"groupVersion": f"{name}/{version}", "version": version} for version in groups()[name]]
    return {"name": name, "versions": versions, "preferredVersion": versions[0]}


def _resources(group: str, version: str) -> Json:
    listed: list[Json] = []
    for view in of_group(group, version):
        resource = view.resource
        shared = {
            "singularName": resource.kind.lower(),
            "namespaced": resource.namespaced,
            "kind": resource.kind,
        }
        listed.append({"name": resource.plural, "verbs": _VERBS} | shared)
        if resource.status:
            listed.append({"name": f"{resource.plural}/status", "verbs": _STATUS_VERBS} | shared)
        if resource.scale:
            scale = {"kind": "Scale", "group": "autoscaling", "version": "v1"}
            listed.append({"name": f"{resource.plural}/scale", "verbs": _STATUS_VERBS} | shared | scale)
        if resource.kind == "Pod":
            eviction = {"kind": "Eviction", "group": "policy", "version": "v1"}
            listed.append({"name": "pods/eviction", "verbs": ["create"]} | shared | eviction)
            listed.append({"name": "pods/binding", "verbs": ["create"]} | shared | {"kind": "Binding"})
    group_version = f"{group}/{version}" if group else version
    return {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": group_version, "resources": listed}
