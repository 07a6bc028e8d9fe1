"""What a container is given: the vendor's runtime spec, made safe for the kubelet's way of merging.

The kubelet asks for each resource on its own and merges the answers of one container; of two values for one
environment key it keeps one, at random. So no two resources may ever give one key two values. A key whose
value names a device (`NVIDIA_VISIBLE_DEVICES`) is given by whole devices only; engines give it under their
own resource's name (`NVENC_VISIBLE_DEVICES`), and under the vendor's as well where the node leaves no
choice of value. Device nodes, which decide what can be opened, are merged by the kubelet without loss.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

import structlog

from protos import deviceplugin_v1beta1_pb2 as api
from services.bridge.share import Share
from shared.devices.model import UnifiedDevice
from shared.vendors.adapter import runtime_spec
from shared.vendors.runtime import Mount, RuntimeSpec, merge

_VISIBLE = "_VISIBLE_DEVICES"
_INSTANCES = "_INSTANCE_IDS"

log = structlog.get_logger()


def container_spec(
    resource: str, shares: Iterable[Share], *, devices: Mapping[str, UnifiedDevice], root: Path
) -> RuntimeSpec:
    """What a container needs to use these shares of one resource.

    Args:
        resource: the resource's name, whose last part scopes environment keys.
        shares: what is given; every one of a device in `devices`.
        devices: the node's registered devices by key.
        root: the host's root directory: what it lacks is not given, or the container would not start.

    Raises:
        BadInput: an id is no engine of its device.
    """
    engines: dict[str, list[str]] = {}
    for share in shares:
        engines.setdefault(share.device, []).extend([share.engine] if share.engine else [])
    spec = merge(runtime_spec(devices[key], tuple(dict.fromkeys(ids)), root) for key, ids in engines.items())
    if any(engines.values()):
        spec = RuntimeSpec(
            env=_scoped(spec.env, resource.rpartition("/")[2].upper(), _certain(devices.values(), root)),
            device_nodes=spec.device_nodes,
            mounts=spec.mounts,
            annotations=spec.annotations,
        )
    return RuntimeSpec(
        env=spec.env,
        device_nodes=spec.device_nodes,
        mounts=tuple(mount for mount in spec.mounts if _exists(root, mount)),
        annotations=spec.annotations,
    )


def response(spec: RuntimeSpec) -> api.ContainerAllocateResponse:
    """The kubelet's form of a runtime spec."""
    return api.ContainerAllocateResponse(
        envs=dict(spec.env),
        mounts=[
            api.Mount(
                container_path=mount.container_path, host_path=mount.host_path, read_only=mount.read_only
            )
            for mount in spec.mounts
        ],
        devices=[
            api.DeviceSpec(
                container_path=node.container_path, host_path=node.host_path, permissions=node.permissions
            )
            for node in spec.device_nodes
        ],
        annotations=dict(spec.annotations),
    )


def _certain(devices: Iterable[UnifiedDevice], root: Path) -> dict[str, str]:
    """The keys that have one value whichever device of the node is given."""
    values: dict[str, set[str]] = {}
    for device in devices:
        for key, value in runtime_spec(device, (), root).env.items():
            values.setdefault(key, set()).add(value)
    return {key: next(iter(found)) for key, found in values.items() if len(found) == 1}


def _scoped(env: Mapping[str, str], resource: str, certain: Mapping[str, str]) -> dict[str, str]:
    """The environment that an engine resource may give without contradicting another resource."""
    scoped: dict[str, str] = {}
    for key, value in env.items():
        if key.endswith(_INSTANCES) or certain.get(key) == value:
            scoped[key] = value
        if key.endswith(_VISIBLE):
            name = resource + _VISIBLE
            scoped[name] = ",".join(part for part in (scoped.get(name, ""), value) if part)
    return scoped


def _exists(root: Path, mount: Mount) -> bool:
    found = (root / mount.host_path.lstrip("/")).exists()
    if not found:
        log.warning("a mount is left out, the host does not have it", path=mount.host_path)
    return found
