"""The decider of remediation: one for both kinds of log, a device's case and the fleet's budget. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Final

from services.remediation import budget, case, device, follow
from services.remediation.budget import BUDGET, BudgetCase
from services.remediation.case import DeviceCase, State
from services.remediation.context import Context, Given
from services.remediation.policy import Policy
from shared.deciders.protocol import Effect
from shared.events import AnyEvent, Entity, Payload
from shared.events import remediation as say

Case = DeviceCase | BudgetCase

_NOTHING: Final = Context()


class RemediationDecider:
    """Decides for devices by strikes and health, for the budget by what is in force."""

    def __init__(self, *, evict_timeout_s: float = 2.0) -> None:
        """Args: evict_timeout_s: how long one try of an eviction may take; shorter than the lease."""
        self._evict_timeout_s = evict_timeout_s

    @property
    def domain(self) -> str:
        """The domain of its logs."""
        return BUDGET.domain

    def initial(self, of: Entity) -> Case:
        """The case of an empty log."""
        return BudgetCase.empty() if of == BUDGET else DeviceCase(of)

    def evolve(self, case_: Case, fact: AnyEvent, sequence: int) -> Case:  # noqa: ARG002 - the protocol's
        """The case after one more fact."""
        if isinstance(case_, BudgetCase):
            return budget.evolve(case_, fact)
        return case.evolve(case_, fact)

    def decide(
        self, case_: Case, cause: AnyEvent, context: Context | None, now: datetime, policy: Policy
    ) -> Payload | None:
        """The fact that a heard event leads to."""
        if isinstance(case_, BudgetCase):
            return budget.decide(case_, cause, Given(context or _NOTHING, now, policy))
        return device.decide(case_, cause, Given(context or _NOTHING, now, policy))

    def next(self, case_: Case, context: Context | None, now: datetime, policy: Policy) -> Payload | None:
        """The fact that follows from the case itself."""
        if isinstance(case_, BudgetCase):
            return budget.follow(case_, Given(context or _NOTHING, now, policy))
        return follow.follow(case_, Given(context or _NOTHING, now, policy))

    def effects(self, case_: Case) -> Sequence[Effect]:
        """Evictions and the node's taint, as ordered."""
        if isinstance(case_, BudgetCase):
            return ()
        found = [
            Effect(
                f"evict/{pod.planned.pod.uid}/{pod.attempt}",
                pod.order,
                self._evict_timeout_s,
                ready=case_.state is State.DRAINING,
            )
            for pod in case_.pods
            if pod.order is not None
        ]
        if case_.taint_order is not None:
            found.append(Effect(f"taint/{case_.epoch}", case_.taint_order, self._evict_timeout_s))
        return found

    def due(self, case_: Case, policy: Policy) -> datetime | None:
        """When `next` may have something to say although nothing is heard."""
        if isinstance(case_, BudgetCase):
            return budget.due(case_, policy)
        return follow.due(case_, policy)

    def closed(self, case_: Case) -> bool:
        """Nothing is open."""
        if isinstance(case_, BudgetCase):
            return budget.closed(case_)
        return not case_.open and not case_.reopen

    def snapshot(self, case_: Case) -> Payload | None:
        """What stands for a log: a closed case's, the budget's at any time; None when one does already."""
        if isinstance(case_, BudgetCase):
            return budget.snapshot(case_)
        if not self.closed(case_) or case_.epoch == 0 or not case_.reason:
            return None
        return say.RemediationSnapshotted(epoch=case_.epoch, state=case.snapshot(case_))
