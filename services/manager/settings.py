"""The manager's settings."""

from __future__ import annotations

from pydantic import Field
from pydantic_settings import SettingsConfigDict

from services.manager.decide import Policy
from shared.host.settings import DecidingSettings


class ManagerSettings(DecidingSettings):
    """When the manager gives a device up, and how it projects the fleet."""

    model_config = SettingsConfigDict(env_prefix="MEDIAFLEET_MANAGER__")

    silent_after_s: float = Field(
        default=300.0,
        gt=0,
        description="Devices of an agent that is silent for this long are lost; a restart takes less.",
    )
    sweep_every_s: float = Field(default=5.0, gt=0, description="How often silence is looked at.")
    resync_every_s: float = Field(
        default=60.0,
        gt=0,
        description="How often everything is projected again, to mend what others changed or deleted.",
    )
    project_at_once: int = Field(
        default=16, ge=1, description="Devices whose custom resources are written at the same time."
    )

    startup_taint: str = Field(
        default="startup-taint.cluster-autoscaler.kubernetes.io/mediafleet-devices",
        description="Taint that nodes join with; it goes once the kubelet offers their devices; empty: none.",
    )

    @property
    def policy(self) -> Policy:
        """What the decider is told."""
        return Policy(silent_after_s=self.silent_after_s)
