"""Discovery's settings, each with its reason."""

from __future__ import annotations

from pydantic import Field
from pydantic_settings import SettingsConfigDict

from services.discovery.decide import Limits
from shared.host.settings import ServiceSettings


class DiscoverySettings(ServiceSettings):
    """How often a node looks at its devices, and how long it waits for answers."""

    model_config = SettingsConfigDict(env_prefix="MEDIAFLEET_DISCOVERY__")

    watch_s: float = Field(
        default=1.0,
        gt=0,
        description="How often the device directories are compared: hotplug is seen within it.",
    )
    rescan_s: float = Field(
        default=60.0, gt=0, description="A full scan, as a net under the quick comparison."
    )
    probe_s: float = Field(default=10.0, gt=0, description="How often a quiet device is probed.")
    fast_probe_s: float = Field(
        default=1.0, gt=0, description="The same for a device that is not healthy or was not a moment ago."
    )
    tool_deadline_s: float = Field(
        default=5.0,
        gt=0,
        description="A vendor tool that takes longer hangs; a healthy one takes 0.1 to 2 s.",
    )
    grace_s: float = Field(
        default=60.0,
        ge=0,
        description="After the start a tool that never answered yet is unknown, not a fault.",
    )
    heartbeat_s: float = Field(
        default=10.0, gt=0, description="How often the node says that its agent is alive."
    )
    environment_s: float = Field(default=600.0, gt=0, description="How often versions are looked at again.")
    restate_s: float = Field(
        default=6 * 3600.0,
        gt=0,
        description="How often the complete inventory is said again; well below max_age.",
    )
    kernel_poll_s: float = Field(
        default=0.02, gt=0, description="How often a kernel log that is a regular file is looked at."
    )
    kernel_ring_s: float = Field(
        default=0.5,
        gt=0,
        description="The same where /dev/kmsg cannot be opened, as in a pod: a look reads the kernel's ring.",
    )
    evidence_max_age_s: float = Field(
        default=300.0, gt=0, description="Kernel lines found at start count only when they are younger."
    )
    missing_s: float = Field(
        default=60.0, ge=0, description="A device that vanished is reported as missing for this long."
    )
    burst_s: float = Field(
        default=1.0,
        ge=0,
        description="Evidence so soon after reported evidence belongs to it, unless it is worse.",
    )
    settle_windows: int = Field(
        default=30, ge=0, description="Healthy windows that are reported one by one after trouble."
    )
    replays: int = Field(
        default=1000, ge=1, description="PCIe replays from one probe to the next worth telling."
    )
    quiet_s: float = Field(
        default=2.0,
        ge=0,
        description="A deep check reads the counters twice, so far apart; they must not move.",
    )
    repair_commands: dict[str, tuple[str, ...]] = Field(
        default_factory=dict,
        description="Programs for repair steps by `vendor/step`, for example"
        ' {"nvidia/reset": ["/usr/bin/nvidia-smi", "--gpu-reset", "-i", "{bus_address}"]};'
        " a step without one is left to an outside executor.",
    )
    repair_deadline_s: float = Field(
        default=300.0, gt=0, description="A repair program that takes longer has failed."
    )
    journal_bytes: int = Field(
        default=64 * 2**20,
        ge=2**20,
        description="Bound of the journal; beyond it the oldest events are lost.",
    )

    @property
    def limits(self) -> Limits:
        """What the judge is told."""
        return Limits(burst_s=self.burst_s, settle_windows=self.settle_windows, replays=self.replays)
