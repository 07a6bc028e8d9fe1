"""The kubelet's side of one device plugin: dial its socket, ask its options, follow its list, allocate.

Channels use gRPC's default limits, as the kubelet does: a device list over 4 MiB ends the stream.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, TypeVar

import grpc
import grpc.aio

from protos import deviceplugin_v1beta1_pb2 as pb
from protos import deviceplugin_v1beta1_pb2_grpc as pb_grpc
from shared.errors import Permanent

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Sequence
    from pathlib import Path

AnswerT = TypeVar("AnswerT")

DIAL_TIMEOUT_S = 10.0
"""How long Register waits for the plugin's socket (k/k client.go dial)."""
PRE_START_TIMEOUT_S = 30.0
"""KubeletPreStartContainerRPCTimeoutInSecs."""

_CHANNEL_OPTIONS = (
    # A plugin that restarts on the same path must not inherit the back-off of the old connection.
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 500),
)


class PluginEndpoint:
    """A connected plugin of one resource."""

    def __init__(self, resource: str, socket: Path) -> None:
        self.resource = resource
        self.socket = socket
        self.options = pb.DevicePluginOptions()
        self._closed = False
        self._channel = grpc.aio.insecure_channel(f"unix:{socket}", options=_CHANNEL_OPTIONS)
        self._stub: pb_grpc.DevicePluginAsyncStub = pb_grpc.DevicePluginStub(self._channel)

    async def connect(self) -> None:
        """Dial the plugin and ask its options, which count, unlike those in its registration.

        Raises:
            Permanent: nobody listens on the socket within the dial timeout, or the plugin refuses.
        """
        try:
            async with asyncio.timeout(DIAL_TIMEOUT_S):
                await self._channel.channel_ready()
                self.options = await self._stub.GetDevicePluginOptions(pb.Empty())
        except TimeoutError:
            await self.close()
            raise Permanent(
                f"failed to dial device plugin {self.socket.name}: context deadline exceeded"
            ) from None
        except grpc.aio.AioRpcError as refused:
            await self.close()
            raise Permanent(f"failed to get device plugin options: {refused.details()}") from refused

    async def lists(self) -> AsyncIterator[pb.ListAndWatchResponse]:
        """The plugin's lists until its stream ends, for whatever reason."""
        call = self._stub.ListAndWatch(pb.Empty())
        try:
            async for response in call:
                yield response
        except grpc.aio.AioRpcError:
            return
        finally:
            call.cancel()

    async def preferred(self, available: Sequence[str], must: Sequence[str], size: int) -> list[str]:
        """Which ids the plugin would take; its order.

        Raises:
            Permanent: the plugin failed, which fails the pod's admission.
        """
        request = pb.PreferredAllocationRequest(
            container_requests=[
                pb.ContainerPreferredAllocationRequest(
                    available_deviceIDs=available, must_include_deviceIDs=must, allocation_size=size
                )
            ]
        )
        response = await self._answer(
            self._stub.GetPreferredAllocation(request),
            "device plugin GetPreferredAllocation rpc failed with err: ",
        )
        if not response.container_responses:
            return []
        return list(response.container_responses[0].deviceIDs)

    async def allocate(self, ids: Sequence[str]) -> pb.ContainerAllocateResponse:
        """Tell the plugin what one container gets; waits as long as the plugin takes, as the kubelet does.

        Raises:
            Permanent: the plugin refused or answered nothing, which fails the pod's admission.
        """
        request = pb.AllocateRequest(container_requests=[pb.ContainerAllocateRequest(devices_ids=ids)])
        response = await self._answer(self._stub.Allocate(request))
        if not response.container_responses:
            raise Permanent(f"no containers return in allocation response {response}")
        return response.container_responses[0]

    async def pre_start(self, ids: Sequence[str]) -> None:
        """Let the plugin prepare the devices, when it asked to.

        Raises:
            Permanent: it failed or took too long.
        """
        if not self.options.pre_start_required:
            return
        request = pb.PreStartContainerRequest(devices_ids=ids)
        await self._answer(
            self._stub.PreStartContainer(request, timeout=PRE_START_TIMEOUT_S),
            "device plugin PreStartContainer rpc failed with err: ",
        )

    async def close(self) -> None:
        """Hang up; what is asked at this moment fails."""
        self._closed = True
        await self._channel.close()

    async def _answer(self, call: Awaitable[AnswerT], frame: str = "") -> AnswerT:
        try:
            return await call
        except grpc.aio.AioRpcError as refused:
            raise Permanent(f"{frame}{_said(refused)}") from refused
        except asyncio.CancelledError:
            # A closed channel cancels its calls, and that is no cancellation of the task that waits for one.
            task = asyncio.current_task()
            if not self._closed or task is None or task.cancelling():
                raise
        raise Permanent(f"{frame}rpc error: code = Canceled desc = grpc: the client connection is closing")


def _said(refused: grpc.aio.AioRpcError) -> str:
    # The text of a Go gRPC error, which is what a pod's message shows.
    code = refused.code().name.title().replace("_", "")
    return f"rpc error: code = {code} desc = {refused.details()}"
