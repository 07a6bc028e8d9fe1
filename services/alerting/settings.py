"""The alerting service's settings; its policy is the rules file."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field
from pydantic_settings import SettingsConfigDict

from shared.host.settings import ServiceSettings


class AlertingSettings(ServiceSettings):
    """How alerting runs."""

    model_config = SettingsConfigDict(env_prefix="MEDIAFLEET_ALERTING__")

    rules_file: Path | None = Field(
        default=None, description="YAML laid over the shipped rules; read again whenever it changes."
    )
    look_s: float = Field(default=5.0, gt=0, description="How often the rules file is looked at.")
