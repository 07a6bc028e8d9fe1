"""What the autoscaler hears and says, and how its parts are wired."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import structlog

from services.autoscaler import lease as leases
from services.autoscaler.act import Scaler
from services.autoscaler.decide import (
    RESTORE,
    AutoscalerDecider,
    Floor,
    Observed,
    ScaleCase,
)
from services.autoscaler.policy import AutoscalerPolicy
from services.autoscaler.settings import AutoscalerSettings
from shared.bus.port import Bus, Lease
from shared.clock import Clock
from shared.deciders.protocol import Effect
from shared.deciders.runner import Runner
from shared.errors import FleetError
from shared.events import AnyEvent, Entity, Payload
from shared.events.parts import WorkloadRef
from shared.events.remediation import HoldRequested, ReleaseRequested, ReplacementRequested
from shared.events.workload import ScaleExpired, ScaleOrdered, ScaleRefused, ScaleRequested
from shared.host import Host
from shared.host.policy import PolicyFile
from shared.host.tasks import together
from shared.kube.client import connect
from shared.kube.port import Kube

log = structlog.get_logger(__name__)

_SCALABLE = ("Deployment", "StatefulSet", "ReplicaSet")


class Autoscaler:
    """The decider's hands while one lease lasts."""

    hears: tuple[type[Payload], ...] = (ScaleRequested, ReplacementRequested, HoldRequested, ReleaseRequested)

    def __init__(
        self,
        bus: Bus,
        kube: Kube,
        clock: Clock,
        *,
        policy: Callable[[], AutoscalerPolicy],
        source: str,
        domain: str,
        sweep_s: float,
        compact_after_s: float | None = None,
    ) -> None:
        """Wire it.

        Args:
            bus: the bus.
            kube: the Kubernetes API.
            clock: time.
            policy: the policy in force.
            source: `/mediafleet/autoscaler/<instance>`.
            domain: of annotations.
            sweep_s: how often HPAs are looked over.
            compact_after_s: how long a workload's log rests before it is compacted; None: for ever.
        """
        self._kube = kube
        self._clock = clock
        self._policy = policy
        self._sweep_s = sweep_s
        self._scaler = Scaler(kube, domain)
        self._targets: dict[Entity, WorkloadRef] = {}
        self._runner: Runner[ScaleCase, Observed, AutoscalerPolicy] = Runner(
            bus,
            AutoscalerDecider(),
            self,
            policy=policy,
            clock=clock,
            source=source,
            service="autoscaler",
            compact_after_s=None if compact_after_s is None else lambda _: compact_after_s,
        )

    async def run(self, lease: Lease) -> None:
        """Scale until the lease ends."""
        await together(autoscaler=self._runner.run(lease), sweep=self._sweep())

    # ------------------------------------------------------------------ hands

    def route(self, event: AnyEvent) -> Entity | None:
        """The workload that an event concerns."""
        data = event.data
        if isinstance(data, ScaleRequested | ReplacementRequested):
            of = _case(data.workload)
            self._targets[of] = data.workload
            return of
        kind, dash, _ = event.of.entity.partition("-")
        if dash and kind in {name.lower() for name in _SCALABLE}:
            return Entity("scale", event.of.place, event.of.entity)
        return None

    def observe(self, event: AnyEvent) -> None:
        """Nothing is kept outside the cases."""
        del event

    def correlation(self, of: Entity, fact: Payload) -> str:
        """The request."""
        return f"scale:{of.about}#{getattr(fact, 'request_id', '')}"

    async def gather(self, of: Entity, case: ScaleCase, cause: AnyEvent | None) -> Observed | None:
        """The workload and its HPAs as they stand.

        Raises:
            Temporary: the API server gave no answer; the request waits in its lane.
        """
        workload = self._targets.get(of) or case.workload
        if workload is None or (cause is None and (case.lifts or case.orders)):
            return None
        found = await self._kube.workload(workload.namespace, workload.kind, workload.name)
        floors = tuple(
            Floor(
                hpa.name,
                hpa.min_replicas,
                hpa.max_replicas,
                leases.read(hpa.annotations.get(self._scaler.annotation)),
            )
            for hpa in await self._kube.hpas(workload.namespace)
            if (hpa.target_kind, hpa.target_name) == (workload.kind, workload.name)
        )
        scalable = found is not None and workload.kind in _SCALABLE
        return Observed(workload, found.replicas if found is not None and scalable else None, floors)

    async def act(self, effect: Effect, case: ScaleCase) -> Payload:
        """Carry out an order."""
        order = effect.ordered.data
        if not isinstance(order, ScaleOrdered):
            raise TypeError(f"{case.of}: {effect.key} is no order")
        return await self._scaler.carry_out(order, effect.ordered.time, self._clock.now(), self._policy())

    def failed(self, effect: Effect, error: Exception) -> Payload:
        """The order cannot be carried out."""
        order = effect.ordered.data
        if not isinstance(order, ScaleOrdered):
            raise TypeError(f"{effect.key} is no order") from error
        if order.mode == RESTORE:
            return ScaleExpired(request_id=order.request_id, n=order.n, reason=f"not given back: {error}")
        return ScaleRefused(request_id=order.request_id, n=order.n, reason=str(error), by=order.by)

    def said(self, fact: AnyEvent, case: ScaleCase) -> None:
        """Nothing to do: the outcome is heard by who asked."""
        del fact, case

    # ------------------------------------------------------------------ leases that no log remembers

    async def _sweep(self) -> None:
        while True:
            if self._runner.caught_up:
                await self._look_over()
                await asyncio.sleep(self._sweep_s)
            else:
                await asyncio.sleep(min(1.0, self._sweep_s))

    async def _look_over(self) -> None:
        try:
            hpas = await self._kube.hpas()
        except FleetError as error:
            log.warning("HPAs cannot be looked over", reason=str(error))
            return
        for hpa in hpas:
            if self._scaler.annotation in hpa.annotations:
                workload = WorkloadRef(namespace=hpa.namespace, kind=hpa.target_kind, name=hpa.target_name)
                self._targets[_case(workload)] = workload
                self._runner.nudge(_case(workload))


def _case(workload: WorkloadRef) -> Entity:
    return Entity("scale", workload.namespace, workload.entity)


async def run(host: Host, settings: AutoscalerSettings) -> None:
    """Be the autoscaler whenever the lease is ours."""
    policy = PolicyFile(host.shared.policy_file, "autoscaler", AutoscalerPolicy)

    async def active(lease: Lease) -> None:
        async with connect(
            host.shared.kube_url, component="mediafleet-autoscaler", instance=host.shared.instance
        ) as kube:
            await Autoscaler(
                host.bus,
                kube,
                host.clock,
                policy=policy.current,
                source=host.source,
                domain=host.shared.resource_domain,
                sweep_s=settings.sweep_s,
                compact_after_s=settings.compact_after_s,
            ).run(lease)

    await together(autoscaler=host.while_active(active), policy=policy.follow())
