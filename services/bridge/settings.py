"""What can be set of the bridge, each with its reason."""

from __future__ import annotations

from datetime import timedelta

from pydantic import Field
from pydantic_settings import SettingsConfigDict

from services.bridge.allocator import Policy
from shared.host import ServiceSettings


class BridgeSettings(ServiceSettings):
    """The bridge of one node."""

    model_config = SettingsConfigDict(env_prefix="MEDIAFLEET_BRIDGE__")

    slots_per_engine: int = Field(
        default=1,
        ge=1,
        le=64,
        description="Shares of one engine; `nvenc: 1` asks for one share. 1: a whole engine.",
    )
    whole_devices: bool = Field(
        default=True, description="Offer whole devices too; off beside an official vendor plugin."
    )
    reconcile_s: float = Field(
        default=2.0, gt=0, description="How often the ledger is compared with the kubelet's books."
    )
    busy_s: float = Field(
        default=0.2, gt=0, description="The same while a quarantine or a grant waits for an answer."
    )
    settle_s: float = Field(
        default=2.0, ge=0, description="The kubelet may take this long to enter what it was just given."
    )
    grace_s: float = Field(
        default=10.0,
        ge=0,
        description="An allocation missing from the kubelet's books this long is over; a kubelet that starts"
        " lists nothing at first.",
    )
    kubelet_timeout_s: float = Field(
        default=2.0, gt=0, description="Deadline of one question to the kubelet's pod resources."
    )
    alone_after_s: float = Field(
        default=30.0,
        gt=0,
        description="The bus away this long: a device with fatal evidence is taken from the kubelet alone.",
    )
    restate_s: float = Field(
        default=6 * 3600.0,
        gt=0,
        description="How often the complete list of allocations is said again; a third of what a day keeps.",
    )
    restate_withdrawn_s: float = Field(
        default=60.0, gt=0, description="How often a withdrawal is said again that no epoch answered."
    )

    def policy(self, domain: str) -> Policy:
        """What the allocator goes by."""
        return Policy(
            domain=domain,
            slots=self.slots_per_engine,
            whole_devices=self.whole_devices,
            settle=timedelta(seconds=self.settle_s),
            grace=timedelta(seconds=self.grace_s),
        )
