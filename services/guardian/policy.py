"""How careful the guardian is; section `guardian` of the policy file. Reasons stand beside the numbers."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field


class GuardianPolicy(BaseModel):
    """Numbers that a platform engineer may change."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    dry_run: bool = Field(
        default=True,
        description="Say what would be done and do nothing: the default until somebody has looked.",
    )

    # Measuring
    sample_age_s: float = Field(
        default=20.0, gt=0, description="An older sample is missing, not the last value."
    )
    skew_s: float = Field(default=5.0, ge=0, description="A sample from further in the future is impossible.")
    window: int = Field(default=4, ge=1, description="Samples that are judged together.")
    breach_of: int = Field(
        default=3, ge=1, description="Samples of the window above the target: one p99 is noise."
    )
    span_s: float = Field(
        default=120.0,
        gt=0,
        description="Samples further back than this are not judged together with new ones.",
    )
    exit_ratio: float = Field(
        default=0.9, gt=0, le=1, description="Recovered means below this part of the target."
    )
    exit_samples: int = Field(default=3, ge=1, description="Samples in a row below it.")
    min_requests: int = Field(
        default=100, ge=0, description="Fewer requests than this in 60 s say nothing about a 99th percentile."
    )
    kept_samples: int = Field(default=60, ge=8, description="Samples kept per pod, for its own baseline.")

    # Attribution
    idle_share: float = Field(
        default=0.05, ge=0, le=1, description="A neighbour with less of the engine is idle."
    )
    growth_ratio: float = Field(
        default=1.3,
        gt=1,
        description="Own requests or queue grown by this factor over the baseline: own overload.",
    )
    reattribute_s: float = Field(
        default=30.0, gt=0, description="A verdict older than this is looked at again."
    )

    # Whom
    min_age_s: float = Field(
        default=60.0, ge=0, description="A younger pod is left: evicting it would only churn."
    )
    retry_s: float = Field(
        default=60.0,
        ge=0,
        description="A pod whose eviction was blocked or failed is left alone for this long.",
    )

    # How much
    grace_s: int = Field(default=30, ge=0, description="Grace period of an evicted pod.")
    per_device: int = Field(default=1, ge=1, description="Victims per device and round.")
    per_node: int = Field(default=2, ge=1, description="Victims per node and round.")
    per_tenant: int = Field(default=5, ge=1, description="Victims per tenant and window.")
    fleet_percent: float = Field(
        default=1.0, ge=0, le=100, description="Victims per window, of all running pods."
    )
    fleet_at_least: int = Field(default=2, ge=0, description="The same where the percentage rounds to less.")
    caps_window_s: float = Field(
        default=600.0, gt=0, description="The window of the tenant's and fleet's caps."
    )
    grant_wait_s: float = Field(
        default=15.0, gt=0, description="An unanswered proposal is given up after this."
    )
    order_within_s: float = Field(default=60.0, gt=0, description="An ordered eviction is void after this.")

    # Did it help
    relief_samples: int = Field(
        default=2, ge=1, description="Samples after the grace period that judge the relief."
    )
    relief_wait_s: float = Field(
        default=40.0, gt=0, description="Without them for this long the relief is missed."
    )
    relief_ratio: float = Field(
        default=0.2, ge=0, le=1, description="Relief: better by this part, or inside the target."
    )
    misses: int = Field(default=2, ge=1, description="Evictions that did not help before the circuit opens.")
    circuit_s: float = Field(default=300.0, gt=0, description="How long an open circuit evicts nobody.")

    # Scaling
    scale_after_eviction: bool = Field(
        default=True, description="Ask for one more replica too: the evicted pod's owner will bring it back."
    )
    scale_step: int = Field(default=1, ge=1, description="Replicas to add at once.")
    scale_lease_s: float = Field(default=600.0, gt=0, description="How long the added replicas are wanted.")
    scale_settle_s: float = Field(default=60.0, ge=0, description="New replicas need this long to take load.")

    # Brakes
    brake_breached_percent: float = Field(
        default=30.0,
        ge=0,
        le=100,
        description="More of the online pods breached at once: suspect the measurements.",
    )
    brake_missing_percent: float = Field(
        default=20.0, ge=0, le=100, description="More of the online pods without a fresh sample: the same."
    )
    brake_at_least: int = Field(
        default=3, ge=1, description="Fewer pods than this never brake: percentages of a handful say nothing."
    )
