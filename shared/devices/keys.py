"""Identity of devices, partitions, engines and slots: one DNS label that says everything.

    device      nvidia-0000-3b-00-0            vendor and bus address
    no bus      generic-npu0                   vendor and the kernel's name of it
    partition   nvidia-0000-3b-00-0-mig-3-0    a child: MIG instances, or chip / vnpu / xcp number
    engine      nvidia-0000-3b-00-0-enc-1      one encoder, decoder or JPEG unit
    slot        nvidia-0000-3b-00-0-enc-1-s0   one share of an engine: the device-plugin id

The same label stands in subjects, KV keys, DRA devices and device-plugin ids, so an id alone says what was
given. The text of a bus address differs per source (``00000000:3B:00.0`` in nvidia-smi, ``0000:3b:00`` in a
kernel line); here it always becomes sysfs' form, ``0000:3b:00.0``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, Literal

from shared.errors import BadInput

EngineKind = Literal["enc", "dec", "jpeg"]
ENGINE_KINDS: Final[tuple[EngineKind, ...]] = ("enc", "dec", "jpeg")
PARTITION_KINDS: Final = ("mig", "chip", "vnpu", "xcp")

_MAX_LABEL = 63
_MAX_SUBDOMAIN = 253
_HIGHEST_FUNCTION = 0x1F
_VENDOR = re.compile(r"[a-z][a-z0-9]{1,15}")
_BUS = re.compile(
    r"(?:(?P<domain>[0-9a-fA-F]{4,8}):)?(?P<bus>[0-9a-fA-F]{2}):(?P<slot>[0-9a-fA-F]{2})(?:\.(?P<fn>[0-7]))?"
)
_KERNEL_NAME = re.compile(r"[a-z]{2,12}[0-9]{1,5}")
_PARTITION = re.compile(r"mig-[0-9]{1,3}-[0-9]{1,3}|(?:chip|vnpu|xcp)-[0-9]{1,5}")
_SUBDOMAIN = re.compile(r"[a-z0-9](?:[-a-z0-9.]*[a-z0-9])?")
_KEY = re.compile(
    r"(?P<vendor>[a-z][a-z0-9]{1,15})"
    r"-(?:(?P<domain>[0-9a-f]{4,8})-(?P<bus>[0-9a-f]{2})-(?P<slot>[0-9a-f]{2})-(?P<fn>[0-7])"
    r"|(?P<name>[a-z]{2,12}[0-9]{1,5}))"
    r"(?:-(?P<partition>mig-[0-9]{1,3}-[0-9]{1,3}|(?:chip|vnpu|xcp)-[0-9]{1,5}))?"
    r"(?:-(?P<kind>enc|dec|jpeg)-(?P<index>[0-9]{1,3})(?:-s(?P<share>[0-9]{1,4}))?)?"
)
_UID = re.compile(
    r"(?P<vendor>[a-z][a-z0-9]{1,15})-(?P<node>.+?)"
    r"-(?P<address>[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]|[a-z]{2,12}[0-9]{1,5})"
    r"(?:-(?P<partition>mig-[0-9]{1,3}-[0-9]{1,3}|(?:chip|vnpu|xcp)-[0-9]{1,5}))?"
)


@dataclass(frozen=True, slots=True)
class Key:
    """A label taken apart.

    Attributes:
        vendor: lower case vendor name.
        bus_address: sysfs' form of the PCI address, or the kernel's name where there is no bus.
        partition: ``mig-3-0``, ``chip-1``, ...; None for a physical device.
        engine_kind: None when the label names a device.
        engine_index: number of the engine within its kind, from 0.
        slot: share of the engine, from 0; None when the label names a whole engine.
    """

    vendor: str
    bus_address: str
    partition: str | None = None
    engine_kind: EngineKind | None = None
    engine_index: int | None = None
    slot: int | None = None

    @property
    def physical(self) -> str:
        """Key of the physical device, whatever part of it this label names."""
        return device_key(self.vendor, self.bus_address)

    @property
    def device(self) -> str:
        """Key of the device or partition that this label belongs to."""
        return device_key(self.vendor, self.bus_address, self.partition)

    @property
    def engine(self) -> str | None:
        """Id of the engine; None when the label names a device."""
        if self.engine_kind is None or self.engine_index is None:
            return None
        return engine_id(self.device, self.engine_kind, self.engine_index)


def normalise_bus_address(text: str, field: str = "bus_address") -> str:
    """Sysfs' form (``0000:3b:00.0``) of any source's PCI address, or a kernel name such as ``npu0``.

    A missing domain is 0000 and a missing function is .0, as in kernel log lines.

    Raises:
        BadInput: it is neither; names ``field``.
    """
    match = _BUS.fullmatch(text)
    if match is None:
        if _KERNEL_NAME.fullmatch(text):
            return text
        raise BadInput(
            field,
            f"{text[:80]!r} is no bus address",
            "write domain:bus:device.function, for example 0000:3b:00.0",
        )
    if int(match["slot"], 16) > _HIGHEST_FUNCTION:
        raise BadInput(field, f"{text!r} has a device number above 1f", "take the address from lspci -D")
    domain = (match["domain"] or "0000").lower().lstrip("0").rjust(4, "0")
    return f"{domain}:{match['bus'].lower()}:{match['slot'].lower()}.{match['fn'] or '0'}"


def device_key(vendor: str, bus_address: str, partition: str | None = None) -> str:
    """The DNS label of a device, or of a partition of it.

    Raises:
        BadInput: names ``vendor``, ``bus_address`` or ``partition``.
    """
    _vendor(vendor)
    address = normalise_bus_address(bus_address)
    label = f"{vendor}-{address.replace(':', '-').replace('.', '-')}"
    if partition is not None:
        if not _PARTITION.fullmatch(partition):
            raise BadInput(
                "partition",
                f"{partition[:80]!r} is no partition",
                "write mig-<gpu instance>-<compute instance>, chip-<n>, vnpu-<n> or xcp-<n>",
            )
        label = f"{label}-{partition}"
    return label


def engine_id(device: str, kind: EngineKind, index: int) -> str:
    """Id of engine ``index`` (from 0) of a device or partition key.

    Raises:
        BadInput: the key is no device key, or the kind or index is impossible.
    """
    if parse(device, "device").engine_kind is not None:
        raise BadInput("device", f"{device!r} already names an engine", "give the device's key")
    if kind not in ENGINE_KINDS:
        raise BadInput("kind", f"{kind!r} is no engine kind", f"use one of {', '.join(ENGINE_KINDS)}")
    return f"{device}-{kind}-{_number('index', index, 999)}"


def slot_id(engine: str, slot: int) -> str:
    """Device-plugin id of one share (from 0) of an engine.

    Raises:
        BadInput: ``engine`` names no engine, or the slot is impossible.
    """
    parsed = parse(engine, "engine")
    if parsed.engine_kind is None or parsed.slot is not None:
        raise BadInput(
            "engine", f"{engine!r} is no engine id", "give an id such as nvidia-0000-3b-00-0-enc-1"
        )
    return f"{engine}-s{_number('slot', slot, 9999)}"


def twin(engine: str) -> str:
    """The other name of a unit that both encodes and decodes: ``...-enc-1`` and ``...-dec-1`` are one unit.

    Raises:
        BadInput: ``engine`` is no encoder or decoder.
    """
    parsed = parse(engine, "engine")
    if parsed.engine_kind not in ("enc", "dec") or parsed.engine_index is None:
        raise BadInput("engine", f"{engine!r} is no encoder or decoder", "give an enc or dec engine id")
    return engine_id(parsed.device, "dec" if parsed.engine_kind == "enc" else "enc", parsed.engine_index)


def parse(text: str, field: str = "key") -> Key:
    """Take a device key, engine id or slot id apart.

    Raises:
        BadInput: it is none of them; names ``field``.
    """
    match = _KEY.fullmatch(text) if len(text) <= _MAX_LABEL else None
    if match is None:
        raise BadInput(
            field,
            f"{text[:80]!r} is no device key",
            "write vendor and bus address as one DNS label, for example nvidia-0000-3b-00-0",
        )
    address = match["name"] or f"{match['domain']}:{match['bus']}:{match['slot']}.{match['fn']}"
    if address != normalise_bus_address(address, field):
        raise BadInput(
            field, f"{text!r} spells its domain with needless zeros", "use four digits where they do"
        )
    kind: EngineKind | None = next((each for each in ENGINE_KINDS if each == match["kind"]), None)
    return Key(
        vendor=match["vendor"],
        bus_address=address,
        partition=match["partition"],
        engine_kind=kind,
        engine_index=None if kind is None else int(match["index"]),
        slot=None if match["share"] is None else int(match["share"]),
    )


def device_uid(node: str, key: str) -> str:
    """Cluster-wide uid of a device key on a node: ``nvidia-worker-3-0000:3b:00.0``.

    Raises:
        BadInput: names ``node`` or ``key``.
    """
    check_node(node)
    parsed = parse(key)
    if parsed.engine_kind is not None:
        raise BadInput("key", f"{key!r} names an engine", "an uid names a device")
    tail = "" if parsed.partition is None else f"-{parsed.partition}"
    return f"{parsed.vendor}-{node}-{parsed.bus_address}{tail}"


def parse_uid(uid: str) -> tuple[str, str]:
    """Node and device key of an uid.

    Raises:
        BadInput: it is no uid.
    """
    match = _UID.fullmatch(uid)
    if match is None:
        raise BadInput(
            "uid",
            f"{uid[:120]!r} is no device uid",
            "write vendor-node-bus address, for example nvidia-worker-3-0000:3b:00.0",
        )
    check_node(match["node"], "uid")
    return match["node"], device_key(match["vendor"], match["address"], match["partition"])


def check_node(node: str, field: str = "node") -> str:
    """Return a node's name when Kubernetes would take it (a DNS subdomain).

    Raises:
        BadInput: wildcards, spaces, upper case, empty or too long; names ``field``.
    """
    if len(node) > _MAX_SUBDOMAIN or not _SUBDOMAIN.fullmatch(node):
        raise BadInput(field, f"{node[:80]!r} is no node name", "use lower case letters, digits, - and .")
    return node


def _vendor(vendor: str) -> None:
    if not _VENDOR.fullmatch(vendor):
        raise BadInput(
            "vendor", f"{vendor[:80]!r} is no vendor name", "use lower case letters and digits only"
        )


def _number(field: str, value: int, highest: int) -> int:
    if not 0 <= value <= highest:
        raise BadInput(field, f"{value} is out of range", f"use a number from 0 to {highest}")
    return value
