"""Pods as the API server writes them (JSON), read and answered the way a kubelet does. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from shared.errors import BadInput

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from datetime import datetime

    from services.simulator.device_sets import Entry

RUN_FOR: Final = "simulator.mediafleet/run-for-s"
"""Annotation: the pod's containers end well after so many seconds; without it they run for ever."""
DEFAULT_GRACE_S: Final = 30

PodJson = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Container:
    """A container and the extended resources it asks for.

    Attributes:
        init: runs before the others and leaves its devices to them.
        sidecar: an init container that stays and keeps its devices.
    """

    name: str
    image: str
    limits: Mapping[str, int]
    init: bool = False
    sidecar: bool = False


def uid_of(pod: PodJson) -> str:
    """The pod's UID."""
    return str(pod["metadata"]["uid"])


def name_of(pod: PodJson) -> tuple[str, str]:
    """Namespace and name."""
    return str(pod["metadata"].get("namespace", "default")), str(pod["metadata"]["name"])


def ended(pod: PodJson) -> bool:
    """Whether the pod's phase is final."""
    return (pod.get("status") or {}).get("phase") in {"Succeeded", "Failed"}


def deleting(pod: PodJson) -> bool:
    """Whether somebody asked for its end."""
    return bool(pod["metadata"].get("deletionTimestamp"))


def grace_s(pod: PodJson) -> float:
    """How long its containers may take to stop."""
    for holder, key in (
        (pod["metadata"], "deletionGracePeriodSeconds"),
        (pod["spec"], "terminationGracePeriodSeconds"),
    ):
        if holder.get(key) is not None:
            return float(holder[key])
    return float(DEFAULT_GRACE_S)


def run_for_s(pod: PodJson) -> float | None:
    """After how many seconds the pod ends by itself; None when it does not.

    Raises:
        BadInput: the annotation is no number of seconds.
    """
    text = (pod["metadata"].get("annotations") or {}).get(RUN_FOR)
    if text is None:
        return None
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds < float("inf"):
        raise BadInput(
            f"metadata.annotations[{RUN_FOR}]", f"{text!r} is no duration", "write seconds, for example 30"
        )
    return seconds


def containers(pod: PodJson) -> Iterator[Container]:
    """Containers in the order the kubelet allocates for them: init containers first."""
    spec = pod["spec"]
    for key in ("initContainers", "containers"):
        for container in spec.get(key) or ():
            init = key == "initContainers"
            yield Container(
                name=container["name"],
                image=container.get("image", ""),
                limits=_extended(container.get("resources") or {}),
                init=init,
                sidecar=init and container.get("restartPolicy") == "Always",
            )


def _extended(resources: Mapping[str, Any]) -> dict[str, int]:
    # Requests equal limits for extended resources, and the API server copies one to the other.
    wanted = {**(resources.get("requests") or {}), **(resources.get("limits") or {})}
    found = {}
    for name, quantity in wanted.items():
        text = str(quantity)
        if "/" in name and text.isdigit() and int(text) > 0:
            found[name] = int(text)
    return found


# what the kubelet writes back


def _stamp(at: datetime) -> str:
    return at.strftime("%Y-%m-%dT%H:%M:%SZ")


def _condition(kind: str, value: str, at: datetime, reason: str | None = None) -> dict[str, Any]:
    condition = {"type": kind, "status": value, "lastProbeTime": None, "lastTransitionTime": _stamp(at)}
    return condition if reason is None else condition | {"reason": reason}


def _conditions(at: datetime, *, ready: bool, reason: str | None = None) -> list[dict[str, Any]]:
    value = "True" if ready else "False"
    return [
        _condition("PodReadyToStartContainers", value, at),
        _condition("Initialized", "True", at),
        _condition("Ready", value, at, reason),
        _condition("ContainersReady", value, at, reason),
        _condition("PodScheduled", "True", at),
    ]


def rejected(message: str, reason: str, at: datetime) -> dict[str, Any]:
    """Status of a pod that was not admitted; final, nobody tries again."""
    return {
        "phase": "Failed",
        "reason": reason,
        "message": f"Pod was rejected: {message}",
        "startTime": _stamp(at),
        "conditions": [_condition("PodScheduled", "True", at)],
        "containerStatuses": [],
    }


def running(
    pod: PodJson,
    *,
    started: datetime,
    ip: str,
    host_ip: str,
    held: tuple[Entry, ...],
    health: Callable[[str, str], str],
) -> dict[str, Any]:
    """Status of a pod whose containers all run, with the health of its devices (KEP-4680)."""
    statuses = []
    for container in containers(pod):
        if container.init and not container.sidecar:
            continue
        state = {"running": {"startedAt": _stamp(started)}}
        status = _container_status(container, state, ready=True)
        devices = [
            {
                "name": entry.resource,
                "resources": [
                    {"resourceID": one, "health": health(entry.resource, one)} for one in sorted(entry.ids)
                ],
            }
            for entry in held
            if entry.container == container.name
        ]
        if devices:
            status["allocatedResourcesStatus"] = devices
        statuses.append(status)
    return {
        "phase": "Running",
        "conditions": _conditions(started, ready=True),
        "containerStatuses": statuses,
        "startTime": _stamp(started),
        "podIP": ip,
        "podIPs": [{"ip": ip}],
        "hostIP": host_ip,
        "qosClass": "Burstable",
    }


def finished(pod: PodJson, *, at: datetime, exit_code: int, reason: str) -> dict[str, Any]:
    """Status of a pod whose containers all ended."""
    phase = "Succeeded" if exit_code == 0 else "Failed"
    state = {
        "terminated": {
            "exitCode": exit_code,
            "reason": reason,
            "startedAt": _stamp(at),
            "finishedAt": _stamp(at),
        }
    }
    return {
        "phase": phase,
        "conditions": _conditions(at, ready=False, reason="PodCompleted" if exit_code == 0 else "PodFailed"),
        "containerStatuses": [
            _container_status(container, state, ready=False)
            for container in containers(pod)
            if not container.init or container.sidecar
        ],
    }


def _container_status(container: Container, state: dict[str, Any], *, ready: bool) -> dict[str, Any]:
    return {
        "name": container.name,
        "image": container.image,
        "imageID": "",
        "ready": ready,
        "started": ready,
        "restartCount": 0,
        "state": state,
        "lastState": {},
    }
