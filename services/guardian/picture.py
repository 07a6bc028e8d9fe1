"""What stands around the workloads now: who holds which engine, what is sick, samples.

Made from what is heard, rebuilt at every takeover from what the streams keep. It is a hint:
before an eviction the victim is looked at live. Pure but for its own memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta

from services.guardian.annotation import LATENCY_P99_MS, Target, parse
from services.guardian.attribution import Engine, Holder, Scene
from services.guardian.policy import GuardianPolicy
from services.guardian.readings import Series, read, sample
from shared.devices import keys
from shared.errors import BadInput
from shared.events import AnyEvent, Payload, world
from shared.events import device as devices
from shared.events import remediation as care
from shared.events.parts import BATCH, HEALTHY, ONLINE, UNHEALTHY, PodRef, Slot, WorkloadRef
from shared.kube.cache import PodCache
from shared.kube.models import Change, ChangeKind, Keep, Pod

FACTS: tuple[type[Payload], ...] = (
    world.Bound,
    world.Released,
    world.AllocationsStated,
    care.Opened,
    care.Quarantined,
    care.Cleared,
    care.Closed,
    care.Retired,
    care.Frozen,
    care.Thawed,
    devices.Lost,
    devices.Registered,
)
"""What is read again from the past at a takeover."""

HEARD: tuple[type[Payload], ...] = (*FACTS, world.HealthReported, world.Sampled)
"""All that it is made from; health is said again every window while it is bad, samples all the time."""

_BOTH_WAYS = frozenset({"amd", "intel"})
"""Vendors whose units both encode and decode (VCN, VDBOX): dec-1 and enc-1 are one engine."""


@dataclass(frozen=True, slots=True)
class _Held:
    device: str
    pod: PodRef | None
    slots: tuple[Slot, ...]
    whole_device: bool

    def units(self) -> dict[str, int]:
        """Slots by physical engine; a whole device counts as one engine of its own name."""
        if self.whole_device:
            return {self.device: 1}
        held: dict[str, int] = {}
        for slot in self.slots:
            unit = unit_of(slot.engine)
            held[unit] = held.get(unit, 0) + 1
        return held


def unit_of(engine: str) -> str:
    """The physical unit behind an engine key."""
    try:
        key = keys.parse(engine, "engine")
        return keys.twin(engine) if key.vendor in _BOTH_WAYS and key.engine_kind == "dec" else engine
    except BadInput:
        return engine


def kept(domain: str) -> Keep:
    """What is read of a pod besides its own fields."""
    labels = {f"{domain}/tier", "tier", f"{domain}/tenant"}
    annotations = {LATENCY_P99_MS, f"{domain}/eviction"}
    return Keep(labels=frozenset(labels), annotations=frozenset(annotations), quantities=False)


class Picture:
    """The surroundings; one per lease."""

    def __init__(self, domain: str) -> None:
        """Args: domain: of labels and annotations, `media.example.com`."""
        self._domain = domain
        self.opt_out = f"{domain}/eviction"
        self._pods = PodCache()
        self._owners: dict[str, WorkloadRef] = {}
        self._held: dict[str, dict[str, _Held]] = {}
        self._series: dict[str, Series] = {}
        self._faults: dict[tuple[str, str], dict[str, str]] = {}
        self._frozen: dict[str, str] = {}
        self._targets: dict[str, Target | BadInput] = {}

    # ------------------------------------------------------------------ what is heard

    def hear(self, event: AnyEvent, policy: GuardianPolicy) -> None:
        """Take one fact."""
        node, key, data = event.of.place, event.of.entity, event.data
        if isinstance(data, world.Sampled):
            uid = data.pod.uid
            self._series[uid] = self._series.get(uid, Series()).add(sample(data), policy.kept_samples)
        elif isinstance(data, world.Bound):
            held = _Held(key, data.pod, data.slots, data.whole_device)
            self._held.setdefault(node, {})[data.allocation_id] = held
        elif isinstance(data, world.Released):
            self._held.get(node, {}).pop(data.allocation_id, None)
        elif isinstance(data, world.AllocationsStated):
            self._stated(node, data)
        elif isinstance(data, care.Frozen):
            self._frozen[data.freeze_id] = f"common cause {data.code} in {data.scope}"
        elif isinstance(data, care.Thawed):
            self._frozen.pop(data.freeze_id, None)
        else:
            self._hear_device(node, key, data)

    def _stated(self, node: str, data: world.AllocationsStated) -> None:
        self._held[node] = {
            one.allocation_id: _Held(one.device, one.pod, one.slots, one.whole_device)
            for one in data.holdings
        }

    def _hear_device(self, node: str, key: str, data: Payload) -> None:
        faults = self._faults.setdefault((node, key), {})
        match data:
            case care.Opened() | care.Quarantined():
                faults["case"] = f"remediation case: {data.reason}"
            case care.Retired():
                faults["retired"] = f"retired: {data.reason}"
            case care.Cleared() | care.Closed():
                faults.pop("case", None)
            case devices.Lost():
                faults["lost"] = f"lost: {data.reason}"
            case devices.Registered():
                faults.pop("lost", None)
                faults.pop("retired", None)
            case world.HealthReported(verdict=verdict) if verdict == UNHEALTHY:
                faults["health"] = "reported unhealthy"
            case world.HealthReported(verdict=verdict) if verdict == HEALTHY:
                faults.pop("health", None)
            case _:
                pass

    # ------------------------------------------------------------------ pods

    @property
    def synced(self) -> bool:
        """Every pod that there was is known."""
        return self._pods.synced

    def hear_pod(self, change: Change[Pod]) -> None:
        """Take one change of a watch."""
        if change.item is None:
            self._pods.take(change)
        elif change.kind is ChangeKind.DELETED:
            self.pod_gone(change.item)
        else:
            self.pod_is(change.item)

    def pod_is(self, pod: Pod) -> None:
        """A pod as it stands now."""
        before = self._pods.get(pod.uid)
        self._pods.take(Change(ChangeKind.MODIFIED, pod))
        value = pod.annotations.get(LATENCY_P99_MS)
        if value is None or self.tier(pod) != ONLINE:
            self._targets.pop(pod.uid, None)
        elif before is None or before.annotations.get(LATENCY_P99_MS) != value:
            try:
                self._targets[pod.uid] = parse(value)
            except BadInput as wrong:
                self._targets[pod.uid] = wrong

    def pod_gone(self, pod: Pod) -> None:
        """A pod is deleted; all that is known of it goes too."""
        self._pods.take(Change(ChangeKind.DELETED, pod))
        for of in (self._owners, self._series, self._targets):
            of.pop(pod.uid, None)

    def owned(self, uid: str, workload: WorkloadRef) -> None:
        """Who made a pod."""
        self._owners[uid] = workload

    def owner(self, uid: str) -> WorkloadRef | None:
        """Who made a pod, where it was looked up."""
        return self._owners.get(uid)

    def pod(self, uid: str) -> Pod | None:
        """A pod by uid."""
        return self._pods.get(uid)

    def running(self) -> int:
        """Pods that run anywhere."""
        return sum(1 for pod in self._pods if pod.phase == "Running")

    def target(self, uid: str) -> Target | None:
        """What a pod promises; None when nothing (readable)."""
        found = self._targets.get(uid)
        return found if isinstance(found, Target) else None

    def promised(self) -> Iterator[tuple[Pod, Target | BadInput]]:
        """Every online pod with an SLA annotation, with the target or what is wrong with it."""
        for uid, target in list(self._targets.items()):
            pod = self._pods.get(uid)
            if pod is not None:
                yield pod, target

    def series(self, uid: str) -> Series:
        """A pod's samples."""
        return self._series.get(uid, Series())

    def tier(self, pod: Pod) -> str:
        """The tier by label; a pod without one is batch: only who says online is protected."""
        return pod.labels.get(f"{self._domain}/tier") or pod.labels.get("tier") or BATCH

    def tenant(self, pod: Pod) -> str:
        """Who pays for a pod: by label, else its namespace."""
        return pod.labels.get(f"{self._domain}/tenant") or pod.namespace

    # ------------------------------------------------------------------ what follows

    def neighbours(self, pod: Pod) -> list[str]:
        """Pods that hold a slot of an engine on which this pod holds one."""
        mine = {unit for held in self._of(pod) for unit in held.units()}
        found = {
            held.pod.uid
            for held in self._held.get(pod.node, {}).values()
            if held.pod is not None and mine & held.units().keys()
        }
        return sorted(found - {pod.uid})

    def holds(self, pod: Pod, engine: str) -> bool:
        """Whether a pod holds a slot of this engine."""
        return any(engine in held.units() for held in self._of(pod))

    def scene(self, pod: Pod, now: datetime) -> Scene:
        """All that surrounds a pod."""
        engines: dict[tuple[str, str], int] = {}
        for held in self._of(pod):
            for unit, slots in held.units().items():
                at = (held.device, unit)
                engines[at] = engines.get(at, 0) + slots
        faults = {}
        for device, _ in engines:
            why = self._fault(pod.node, device)
            if why:
                faults[device] = why
        return Scene(
            pod=_ref(pod),
            node=pod.node,
            workload=self._owners.get(pod.uid),
            priority=pod.priority,
            engines=tuple(
                Engine(device, unit, mine, self._others(pod, unit, now))
                for (device, unit), mine in sorted(engines.items())
            ),
            faults=faults,
        )

    def common_cause(self) -> str:
        """Why remediation is frozen: many devices fail alike; empty when it is not."""
        return next(iter(self._frozen.values()), "")

    def brake(self, now: datetime, policy: GuardianPolicy) -> str:
        """Why nobody may be evicted now; empty when somebody may."""
        return self.common_cause() or self.suspect(now, policy)

    def suspect(self, now: datetime, policy: GuardianPolicy) -> str:
        """Why the measurements cannot be believed; empty when they can."""
        settled = timedelta(seconds=policy.span_s)
        breached = missing = total = 0
        for pod, target in self.promised():
            young = pod.created_at is None or now - pod.created_at < settled
            if not isinstance(target, Target) or target.doubt or pod.phase != "Running" or pod.deleting:
                continue
            reading = read(self.series(pod.uid), target.latency_p99_ms, now, policy)
            if reading.latest_ms is None and young:
                continue
            total += 1
            breached += reading.breached
            missing += reading.latest_ms is None
        for count, limit, what in (
            (breached, policy.brake_breached_percent, "breached at once"),
            (missing, policy.brake_missing_percent, "without a fresh sample"),
        ):
            if count >= policy.brake_at_least and 100 * count > limit * total:
                return f"{count} of {total} online pods {what}"
        return ""

    def _of(self, pod: Pod) -> Iterator[_Held]:
        here = self._held.get(pod.node, {}).values()
        return (held for held in here if held.pod is not None and held.pod.uid == pod.uid)

    def _others(self, pod: Pod, unit: str, now: datetime) -> tuple[Holder, ...]:
        slots: dict[str, int] = {}
        refs: dict[str, PodRef] = {}
        for held in self._held.get(pod.node, {}).values():
            if held.pod is None or held.pod.uid == pod.uid:
                continue
            taken = held.units().get(unit, 0)
            if taken:
                refs[held.pod.uid] = held.pod
                slots[held.pod.uid] = slots.get(held.pod.uid, 0) + taken
        return tuple(self._holder(refs[uid], count, now) for uid, count in sorted(slots.items()))

    def _holder(self, ref: PodRef, slots: int, now: datetime) -> Holder:
        pod = self._pods.get(ref.uid)
        if pod is None or pod.terminal:
            return Holder(ref, slots, live=False)
        return Holder(
            pod=ref,
            slots=slots,
            tier=self.tier(pod),
            tenant=self.tenant(pod),
            priority=pod.priority,
            workload=self._owners.get(pod.uid),
            age_s=None if pod.created_at is None else (now - pod.created_at).total_seconds(),
            deleting=pod.deleting,
            opted_out=pod.annotations.get(self.opt_out) == "never",
        )

    def _fault(self, node: str, device: str) -> str:
        """Why a device, or the physical one that it is a part of, is suspected."""
        try:
            physical = keys.parse(device, "device").physical
        except BadInput:
            physical = device
        for key in (device, physical):
            for why in self._faults.get((node, key), {}).values():
                return why
        return ""


def _ref(pod: Pod) -> PodRef:
    return PodRef(namespace=pod.namespace, name=pod.name, uid=pod.uid)
