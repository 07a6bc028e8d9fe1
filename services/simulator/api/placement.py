"""Where a pod may go, and where it goes best: the plain part of kube-scheduler, pure.

Filters: unschedulable, Ready, nodeSelector, required node affinity, NoSchedule and NoExecute taints,
resources. Score: the node with the largest share left over of what the pod asks for, then the one with the
fewest pods.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final

from services.simulator.api.eviction import condition_of
from services.simulator.api.selectors import expression, matches_all
from shared.kube.quantities import parse_quantities, pod_requests

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

Json = dict[str, Any]

_REPELS: Final = ("NoSchedule", "NoExecute")
_DEFAULT_PODS: Final = Decimal(110)
"""The kubelet's own limit of pods where a node names none."""


@dataclass(slots=True)
class Room:
    """A node as the scheduler sees it: what it has, and what its bound pods take."""

    name: str
    node: Json
    allocatable: dict[str, Decimal]
    used: dict[str, Decimal] = field(default_factory=dict)
    pods: int = 0

    def lacks(self, requests: Mapping[str, Decimal]) -> str | None:
        """The resource there is too little of, or None."""
        if self.pods + 1 > self.allocatable.get("pods", _DEFAULT_PODS):
            return "Too many pods"
        for name, amount in requests.items():
            if name not in self.allocatable and "/" not in name:
                continue  # a simulated node that does not say how much cpu it has
            if amount > 0 and self.used.get(name, Decimal(0)) + amount > self.allocatable.get(
                name, Decimal(0)
            ):
                return f"Insufficient {name}"
        return None

    def left_over(self, requests: Mapping[str, Decimal]) -> Decimal:
        """The smallest share that would be left of any requested resource, 0 to 1."""
        shares = [
            (self.allocatable[name] - self.used.get(name, Decimal(0)) - amount) / self.allocatable[name]
            for name, amount in requests.items()
            if amount > 0 and self.allocatable.get(name)
        ]
        return min(shares, default=Decimal(1))

    def take(self, requests: Mapping[str, Decimal], sign: int) -> None:
        """Count a pod in (1) or out (-1)."""
        self.pods += sign
        for name, amount in requests.items():
            self.used[name] = self.used.get(name, Decimal(0)) + sign * amount


def room_of(node: Json) -> Room:
    """An empty room for a node."""
    allocatable = parse_quantities((node.get("status") or {}).get("allocatable"))
    return Room(node["metadata"]["name"], node, allocatable)


def choose(pod: Json, rooms: Iterable[Room]) -> tuple[str | None, str]:
    """The best node for a pod, or None and the scheduler's sentence about why not."""
    requests = pod_requests(pod["spec"])
    reasons: Counter[str] = Counter()
    best: tuple[Decimal, int, str] | None = None
    count = 0
    for room in rooms:
        count += 1
        reason = _refuses(pod, room, requests)
        if reason is not None:
            reasons[reason] += 1
            continue
        rank = (-room.left_over(requests), room.pods, room.name)
        if best is None or rank < best:
            best = rank
    if best is not None:
        return best[2], ""
    told = ", ".join(f"{number} {reason}" for reason, number in sorted(reasons.items()))
    return None, f"0/{count} nodes are available: {told or 'no nodes'}."


def tolerates(tolerations: Iterable[Json], taint: Json) -> bool:
    """Whether one of the tolerations matches the taint (core/v1 ``ToleratesTaint``)."""
    for toleration in tolerations:
        if toleration.get("effect") and toleration["effect"] != taint.get("effect"):
            continue
        if toleration.get("key") and toleration["key"] != taint.get("key"):
            continue
        if toleration.get("operator") == "Exists":
            return True
        if toleration.get("key") and (toleration.get("value") or "") == (taint.get("value") or ""):
            return True
    return False


def _refuses(pod: Json, room: Room, requests: Mapping[str, Decimal]) -> str | None:
    node, spec = room.node, pod["spec"]
    if (node.get("spec") or {}).get("unschedulable"):
        return "node(s) were unschedulable"
    if condition_of(node, "Ready") in ("False", "Unknown"):
        return "node(s) had untolerated taint {node.kubernetes.io/not-ready: }"
    if spec.get("nodeName") and spec["nodeName"] != room.name:
        return "node(s) didn't match the requested node name"
    labels = node["metadata"].get("labels") or {}
    if any(labels.get(key) != value for key, value in (spec.get("nodeSelector") or {}).items()):
        return "node(s) didn't match Pod's node affinity/selector"
    if not _affine(spec, node):
        return "node(s) didn't match Pod's node affinity/selector"
    for taint in (node.get("spec") or {}).get("taints") or ():
        if taint.get("effect") in _REPELS and not tolerates(spec.get("tolerations") or (), taint):
            return f"node(s) had untolerated taint {{{taint.get('key')}: {taint.get('value') or ''}}}"
    return room.lacks(requests)


def _affine(spec: Json, node: Json) -> bool:
    affinity = (spec.get("affinity") or {}).get("nodeAffinity") or {}
    required = affinity.get("requiredDuringSchedulingIgnoredDuringExecution")
    if required is None:
        return True
    labels = node["metadata"].get("labels") or {}
    name = {"metadata.name": node["metadata"]["name"]}
    return any(
        (term.get("matchExpressions") or term.get("matchFields"))
        and matches_all(tuple(expression(entry) for entry in term.get("matchExpressions") or ()), labels)
        and matches_all(tuple(expression(entry) for entry in term.get("matchFields") or ()), name)
        for term in required.get("nodeSelectorTerms") or ()
    )
