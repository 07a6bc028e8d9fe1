"""What a container gets with a device: environment, device nodes, mounts, annotations.

Device nodes carry their cgroup permission; mounts and nodes are listed only when the host has them, because
the container runtime refuses a container whose paths do not exist. `merge` makes one spec of several
devices'.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from shared.devices.keys import Key, parse
from shared.devices.model import UnifiedDevice
from shared.errors import BadInput

DOMAIN = "media.example.com"
"""Prefix of our annotations where no other resource domain is set."""

_INSTANCE_ENV = {"enc": "NVENC_INSTANCE_IDS", "dec": "NVDEC_INSTANCE_IDS", "jpeg": "JPEG_INSTANCE_IDS"}


@dataclass(frozen=True, slots=True)
class DeviceNode:
    """A device file; ``permissions`` is what the device cgroup allows (r, w, m)."""

    host_path: str
    container_path: str
    permissions: str = "rw"


@dataclass(frozen=True, slots=True)
class Mount:
    """A file or directory of the host, bound into the container."""

    host_path: str
    container_path: str
    read_only: bool = True


@dataclass(frozen=True, slots=True)
class RuntimeSpec:
    """Everything that a container needs to use what it was given."""

    env: Mapping[str, str] = field(default_factory=dict)
    device_nodes: tuple[DeviceNode, ...] = ()
    mounts: tuple[Mount, ...] = ()
    annotations: Mapping[str, str] = field(default_factory=dict)


def nodes(root: Path, paths: Iterable[str]) -> tuple[DeviceNode, ...]:
    """Device nodes for those host paths that exist under ``root``, under the same path inside."""
    return tuple(DeviceNode(path, path) for path in paths if (root / path.lstrip("/")).exists())


def mounts(root: Path, paths: Iterable[str]) -> tuple[Mount, ...]:
    """Read-only mounts for those host paths that exist under ``root``."""
    return tuple(Mount(path, path) for path in paths if (root / path.lstrip("/")).exists())


def render_nodes(device: UnifiedDevice, root: Path, kinds: tuple[str, ...] = ("renderD",)) -> tuple[str, ...]:
    """DRM device files of a PCI device, by where sysfs' class entries lead; never another card's."""
    names: list[str] = []
    try:
        for entry in sorted((root / "sys/class/drm").iterdir()):
            link = entry / "device"
            if link.is_symlink() and link.readlink().name == device.topology.bus_address:
                names.append(entry.name)
    except OSError:
        return ()
    return tuple(f"/dev/dri/{name}" for kind in kinds for name in names if re.fullmatch(rf"{kind}\d+", name))


def engine_env(device: UnifiedDevice, engines: Sequence[str]) -> dict[str, str]:
    """Which instances were given, by kind, as the numbers that media programs select by.

    An admission share, not a pin: no public call binds a session to one encoder of an NVIDIA GPU.

    Raises:
        BadInput: an id is no engine of this device.
    """
    given: dict[str, list[str]] = {}
    for engine in engines:
        key = parse(engine, "engines")
        if key.device != device.key or key.engine_kind is None:
            raise BadInput(
                "engines", f"{engine!r} is no engine of {device.key}", "give engine ids of this device"
            )
        given.setdefault(_INSTANCE_ENV[key.engine_kind], []).append(_index(key))
    return {name: ",".join(dict.fromkeys(indices)) for name, indices in given.items()}


def _index(key: Key) -> str:
    return str(key.engine_index)


def numa_annotations(device: UnifiedDevice, domain: str = DOMAIN) -> dict[str, str]:
    """The device's NUMA node, for runtimes that pin; nothing when it is not known."""
    numa = device.topology.numa_node
    return {} if numa is None else {f"{domain}/{device.key}-numa": str(numa)}


def merge(specs: Iterable[RuntimeSpec]) -> RuntimeSpec:
    """One spec for a container that got several devices.

    Lists in the environment (visible devices, instance ids) are joined without repeating an entry; a value
    that is the same everywhere stays as it is.
    """
    env: dict[str, str] = {}
    annotations: dict[str, str] = {}
    device_nodes: dict[DeviceNode, None] = {}
    binds: dict[Mount, None] = {}
    for spec in specs:
        for name, value in spec.env.items():
            both = [*env.get(name, "").split(","), *value.split(",")]
            env[name] = ",".join(dict.fromkeys(part for part in both if part))
        annotations.update(spec.annotations)
        device_nodes.update(dict.fromkeys(spec.device_nodes))
        binds.update(dict.fromkeys(spec.mounts))
    return RuntimeSpec(env, tuple(device_nodes), tuple(binds), annotations)
