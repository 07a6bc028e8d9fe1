"""The guardian's hand: one eviction, after a last look, and the Events that explain it."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta

import structlog
from prometheus_client import Counter

from services.guardian.case import Breach
from services.guardian.picture import Picture
from services.guardian.policy import GuardianPolicy
from services.guardian.readings import read
from shared.clock import Clock
from shared.errors import FleetError, Temporary
from shared.events.workload import SlaEvictionOrdered, SlaPodEvicted
from shared.kube import models
from shared.kube.models import EvictionAnswer, EvictionOutcome
from shared.kube.port import Kube

log = structlog.get_logger(__name__)

_EVICTIONS = Counter("mediafleet_guardian_evictions", "Ordered evictions by outcome.", ["outcome"])


class Evictor:
    """Evicts neighbours."""

    def __init__(
        self, kube: Kube, picture: Picture, clock: Clock, *, still_ours: Callable[[], object]
    ) -> None:
        """Args: still_ours: raises `LeaseLost` when another may act by now."""
        self._kube = kube
        self._still_ours = still_ours
        self._picture = picture
        self._clock = clock

    async def evict(self, order: SlaEvictionOrdered, breach: Breach, policy: GuardianPolicy) -> SlaPodEvicted:
        """Carry out an order if all that led to it still holds, and say what became of it.

        Raises:
            Temporary: the API server gave no answer; asked again, it is looked at first.
            LeaseLost: the look took longer than the lease.
        """
        now = self._clock.now()
        victim = await self._kube.pod(order.pod.namespace, order.pod.name)
        settled = self._already(order, victim) or self._no_longer(order, breach, victim, now, policy)
        if settled is not None:
            return settled
        ref = models.PodRef(order.pod.namespace, order.pod.name, order.pod.uid)
        self._still_ours()
        answer = await self._kube.evict(ref, grace_s=policy.grace_s)
        if answer.outcome is EvictionOutcome.THROTTLED:
            raise Temporary(
                f"the API server throttles: {answer.message}", delay_s=answer.retry_after_s or 1.0
            )
        if answer.outcome is EvictionOutcome.EVICTED:
            await self._explain(order, breach)
        return _said(
            order, str(answer.outcome), answer.message, answer=answer, retry_at=_retry_at(answer, now)
        )

    def _already(self, order: SlaEvictionOrdered, victim: models.Pod | None) -> SlaPodEvicted | None:
        """The outcome that stands already: of an earlier try, or of the world."""
        if victim is None:
            return _said(order, "gone", "no such pod any more")
        if victim.uid != order.pod.uid:
            return _said(order, "replaced", f"another pod has its name now: {victim.uid}")
        if victim.deleting:
            return _said(order, "evicted", "it is terminating already")
        return _said(order, "gone", f"it is {victim.phase}") if victim.terminal else None

    def _no_longer(
        self,
        order: SlaEvictionOrdered,
        breach: Breach,
        victim: models.Pod | None,
        now: datetime,
        policy: GuardianPolicy,
    ) -> SlaPodEvicted | None:
        """Why the eviction would be wrong by now."""
        why = ""
        reading = read(self._picture.series(breach.pod.uid), breach.target, now, policy)
        if now >= order.deadline:
            why = "the order is too old"
        elif victim is None or not self._picture.holds(victim, order.engine):
            why = f"it no longer holds {order.engine}"
        elif not reading.breached:
            why = "the breach has eased"
        elif brake := self._picture.brake(now, policy):
            why = f"frozen: {brake}"
        elif victim.annotations.get(self._picture.opt_out) == "never":
            why = "it opted out meanwhile"
        if why:
            return _said(order, "withheld", why)
        if order.dry_run:
            return _said(order, "dry-run", f"would be evicted to relieve {breach.pod}")
        return None

    async def _explain(self, order: SlaEvictionOrdered, breach: Breach) -> None:
        """Events on both pods; an eviction stands whether or not they can be written."""
        victim = models.ObjectRef("Pod", order.pod.name, order.pod.namespace, order.pod.uid)
        protected = models.ObjectRef("Pod", breach.pod.name, breach.pod.namespace, breach.pod.uid)
        why = (
            f"{breach.pod} is at {breach.observed:g} ms p99, above its {breach.target:g} ms; "
            f"{order.pod} held {order.share:.0%} of {order.engine} (breach {order.breach_id})"
        )
        try:
            await self._kube.record_event(
                victim, "SLAEviction", f"Evicted: {why}", "Warning", "Evict", related=protected
            )
            await self._kube.record_event(
                protected, "SLAProtected", f"Neighbour evicted: {why}", "Normal", "Evict", related=victim
            )
        except FleetError as error:
            log.warning("the eviction's Events were not written", pod=str(order.pod), reason=str(error))


def _retry_at(answer: EvictionAnswer, now: datetime) -> datetime | None:
    return None if not answer.retry_after_s else now + timedelta(seconds=answer.retry_after_s)


def _said(
    order: SlaEvictionOrdered,
    outcome: str,
    detail: str,
    *,
    answer: EvictionAnswer | None = None,
    retry_at: datetime | None = None,
) -> SlaPodEvicted:
    _EVICTIONS.labels(outcome).inc()
    return SlaPodEvicted(
        breach_id=order.breach_id,
        pod=order.pod,
        attempt=order.attempt,
        outcome=outcome,
        status=None if answer is None else answer.status,
        detail=detail,
        retry_at=retry_at,
    )
