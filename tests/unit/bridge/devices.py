"""Made-up devices, and the ids that they are offered by."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from services.bridge.identity import Checkpointed, Listed, Owner, Sighting
from services.bridge.share import Share, catalogue
from shared.devices.keys import device_key
from shared.devices.model import CodecEngine, DeviceType, Engines, Topology, UnifiedDevice
from shared.events.parts import PodRef

DOMAIN = "media.example.com"
NVENC, NVDEC, JPEG, GPU = (f"{DOMAIN}/{name}" for name in ("nvenc", "nvdec", "jpeg", "gpu"))
AT = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
SECOND = timedelta(seconds=1)


def made(
    bus: str,
    *,
    vendor: str = "nvidia",
    kind: DeviceType = "GPU",
    engines: Engines | None = None,
    numa: int | None = None,
    partition: str | None = None,
    extensions: dict[str, str] | None = None,
) -> UnifiedDevice:
    """A device on a bus address such as `3b`."""
    address = f"0000:{bus}:00.0"
    key = device_key(vendor, address, partition)
    return UnifiedDevice(
        uid=f"{vendor}-worker-1-{address}",
        key=key,
        node="worker-1",
        vendor=vendor,
        type=kind,
        model="a made-up model",
        parent=device_key(vendor, address) if partition else None,
        codec_engine=CodecEngine(engines=engines or Engines()),
        topology=Topology(bus_address=address, numa_node=numa),
        vendor_extensions=extensions or {},
    )


def gpu(bus: str = "3b", *, enc: int = 2, dec: int = 1, numa: int | None = 0) -> UnifiedDevice:
    """A GPU with separate encoders and decoders."""
    return made(bus, engines=Engines(enc=enc, dec=dec, jpeg=0), numa=numa)


def vcn(bus: str = "c3") -> UnifiedDevice:
    """A GPU with one unit that encodes and decodes."""
    return made(bus, vendor="amd", engines=Engines(enc=1, dec=1, shared=True))


def offered(*devices: UnifiedDevice, slots: int = 1) -> dict[str, dict[str, Share]]:
    """The catalogue of these devices."""
    return catalogue(devices, domain=DOMAIN, slots=slots)


def pod(name: str, uid: str = "") -> PodRef:
    """A pod of the namespace live."""
    return PodRef(namespace="live", name=name, uid=uid or f"uid-{name}")


def owner(of: PodRef, container: str = "main") -> Owner:
    """Somebody whose name and UID are known."""
    return Owner(of.namespace, of.name, container, of)


def sighting(*held: tuple[PodRef, str, str]) -> Sighting:
    """What a kubelet says when these pods hold these (resource, id)."""
    return Sighting(
        tuple(Listed(each.namespace, each.name, "main", resource, id_) for each, resource, id_ in held),
        tuple(Checkpointed(each.uid, "main", resource, id_) for each, resource, id_ in held),
    )
