"""The Node object as its kubelet registers it, and the status it writes. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

_CAPACITY: Final = {"cpu": "64", "memory": "263921164Ki", "ephemeral-storage": "959Gi", "pods": "250"}
_RESERVED: Final = {"cpu": "63", "memory": "259726860Ki"}
"""What is allocatable of the two that a kubelet reserves for the system."""


def registration(name: str, labels: Mapping[str, str]) -> dict[str, Any]:
    """The object that a kubelet creates."""
    standard = {
        "kubernetes.io/hostname": name,
        "kubernetes.io/os": "linux",
        "kubernetes.io/arch": "amd64",
    }
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": {**standard, **labels}},
        "spec": {},
    }


def status(
    node: Mapping[str, Any],
    devices: Mapping[str, tuple[int, int]],
    *,
    name: str,
    address: str,
    boot_id: str,
    now: datetime,
    ready_since: datetime,
) -> dict[str, Any]:
    """What the kubelet writes over the status of ``node``.

    Extended resources that somebody else put into capacity (a byte quantity of memory, say) stay, and are
    allocatable as they stand.

    Args:
        node: the object as it stands.
        devices: capacity and allocatable of every resource that a device plugin serves or served.
        name: of the node.
        address: of the node.
        boot_id: of its kernel.
        now: the heartbeat.
        ready_since: when the kubelet became ready.
    """
    before = (node.get("status") or {}).get("capacity") or {}
    others = {
        resource: before[resource] for resource in before if "/" in resource and resource not in devices
    }
    return {
        "capacity": {**_CAPACITY, **others, **{key: str(total) for key, (total, _) in devices.items()}},
        "allocatable": {
            **_CAPACITY,
            **_RESERVED,
            **others,
            **{key: str(free) for key, (_, free) in devices.items()},
        },
        "conditions": [
            {
                "type": "Ready",
                "status": "True",
                "reason": "KubeletReady",
                "message": "kubelet is posting ready status",
                "lastHeartbeatTime": now.strftime("%Y-%m-%dT%H:%M:%SZ"),
                "lastTransitionTime": ready_since.strftime("%Y-%m-%dT%H:%M:%SZ"),
            }
        ],
        "addresses": [
            {"type": "InternalIP", "address": address},
            {"type": "Hostname", "address": name},
        ],
        "nodeInfo": {
            "bootID": boot_id,
            "kubeletVersion": "v1.36.0",
            "operatingSystem": "linux",
            "architecture": "amd64",
        },
    }


def says_more(node: Mapping[str, Any], written: Mapping[str, Any]) -> bool:
    """Whether a status is news beyond its heartbeat; without any a kubelet writes every five minutes."""
    before = node.get("status") or {}
    return any(_without_beat(before.get(key)) != _without_beat(value) for key, value in written.items())


def _without_beat(value: Any) -> Any:
    if isinstance(value, list):
        return [
            {key: each[key] for key in each if key != "lastHeartbeatTime"} if isinstance(each, dict) else each
            for each in value
        ]
    return value
