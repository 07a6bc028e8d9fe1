"""The guardian's settings; its policy is in `policy.py`."""

from __future__ import annotations

from pydantic import Field
from pydantic_settings import SettingsConfigDict

from shared.host.settings import DecidingSettings


class GuardianSettings(DecidingSettings):
    """How the guardian runs."""

    model_config = SettingsConfigDict(env_prefix="MEDIAFLEET_GUARDIAN__")

    tick_s: float = Field(
        default=5.0, gt=0, description="How often open breaches, brakes and the view are looked at unasked."
    )
