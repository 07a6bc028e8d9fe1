"""What the manager says of a device after its vendor adapter translated it."""

from __future__ import annotations

from typing import Any

from pydantic import AwareDatetime, Field

from shared.devices.model import UnifiedDevice
from shared.events.catalogue import fact
from shared.events.envelope import Payload
from shared.events.parts import Compatibility


@fact(
    "device.registered",
    by="manager",
    to="bridge remediation guardian scheduler",
    discriminator=("generation",),
)
class Registered(Payload):
    """The device is known and compatible enough to be offered."""

    device: UnifiedDevice
    generation: int = Field(ge=1)
    compatibility: Compatibility


@fact("device.rejected", by="manager", to="bridge alerting", discriminator=("generation",))
class DeviceRejected(Payload):
    """The device cannot be offered."""

    generation: int = Field(ge=1)
    reasons: tuple[str, ...]
    nearest: dict[str, Any] | None = None


@fact("device.lost", by="manager", to="remediation guardian bridge", discriminator=("generation",))
class Lost(Payload):
    """The device is gone, or its node has been silent for minutes."""

    generation: int = Field(ge=1)
    reason: str = Field(description="silent or removed")
    last_seen: AwareDatetime | None = None


@fact("device.snapshotted", by="manager", to="manager console", discriminator=("generation",))
class DeviceSnapshotted(Payload):
    """The folded state of a device; what came before it is purged."""

    generation: int = Field(ge=1)
    state: dict[str, Any]
