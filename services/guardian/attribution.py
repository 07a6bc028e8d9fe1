"""Who makes a pod slow: itself, a neighbour on its engine, a faulty device, or nobody knows.

Only `neighbour` may evict. A neighbour holds slots of the *same engine of the same device*: one on
another engine, or another device of the node, frees nothing when it goes. No public interface pins a session
to an engine, so a share is inferred from the slots held (`measured=False`) and proved by the relief.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from services.guardian.policy import GuardianPolicy
from services.guardian.readings import Reading
from shared.events.parts import BATCH, BESTEFFORT, PodRef, WorkloadRef
from shared.events.workload import Attribution, Candidate

SELF, NEIGHBOUR, DEVICE_FAULT, UNKNOWN = "self", "neighbour", "device-fault", "unknown"

TERMINATING = "terminating already"
"""Reason that excludes a pod and counts as relief in flight: no further victim until it is gone."""


@dataclass(frozen=True, slots=True)
class Holder:
    """A pod that holds slots of an engine, with what the API server knows of it.

    Attributes:
        live: the API server has this very pod; False: it may be gone already.
        age_s: since it was created; None when not known.
    """

    pod: PodRef
    slots: int
    tier: str = ""
    tenant: str = ""
    priority: int = 0
    workload: WorkloadRef | None = None
    age_s: float | None = None
    deleting: bool = False
    opted_out: bool = False
    live: bool = True


@dataclass(frozen=True, slots=True)
class Engine:
    """An engine that the slow pod uses, and who else does."""

    device: str
    engine: str
    mine: int
    others: tuple[Holder, ...] = ()

    @property
    def total(self) -> int:
        """Slots held by pods that live; what the API server does not know (any more) loads nothing."""
        return self.mine + sum(holder.slots for holder in self.others if holder.live)

    def share(self, holder: Holder) -> float:
        """A holder's part of what is held."""
        return holder.slots / self.total if holder.live else 0.0


@dataclass(frozen=True, slots=True)
class Scene:
    """All that surrounds a slow pod.

    Attributes:
        faults: device key to why the device is suspected.
    """

    pod: PodRef
    node: str | None
    workload: WorkloadRef | None = None
    priority: int = 0
    engines: tuple[Engine, ...] = ()
    faults: Mapping[str, str] = field(default_factory=dict)


def attribute(
    scene: Scene, reading: Reading, target_ms: float, policy: GuardianPolicy
) -> tuple[Attribution, tuple[Candidate, ...]]:
    """Why the pod is slow, and its neighbours in the order in which they would be evicted."""
    engine = contended(scene.engines)
    for device in sorted({e.device for e in scene.engines}):
        if device in scene.faults:
            return _verdict(DEVICE_FAULT, scene, engine, f"{device}: {scene.faults[device]}"), ()
    busy = [h for h in engine.others if engine.share(h) >= policy.idle_share] if engine else []
    own = _own_growth(reading, policy)
    if busy and engine:
        grown = reading.rate_growth
        if grown is not None and grown >= policy.growth_ratio:
            return _verdict(SELF, scene, engine, f"its own requests grew {grown:.1f}-fold"), ()
        held = sum(engine.share(h) for h in busy)
        why = f"{len(busy)} other pods hold {held:.0%} of {engine.engine} (inferred from slots)"
        order = candidates(scene, engine, _needed(reading, target_ms), policy)
        return _verdict(NEIGHBOUR, scene, engine, why), order
    if own:
        return _verdict(SELF, scene, engine, own, "no busy neighbour on its engines"), ()
    if not scene.engines:
        return _verdict(UNKNOWN, scene, None, "no allocation of this pod is known"), ()
    return _verdict(UNKNOWN, scene, engine, "no busy neighbour, and no growth of its own load is seen"), ()


def contended(engines: Sequence[Engine]) -> Engine | None:
    """The engine of which others hold most."""
    if not engines:
        return None
    return max(engines, key=lambda e: (1 - e.mine / e.total, e.engine))


def candidates(scene: Scene, engine: Engine, needed: float, policy: GuardianPolicy) -> tuple[Candidate, ...]:
    """The engine's other holders: who may be evicted, in that order, then the excluded with the reason.

    Besteffort before batch, a tenant over its fair share before others, lower priority first, then the
    smallest share that suffices (else the largest), then the newest.
    """
    fair = _over_fair_share(engine)

    def order(holder: Holder) -> tuple[bool, bool, bool, int, bool, float, float, str]:
        share = engine.share(holder)
        suffices = share >= needed
        return (
            bool(_excluded(scene, engine, holder, policy)),
            holder.tier != BESTEFFORT,
            holder.tenant not in fair,
            holder.priority,
            not suffices,
            share if suffices else -share,
            holder.age_s or 0.0,
            holder.pod.uid,
        )

    return tuple(
        Candidate(
            pod=holder.pod,
            tier=holder.tier or "unknown",
            workload=holder.workload,
            tenant=holder.tenant,
            share=engine.share(holder),
            excluded=_excluded(scene, engine, holder, policy),
        )
        for holder in sorted(engine.others, key=order)
    )


def _excluded(scene: Scene, engine: Engine, holder: Holder, policy: GuardianPolicy) -> str:  # noqa: PLR0911 - one reason, one line
    if not holder.live:
        return "not known to the API server"
    if holder.deleting:
        return TERMINATING
    if holder.tier not in (BATCH, BESTEFFORT):
        return f"tier {holder.tier or 'unknown'}"
    if holder.opted_out:
        return "opted out by annotation"
    if holder.workload is not None and holder.workload == scene.workload:
        return "of the same workload"
    if holder.priority > scene.priority or (holder.priority == scene.priority != 0):
        # Where nobody was given a priority (all are 0) the tiers alone decide.
        return "priority not below the protected pod's"
    if holder.age_s is None or holder.age_s < policy.min_age_s:
        return f"younger than {policy.min_age_s:g} s"
    if engine.share(holder) < policy.idle_share:
        return f"holds less than {policy.idle_share:.0%}"
    return ""


def _over_fair_share(engine: Engine) -> frozenset[str]:
    """Tenants that hold more of the engine than one part in as many as there are tenants."""
    held: dict[str, int] = {}
    for holder in (each for each in engine.others if each.live):
        held[holder.tenant] = held.get(holder.tenant, 0) + holder.slots
    others = sum(held.values())
    return frozenset(tenant for tenant, slots in held.items() if slots * len(held) > others)


def _needed(reading: Reading, target_ms: float) -> float:
    """The part of the latency that must go."""
    worst = max(reading.window_ms, default=target_ms)
    return max(0.0, 1 - target_ms / worst)


def _own_growth(reading: Reading, policy: GuardianPolicy) -> str:
    for what, grown in (("requests", reading.rate_growth), ("queue", reading.queue_growth)):
        if grown is not None and grown >= policy.growth_ratio:
            return f"its own {what} grew {grown:.1f}-fold"
    return ""


def _verdict(verdict: str, scene: Scene, engine: Engine | None, *reasons: str) -> Attribution:
    return Attribution(
        verdict=verdict,
        node=scene.node,
        device=engine.device if engine else None,
        engine=engine.engine if engine else None,
        reasons=reasons,
    )
