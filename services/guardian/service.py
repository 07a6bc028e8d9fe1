"""What the guardian hears and says, and how its parts are wired.

Hears samples, allocations, device health and remediation's cases; watches pods. Samples and its own proposals
drive the cases; everything else only changes the picture that they are judged in.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import aclosing
from typing import Final

import structlog

from services.guardian.act import Evictor
from services.guardian.annotation import LATENCY_P99_MS, Target
from services.guardian.attribution import attribute
from services.guardian.budget import BUDGET, BudgetCase, FleetLook
from services.guardian.case import SlaCase
from services.guardian.decide import GuardianCase, GuardianDecider
from services.guardian.ladder import Look
from services.guardian.picture import FACTS, HEARD, Picture, kept
from services.guardian.policy import GuardianPolicy
from services.guardian.readings import read
from services.guardian.settings import GuardianSettings
from services.guardian.view import WorkloadView, rows
from shared.bus.port import Bus, Lease
from shared.clock import Clock
from shared.deciders.protocol import Effect
from shared.deciders.runner import Runner
from shared.errors import BadInput, FleetError
from shared.events import DOMAINS, AnyEvent, Entity, Keeps, Payload, Unknown
from shared.events import workload as facts
from shared.events.parts import PodRef, WorkloadRef
from shared.events.remediation import HoldRequested, ReleaseRequested
from shared.events.world import Sampled
from shared.host import Host
from shared.host.cluster_policy import ClusterPolicy
from shared.host.policy import PolicyFile
from shared.host.tasks import together
from shared.kube.client import connect
from shared.kube.models import ObjectRef, Pod, PolicyKind
from shared.kube.owners import Owners
from shared.kube.port import Kube

log = structlog.get_logger(__name__)

_POLICY: Final[PolicyKind] = "GuardianPolicy"
_SUSPECT_EVERY_S = 1.0
_TO_BUDGET = (facts.SlaStepProposed, facts.SlaPodEvicted, facts.SlaStepRefused)
_FROM_BUDGET = (facts.SlaGranted, facts.SlaDenied)
_COMMANDS = (HoldRequested, ReleaseRequested)
_KINDS = ("deployment-", "statefulset-", "replicaset-", "daemonset-", "job-", "cronjob-", "pod-")
"""A command's entity that begins so is a workload; another is a device."""


