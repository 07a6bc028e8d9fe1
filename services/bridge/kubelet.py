"""The kubelet's sockets and files: where they are, when they change, and what they say.

A kubelet that starts deletes every socket of the device-plugin folder and makes its own anew, often with the
same inode; so a socket is known by inode and time of change together. Every call has a deadline, and each
uses a channel of its own: a pooled one would go on waiting for the socket of a kubelet that is gone.
"""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

import grpc
import structlog

from protos import deviceplugin_v1beta1_pb2 as api
from protos import deviceplugin_v1beta1_pb2_grpc as api_grpc
from protos import podresources_v1_pb2 as pods
from protos import podresources_v1_pb2_grpc as pods_grpc
from services.bridge.identity import Checkpointed, Listed, Sighting, parse_checkpoint
from shared.errors import BadInput, Refused, Temporary

API_VERSION: Final = "v1beta1"
_MAX_SOCKET_PATH = 107
"""Bytes of an AF_UNIX path on Linux, without the closing zero (unix(7))."""
_CHANNEL = (("grpc.use_local_subchannel_pool", 1), ("grpc.enable_http_proxy", 0))
_MAX_LIST_BYTES = 64 << 20
"""Pod resources of a large node; the default of 4 MiB is the kubelet's own trouble with long device lists."""

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class KubeletPaths:
    """Where the kubelet of a host root keeps what we need."""

    plugins: Path
    pod_resources: Path

    @classmethod
    def under(cls, root: Path) -> Self:
        """The usual places below a host's root directory."""
        kubelet = root / "var/lib/kubelet"
        return cls(kubelet / "device-plugins", kubelet / "pod-resources" / "kubelet.sock")

    @property
    def registration(self) -> Path:
        """The socket where plugins register."""
        return self.plugins / "kubelet.sock"

    @property
    def checkpoint(self) -> Path:
        """The kubelet's record of what it allocated; ours to read only."""
        return self.plugins / "kubelet_internal_checkpoint"


@dataclass(frozen=True, slots=True)
class SocketMark:
    """Which socket a path is now: another one of the same name differs in inode or time of change."""

    inode: int
    changed_ns: int


def mark(path: Path) -> SocketMark | None:
    """The socket at a path; None when there is none."""
    try:
        found = path.lstat()
    except OSError:
        return None
    return SocketMark(found.st_ino, found.st_ctime_ns) if stat.S_ISSOCK(found.st_mode) else None


def socket_address(path: Path) -> str:
    """The gRPC address of a unix socket.

    Raises:
        Refused: the path is too long for a socket.
    """
    length = len(os.fsencode(path))
    if length > _MAX_SOCKET_PATH:
        raise Refused(
            f"{path} has {length} bytes; a unix socket's path may have {_MAX_SOCKET_PATH}:"
            " shorten the host root"
        )
    return f"unix:{path}"


async def register(
    paths: KubeletPaths, resource: str, endpoint: str, options: api.DevicePluginOptions, *, timeout_s: float
) -> None:
    """Tell the kubelet of a plugin that is already serving: it dials back before it answers.

    Raises:
        Temporary: the kubelet is not there, refuses, or does not answer in time.
        Refused: the path of its socket is too long.
    """
    request = api.RegisterRequest(
        version=API_VERSION, endpoint=endpoint, resource_name=resource, options=options
    )
    async with grpc.aio.insecure_channel(socket_address(paths.registration), options=_CHANNEL) as channel:
        try:
            await api_grpc.RegistrationStub(channel).Register(request, timeout=timeout_s)
        except grpc.aio.AioRpcError as error:
            raise Temporary(f"the kubelet did not register {resource}: {_reason(error)}") from error


async def look(paths: KubeletPaths, *, timeout_s: float) -> Sighting:
    """What the kubelet says now of who holds what; what cannot be read is None, and logged."""
    return Sighting(await _list_pods(paths, timeout_s), _read_checkpoint(paths))


async def _list_pods(paths: KubeletPaths, timeout_s: float) -> tuple[Listed, ...] | None:
    options = (*_CHANNEL, ("grpc.max_receive_message_length", _MAX_LIST_BYTES))
    async with grpc.aio.insecure_channel(socket_address(paths.pod_resources), options=options) as channel:
        try:
            answer = await pods_grpc.PodResourcesListerStub(channel).List(
                pods.ListPodResourcesRequest(), timeout=timeout_s
            )
        except grpc.aio.AioRpcError as error:
            log.warning("pod resources cannot be read", reason=_reason(error))
            return None
    return tuple(
        Listed(pod.namespace, pod.name, container.name, group.resource_name, id_)
        for pod in answer.pod_resources
        for container in pod.containers
        for group in container.devices
        for id_ in group.device_ids
    )


def _read_checkpoint(paths: KubeletPaths) -> tuple[Checkpointed, ...] | None:
    try:
        return parse_checkpoint(paths.checkpoint.read_bytes())
    except FileNotFoundError:
        return ()  # a kubelet that never allocated has none
    except (OSError, BadInput) as error:
        log.warning("the kubelet's checkpoint cannot be read", reason=str(error))
        return None


def _reason(error: grpc.aio.AioRpcError) -> str:
    return f"{error.code().name}: {error.details()}"
