"""Facts of the world, as the nodes observe them: node, inventory, health, allocation, repair, sample."""

from __future__ import annotations

from typing import Any

from pydantic import AwareDatetime, Field

from shared.events.catalogue import fact
from shared.events.envelope import Part, Payload
from shared.events.parts import Evidence, PodRef, Slot, Window


@fact("node.heartbeat", by="discovery", to="manager remediation console", discriminator=("boot_id", "n"))
class Heartbeat(Payload):
    """The node's agent is alive, and how much of its journal is still to come."""

    boot_id: str
    n: int = Field(ge=0)
    device_keys: tuple[str, ...]
    journal_depth: int = Field(ge=0, description="events not yet on the bus")
    journal_lost: int = Field(ge=0, description="events that the bounded journal had to drop")


@fact("node.environment", by="discovery", to="manager", discriminator=("boot_id", "n"))
class Environment(Payload):
    """The versions that compatibility depends on; None is not known."""

    boot_id: str
    n: int = Field(ge=0)
    kernel: str | None = None
    distribution: str | None = None
    drivers: dict[str, str] = Field(default_factory=dict, description="vendor to driver version")
    firmware: dict[str, str] = Field(default_factory=dict, description="device key to firmware version")
    toolkit: str | None = None
    runtime: str | None = None
    kubelet: str | None = None
    device_plugins: dict[str, str] = Field(default_factory=dict)
    cuda: str | None = None
    rocm: str | None = None
    cann: str | None = None


class FoundDevice(Part):
    """A device as its sources gave it, before a vendor adapter translates it."""

    key: str
    vendor: str
    bus_address: str
    serial: str | None = None
    parent: str | None = Field(default=None, description="key of the physical device of a partition")
    raw: dict[str, Any] = Field(default_factory=dict)
    sources: tuple[str, ...] = ()


@fact("inventory.discovered", by="discovery", to="manager", discriminator=("boot_id", "n"))
class Discovered(Payload):
    """A device is there that was not there before."""

    boot_id: str
    n: int = Field(ge=0)
    device: FoundDevice


@fact("inventory.changed", by="discovery", to="manager", discriminator=("boot_id", "n"))
class Changed(Payload):
    """A device is still there, but something about it differs."""

    boot_id: str
    n: int = Field(ge=0)
    device: FoundDevice


@fact("inventory.removed", by="discovery", to="manager bridge", discriminator=("boot_id", "n"))
class Removed(Payload):
    """A device is gone."""

    boot_id: str
    n: int = Field(ge=0)
    reason: str = Field(description="unplugged, fell off the bus, driver gone")


@fact("inventory.stated", by="discovery", to="manager", discriminator=("boot_id", "n"))
class InventoryStated(Payload):
    """The complete list of the node's devices: what is missing in it is gone."""

    boot_id: str
    n: int = Field(ge=0)
    devices: tuple[FoundDevice, ...]


@fact(
    "health.reported",
    by="discovery",
    to="remediation manager bridge guardian",
    discriminator=("boot_id", "window_id"),
)
class HealthReported(Payload):
    """A device's health in one window: on every change, and every window while it is not healthy."""

    boot_id: str
    window_id: int = Field(ge=0)
    serial: str | None = None
    verdict: str = Field(description="healthy, unhealthy or unknown")
    streak: int = Field(ge=0, description="windows in a row with this verdict")
    evidence: tuple[Evidence, ...] = ()


class Check(Part):
    """One check of a diagnosis."""

    name: str
    outcome: str = Field(description="passed, failed or skipped")
    detail: str = ""


@fact("health.diagnosed", by="discovery", to="remediation", discriminator=("epoch", "attempt"))
class Diagnosed(Payload):
    """The answer to a diagnosis-requested."""

    epoch: int = Field(ge=0)
    attempt: int = Field(ge=1)
    as_of: Window
    outcome: str = Field(description="passed, failed or ambiguous")
    checks: tuple[Check, ...] = ()
    serial: str | None = None


