"""Remediation's settings; what it decides by is in `policy.py`."""

from __future__ import annotations

from pydantic import Field
from pydantic_settings import SettingsConfigDict

from shared.host.settings import DecidingSettings


class RemediationSettings(DecidingSettings):
    """How remediation runs."""

    model_config = SettingsConfigDict(env_prefix="MEDIAFLEET_REMEDIATION__")

    evict_timeout_s: float = Field(
        default=2.0, gt=0, le=3.0, description="One try of an eviction; must be shorter than the lease."
    )
    policy_look_s: float = Field(
        default=5.0, gt=0, description="How often the policy file is looked at for changes."
    )
