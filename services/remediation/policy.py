"""The policy of remediation: every number that decides, with its reason.

It is the section `remediation` of the policy file; how the file is read and read again is in
`shared.host.policy`.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from shared.events.parts import BATCH, BESTEFFORT, ONLINE

ScopeKind = Literal["cluster", "node", "rack", "model"]
"""What a budget can be over. A device pays in each scope that it is in."""


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class Strikes(_Section):
    """When evidence makes a case."""

    count: int = Field(3, ge=1, description="strikes of transient evidence that quarantine a device")
    within_s: float = Field(60, gt=0, description="evidence time that these strikes may span")
    clear_windows: int = Field(10, ge=1, description="healthy windows in a row that clear a suspect")
    clear_s: float = Field(
        60, gt=0, description="the same by time, where the node reports changes only; one window of strikes"
    )


class Deadlines(_Section):
    """How long each state may last before its exit is taken."""

    suspect_s: float = Field(600, gt=0, description="without a further strike the suspect is let go")
    grant_s: float = Field(600, gt=0, description="waiting for a budget; then the case is judged again")
    fence_s: float = Field(60, gt=0, description="the bridge answers in milliseconds when it lives")
    drain_s: float = Field(900, gt=0, description="above the usual grace periods and PDB waits")
    stuck_s: float = Field(86_400, gt=0, description="a stuck drain is left to a person after this")
    diagnose_s: float = Field(300, gt=0, description="a deep check of one device")
    repair_s: float = Field(1200, gt=0, description="a reboot of an eight-device node takes up to 20 min")
    approve_s: float = Field(86_400, gt=0, description="a step that a person must approve")
    validate_s: float = Field(900, gt=0, description="for the healthy streak and the deep check")
    silence_s: float = Field(
        86_400, gt=0, description="a node silent for so long leaves its open cases to a person"
    )

    def after(self, name: str) -> timedelta:
        """The length of one of them."""
        return timedelta(seconds=getattr(self, name))


class Drain(_Section):
    """How pods are moved off a quarantined device."""

    order: tuple[str, ...] = Field((BESTEFFORT, BATCH, ONLINE), description="tiers, in the order of eviction")
    replacement_wait_s: float = Field(
        30, ge=0, description="how long an online pod waits for its replacement"
    )
    retry_s: float = Field(
        5, gt=0, description="until a pod that a disruption budget protects is asked again"
    )
    retry_failed_s: float = Field(
        30, gt=0, description="the same after an answer that is a mistake (500, 403)"
    )
    look_again_s: float = Field(
        2, gt=0, description="safety net beside allocation.released: how often pods that leave are looked at"
    )
    grace_s: int | None = Field(None, ge=0, description="overrides the pods' own grace period")


class Recovery(_Section):
    """The way back."""

    diagnosis_attempts: int = Field(3, ge=1, description="ambiguous or unanswered deep checks")
    ladder: tuple[str, ...] = Field(("reset",), description="repair steps, least disruptive first")
    approvals: tuple[str, ...] = Field((), description="steps of the ladder that a person must approve")
    healthy_windows: int = Field(5, ge=1, description="healthy windows in a row before probation")
    healthy_s: float = Field(30, gt=0, description="the same by time, where the node reports changes only")
    rounds: int = Field(3, ge=1, description="validations that may fail before the device is retired")
    probation_s: float = Field(600, gt=0, description="best-effort pods only, doubled by each earlier case")
    probation_most_s: float = Field(86_400, gt=0, description="the longest probation")


class Damping(_Section):
    """Repeated cases, in the manner of BGP route flap damping (RFC 2439)."""

    penalty: float = Field(1000, ge=0, description="added by each quarantine")
    half_life_s: float = Field(86_400, gt=0, description="the penalty halves in this time")
    retire_at: float = Field(4000, gt=0, description="a penalty that retires the device")
    most_epochs: int = Field(
        10, ge=1, description="quarantines within `epochs_within_s` that retire the device"
    )
    epochs_within_s: float = Field(30 * 86_400, gt=0, description="see most_epochs")


class Limit(_Section):
    """What one scope allows. None: no limit of that kind."""

    absolute: int | None = Field(None, ge=0, description="steps in force at once")
    percent: float | None = Field(None, ge=0, le=100, description="of the scope's devices, at least one")
    per_minute: int | None = Field(None, ge=0, description="steps granted in any 60 s")


Limits = dict[ScopeKind, Limit]


def _budgets() -> dict[str, Limits]:
    return {
        "quarantine": {
            "cluster": Limit(percent=10, per_minute=30),
            "rack": Limit(percent=30),
            "model": Limit(percent=20),
            "node": Limit(percent=50),
        },
        "evict": {"cluster": Limit(per_minute=120)},
        "reset": {"node": Limit(absolute=1)},
    }


class CommonCause(_Section):
    """Many alike at once are one cause, not many faults: nothing more is taken out until a person looked."""

    within_s: float = Field(30, gt=0, description="evidence time in which they are at once")
    count: dict[ScopeKind, int] = Field(
        {"node": 3, "rack": 5, "model": 8, "cluster": 16},
        description="devices with one code that make a common cause, by the scope that they share",
    )
    freeze_s: float = Field(900, gt=0, description="the freeze ends by itself; a person may approve earlier")


class Policy(_Section):
    """All of it."""

    dry_run: bool = Field(default=False, description="decide and say, but take nothing out and evict nobody")
    strikes: Strikes = Strikes()
    deadlines: Deadlines = Deadlines()
    drain: Drain = Drain()
    recovery: Recovery = Recovery()
    damping: Damping = Damping()
    budgets: dict[str, Limits] = Field(
        default_factory=_budgets, description="by step; a step that is not named needs no grant"
    )
    common_cause: CommonCause = CommonCause()
