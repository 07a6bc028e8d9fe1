"""What remediation does to the world: evict a pod, taint a node. Each looks first: doing it twice is once.

An order is carried out only if everything that led to it still holds: the very pod (UID), on this node, still
holding the device, not protected by its owner meanwhile, the case still at the order's epoch and draining,
and no common cause in force. The disruption budget is the API server's to judge (policy/v1 Eviction).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from datetime import datetime, timedelta
from typing import Final

import structlog

from services.remediation.case import DeviceCase, State
from services.remediation.context import Look
from services.remediation.fleet import Fleet
from services.remediation.policy import Policy
from shared.clock import Clock
from shared.errors import FleetError, Permanent, Temporary
from shared.events import Entity
from shared.events import remediation as say
from shared.events.parts import BATCH, BESTEFFORT, ONLINE, PodRef, WorkloadRef
from shared.kube import models
from shared.kube.models import EvictionOutcome
from shared.kube.owners import Owners
from shared.kube.port import Kube

log = structlog.get_logger(__name__)

_TIERS: Final = frozenset({ONLINE, BATCH, BESTEFFORT})
_LOOK_WITHIN_S: Final = 2.0
"""A look is given up after this and repeated later, so that the lane stays free for a person's word."""


class Hand:
    """Looks at pods and acts on pods and nodes."""

    def __init__(
        self,
        kube: Kube,
        fleet: Fleet,
        clock: Clock,
        *,
        policy: Callable[[], Policy],
        domain: str,
        frozen: Callable[[], bool],
        out: Callable[[Entity], bool],
        still_ours: Callable[[], object],
    ) -> None:
        """Wire it.

        Args:
            kube: the API.
            fleet: what is known of devices and holders.
            clock: time.
            policy: the policy in force.
            domain: of labels and annotations.
            frozen: whether a common cause is in force now.
            out: whether a device is out of use.
            still_ours: raises `LeaseLost` when another may act by now.
        """
        self._kube = kube
        self._owners = Owners(kube.owner_workload)
        self._fleet = fleet
        self._clock = clock
        self._policy = policy
        self._domain = domain
        self._frozen = frozen
        self._out = out
        self._still_ours = still_ours

    # ------------------------------------------------------------------ looking

    async def look(self, pods: Iterable[PodRef]) -> dict[str, Look] | None:
        """Every pod as it is now; None when the API server did not answer (unknown is not gone)."""
        try:
            async with asyncio.timeout(_LOOK_WITHIN_S):
                looks = await asyncio.gather(*(self._look(pod) for pod in pods))
        except (FleetError, TimeoutError) as error:
            log.warning("the pods could not be looked at", reason=str(error) or "no answer in time")
            return None
        return {look.pod.uid: look for look in looks}

    async def _look(self, ref: PodRef) -> Look:
        pod = await self._kube.pod(ref.namespace, ref.name)
        if pod is None or pod.uid != ref.uid or pod.terminal:
            return Look(ref, there=False)
        tier = self._tier(pod)
        return Look(
            ref,
            there=True,
            terminating=pod.deleting,
            tier=tier,
            workload=await self._owner(pod) if tier == ONLINE else _controller(pod),
            opted_out=self._opted_out(pod),
        )

    def _tier(self, pod: models.Pod) -> str:
        tier = pod.labels.get(f"{self._domain}/tier") or pod.labels.get("tier") or BATCH
        return tier if tier in _TIERS else BATCH

    def _opted_out(self, pod: models.Pod) -> bool:
        return pod.annotations.get(f"{self._domain}/eviction") == "never"

    async def _owner(self, pod: models.Pod) -> WorkloadRef | None:
        """What a replacement would be asked of: the Deployment behind the ReplicaSet."""
        owner = await self._owners.of(pod)
        if owner is None:
            return _controller(pod)
        return WorkloadRef(namespace=owner.namespace, kind=owner.kind, name=owner.name)

    # ------------------------------------------------------------------ evicting

    async def evict(self, order: say.EvictionOrdered, case: DeviceCase) -> say.PodEvicted:
        """Carry out an order, or say why it needs nothing more.

        Raises:
            Temporary: the API server gave no answer; asked again, it is looked at first.
            LeaseLost: the look took longer than the lease.
        """
        pod = await self._kube.pod(order.pod.namespace, order.pod.name)
        settled = self._settled(order, pod) or self._withheld(order, case, pod)
        if settled is not None:
            return settled
        policy = self._policy()
        ref = models.PodRef(order.pod.namespace, order.pod.name, order.pod.uid)
        self._still_ours()
        try:
            answer = await self._kube.evict(ref, grace_s=policy.drain.grace_s, dry_run=order.dry_run)
        except Permanent as error:
            return _outcome(order, "failed", error.reason, retry_at=self._after(policy.drain.retry_failed_s))
        if answer.outcome is EvictionOutcome.THROTTLED:
            raise Temporary(
                f"the API server throttles: {answer.message}", delay_s=answer.retry_after_s or 1.0
            )
        if order.dry_run and answer.outcome is EvictionOutcome.EVICTED:
            return _outcome(order, "dry-run", "it would be evicted", status=answer.status)
        retry_s = {
            EvictionOutcome.BLOCKED: max(policy.drain.retry_s, answer.retry_after_s or 0.0),
            EvictionOutcome.FAILED: policy.drain.retry_failed_s,
        }.get(answer.outcome)
        return _outcome(
            order,
            str(answer.outcome),
            answer.message,
            status=answer.status,
            retry_at=None if retry_s is None else self._after(retry_s),
        )

    def _settled(self, order: say.EvictionOrdered, pod: models.Pod | None) -> say.PodEvicted | None:
        """The outcome that stands already: of an earlier try, or of the world."""
        if pod is None:
            return _outcome(order, "gone", "no such pod any more")
        if pod.uid != order.pod.uid:
            return _outcome(order, "replaced", f"another pod has its name now: {pod.uid}")
        if pod.deleting:
            return _outcome(order, "evicted", "it is terminating already")
        return _outcome(order, "gone", f"it has ended: {pod.phase}") if pod.terminal else None

    def _withheld(
        self, order: say.EvictionOrdered, case: DeviceCase, pod: models.Pod | None
    ) -> say.PodEvicted | None:
        """Why the eviction would be wrong by now; tried again where that may change."""
        again = self._after(self._policy().drain.retry_s)
        if pod is not None and pod.node != case.of.place:
            return _outcome(order, "gone", f"it runs on {pod.node or 'no node'}")
        if self._fleet.let_go(case.of, order.pod.uid):
            return _outcome(order, "gone", "it holds the device no more")
        if pod is not None and self._opted_out(pod):
            return _outcome(order, "withheld", "its owner opted out of eviction")
        if case.epoch != order.epoch or case.state is not State.DRAINING:
            return _outcome(order, "withheld", f"the case is {case.state} at epoch {case.epoch}")
        if self._frozen():
            return _outcome(order, "withheld", "a common cause is in force", retry_at=again)
        return None

    def _after(self, seconds: float) -> datetime:
        return self._clock.now() + timedelta(seconds=seconds)

    # ------------------------------------------------------------------ the node's taint

    async def taint(self, order: say.Retired | say.Readmitted, of: Entity) -> say.NodeTainted:
        """Keep media pods off a node without a usable device, or let them back.

        Raises:
            Temporary: the API server gave no answer.
        """
        if isinstance(order, say.Readmitted):
            removed = await self._kube.remove_taint(of.place, self._fleet.taint_key)
            detail = "taken off" if removed else "it was off already"
            return say.NodeTainted(epoch=order.epoch, outcome="removed", detail=detail)
        usable = [other.entity for other in self._fleet.others(of) if not self._out(other)]
        if usable:
            detail = f"still usable: {', '.join(usable)}"
            return say.NodeTainted(epoch=order.epoch, outcome="not-last", detail=detail)
        await self._kube.set_taint(of.place, models.Taint(self._fleet.taint_key, "NoSchedule", of.entity))
        return say.NodeTainted(epoch=order.epoch, outcome="tainted", detail="no usable device is left")


def failed(order: object, error: Exception, retry_at: datetime) -> say.PodEvicted | say.NodeTainted:
    """The outcome of an effect that raised."""
    if isinstance(order, say.EvictionOrdered):
        return _outcome(order, "failed", str(error)[:512], retry_at=retry_at)
    if isinstance(order, say.Retired | say.Readmitted):
        return say.NodeTainted(epoch=order.epoch, outcome="failed", detail=str(error)[:512])
    raise TypeError(f"{type(order).__name__} orders nothing") from error


def _controller(pod: models.Pod) -> WorkloadRef | None:
    owner = pod.owner
    if owner is None:
        return None
    return WorkloadRef(namespace=pod.namespace, kind=owner.kind, name=owner.name)


def _outcome(
    order: say.EvictionOrdered,
    outcome: str,
    detail: str,
    *,
    status: int | None = None,
    retry_at: datetime | None = None,
) -> say.PodEvicted:
    return say.PodEvicted(
        epoch=order.epoch,
        pod=order.pod,
        attempt=order.attempt,
        outcome=outcome,
        status=status,
        detail=detail,
        retry_at=retry_at,
    )
