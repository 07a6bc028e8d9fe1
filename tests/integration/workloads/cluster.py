"""A cluster small enough to read: pods that hold slots, a load model, the API as the services see it."""

# ruff: noqa: ARG002, PLR0917 - the port decides the signatures

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any

from shared.bus.port import Bus
from shared.clock import Clock
from shared.errors import Temporary
from shared.events import Cause, Payload, event
from shared.events.parts import PodRef, Slot
from shared.events.world import AllocationsStated, Bound, Holding, Released, Sampled
from shared.kube import models
from shared.kube.models import (
    Change,
    ChangeKind,
    EvictionAnswer,
    EvictionOutcome,
    Hpa,
    ObjectRef,
    Owner,
    Pod,
    Workload,
)
from shared.kube.port import StaleWrite

NODE, DEVICE = "worker-1", "nvidia-0000-3b-00-0"
ENGINE, OTHER_ENGINE = f"{DEVICE}-enc-0", f"{DEVICE}-enc-1"
BASE_MS = 40.0


@dataclass
class Cluster:
    """Implements what the services use of the Kubernetes port."""

    clock: Clock
    pods_: dict[str, Pod] = field(default_factory=dict)
    workloads: dict[tuple[str, str], Workload] = field(default_factory=dict)
    hpas_: dict[tuple[str, str], Hpa] = field(default_factory=dict)
    held: dict[str, tuple[str, int]] = field(default_factory=dict)
    load: dict[str, float] = field(default_factory=dict)
    evictions: list[str] = field(default_factory=list)
    writes: list[str] = field(default_factory=list)
    events: list[tuple[str, str, str | None]] = field(default_factory=list)
    answers: list[EvictionAnswer | Exception] = field(default_factory=list)
    failures: list[Exception] = field(default_factory=list)
    grace_s: float = 5.0
    silent: set[str] = field(default_factory=set)
    _watchers: list[asyncio.Queue[Change[Pod]]] = field(default_factory=list)
    _leaving: set[asyncio.Task[None]] = field(default_factory=set)
    _samples: int = 0
    _version: int = 1

    # ------------------------------------------------------------------ building

    def deploy(self, name: str, *, replicas: int = 1, namespace: str = "live") -> Workload:
        made = Workload(namespace, "Deployment", name, f"uid-{name}", "1", replicas, replicas)
        self.workloads[namespace, name] = made
        return made

    def run(
        self,
        name: str,
        *,
        tier: str,
        engine: str | None = ENGINE,
        slots: int = 1,
        load: float = 0.3,
        sla: str | None = None,
        namespace: str = "live",
        owner: str | None = None,
        age_s: float = 600.0,
        annotations: Mapping[str, str] | None = None,
    ) -> Pod:
        pod = Pod(
            namespace=namespace,
            name=name,
            uid=f"u-{name}",
            node=NODE,
            phase="Running",
            ready=True,
            deleting=False,
            priority=0,
            owner=Owner("ReplicaSet", f"{owner or name}-rs", f"{owner or name}-rs"),
            created_at=self.clock.now() - timedelta(seconds=age_s),
            resource_version="1",
            labels={"media.example.com/tier": tier},
            annotations={**({"sla/latency-p99-ms": sla} if sla else {}), **(annotations or {})},
        )
        self.load[pod.uid] = load
        if engine is not None:
            self.held[pod.uid] = (engine, slots)
        self._tell(ChangeKind.ADDED, pod)
        return pod

    def _tell(self, kind: ChangeKind, pod: Pod) -> None:
        if kind is ChangeKind.DELETED:
            self.pods_.pop(pod.uid, None)
        else:
            self.pods_[pod.uid] = pod
        for watcher in self._watchers:
            watcher.put_nowait(Change(kind, pod))

    def delete(self, uid: str) -> None:
        pod = self.pods_[uid]
        self.held.pop(uid, None)
        self._tell(ChangeKind.DELETED, pod)

    # ------------------------------------------------------------------ load

    def latency_ms(self, uid: str) -> float:
        """`base / (1 - utilisation)` of the engine, as an M/M/1 queue has it; capped near saturation."""
        engine = self.held[uid][0]
        busy = sum(self.load[other] for other, (at, _) in self.held.items() if at == engine)
        return BASE_MS / (1 - min(busy, 0.95))

    async def sample(self, bus: Bus, *, every_s: float = 1.0) -> None:
        """Every pod with a target measures itself, for ever."""
        while True:
            self._samples += 1
            for pod in list(self.pods_.values()):
                if "sla/latency-p99-ms" in pod.annotations and pod.uid not in self.silent:
                    await self.say_sample(bus, pod)
            await asyncio.sleep(every_s)

    async def say_sample(self, bus: Bus, pod: Pod, **figures: Any) -> None:
        self._samples += 1
        values = {"latency_p99_ms": self.latency_ms(pod.uid), "requests": int(1000 * self.load[pod.uid])}
        data = Sampled(
            boot_id="boot",
            n=self._samples,
            pod=ref(pod),
            workload="deployment-told",
            window_s=1.0,
            measured_at=self.clock.now(),
            **{**values, **figures},
        )
        await self.say(bus, data, pod.namespace, pod.name, "/simulator")

    async def say_held(self, bus: Bus) -> None:
        """The bridge states what holds."""
        for uid, (engine, slots) in self.held.items():
            data = Bound(
                allocation_id=f"a-{uid}",
                pod=ref(self.pods_[uid]),
                container="main",
                resource="media.example.com/nvenc",
                slots=tuple(Slot(engine=engine, slot=n) for n in range(slots)),
            )
            await self.say(bus, data, NODE, engine.rsplit("-enc-", 1)[0], "/bridge")

    async def say_stated(self, bus: Bus, n: int = 1) -> None:
        """The complete list of the node's allocations."""
        holdings = tuple(
            Holding(
                allocation_id=f"a-{uid}",
                device=engine.rsplit("-enc-", 1)[0],
                resource="media.example.com/nvenc",
                slots=tuple(Slot(engine=engine, slot=n) for n in range(slots)),
                pod=ref(self.pods_[uid]),
            )
            for uid, (engine, slots) in self.held.items()
        )
        data = AllocationsStated(boot_id="boot", n=n, holdings=holdings)
        await self.say(bus, data, NODE, "bridge", "/bridge")

    async def say(self, bus: Bus, data: Payload, place: str, entity: str, who: str = "/test") -> None:
        self._version += 1
        cause = Cause.source("boot", f"{who}-{self._version}")
        await bus.publish(event(data, (place, entity), cause=cause, source=who, at=self.clock.now()))

    # ------------------------------------------------------------------ the port

    async def watch_pods(
        self,
        *,
        node: str | None = None,
        namespace: str | None = None,
        labels: str | None = None,
        keep: models.Keep | None = None,
    ) -> AsyncIterator[Change[Pod]]:
        queue: asyncio.Queue[Change[Pod]] = asyncio.Queue()
        self._watchers.append(queue)
        try:
            for pod in list(self.pods_.values()):
                yield Change(ChangeKind.ADDED, pod)
            yield Change(ChangeKind.SYNCED, None)
            while True:
                yield await queue.get()
        finally:
            self._watchers.remove(queue)

    async def pod(self, namespace: str, name: str) -> Pod | None:
        return next((p for p in self.pods_.values() if (p.namespace, p.name) == (namespace, name)), None)

    async def pods(
        self, *, node: str | None = None, namespace: str | None = None, labels: str | None = None
    ) -> list[Pod]:
        return list(self.pods_.values())

    async def evict(
        self, pod: models.PodRef, *, grace_s: int | None = None, dry_run: bool = False
    ) -> EvictionAnswer:
        self.evictions.append(pod.name)
        if self.answers:
            answer = self.answers.pop(0)
            if isinstance(answer, Exception):
                raise answer
            if answer.outcome is not EvictionOutcome.EVICTED:
                return answer
        found = self.pods_[pod.uid]
        self._tell(ChangeKind.MODIFIED, replace(found, deleting=True))
        task = asyncio.get_running_loop().create_task(self._leave(pod.uid))
        self._leaving.add(task)
        task.add_done_callback(self._leaving.discard)
        return EvictionAnswer(201, EvictionOutcome.EVICTED)

    async def _leave(self, uid: str) -> None:
        await asyncio.sleep(self.grace_s)
        self.delete(uid)

    async def owner_workload(self, pod: Pod) -> Workload | None:
        name = "" if pod.owner is None else pod.owner.name.removesuffix("-rs")
        return self.workloads.get((pod.namespace, name))

    async def workload(self, namespace: str, kind: str, name: str) -> Workload | None:
        return self.workloads.get((namespace, name))

    async def scale(
        self,
        namespace: str,
        kind: str,
        name: str,
        replicas: int,
        *,
        expected_resource_version: str | None = None,
    ) -> Workload:
        self._maybe_fail()
        now = self.workloads[namespace, name]
        if expected_resource_version not in (None, now.resource_version):
            raise StaleWrite("it changed")
        self.writes.append(f"scale {name} {replicas}")
        return self.person_scales(namespace, name, replicas)

    def person_scales(self, namespace: str, name: str, replicas: int) -> Workload:
        now = self.workloads[namespace, name]
        made = replace(now, replicas=replicas, resource_version=str(int(now.resource_version) + 1))
        self.workloads[namespace, name] = made
        return made

    async def hpas(self, namespace: str | None = None) -> list[Hpa]:
        return [h for (ns, _), h in self.hpas_.items() if namespace in (None, ns)]

    def hpa(self, name: str, *, target: str, low: int = 1, high: int = 5, namespace: str = "live") -> Hpa:
        made = Hpa(namespace, name, f"uid-{name}", "1", "Deployment", target, low, high, low, low)
        self.hpas_[namespace, name] = made
        return made

    async def patch_hpa_min(
        self,
        namespace: str,
        name: str,
        min_replicas: int,
        annotations: Mapping[str, str | None],
        *,
        expected_resource_version: str | None = None,
    ) -> Hpa:
        self._maybe_fail()
        now = self.hpas_[namespace, name]
        if expected_resource_version not in (None, now.resource_version):
            raise StaleWrite("it changed")
        self.writes.append(f"min {name} {min_replicas}")
        merged = {**now.annotations, **annotations}
        return self.person_edits(
            namespace, name, min_replicas, {k: v for k, v in merged.items() if v is not None}
        )

    def person_edits(
        self, namespace: str, name: str, low: int, annotations: Mapping[str, str] | None = None
    ) -> Hpa:
        now = self.hpas_[namespace, name]
        made = replace(
            now,
            min_replicas=low,
            annotations=now.annotations if annotations is None else annotations,
            resource_version=str(int(now.resource_version) + 1),
        )
        self.hpas_[namespace, name] = made
        return made

    async def record_event(
        self,
        regarding: ObjectRef,
        reason: str,
        note: str,
        type: str,  # noqa: A002 - the port's name
        action: str,
        related: ObjectRef | None = None,
    ) -> None:
        self.events.append((reason, regarding.name, related.name if related else None))

    def _maybe_fail(self) -> None:
        if self.failures:
            raise self.failures.pop(0)

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"this cluster has no {name}")


def ref(pod: Pod) -> PodRef:
    return PodRef(namespace=pod.namespace, name=pod.name, uid=pod.uid)


def released(uid: str) -> Released:
    return Released(allocation_id=f"a-{uid}", reason="the pod is gone")


__all__ = ["DEVICE", "ENGINE", "NODE", "OTHER_ENGINE", "Cluster", "Temporary", "ref", "released"]
