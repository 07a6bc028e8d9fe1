"""The autoscaler's settings; its policy is in `policy.py`."""

from __future__ import annotations

from pydantic import Field
from pydantic_settings import SettingsConfigDict

from shared.host.settings import DecidingSettings


class AutoscalerSettings(DecidingSettings):
    """How the autoscaler runs."""

    model_config = SettingsConfigDict(env_prefix="MEDIAFLEET_AUTOSCALER__")

    sweep_s: float = Field(
        default=30.0, gt=0, description="How often HPAs are looked over for leases that no log remembers."
    )
