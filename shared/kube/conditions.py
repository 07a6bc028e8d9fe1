"""Conditions of a status, as kubectl and its users expect them. Pure.

`kubectl wait --for=condition=Ready` reads them; `lastTransitionTime` moves only when `status` does.
Source: Kubernetes API conventions, "Typical status properties".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from datetime import datetime

ConditionStatus = Literal["True", "False", "Unknown"]

_LONGEST: Final = 32_768
"""Characters of a message that the API conventions allow."""


@dataclass(frozen=True, slots=True)
class Condition:
    """What holds now; when it began is found out when it is written."""

    type: str
    status: ConditionStatus
    reason: str
    message: str


def written(
    wanted: Iterable[Condition], status: Mapping[str, Any], *, generation: int, now: datetime
) -> list[dict[str, Any]]:
    """The conditions as they are to be written over those that stand in a status.

    Args:
        wanted: what holds now.
        status: of the object as it is.
        generation: of the spec that this is said of.
        now: for those whose status changes.
    """
    stand = {each.get("type"): each for each in status.get("conditions") or ()}
    at = now.strftime("%Y-%m-%dT%H:%M:%SZ")
    lines = []
    for condition in wanted:
        before: Mapping[str, Any] = stand.get(condition.type, {})
        same = before.get("status") == condition.status
        lines.append(
            {
                "type": condition.type,
                "status": condition.status,
                "observedGeneration": generation,
                "lastTransitionTime": before.get("lastTransitionTime", at) if same else at,
                "reason": condition.reason,
                "message": condition.message[:_LONGEST],
            }
        )
    return lines
