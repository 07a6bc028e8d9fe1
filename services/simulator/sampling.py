"""What workloads measure of themselves, once a window, for the running pods that have a load.

Annotations of a pod: `simulator.mediafleet/load` (share of an engine's capacity per slot),
`.../base-latency-ms` (its 99th percentile on an idle engine) and `.../fps`. Annotation of a Deployment:
`.../workload-load`, what the workload offers in engine capacities; each running replica takes its part.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import structlog

from services.simulator import load, pods
from services.simulator.api.resources import BY_KIND
from services.simulator.hardware import invented
from shared.errors import BadInput
from shared.events.parts import PodRef
from shared.events.world import Sampled

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from datetime import datetime

    from services.simulator.api.store import Store
    from services.simulator.device_sets import Entry
    from services.simulator.hardware import Condition

log = structlog.get_logger(__name__)

LOAD: Final = "simulator.mediafleet/load"
WORKLOAD_LOAD: Final = "simulator.mediafleet/workload-load"
BASE_LATENCY_MS: Final = "simulator.mediafleet/base-latency-ms"
FPS: Final = "simulator.mediafleet/fps"
_DEFAULT_BASE_MS: Final = 20.0
_DEFAULT_FPS: Final = 30.0
_NOISE: Final = 0.02
"""Measurements of one truth differ by so much."""

Running = tuple[pods.PodJson, tuple["Entry", ...]]


@dataclass(frozen=True, slots=True)
class Workload:
    """What owns a pod at the top: a Deployment by way of its ReplicaSet, a Job, or the pod itself."""

    kind: str
    name: str
    annotations: Mapping[str, str]

    @property
    def entity(self) -> str:
        """The token in events."""
        return f"{self.kind.lower()}-{self.name}"


def workload_of(store: Store, pod: pods.PodJson) -> Workload:
    """Follow the owner references as far as the store knows them."""
    namespace, _ = pods.name_of(pod)
    body: dict[str, Any] | None = pod
    kind, name = "Pod", pods.name_of(pod)[1]
    while body is not None:
        kind, name = body.get("kind", kind), body["metadata"]["name"]
        owner = next((o for o in body["metadata"].get("ownerReferences") or () if o.get("controller")), None)
        resource = BY_KIND.get(owner["kind"]) if owner else None
        above = store.find(resource, namespace, owner["name"]) if owner and resource else None
        if above is None:
            return Workload(kind, name, body["metadata"].get("annotations") or {})
        body = above
    raise AssertionError("an owner chain ends at an object")


def work(store: Store, running: Iterable[Running]) -> tuple[tuple[load.Work, Workload, pods.PodJson], ...]:
    """Every running pod with what it offers; one whose annotations cannot be read offers nothing."""
    everyone = tuple((pod, held, workload_of(store, pod)) for pod, held in running)
    replicas = Counter((pods.name_of(pod)[0], owner.entity) for pod, _, owner in everyone)
    return tuple(
        (_work(pod, held, owner, replicas[pods.name_of(pod)[0], owner.entity]), owner, pod)
        for pod, held, owner in everyone
    )


@dataclass(frozen=True, slots=True)
class Window:
    """One measurement of everything at once.

    Attributes:
        boot_id: of the measuring process; with `n` it numbers the samples.
        length_s: how long was measured.
    """

    boot_id: str
    n: int
    length_s: float
    at: datetime


def samples(
    store: Store,
    running: Iterable[Running],
    conditions: Mapping[tuple[str, str], Condition],
    window: Window,
) -> list[Sampled]:
    """One sample for every running pod that says it has a load; ``conditions`` by node and device key."""
    by_node: dict[str, list[tuple[load.Work, Workload, pods.PodJson]]] = {}
    for one in work(store, running):
        by_node.setdefault(str(one[2]["spec"].get("nodeName", "")), []).append(one)
    answer = []
    for node, members in by_node.items():
        local = {key: condition for (where, key), condition in conditions.items() if where == node}
        felt = load.felt([one for one, _, _ in members], local)
        answer += [
            _sample(one, owner, pod, felt[one.pod_uid], window)
            for one, owner, pod in members
            if {LOAD, BASE_LATENCY_MS} & _annotations(pod).keys() or WORKLOAD_LOAD in owner.annotations
        ]
    return answer


def _sample(one: load.Work, owner: Workload, pod: pods.PodJson, felt: load.Felt, window: Window) -> Sampled:
    namespace, name = pods.name_of(pod)
    noise = 1 + _NOISE * (int(invented(one.pod_uid, window.n)[:4], 16) / 0x8000 - 1)
    served = one.offered * load.FRAMES_PER_ENGINE_S * window.length_s * (1 - felt.drop_ratio)
    return Sampled(
        boot_id=window.boot_id,
        n=window.n,
        pod=PodRef(namespace=namespace, name=name, uid=one.pod_uid),
        workload=owner.entity,
        latency_p99_ms=round(felt.latency_p99_ms * noise, 2),
        fps=round(felt.fps, 2),
        drop_ratio=round(felt.drop_ratio, 4),
        queue_length=round(felt.queue_length, 3),
        requests=round(served),
        window_s=window.length_s,
        measured_at=window.at,
    )


def _work(pod: pods.PodJson, held: tuple[Entry, ...], owner: Workload, replicas: int) -> load.Work:
    uid, slots = pods.uid_of(pod), tuple(sorted(one for entry in held for one in entry.ids))
    own, shared = _annotations(pod), WORKLOAD_LOAD in owner.annotations
    try:
        if shared:
            offered = load.share_of(_number(owner.annotations, WORKLOAD_LOAD, 0.0), replicas)
        else:
            offered = _number(own, LOAD, 0.0)
        base_ms, fps = _number(own, BASE_LATENCY_MS, _DEFAULT_BASE_MS), _number(own, FPS, _DEFAULT_FPS)
    except BadInput as wrong:
        log.warning("a pod's load cannot be read", pod=pods.name_of(pod), error=str(wrong))
        return load.Work(uid, slots, 0.0, _DEFAULT_BASE_MS, _DEFAULT_FPS)
    return load.Work(uid, slots, offered, base_ms, fps, per_slot=not shared)


def _annotations(pod: pods.PodJson) -> Mapping[str, str]:
    return pod["metadata"].get("annotations") or {}


def _number(annotations: Mapping[str, str], name: str, default: float) -> float:
    text = annotations.get(name)
    if text is None:
        return default
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and value >= 0):
        raise BadInput(
            f"metadata.annotations[{name}]", f"{text!r} is no amount", "write a number such as 0.4"
        )
    return value
