"""A device, its node, its pods and a clock, played against the pure decider."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

from services.remediation import follow
from services.remediation.budget import BUDGET, BudgetCase
from services.remediation.case import DeviceCase, State
from services.remediation.context import Context, Look, Memory, NodeWord
from services.remediation.decide import Case, RemediationDecider
from services.remediation.fleet import physical
from services.remediation.policy import Policy
from services.remediation.routing import route
from shared.deciders.protocol import Effect
from shared.deciders.replay import Engine
from shared.devices.model import UnifiedDevice
from shared.events import AnyEvent, Cause, Entity, Payload, event, world
from shared.events import device as device_facts
from shared.events import remediation as say
from shared.events.parts import Compatibility, Evidence, PodRef, Window, WorkloadRef

START = datetime(2026, 3, 1, 12, tzinfo=UTC)
NODE = "worker-3"
KEY = "nvidia-0000-3b-00-0"
DEVICE = Entity("remediation", NODE, KEY)

P = TypeVar("P", bound=Payload)


def pod(name: str, namespace: str = "media") -> PodRef:
    return PodRef(namespace=namespace, name=name, uid=f"uid-{name}")


def look(
    name: str, tier: str = "batch", *, there: bool = True, opted_out: bool = False, owner: str | None = None
) -> Look:
    workload = None if owner is None else WorkloadRef(namespace="media", kind="Deployment", name=owner)
    return Look(pod(name), there=there, tier=tier, workload=workload, opted_out=opted_out)


def evidence(
    code: str = "48",
    class_: str = "transient",
    *,
    at: datetime = START,
    scope: str = "device",
    engine: str | None = None,
    n: int = 0,
) -> Evidence:
    return Evidence(
        id=f"b1/{code}/{n}/{at.isoformat()}",
        kind="kernel-line",
        code=code,
        class_=class_,
        scope=scope,
        engine=engine,
        at=at,
    )


def unified(key: str = KEY, node: str = NODE, serial: str | None = "S1") -> UnifiedDevice:
    return UnifiedDevice(
        uid=f"nvidia-{node}-{key}", key=key, node=node, vendor="nvidia", type="GPU", model="L4", serial=serial
    )


class Stage:
    """Plays events at the decider and keeps what it says."""

    def __init__(self, policy: Policy | None = None, *, memory: Memory | None = None) -> None:
        self.policy = policy or Policy()
        self.now = START
        self.looks: dict[str, Look] = {}
        self.api_up = True
        self.serial: str | None = None
        self.said_all_at: datetime | None = None
        self.totals: dict[str, int] = {}
        self.rack: dict[str, str] = {}
        self.memory = memory or Memory()
        self.outcomes: dict[str, list[tuple[str, float | None]]] = {}
        self.evictions: list[str] = []
        self.facts: list[AnyEvent] = []
        self.compare: dict[str, DeviceCase] | None = None
        self.tainted_by_other = False
        self._window = 0
        self._count = 0
        self.engine: Engine[Case, Context, Policy] = Engine(
            RemediationDecider(), self, self.policy, on_fact=lambda fact, _: self.facts.append(fact)
        )

    # ------------------------------------------------------------------ the script

    def route(self, heard: AnyEvent) -> Entity | None:
        return route(heard)

    def observe(self, heard: AnyEvent, now: datetime) -> None:
        if isinstance(heard.data, world.Heartbeat) and heard.data.journal_depth == 0:
            self.said_all_at = now

    def context(self, of: Entity, case: Case, cause: AnyEvent | None, now: datetime) -> Context:
        looks = self.looks if self.api_up else None
        if isinstance(case, DeviceCase) and cause is None and looks is not None:
            wanted = follow.wants_look(case, now, self.policy)
            looks = {ref.uid: looks.get(ref.uid, Look(ref, there=False)) for ref in wanted} or None
        about = cause.of if of == BUDGET and cause is not None else of
        scopes = ["cluster", f"node:{about.place}"]
        if about.place in self.rack:
            scopes.append(f"rack:{self.rack[about.place]}")
        compare = self.compare if cause is None and of == BUDGET else None
        self.compare = None if of == BUDGET and cause is None else self.compare
        return Context(
            node=NodeWord(START, self.said_all_at),
            scopes=tuple(scopes),
            serial=self.serial,
            looks=looks,
            memory=self.memory,
            totals=self.totals,
            open_cases=compare,
            tainted_by_other=self.tainted_by_other,
        )

    def outcome(self, effect: Effect, case: Case, now: datetime) -> Payload | None:
        del case
        order = effect.ordered.data
        if isinstance(order, say.EvictionOrdered):
            script = self.outcomes.get(order.pod.name, [])
            result, retry_s = script.pop(0) if script else ("evicted", None)
            if result == "never":
                return None
            self.evictions.append(order.pod.name)
            if result in ("evicted", "gone", "replaced"):
                self.looks[order.pod.uid] = Look(order.pod, there=False)
            return say.PodEvicted(
                epoch=order.epoch,
                pod=order.pod,
                attempt=order.attempt,
                outcome=result,
                retry_at=None if retry_s is None else now + timedelta(seconds=retry_s),
            )
        assert isinstance(order, say.Retired | say.Readmitted)
        done = "tainted" if isinstance(order, say.Retired) else "removed"
        return say.NodeTainted(epoch=order.epoch, outcome=done)

    # ------------------------------------------------------------------ what happens

    def hear(
        self, data: Payload, *, place: str = NODE, entity: str = KEY, cause: Cause | None = None
    ) -> AnyEvent:
        self._count += 1
        why = cause or Cause.source("test", self._count)
        heard = event(data, (place, entity), cause=why, source="/test", at=self.now)
        self.engine.hear(heard, self.now)
        return heard

    def again(self, heard: AnyEvent) -> None:
        self.engine.hear(heard, self.now)

    def passes(self, seconds: float, *, vouched: bool = True) -> None:
        """Time passes; the node's heartbeats say that it has told everything, unless not vouched."""
        self.now += timedelta(seconds=seconds)
        if vouched:
            self.said_all_at = self.now
        self.engine.advance(self.now)

    def report(
        self,
        *found: Evidence,
        verdict: str | None = None,
        window: int | None = None,
        boot: str = "b1",
        serial: str | None = "S1",
        streak: int = 1,
        entity: str = KEY,
    ) -> AnyEvent:
        self._window = self._window + 1 if window is None else max(window, self._window)
        return self.hear(
            world.HealthReported(
                boot_id=boot,
                window_id=self._window if window is None else window,
                serial=serial,
                verdict=verdict or ("unhealthy" if found else "healthy"),
                streak=streak,
                evidence=found,
            ),
            entity=entity,
        )

    def strike(self, times: int = 1, *, code: str = "48", class_: str = "transient") -> None:
        for _ in range(times):
            self.report(evidence(code, class_, at=self.now))
            self.passes(1)

    def fenced(self, *holders: str, epoch: int | None = None, answering: AnyEvent | None = None) -> AnyEvent:
        fact = world.Fenced(
            epoch=self.case.epoch if epoch is None else epoch,
            holders=tuple(pod(name) for name in holders),
            as_of=Window(boot_id="b1", window_id=self._window),
        )
        return self.hear(fact, cause=None if answering is None else Cause.of(answering))

    def diagnosed(self, outcome: str = "passed", *, epoch: int | None = None) -> AnyEvent:
        self._window += 1
        return self.hear(
            world.Diagnosed(
                epoch=self.case.epoch if epoch is None else epoch,
                attempt=max(self.case.diagnosis, 1),
                as_of=Window(boot_id="b1", window_id=self._window),
                outcome=outcome,
            )
        )

    def repaired(self, outcome: str = "succeeded") -> AnyEvent:
        return self.hear(
            world.RepairDone(
                epoch=self.case.epoch,
                step=self.case.step,
                attempt=self.case.step_attempt,
                as_of=Window(boot_id="b1", window_id=self._window),
                outcome=outcome,
            )
        )

    def registered(self, serial: str | None) -> AnyEvent:
        self._count += 1
        return self.hear(
            device_facts.Registered(
                device=unified(serial=serial),
                generation=self._count,
                compatibility=Compatibility(verdict="compatible"),
            )
        )

    def hold(self, request: str = "r1", *, until: datetime | None = None) -> AnyEvent:
        return self.hear(say.HoldRequested(request_id=request, owner="ann", reason="a look", until=until))

    def release(self, request: str = "r2") -> AnyEvent:
        return self.hear(say.ReleaseRequested(request_id=request, owner="ann", reason="done"))

    def retire(self, request: str = "r3") -> AnyEvent:
        return self.hear(say.RetireRequested(request_id=request, owner="ann", reason="broken fan"))

    # ------------------------------------------------------------------ short cuts

    def to_draining(self, *looks: Look) -> None:
        self.looks = {one.pod.uid: one for one in looks}
        self.strike(3)
        self.fenced(*(one.pod.name for one in looks))

    def to_diagnosing(self) -> None:
        self.to_draining()

    def to_validating(self) -> None:
        self.to_diagnosing()
        self.diagnosed("passed")

    def to_probation(self) -> None:
        self.to_validating()
        self.report(verdict="healthy", streak=1)
        self.report(verdict="healthy", streak=self.policy.recovery.healthy_windows)

    # ------------------------------------------------------------------ what is seen

    @property
    def case(self) -> DeviceCase:
        return self.case_of(DEVICE)

    def state(self) -> State:
        return self.case.state

    def case_of(self, of: Entity) -> DeviceCase:
        found = self.engine.case(of)
        assert isinstance(found, DeviceCase)
        return found

    @property
    def budget(self) -> BudgetCase:
        found = self.engine.case(BUDGET)
        assert isinstance(found, BudgetCase)
        return found

    def names(self, of: Entity = DEVICE) -> list[str]:
        return [fact.data.kind.fact for fact in self.engine.logs.get(of, ())]

    def said(self, kind: type[P]) -> list[P]:
        return [fact.data for fact in self.facts if isinstance(fact.data, kind)]


def entity(number: int, node: str = NODE) -> Entity:
    """Another device."""
    found = physical(node, f"nvidia-0000-{number:02x}-00-0")
    assert found is not None
    return found


def policy(**changes: Any) -> Policy:
    """The default policy with sections changed, as the file would."""
    return Policy.model_validate(changes)


def kinds(facts: Iterable[AnyEvent]) -> list[str]:
    return [fact.data.kind.fact for fact in facts]
