"""What another policy would have done: replay recorded events with it, and compare with what was done.

Contexts and outcomes come from the record: tiers and workloads as they were planned, evictions as they ended.
A pod that the record does not know is taken for one that is there and can be evicted.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

from services.remediation import device as device_case
from services.remediation import follow
from services.remediation.budget import BUDGET, BudgetCase
from services.remediation.case import DONE, DeviceCase
from services.remediation.context import Context, Look
from services.remediation.decide import Case, RemediationDecider
from services.remediation.fleet import Fleet
from services.remediation.policy import Policy
from services.remediation.routing import route
from shared.bus.past import past
from shared.bus.port import Bus
from shared.deciders.protocol import Effect
from shared.deciders.replay import Report, replay
from shared.events import AnyEvent, Entity, Payload, Unknown, world
from shared.events import remediation as say
from shared.events.parts import BATCH, PodRef


class Recorded:
    """The pure part of remediation's hands, played from a record."""

    def __init__(
        self,
        policy: Policy,
        planned: Mapping[str, say.PlannedPod],
        outcomes: Mapping[tuple[str, int], say.PodEvicted],
        domain: str = "media.example.com",
    ) -> None:
        """Args: planned: pods by uid. outcomes: of evictions by pod uid and attempt."""
        self._policy = policy
        self._planned = planned
        self._outcomes = outcomes
        self._fleet = Fleet(domain)
        self._since: datetime | None = None
        self._gone: set[str] = set()

    def route(self, event: AnyEvent) -> Entity | None:
        """As the service does."""
        return route(event)

    def observe(self, event: AnyEvent, now: datetime) -> None:
        """As the service does."""
        self._since = self._since or now
        self._fleet.hear(event, now)

    def context(self, of: Entity, case: Case, cause: AnyEvent | None, now: datetime) -> Context:
        """What would have been gathered."""
        if isinstance(case, BudgetCase):
            about = BUDGET if cause is None else cause.of
            return Context(scopes=self._fleet.scopes(about.place, about.entity), totals=self._fleet.totals())
        pods: tuple[PodRef, ...] = ()
        if cause is None:
            pods = follow.wants_look(case, now, self._policy)
        elif isinstance(cause.data, world.Fenced):
            pods = cause.data.holders
        elif isinstance(cause.data, world.Bound):
            pods = (cause.data.pod,)
        return Context(
            node=self._fleet.node_word(of.place, self._since or now),
            scopes=self._fleet.scopes(of.place, of.entity),
            serial=self._fleet.serial(of.place, of.entity),
            looks={pod.uid: self._look(pod) for pod in pods} or None,
        )

    def _look(self, pod: PodRef) -> Look:
        known = self._planned.get(pod.uid)
        return Look(
            pod,
            there=pod.uid not in self._gone,
            tier=known.tier if known is not None and known.tier else BATCH,
            workload=None if known is None else known.workload,
            opted_out=known is not None and known.opted_out,
        )

    def outcome(self, effect: Effect, case: Case, now: datetime) -> Payload | None:
        """What became of an effect, or would have."""
        del now
        order = effect.ordered.data
        if isinstance(order, say.EvictionOrdered):
            was = self._outcomes.get((order.pod.uid, order.attempt))
            said = was or say.PodEvicted(
                epoch=order.epoch, pod=order.pod, attempt=order.attempt, outcome="evicted"
            )
            if said.outcome in DONE:
                self._gone.add(order.pod.uid)
            return said
        if isinstance(case, DeviceCase):
            done = "not-last" if isinstance(order, say.Retired) else "removed"
            return say.NodeTainted(epoch=case.epoch, outcome=done)
        return None


async def backtest(
    bus: Bus, policy: Policy, *, place: str | None = None, until: datetime | None = None
) -> Report:
    """What this policy would have done with what the streams hold.

    Args:
        bus: read only.
        policy: the policy to try.
        place: only this node; budgets are then judged by its devices alone.
        until: deadlines are followed up to this time; the last event's when not given.
    """
    planned: dict[str, say.PlannedPod] = {}
    outcomes: dict[tuple[str, int], say.PodEvicted] = {}
    for found in await past(bus, {BUDGET.domain: ()}, place=place):
        if isinstance(found.event, Unknown):
            continue
        match found.event.data:
            case say.DrainPlanned() as plan:
                planned.update({one.pod.uid: one for one in plan.pods if one.tier})
            case say.PodEvicted() as evicted:
                outcomes[(evicted.pod.uid, evicted.attempt)] = evicted
    return await replay(
        bus,
        RemediationDecider(),
        Recorded(policy, planned, outcomes),
        policy,
        types=(*device_case.HEARD, world.Heartbeat),
        place=place,
        until=until,
    )