class Guardian:
    """The decider's hands while one lease lasts."""

    hears: tuple[type[Payload], ...] = (*HEARD, *_TO_BUDGET, *_FROM_BUDGET, *_COMMANDS)

    def __init__(
        self,
        bus: Bus,
        kube: Kube,
        clock: Clock,
        *,
        policy: Callable[[], GuardianPolicy],
        source: str,
        domain: str,
        tick_s: float,
        compact_after_s: float | None = None,
    ) -> None:
        """Wire it.

        Args:
            bus: the bus.
            kube: the Kubernetes API.
            clock: time.
            policy: the policy in force.
            source: `/mediafleet/guardian/<instance>`.
            domain: of labels and annotations.
            tick_s: how often things are looked at unasked.
            compact_after_s: how long a closed breach rests before its log is compacted; None: for ever.
        """
        self._bus = bus
        self._kube = kube
        self._clock = clock
        self._policy = policy
        self._tick_s = tick_s
        self._domain = domain
        self._picture = Picture(domain)
        self._owners = Owners(kube.owner_workload)
        self._view = WorkloadView(bus)
        self._warned: dict[str, str] = {}
        self._suspected, self._suspected_s = "", -_SUSPECT_EVERY_S
        self._runner: Runner[GuardianCase, Look | FleetLook, GuardianPolicy] = Runner(
            bus,
            GuardianDecider(),
            self,
            policy=policy,
            clock=clock,
            source=source,
            service="guardian",
            compact_after_s=None
            if compact_after_s is None
            # The budget never rests while the fleet lives, and says by itself when its log is long enough.
            else lambda case: 0.0 if isinstance(case, BudgetCase) else compact_after_s,
        )
        self._evictor = Evictor(kube, self._picture, clock, still_ours=self._runner.hold_lease)

    async def run(self, lease: Lease) -> None:
        """Guard until the lease ends."""
        await self._remember()
        await together(guardian=self._runner.run(lease), pods=self._watch_pods(), tick=self._tick())

    async def _remember(self) -> None:
        """Read the past again: the consumers go on where the last holder stopped, but the picture is new."""
        by_domain: dict[str, list[type[Payload]]] = {}
        remembered: tuple[type[Payload], ...] = (*FACTS, Sampled)
        for payload in remembered:
            by_domain.setdefault(payload.kind.domain, []).append(payload)
        for domain, types in by_domain.items():
            try:
                async for recorded in self._bus.history(domain, types=tuple(types)):
                    if not isinstance(recorded.event, Unknown):
                        self._picture.hear(recorded.event, self._policy())
            except FleetError as error:
                if DOMAINS[domain].keeps is not Keeps.MEMORY:
                    raise
                # A server's restart took the samples with it: the windows fill again.
                log.warning("no samples of before", reason=str(error))

    # ------------------------------------------------------------------ hands

    def route(self, event: AnyEvent) -> Entity | None:
        """The case that an event concerns."""
        data = event.data
        if isinstance(data, Sampled):
            uid = data.pod.uid
            owner = None if self._picture.target(uid) is None else self._picture.owner(uid)
            return None if owner is None else Entity("sla", owner.namespace, owner.entity)
        if isinstance(data, _TO_BUDGET):
            return BUDGET
        if isinstance(data, _FROM_BUDGET):
            place, _, entity = data.case.partition("/")
            return Entity("sla", place, entity)
        if isinstance(data, _COMMANDS) and event.of.entity.startswith(_KINDS):
            return Entity("sla", event.of.place, event.of.entity)
        return None

    def observe(self, event: AnyEvent) -> None:
        """Everything that changes the picture."""
        self._picture.hear(event, self._policy())

    def correlation(self, of: Entity, fact: Payload) -> str:
        """The breach; the budget's facts belong to the breach that they answer."""
        breach = getattr(fact, "breach_id", None) or getattr(fact, "freeze_id", "")
        about = fact.case if isinstance(fact, facts.SlaBudgetPayload) else of.about
        return f"sla:{about}#{breach}"

    async def gather(self, of: Entity, case: GuardianCase, cause: AnyEvent | None) -> Look | FleetLook | None:
        """What the next decision needs; None while the cluster is not known yet."""
        del of
        if not self._picture.synced:
            return None
        if isinstance(case, BudgetCase):
            suspect = self._suspect()
            return FleetLook(self._picture.running(), self._picture.common_cause() or suspect, suspect)
        if case.breach is not None:
            return await self._look(case.breach.pod, case)
        if cause is not None and isinstance(cause.data, Sampled) and self._runner.caught_up:
            return await self._look(cause.data.pod, case)
        return None

    async def act(self, effect: Effect, case: GuardianCase) -> Payload:
        """Carry out the ordered eviction."""
        order = effect.ordered.data
        if (
            not isinstance(order, facts.SlaEvictionOrdered)
            or not isinstance(case, SlaCase)
            or not case.breach
        ):
            raise TypeError(f"{effect.key} is no eviction of an open breach")
        return await self._evictor.evict(order, case.breach, self._policy())

    def failed(self, effect: Effect, error: Exception) -> Payload:
        """The eviction could not even be asked for."""
        order = effect.ordered.data
        if not isinstance(order, facts.SlaEvictionOrdered):
            raise TypeError(f"{effect.key} is no eviction") from error
        return facts.SlaPodEvicted(
            breach_id=order.breach_id,
            pod=order.pod,
            attempt=order.attempt,
            outcome="failed",
            detail=str(error),
        )

    def said(self, fact: AnyEvent, case: GuardianCase) -> None:
        """Nothing: the view follows at the next tick, the budget hears its own domain."""
        del fact, case

    # ------------------------------------------------------------------ looking

    async def _look(self, ref: PodRef, case: SlaCase) -> Look:
        now, policy, breach = self._clock.now(), self._policy(), case.breach
        pod = self._picture.pod(ref.uid)
        target = self._picture.target(ref.uid)
        look = Look(
            pod=ref,
            workload=self._picture.owner(ref.uid),
            alive=pod is not None and not pod.terminal,
            target=target,
            series=self._picture.series(ref.uid),
        )
        if pod is None or target is None:
            return look
        reading = read(look.series, target.latency_p99_ms, now, policy)
        if not reading.breached and (breach is None or not breach.acted):
            return look
        for uid in self._picture.neighbours(pod):
            await self._find_owner(uid)
        attribution, candidates = attribute(
            self._picture.scene(pod, now), reading, target.latency_p99_ms, policy
        )
        return Look(
            pod=ref,
            workload=look.workload,
            alive=look.alive,
            target=target,
            series=look.series,
            attribution=attribution,
            candidates=candidates,
            brake=self._picture.common_cause() or self._suspect(),
            replicas=await self._replicas(look.workload),
        )

    def _suspect(self) -> str:
        """Looked at once a second: it reads every online pod."""
        now_s = self._clock.monotonic()
        if now_s - self._suspected_s >= _SUSPECT_EVERY_S:
            self._suspected_s = now_s
            self._suspected = self._picture.suspect(self._clock.now(), self._policy())
        return self._suspected

    async def _replicas(self, workload: WorkloadRef | None) -> int | None:
        if workload is None:
            return None
        try:
            found = await self._kube.workload(workload.namespace, workload.kind, workload.name)
        except FleetError as error:
            log.warning("replicas are not known", workload=workload.entity, reason=str(error))
            return None
        return None if found is None or workload.kind not in ("Deployment", "StatefulSet") else found.replicas

    async def _find_owner(self, uid: str) -> None:
        pod = self._picture.pod(uid)
        if pod is None or self._picture.owner(uid) is not None:
            return
        try:
            found = await self._owners.of(pod)
        except FleetError as error:
            log.warning("an owner is not known", pod=f"{pod.namespace}/{pod.name}", reason=str(error))
            return
        kind, name = ("Pod", pod.name) if found is None else (found.kind, found.name)
        self._picture.owned(uid, WorkloadRef(namespace=pod.namespace, kind=kind, name=name))

    async def _watch_pods(self) -> None:
        async with aclosing(self._kube.watch_pods(keep=kept(self._domain))) as changes:
            async for change in changes:
                self._picture.hear_pod(change)
                pod = change.item
                if pod is not None and self._picture.target(pod.uid) is not None:
                    await self._find_owner(pod.uid)

    async def _tick(self) -> None:
        """Look at what nobody's sample asks about: brakes, silence, annotations, the view."""
        while True:
            await asyncio.sleep(self._tick_s)
            if not self._picture.synced or not self._runner.caught_up:
                continue
            for pod, target in self._picture.promised():
                await self._find_owner(pod.uid)
                await self._warn(pod, target)
            open_cases = dict(self._runner.open_cases())
            for of in open_cases:
                self._runner.nudge(of)
            if self._suspect():
                self._runner.nudge(BUDGET)
            cases = {of: case for of, case in open_cases.items() if isinstance(case, SlaCase)}
            await self._view.write(rows(self._picture, cases, self._clock.now(), self._policy()))

    async def _warn(self, pod: Pod, target: Target | BadInput) -> None:
        """A Warning Event on a pod whose annotation is not believed, once."""
        problem = str(target) if isinstance(target, BadInput) else target.doubt
        if not problem or self._warned.get(pod.uid) == problem:
            return
        self._warned[pod.uid] = problem
        about = ObjectRef("Pod", pod.name, pod.namespace, pod.uid)
        note = f"{LATENCY_P99_MS} is not acted on: {problem}"
        try:
            await self._kube.record_event(about, "SLAAnnotation", note, "Warning", "Observe")
        except FleetError as error:
            log.warning("a Warning Event was not written", pod=pod.name, reason=str(error))


async def run(host: Host, settings: GuardianSettings) -> None:
    """Be the guardian whenever the lease is ours."""
    shared = host.shared
    file = PolicyFile(shared.policy_file, "guardian", GuardianPolicy)
    policy = ClusterPolicy(
        file, _POLICY, host.clock, name=shared.policy_resource, domain=shared.resource_domain
    )
    async with connect(
        shared.kube_url,
        component="mediafleet-guardian",
        instance=shared.instance,
        domain=shared.resource_domain,
    ) as kube:

        async def active(lease: Lease) -> None:
            guardian = Guardian(
                host.bus,
                kube,
                host.clock,
                policy=policy.current,
                source=host.source,
                domain=shared.resource_domain,
                tick_s=settings.tick_s,
                compact_after_s=settings.compact_after_s,
            )
            await together(
                guardian=guardian.run(lease),
                policy=policy.answer(kube.patch_policy_status, kube.record_event),
            )

        async def guard() -> None:
            await policy.known()
            await host.while_active(active)

        await together(
            guardian=guard(), file=file.follow(), policy=policy.watch(lambda: kube.watch_policies(_POLICY))
        )