@fact("allocation.granted", by="bridge", to="manager", discriminator=("allocation_id",))
class Granted(Payload):
    """The kubelet was given these slots; which pod gets them is not known yet."""

    allocation_id: str
    resource: str
    slots: tuple[Slot, ...] = ()
    whole_device: bool = False
    face: str = Field(default="device-plugin", description="device-plugin or dra")


@fact(
    "allocation.bound",
    by="bridge",
    to="manager remediation guardian",
    discriminator=("allocation_id", "pod.uid"),
)
class Bound(Payload):
    """An allocation belongs to this container of this pod."""

    allocation_id: str
    pod: PodRef
    container: str
    resource: str
    slots: tuple[Slot, ...] = ()
    whole_device: bool = False


@fact("allocation.released", by="bridge", to="manager remediation guardian", discriminator=("allocation_id",))
class Released(Payload):
    """An allocation ended; its slots are free."""

    allocation_id: str
    pod: PodRef | None = None
    reason: str


@fact("allocation.refused", by="bridge", to="console alerting", discriminator=("boot_id", "n"))
class AllocationRefused(Payload):
    """The kubelet asked for ids that could not be given."""

    boot_id: str
    n: int = Field(ge=0)
    resource: str
    ids: tuple[str, ...]
    reason: str


@fact("allocation.misaligned", by="bridge", to="scheduler alerting", discriminator=("pod.uid",))
class Misaligned(Payload):
    """One pod's engines lie on different devices."""

    pod: PodRef
    devices: dict[str, tuple[str, ...]] = Field(description="resource to device keys")


@fact("allocation.fenced", by="bridge", to="remediation", discriminator=("epoch",))
class Fenced(Payload):
    """The kubelet gives this device to nobody any more; these pods hold it.

    It answers the `remediation.quarantined` that is its cause: an epoch whose scope widens is quarantined
    again, and answered again.
    """

    epoch: int = Field(ge=0)
    holders: tuple[PodRef, ...]
    as_of: Window


@fact("allocation.withdrawn", by="bridge", to="remediation manager", discriminator=("boot_id", "n"))
class Withdrawn(Payload):
    """The bridge took a device from the kubelet alone: the bus was gone and the evidence fatal."""

    boot_id: str
    n: int = Field(ge=0)
    serial: str | None = None
    evidence: tuple[Evidence, ...]
    window: Window | None = None


class Holding(Part):
    """One allocation that holds now."""

    allocation_id: str
    device: str = Field(description="device key")
    resource: str
    slots: tuple[Slot, ...] = ()
    whole_device: bool = False
    pod: PodRef | None = Field(default=None, description="None while the pod is not known yet")
    container: str | None = None


@fact("allocation.stated", by="bridge", to="manager guardian remediation", discriminator=("boot_id", "n"))
class AllocationsStated(Payload):
    """The complete list of the node's allocations: what is missing in it is gone."""

    boot_id: str
    n: int = Field(ge=0)
    holdings: tuple[Holding, ...]


@fact("repair.done", by="discovery", to="remediation", discriminator=("step", "attempt"))
class RepairDone(Payload):
    """An executor's answer to repair-requested."""

    epoch: int = Field(ge=0)
    step: str
    attempt: int = Field(ge=1)
    as_of: Window
    outcome: str = Field(description="succeeded, failed or ambiguous")
    detail: str = ""


@fact("sample.sampled", by="simulator workload", to="guardian autoscaler", discriminator=("boot_id", "n"))
class Sampled(Payload):
    """What a pod measured of its own service; a missing figure is None, never 0."""

    boot_id: str = Field(description="start of the measuring process")
    n: int = Field(ge=0)
    pod: PodRef
    workload: str = Field(description="<kind>-<name>")
    latency_p99_ms: float | None = Field(default=None, ge=0)
    fps: float | None = Field(default=None, ge=0)
    drop_ratio: float | None = Field(default=None, ge=0, le=1)
    queue_length: float | None = Field(default=None, ge=0)
    requests: int | None = Field(default=None, ge=0)
    window_s: float = Field(gt=0)
    measured_at: AwareDatetime
