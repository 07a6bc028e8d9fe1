"""What a URL of the Kubernetes API means."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import unquote

from services.simulator.api.resources import NAMESPACES, View, serving

if TYPE_CHECKING:
    from collections.abc import Mapping

TRUE = ("true", "1", "t")


@dataclass(frozen=True, slots=True)
class Target:
    """A collection, an object or a subresource."""

    view: View
    namespace: str
    name: str
    subresource: str

    def verb(self, method: str, query: Mapping[str, str]) -> str:
        """The Kubernetes verb of a request."""
        match method:
            case "GET" | "HEAD":
                if self.name:
                    return "get"
                return "watch" if flag(query, "watch") else "list"
            case "POST":
                return "create"
            case "PUT":
                return "update"
            case "PATCH":
                return "patch"
            case "DELETE":
                return "delete" if self.name else "deletecollection"
            case _:
                return method.lower()


def parse_path(path: str) -> Target | None:
    """The target of ``/api/v1/...`` or ``/apis/GROUP/VERSION/...``; None when nothing is served there."""
    parts = [unquote(part) for part in path.strip("/").split("/")]
    if parts[0] == "api" and len(parts) > 2:  # noqa: PLR2004 - api, version, something
        group, version, rest = "", parts[1], parts[2:]
    elif parts[0] == "apis" and len(parts) > 3:  # noqa: PLR2004 - apis, group, version, something
        group, version, rest = parts[1], parts[2], parts[3:]
    else:
        return None
    namespace = ""
    if rest[0] == "namespaces" and len(rest) > 2 and rest[2] not in ("status", "finalize"):  # noqa: PLR2004
        namespace, rest = rest[1], rest[2:]
    view = serving(group, version, rest[0])
    if view is None or len(rest) > 3 or (namespace and not view.resource.namespaced):  # noqa: PLR2004
        return None
    if view.resource is NAMESPACES and namespace:
        return None
    name = rest[1] if len(rest) > 1 else ""
    subresource = rest[2] if len(rest) > 2 else ""  # noqa: PLR2004 - plural, name, subresource
    return Target(view, namespace, name, subresource)


def flag(query: Mapping[str, str], name: str) -> bool:
    """A boolean of the query, spelled as any client does."""
    return query.get(name, "").lower() in TRUE
