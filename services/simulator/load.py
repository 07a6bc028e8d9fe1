"""What work feels that shares engines: latency follows from utilisation, and from nothing else.

Each running pod offers load to the engines whose slots it holds, in shares of one engine's capacity. An
engine's utilisation is the sum of what is offered over what it can do (less on a degraded device, nothing on
a dead one). The 99th percentile of a pod's latency is that of an M/M/1 queue scaled by its latency on an idle
engine, ``base / (1 - utilisation)``, continued by its tangent near saturation so that overload stays finite
and grows. So evicting a neighbour lowers it, and so does spreading a workload over more replicas. Pure.
"""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from shared.devices.keys import parse, twin
from shared.errors import BadInput

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from services.simulator.hardware import Condition

CAPACITY: Final[dict[Condition, float]] = {"ok": 1.0, "degraded": 0.35, "dead": 0.0}
"""How much of its capacity an engine has left."""
SATURATION: Final = 0.95
"""From this utilisation on latency grows along the tangent."""
TIMEOUT_MS: Final = 10_000.0
"""Nobody waits longer: what a client measures when nothing comes back."""
FRAMES_PER_ENGINE_S: Final = 240
"""Frames that a whole engine takes a second; offered load times this is a pod's requests."""
SHARED_UNITS: Final = frozenset({"amd", "intel"})
"""Vendors whose units both encode and decode: enc-1 and dec-1 are one engine."""


@dataclass(frozen=True, slots=True)
class Work:
    """One running pod.

    Attributes:
        slots: the device-plugin ids it holds.
        offered: load in engine capacities, spread over its slots of each kind (a stream that is decoded and
            encoded passes both).
        per_slot: `offered` is what each slot carries instead.
        base_p99_ms: its 99th percentile on an otherwise idle, healthy engine.
        fps: frames a second that it makes when nothing is dropped.
    """

    pod_uid: str
    slots: tuple[str, ...]
    offered: float
    base_p99_ms: float
    fps: float
    per_slot: bool = False


@dataclass(frozen=True, slots=True)
class Felt:
    """What a pod measures of its own service."""

    latency_p99_ms: float
    fps: float
    drop_ratio: float
    queue_length: float
    utilisation: float


def unit_of(slot: str) -> str | None:
    """The physical engine behind a device-plugin id; None when the id names no engine."""
    try:
        key = parse(slot)
    except BadInput:
        return None
    if key.engine is None:
        return None
    if key.vendor in SHARED_UNITS and key.engine_kind == "dec":
        return twin(key.engine)
    return key.engine


def utilisation(work: Iterable[Work], conditions: Mapping[str, Condition]) -> dict[str, float]:
    """Utilisation per engine; above 1 it is overloaded, infinite on a dead device.

    Args:
        work: every running pod.
        conditions: by physical device key; one that is not named is well.
    """
    offered: defaultdict[str, float] = defaultdict(float)
    for one in work:
        for unit, share in _shares(one).items():
            offered[unit] += share
    busy = {}
    for unit, load in offered.items():
        capacity = CAPACITY[conditions.get(parse(unit).physical, "ok")]
        busy[unit] = load / capacity if capacity else math.inf
    return busy


def felt(work: Iterable[Work], conditions: Mapping[str, Condition]) -> dict[str, Felt]:
    """What every pod measures, by pod UID; the busiest of its engines decides."""
    everyone = tuple(work)
    busy = utilisation(everyone, conditions)
    return {
        one.pod_uid: _felt(one, max((busy[unit] for unit in _shares(one)), default=0.0)) for one in everyone
    }


def share_of(workload_load: float, replicas: int) -> float:
    """What each of a workload's running replicas offers."""
    return workload_load / max(1, replicas)


def _shares(work: Work) -> dict[str, float]:
    by_kind: defaultdict[str, list[str]] = defaultdict(list)
    for slot in work.slots:
        unit = unit_of(slot)
        if unit is not None:
            by_kind[parse(slot).engine_kind or ""].append(unit)
    shares: defaultdict[str, float] = defaultdict(float)
    for units in by_kind.values():
        for unit in units:
            shares[unit] += work.offered if work.per_slot else work.offered / len(units)
    return dict(shares)


def stretch(busy: float) -> float:
    """By how much latency grows over that of an idle engine."""
    if busy < SATURATION:
        return 1 / (1 - busy)
    edge = 1 / (1 - SATURATION)
    return edge + (busy - SATURATION) * edge**2


def _felt(work: Work, busy: float) -> Felt:
    dropped = 0.0 if busy <= 1 else 1 - 1 / busy
    # In an M/M/1 queue busy^2 / (1 - busy) wait; near saturation the tangent again.
    waiting = min(busy * stretch(busy) * busy, 1e4)
    return Felt(
        latency_p99_ms=min(work.base_p99_ms * stretch(busy), TIMEOUT_MS),
        fps=work.fps * (1 - dropped),
        drop_ratio=dropped,
        queue_length=waiting,
        utilisation=busy,
    )
