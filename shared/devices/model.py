"""What a device is, in one shape for every vendor, and what a source gave before it was translated.

Unknown is None, never 0: an A100 has ``enc: 0`` because it has no encoder, an unknown model ``enc: null``.
A partition (MIG, vNPU, a chip of a two-chip card) is a device of its own that names its physical device as
`parent`. JSON keys are camel case; a reader ignores keys it does not know, so optional fields may be added.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

from shared.devices.keys import EngineKind, device_key, engine_id, parse
from shared.devices.readings import Readings

DeviceType = Literal["GPU", "NPU", "VPU", "FPGA", "CPU"]
Count = Annotated[int, Field(ge=0, strict=True)]
Amount = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class _Part(BaseModel):
    """Frozen, camel case in JSON, readable from either spelling."""

    model_config = ConfigDict(
        frozen=True, extra="ignore", alias_generator=to_camel, populate_by_name=True, serialize_by_alias=True
    )


class ComputePower(_Part):
    """Dense peak rates from the vendor's data sheet."""

    tflops_fp16: Amount | None = None
    """10^12 half precision operations a second."""
    tops_int8: Amount | None = None
    """10^12 8-bit integer operations a second."""


class Memory(_Part):
    """The device's own memory."""

    total_bytes: Count | None = None
    allocatable_bytes: Count | None = None
    """Total less what driver and firmware reserve; None when the reserve is not known."""
    bandwidth_bytes_per_s: Count | None = None


class Engines(_Part):
    """Physical units. Where one unit both encodes and decodes, `enc` and `dec` name the same units."""

    enc: Count | None = None
    dec: Count | None = None
    jpeg: Count | None = None
    shared: bool = False
    """True: engine enc-n and engine dec-n are one unit; it is never given twice."""

    def count(self, kind: EngineKind) -> int | None:
        """Units of a kind; None when not known."""
        return {"enc": self.enc, "dec": self.dec, "jpeg": self.jpeg}[kind]


class CodecEngine(_Part):
    """What the device encodes and decodes in hardware."""

    encoders: dict[str, Count | None] | None = None
    """Units by codec; a null count: it can, how many is not known; a null map: nothing is known."""
    decoders: dict[str, Count | None] | None = None
    engines: Engines = Engines()
    max_resolution: str | None = None
    max_throughput: str | None = None


class Topology(_Part):
    """Where the device sits."""

    bus_address: str | None = None
    numa_node: Count | None = None
    """None where the kernel says -1: it does not know."""
    pci_path: tuple[str, ...] | None = None
    """Bridges from the root port to the device, addresses in sysfs' form; None when the tree does not say."""
    link_generation_max: Count | None = None
    link_width_max: Count | None = None


class Firmware(_Part):
    """Versions as the source prints them."""

    driver: str | None = None
    firmware: str | None = None
    vbios: str | None = None
    secure_boot: bool | None = None


class UnifiedDevice(_Part):
    """A device or a partition of one, in the shape that every other service reads."""

    uid: str
    key: str
    node: str
    vendor: str
    type: DeviceType
    model: str
    serial: str | None = None
    """None when the source prints none or a placeholder (N/A, all zeros): never equal to another unknown."""
    parent: str | None = None
    """Key of the physical device; None for a physical device itself."""
    compute_power: ComputePower = ComputePower()
    memory: Memory = Memory()
    codec_engine: CodecEngine = CodecEngine()
    topology: Topology = Topology()
    firmware: Firmware = Firmware()
    capabilities: tuple[str, ...] = ()
    vendor_extensions: dict[str, str] = Field(default_factory=dict)

    def engine_ids(self, kind: EngineKind) -> tuple[str, ...]:
        """Ids of the engines of a kind; empty when there are none or their number is not known."""
        return tuple(
            engine_id(self.key, kind, index) for index in range(self.codec_engine.engines.count(kind) or 0)
        )


class RawDevice(BaseModel):
    """One device as its sources gave it, before translation.

    ``raw`` holds one mapping per source that saw it (``pci``, ``nvidia-smi``, ...), in its terms with
    numbers parsed; only what stays the same while the device does. What changes is in ``readings``.
    """

    model_config = ConfigDict(frozen=True, extra="ignore", arbitrary_types_allowed=True)

    vendor: str
    bus_address: str
    partition: str | None = None
    serial: str | None = None
    parent: str | None = None
    raw: dict[str, dict[str, Any]] = Field(default_factory=dict)
    sources: tuple[str, ...] = ()
    readings: Readings = Field(default=Readings(), exclude=True)
    """Local to the node: no part of an inventory event."""
    warnings: tuple[str, ...] = Field(default=(), exclude=True)
    """Fields that the source printed and that could not be believed, with the reason."""

    @classmethod
    def observed(
        cls,
        key: str,
        *,
        serial: str | None,
        parent: str | None,
        raw: dict[str, dict[str, Any]],
        sources: tuple[str, ...],
    ) -> RawDevice:
        """A raw device as an inventory event carries it: identity comes from the subject's key.

        Raises:
            BadInput: the key is no device key.
        """
        parsed = parse(key)
        return cls(
            vendor=parsed.vendor,
            bus_address=parsed.bus_address,
            partition=parsed.partition,
            serial=serial,
            parent=parent,
            raw=raw,
            sources=sources,
        )

    @property
    def key(self) -> str:
        """The device's key.

        Raises:
            BadInput: vendor, address or partition cannot make a key.
        """
        return device_key(self.vendor, self.bus_address, self.partition)
