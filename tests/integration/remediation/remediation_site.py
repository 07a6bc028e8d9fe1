"""A site in memory on virtual time: bus, API server, and a node's agents as remediation sees them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

from services.remediation.policy import Policy
from services.remediation.service import Remediation
from shared.bus.memory import Faults, MemoryBus, MemoryServer
from shared.bus.port import Delivery, Disconnected, Lease, LeaseLost, Subscription
from shared.clock import SystemClock
from shared.errors import Temporary
from shared.events import AnyEvent, Cause, Entity, Payload, event, world
from shared.events import remediation as say
from shared.events.parts import Evidence, PodRef, Window
from shared.kube import models
from shared.kube.models import (
    EvictionAnswer,
    EvictionOutcome,
    MediaResource,
    Node,
    Owner,
    Pod,
    Taint,
    Workload,
)

START = datetime(2026, 3, 1, 12, tzinfo=UTC)
NODE = "worker-3"
KEY = "nvidia-0000-3b-00-0"
DEVICE = Entity("remediation", NODE, KEY)


def policy(**changes: Any) -> Policy:
    return Policy.model_validate({"recovery": {"probation_s": 60}, **changes})


class FakeKube:
    """Pods, nodes and MediaResources in memory; answers evictions as told."""

    def __init__(self) -> None:
        self.all: dict[tuple[str, str], Pod] = {}
        self.answers: list[EvictionAnswer | Exception | str] = []
        self.evictions: list[str] = []
        self.events: list[tuple[str, str]] = []
        self.taints: dict[str, set[str]] = {}
        self.resources: list[MediaResource] = []
        self.down = False
        self.gone_after_s: float | None = 1.0
        self.changed = asyncio.Event()
        self._removals: set[asyncio.TimerHandle] = set()

    def add(self, name: str, tier: str = "batch", *, uid: str = "", owner: str = "") -> PodRef:
        ref = PodRef(namespace="media", name=name, uid=uid or f"uid-{name}")
        self.all[("media", name)] = Pod(
            namespace="media",
            name=name,
            uid=ref.uid,
            node=NODE,
            phase="Running",
            ready=True,
            deleting=False,
            priority=0,
            owner=Owner("ReplicaSet", f"{owner}-1", f"{owner}-1") if owner else None,
            created_at=None,
            resource_version="1",
            labels={"media.example.com/tier": tier},
        )
        return ref

    def _reach(self) -> None:
        if self.down:
            raise Temporary("the API server does not answer", delay_s=0.5)

    async def pod(self, namespace: str, name: str) -> Pod | None:
        self._reach()
        return self.all.get((namespace, name))

    async def evict(
        self, pod: models.PodRef, *, grace_s: int | None = None, dry_run: bool = False
    ) -> EvictionAnswer:
        del grace_s
        self._reach()
        answer = self.answers.pop(0) if self.answers else EvictionAnswer(201, EvictionOutcome.EVICTED)
        if answer == "hang":
            await asyncio.Event().wait()
        if isinstance(answer, Exception):
            raise answer
        assert isinstance(answer, EvictionAnswer)
        found = self.all.get((pod.namespace, pod.name))
        if found is None or found.uid != pod.uid:
            return EvictionAnswer(404, EvictionOutcome.GONE)
        if answer.outcome is EvictionOutcome.EVICTED and not dry_run:
            self.evictions.append(pod.uid)
            self.all[(pod.namespace, pod.name)] = replace(found, deleting=True)
            self._remove_later((pod.namespace, pod.name))
        self.changed.set()
        return answer

    def _remove_later(self, key: tuple[str, str]) -> None:
        if self.gone_after_s is not None:
            loop = asyncio.get_running_loop()
            self._removals.add(loop.call_later(self.gone_after_s, self.all.pop, key, None))

    async def nodes(self, *, labels: str | None = None) -> list[Node]:
        del labels
        self._reach()
        taints = tuple(Taint(key) for key in self.taints.get(NODE, ()))
        return [Node(NODE, "n", "1", ready=True, unschedulable=False, taints=taints)]

    async def media_resources(self) -> list[MediaResource]:
        self._reach()
        return self.resources

    async def owner_workload(self, pod: Pod) -> Workload | None:
        self._reach()
        if pod.owner is None:
            return None
        name = pod.owner.name.rpartition("-")[0]
        return Workload(pod.namespace, "Deployment", name, "w", "1", replicas=1, ready_replicas=1)

    async def set_taint(self, node: str, taint: Taint) -> bool:
        self._reach()
        self.taints.setdefault(node, set()).add(taint.key)
        return True

    async def remove_taint(self, node: str, key: str) -> bool:
        self._reach()
        self.taints.get(node, set()).discard(key)
        return True

    async def record_event(self, regarding: models.ObjectRef, reason: str, *rest: object) -> None:
        del rest
        self.events.append((regarding.name, reason))


@dataclass
class NodeAgents:
    """What discovery and the bridge of the node say."""

    bus: MemoryBus
    clock: SystemClock
    window: int = 0
    count: int = 0
    boot: str = "b1"
    serial: str = "S1"
    holders: list[PodRef] = field(default_factory=list)
    fences: bool = True
    diagnoses: str = "passed"
    healthy_after: bool = True
    again: bool = False

    async def tell(
        self, data: Payload, *, place: str = NODE, entity: str = KEY, cause: Cause | None = None
    ) -> AnyEvent:
        self.count += 1
        said = event(
            data,
            (place, entity),
            cause=cause or Cause.source(self.boot, self.count),
            source="/test",
            at=self.clock.now(),
        )
        await self.bus.publish(said)
        return said

    async def report(
        self, verdict: str = "unhealthy", *, code: str = "48", class_: str = "transient", entity: str = KEY
    ) -> AnyEvent:
        self.window += 1
        found = Evidence(
            id=f"{self.boot}/{self.window}",
            kind="kernel-line",
            code=code,
            **{"class": class_},
            at=self.clock.now(),
        )
        return await self.tell(
            world.HealthReported(
                boot_id=self.boot,
                window_id=self.window,
                serial=self.serial,
                verdict=verdict,
                streak=self.window,
                evidence=(found,) if verdict == "unhealthy" else (),
            ),
            entity=entity,
        )

    async def strike_out(self, entity: str = KEY) -> None:
        for _ in range(3):
            await self.report(entity=entity)

    async def command(
        self, kind: type[say.CommandPayload], request_id: str, *, until: datetime | None = None
    ) -> AnyEvent:
        return await self.tell(kind(request_id=request_id, owner="ann", reason="a look", until=until))

    async def heartbeats(self) -> None:
        while True:
            with suppress(Disconnected):
                self.count += 1
                await self.tell(
                    world.Heartbeat(
                        boot_id=self.boot, n=self.count, device_keys=(KEY,), journal_depth=0, journal_lost=0
                    ),
                    entity="agent",
                )
            await asyncio.sleep(5)

    async def answer(self) -> None:
        """Fence a quarantined device, diagnose it when asked, and find it healthy."""
        wanted = Subscription("remediation", (say.Quarantined, say.DiagnosisRequested), self._hear)
        async with self.bus.consume("node", (wanted,)) as consumption:
            await consumption.wait()

    async def _hear(self, delivery: Delivery) -> None:
        heard, data = delivery.event, delivery.event.data
        as_of = Window(boot_id=self.boot, window_id=self.window)
        at = {"place": heard.of.place, "entity": heard.of.entity}
        if isinstance(data, say.Quarantined) and self.fences:
            fenced = world.Fenced(epoch=data.epoch, holders=tuple(self.holders), as_of=as_of)
            await self.tell(fenced, cause=Cause.of(heard), **at)
        elif isinstance(data, say.DiagnosisRequested) and self.diagnoses:
            diagnosed = world.Diagnosed(
                epoch=data.epoch, attempt=data.attempt, as_of=as_of, outcome=self.diagnoses
            )
            await self.tell(diagnosed, cause=Cause.of(heard), **at)
            if self.healthy_after:
                await self.report("healthy", entity=heard.of.entity)


class Site:
    """Everything, and what was said."""

    def __init__(
        self, rules: Policy, faults: Faults | None = None, *, compact_after_s: float | None = None
    ) -> None:
        self.compact_after_s = compact_after_s
        self.clock = SystemClock(start=START)
        self.server = MemoryServer(clock=self.clock, faults=faults)
        self.kube = FakeKube()
        self.rules = rules
        self.node = NodeAgents(MemoryBus(self.server, "node"), self.clock)
        self.watch = MemoryBus(self.server, "watch")
        self.facts: list[AnyEvent] = []
        self._heard = asyncio.Event()
        self.replicas: list[asyncio.Task[None]] = []
        self.buses: list[MemoryBus] = []
        self.services: list[Remediation] = []
        self.others: list[asyncio.Task[None]] = []

    def start(self) -> int:
        """One more replica; gives its number."""
        number = len(self.replicas)
        bus = MemoryBus(self.server, "remediation", instance=str(number))
        self.buses.append(bus)
        self.replicas.append(asyncio.create_task(self._replica(bus, number), name=f"replica-{number}"))
        return number

    async def _replica(self, bus: MemoryBus, number: int) -> None:
        while True:
            with suppress(LeaseLost, Disconnected):
                async with bus.lease("remediation") as lease:
                    await self._active(bus, lease, number)
            await asyncio.sleep(0.2)

    async def _active(self, bus: MemoryBus, lease: Lease, number: int) -> None:
        service = Remediation(
            bus,
            self.kube,  # type: ignore[arg-type] # as much of it as remediation asks for
            self.clock,
            policy=lambda: self.rules,
            source=f"/mediafleet/remediation/{number}",
            compact_after_s=self.compact_after_s,
        )
        self.services.append(service)
        await service.run(lease)

    async def ready(self) -> None:
        """Wait for a replica that decides and has read what the cluster remembers."""
        await self.until(lambda: any(one.runner.caught_up and one._fleet.remembers for one in self.services))

    async def kill(self, number: int) -> None:
        """As kill -9: its connection is cut first, so nothing is released or finished."""
        self.buses[number].partition()
        self.replicas[number].cancel()
        await asyncio.gather(self.replicas[number], return_exceptions=True)

    async def pause(self) -> None:
        """Nobody runs: no replica, no agents, no listener."""
        tasks = [*self.replicas, *self.others]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self.others.clear()

    def resume(self, *, replica: bool = True) -> None:
        """The agents, the listener and a fresh replica run."""
        self.facts.clear()
        parts = {
            "heartbeats": self.node.heartbeats(),
            "agents": self.node.answer(),
            "listen": self._listen(),
        }
        self.others = [asyncio.create_task(part, name=name) for name, part in parts.items()]
        if replica:
            self.start()

    async def _listen(self) -> None:
        types = tuple(
            payload
            for payload in vars(say).values()
            if isinstance(payload, type)
            and issubclass(payload, Payload)
            and hasattr(payload, "kind")
            and payload.kind.domain == "remediation"
        )
        async with self.watch.consume("watch", (Subscription("remediation", types, self._note),)) as watching:
            await watching.wait()

    async def _note(self, delivery: Delivery) -> None:
        self.facts.append(delivery.event)
        self._heard.set()

    def names(self, of: Entity = DEVICE) -> list[str]:
        return [fact.data.kind.fact for fact in self.facts if fact.of == of]

    async def until(self, happened: Callable[[], bool], within_s: float = 120.0) -> None:
        """Wait for a condition on facts, with a deadline on virtual time."""
        async with asyncio.timeout(within_s):
            while not happened():
                self._heard.clear()
                with suppress(TimeoutError):
                    async with asyncio.timeout(1):
                        await self._heard.wait()

    async def said(self, *names: str, of: Entity = DEVICE, within_s: float = 120.0) -> None:
        """Wait until all of these facts were said."""
        await self.until(lambda: set(names) <= set(self.names(of)), within_s)


@asynccontextmanager
async def site(
    rules: Policy | None = None,
    *,
    replicas: int = 1,
    faults: Faults | None = None,
    compact_after_s: float | None = None,
) -> AsyncIterator[Site]:
    """A running site."""
    place = Site(rules or policy(), faults, compact_after_s=compact_after_s)
    place.resume()
    for _ in range(replicas - 1):
        place.start()
    try:
        yield place
    finally:
        await place.pause()
