"""Whether the demo's story happened, read from the API server's access log and the kubelets' state. Pure.

None of our own events is believed here.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

Json = dict[str, Any]

_EVICTION = re.compile(r"/api/v1/namespaces/([^/]+)/pods/([^/]+)/eviction")
_STATUS = re.compile(r"/apis/[^/]+/v1alpha1/mediaresources/([^/]+)/status")
_SCALE = re.compile(r"/apis/apps/v1/namespaces/([^/]+)/deployments/([^/]+)/scale")
_CREATED = 201


@dataclass(frozen=True, slots=True)
class Check:
    """One step of the story.

    Attributes:
        seen: how it was seen, or what was seen instead.
    """

    step: str
    passed: bool
    seen: str


@dataclass(frozen=True, slots=True)
class Evicted:
    """One accepted eviction as the API server logged it."""

    pod: str
    uid: str
    by: str
    at_s: float


def evictions(log: Iterable[Json]) -> list[Evicted]:
    """Accepted evictions that were no dry runs, in order."""
    found = []
    for access in log:
        path = _EVICTION.fullmatch(access["path"])
        if path is None or access["status"] not in (200, _CREATED):
            continue
        body = _body(access)
        options = body.get("deleteOptions") or {}
        if options.get("dryRun"):
            continue
        uid = (options.get("preconditions") or {}).get("uid", "")
        found.append(Evicted(f"{path[1]}/{path[2]}", uid, access["user_agent"], access["monotonic_s"]))
    return found


def only_these_evicted(step: str, log: Iterable[Json], expected: dict[str, str], by: str) -> Check:
    """Exactly the expected pods (name to UID) were evicted, each once, by UID, by that service."""
    seen = evictions(log)
    got = [(each.pod, each.uid) for each in seen]
    right = sorted(got) == sorted(expected.items()) and all(by in each.by for each in seen)
    names = ", ".join(f"{each.pod} by {each.by}" for each in seen) or "nobody"
    return Check(
        step, right, f"evicted: {names}" + ("" if right else f"; expected {', '.join(expected) or 'nobody'}")
    )


def phases(log: Iterable[Json], resource: str) -> list[str]:
    """The phases that a MediaResource went through, without repeats."""
    found: list[str] = []
    for access in log:
        path = _STATUS.fullmatch(access["path"])
        if path is None or path[1] != resource or access["status"] >= 300:  # noqa: PLR2004 - HTTP success
            continue
        phase = (_body(access).get("status") or {}).get("phase")
        if phase and (not found or found[-1] != phase):
            found.append(phase)
    return found


def went_through(step: str, log: Iterable[Json], resource: str, wanted: Sequence[str]) -> Check:
    """A MediaResource showed these phases in this order (others may lie between)."""
    seen = phases(log, resource)
    rest = iter(seen)
    return Check(step, all(phase in rest for phase in wanted), " -> ".join(seen) or "no status written")


def event_recorded(step: str, log: Iterable[Json], reason: str, about: str) -> Check:
    """A Kubernetes Event with that reason was recorded on that object."""
    for access in log:
        if access["verb"] != "create" or "/events" not in access["path"] or access["status"] != _CREATED:
            continue
        body = _body(access)
        regarding = body.get("regarding") or {}
        if body.get("reason") == reason and regarding.get("name") == about:
            return Check(step, True, str(body.get("note", ""))[:120])
    return Check(step, False, f"no Event {reason} on {about}")


def scaled_up(step: str, log: Iterable[Json], workload: str, before: int) -> Check:
    """The Deployment was given more replicas than it had."""
    for access in log:
        path = _SCALE.fullmatch(access["path"])
        if path is None or f"{path[1]}/{path[2]}" != workload or access["verb"] not in ("patch", "update"):
            continue
        replicas = _replicas(_body(access))
        if access["status"] < 300 and replicas > before:  # noqa: PLR2004 - HTTP success
            return Check(step, True, f"{before} -> {replicas} by {access['user_agent']}")
    return Check(step, False, f"{workload} was not scaled up from {before}")


def _replicas(body: Any) -> int:
    """Replicas in a merge patch, a JSON patch or a whole Scale."""
    if isinstance(body, list):
        values = [each.get("value") for each in body if each.get("path") == "/spec/replicas"]
        return int(values[0]) if values else 0
    return int((body.get("spec") or {}).get("replicas") or 0)


def _body(access: Json) -> Any:
    try:
        return orjson.loads(access["body"] or "{}")
    except orjson.JSONDecodeError:
        return {}  # the log keeps only the beginning of a long body; nothing is concluded from it
