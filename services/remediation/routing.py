"""Which case an event concerns. Pure."""

from __future__ import annotations

from typing import Final

from services.remediation.budget import BUDGET
from services.remediation.fleet import physical
from shared.events import FLEET, AnyEvent, Entity, workload
from shared.events import remediation as say

TO_BUDGET: Final = (
    say.StepProposed,
    say.Quarantined,
    say.Closed,
    say.Held,
    say.HoldReleased,
    say.Retired,
)
"""Facts of a device that the budget answers."""


def route(event: AnyEvent) -> Entity | None:
    """The case that an event concerns; None for what concerns none."""
    data, of = event.data, event.of
    if isinstance(data, TO_BUDGET):
        return BUDGET
    if isinstance(data, say.BudgetPayload):
        place, _, entity = data.case.partition("/")
        return Entity(BUDGET.domain, place, entity)
    if isinstance(data, workload.ScalePayload):
        return _asked_by(data.request_id)
    if isinstance(data, say.CommandPayload) and of.place == FLEET:
        return BUDGET if of.entity == BUDGET.entity else None
    return physical(of.place, of.entity)


def _asked_by(request_id: str) -> Entity | None:
    """The case that a replacement's request id names: `place/entity#epoch/pod uid`."""
    about, _, _ = request_id.partition("#")
    place, _, entity = about.partition("/")
    return physical(place, entity) if place and entity else None
