"""What remediation hears and says, and how its parts are wired.

    health, allocation, device, command, repair, scale, budget ──> lane of the device ──> remediation.*
                                     proposals, ends of cases ──> lane of the budget ──> granted, queued

It knows nothing of alerts, and calls nobody but the Kubernetes API, from its own orders.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Final

import structlog

from services.remediation import device as device_case
from services.remediation import follow
from services.remediation.act import Hand, failed
from services.remediation.budget import BUDGET, BudgetCase
from services.remediation.case import EVICTING, DeviceCase, State
from services.remediation.context import Context, Look, Memory
from services.remediation.decide import Case, RemediationDecider
from services.remediation.fleet import Fleet
from services.remediation.policy import Policy
from services.remediation.record import Record
from services.remediation.routing import TO_BUDGET, route
from services.remediation.settings import RemediationSettings
from shared.bus.port import Bus, Lease
from shared.clock import Clock
from shared.deciders import Effect, Runner
from shared.errors import FleetError, Temporary
from shared.events import AnyEvent, Entity, Payload, Unknown, device, world
from shared.events import remediation as say
from shared.events.parts import UNHEALTHY, PodRef
from shared.host import Host
from shared.host.cluster_policy import ClusterPolicy
from shared.host.policy import PolicyFile
from shared.host.tasks import together
from shared.kube.client import connect
from shared.kube.models import PolicyKind
from shared.kube.port import Kube

log = structlog.get_logger(__name__)

_POLICY: Final[PolicyKind] = "RemediationPolicy"
_NEEDS_MEMORY: Final = (world.Withdrawn, say.HoldRequested, say.RetireRequested)
"""What opens a case whatever it says; a report does when its verdict is unhealthy."""


class Remediation:
    """The decider's hands while one lease lasts."""

    hears: tuple[type[Payload], ...] = (*device_case.HEARD, *TO_BUDGET, world.Heartbeat)

    def __init__(
        self,
        bus: Bus,
        kube: Kube,
        clock: Clock,
        *,
        policy: Callable[[], Policy],
        source: str,
        domain: str = "media.example.com",
        evict_timeout_s: float = 2.0,
        compact_after_s: float | None = None,
    ) -> None:
        """Wire it.

        Args:
            bus: the bus.
            kube: the Kubernetes API.
            clock: time.
            policy: the policy in force.
            source: `/mediafleet/remediation/<instance>`.
            domain: of labels, annotations and the taint.
            evict_timeout_s: one try of an eviction.
            compact_after_s: how long a closed case rests before its log is compacted; None: for ever.
        """
        self._bus = bus
        self._kube = kube
        self._clock = clock
        self._policy = policy
        self._fleet = Fleet(domain)
        self._record = Record(bus, kube)
        self._loading = asyncio.Lock()
        self._compared = False
        self.runner: Runner[Case, Context, Policy] = Runner(
            bus,
            RemediationDecider(evict_timeout_s=evict_timeout_s),
            self,
            policy=policy,
            clock=clock,
            source=source,
            service="remediation",
            compact_after_s=None
            if compact_after_s is None
            # The budget never rests while the fleet lives, and says by itself when its log is long enough.
            else lambda case: 0.0 if isinstance(case, BudgetCase) else compact_after_s,
        )
        self._hand = Hand(
            kube,
            self._fleet,
            clock,
            policy=policy,
            domain=domain,
            frozen=self._frozen,
            out=self._out,
            still_ours=self.runner.hold_lease,
        )

    async def run(self, lease: Lease) -> None:
        """Decide and act until the lease ends."""
        async for recorded in self._bus.history("device", types=(device.Registered, device.Lost)):
            if not isinstance(recorded.event, Unknown):
                self._fleet.hear(recorded.event, self._clock.now())
        await self._load_memory()
        await together(remediation=self.runner.run(lease), record=self._record.run())

    # ------------------------------------------------------------------ hands

    def route(self, event: AnyEvent) -> Entity | None:
        """The case that an event concerns."""
        return route(event)

    def observe(self, event: AnyEvent) -> None:
        """Devices, nodes and holders."""
        self._fleet.hear(event, self._clock.now())

    def correlation(self, of: Entity, fact: Payload) -> str:
        """The device's case, also for what the budget says of it."""
        if isinstance(fact, say.BudgetPayload):
            return f"{of.domain}:{fact.case}#{fact.epoch}"
        about = getattr(fact, "freeze_id", None) or getattr(fact, "epoch", 0)
        return f"{of.domain}:{of.about}#{about}"

    async def gather(self, of: Entity, case: Case, cause: AnyEvent | None) -> Context:
        """What the next decision of this case needs from elsewhere."""
        if isinstance(case, BudgetCase):
            return self._for_budget(cause)
        return Context(
            node=self._fleet.node_word(of.place, self._listening_since()),
            scopes=self._fleet.scopes(of.place, of.entity),
            serial=self._fleet.serial(of.place, of.entity),
            looks=await self._looks(case, cause),
            memory=await self._memory(of, cause) if case.epoch == 0 and cause is not None else Memory(),
            tainted_by_other=case.state is State.PROBATION and self._tainted_by_other(of),
        )

    async def act(self, effect: Effect, case: Case) -> Payload:
        """Carry out an order."""
        order = effect.ordered.data
        if isinstance(case, DeviceCase):
            if isinstance(order, say.EvictionOrdered):
                return await self._hand.evict(order, case)
            if isinstance(order, say.Retired | say.Readmitted):
                return await self._hand.taint(order, case.of)
        raise TypeError(f"{effect.key}: {type(order).__name__} orders nothing")

    def failed(self, effect: Effect, error: Exception) -> Payload:
        """The outcome of an effect that raised."""
        retry_at = self._clock.now() + timedelta(seconds=self._policy().drain.retry_failed_s)
        return failed(effect.ordered.data, error, retry_at)

    def said(self, fact: AnyEvent, case: Case) -> None:
        """A fact was appended."""
        if isinstance(case, DeviceCase) and not isinstance(fact.data, say.RemediationSnapshotted):
            self._record.said(
                fact, case
            )  # a snapshot tells nobody anything: the view keeps how the case ended

    # ------------------------------------------------------------------ gathering

    def _for_budget(self, cause: AnyEvent | None) -> Context:
        open_cases = None
        if cause is None and not self._compared:
            self._compared = True
            open_cases = {
                of.about: case for of, case in self.runner.open_cases() if isinstance(case, DeviceCase)
            }
        scopes = () if cause is None else self._fleet.scopes(cause.of.place, cause.of.entity)
        return Context(scopes=scopes, totals=self._fleet.totals(), open_cases=open_cases)

    async def _looks(self, case: DeviceCase, cause: AnyEvent | None) -> dict[str, Look] | None:
        pods: tuple[PodRef, ...] = ()
        if cause is None:
            pods = follow.wants_look(case, self._clock.now(), self._policy())
        elif cause.id not in case.applied:
            match cause.data:
                case world.Fenced() as said if said.epoch == case.epoch and case.quarantined:
                    pods = said.holders
                case world.Bound() as said if case.state in EVICTING and case.pod(said.pod.uid) is None:
                    pods = (said.pod,)
        return await self._hand.look(pods) if pods else None

    async def _memory(self, of: Entity, cause: AnyEvent) -> Memory:
        if not self._fleet.remembers:
            await self._load_memory()
        if self._fleet.remembers:
            return self._fleet.memory(of, known_on_node=self._tainted_by_other(of))
        data = cause.data
        counts = isinstance(data, world.HealthReported) and data.verdict == UNHEALTHY
        if counts or isinstance(data, _NEEDS_MEMORY):
            raise Temporary("whether this device had a case is not known while the API server is away")
        return Memory()

    def _tainted_by_other(self, of: Entity) -> bool:
        return any(
            other.place == of.place and other != of and isinstance(case, DeviceCase) and case.tainted
            for other, case in self.runner.open_cases()
        )

    async def _load_memory(self) -> None:
        """Read what the cluster shows of earlier cases; left for later when the API server is away."""
        async with self._loading:
            if self._fleet.remembers:
                return
            try:
                async with asyncio.timeout(5):
                    resources, nodes = await asyncio.gather(self._kube.media_resources(), self._kube.nodes())
            except (FleetError, TimeoutError) as error:
                log.warning("earlier cases are not known yet", reason=str(error) or "no answer in time")
                return
            self._fleet.remember(resources, nodes)

    def _listening_since(self) -> datetime:
        now, since_s = self._clock.now(), self.runner.listening_since_s
        return now if since_s is None else now - timedelta(seconds=self._clock.monotonic() - since_s)

    def _frozen(self) -> bool:
        case = self.runner.case(BUDGET)
        return isinstance(case, BudgetCase) and case.frozen

    def _out(self, of: Entity) -> bool:
        case = self.runner.case(of)
        return isinstance(case, DeviceCase) and case.state is not State.HEALTHY and case.out


async def run(host: Host, settings: RemediationSettings) -> None:
    """Remediate whenever the lease is ours."""
    shared = host.shared
    file = PolicyFile(shared.policy_file, "remediation", Policy)
    policy = ClusterPolicy(
        file, _POLICY, host.clock, name=shared.policy_resource, domain=shared.resource_domain
    )
    async with connect(
        shared.kube_url,
        component="mediafleet-remediation",
        instance=shared.instance,
        domain=shared.resource_domain,
    ) as kube:

        async def active(lease: Lease) -> None:
            remediation = Remediation(
                host.bus,
                kube,
                host.clock,
                policy=policy.current,
                source=host.source,
                domain=shared.resource_domain,
                evict_timeout_s=settings.evict_timeout_s,
                compact_after_s=settings.compact_after_s,
            )
            await together(
                remediation=remediation.run(lease),
                policy=policy.answer(kube.patch_policy_status, kube.record_event),
            )

        async def hold_office() -> None:
            await policy.known()
            await host.while_active(active)

        await together(
            remediation=hold_office(),
            file=file.follow(settings.policy_look_s),
            policy=policy.watch(lambda: kube.watch_policies(_POLICY)),
        )
