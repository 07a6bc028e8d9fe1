"""How far the autoscaler goes; section `autoscaler` of the policy file."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field


class AutoscalerPolicy(BaseModel):
    """Numbers that a platform engineer may change."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    dry_run: bool = Field(
        default=False,
        description="Refuse every request, saying what would be done. The guardian's dry-run asks nothing.",
    )
    max_replicas: int = Field(
        default=50, ge=1, description="Highest level a request may reach where no HPA says so."
    )
    longest_lease_s: float = Field(
        default=3600.0,
        gt=0,
        description="A request that wants longer gets this long: what is lent comes back.",
    )
    order_within_s: float = Field(
        default=120.0, gt=0, description="An order that could not be carried out for so long is void."
    )
