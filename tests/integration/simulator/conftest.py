"""A small device plugin, as a node agent would be, to try the simulated kubelet with."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from protos import deviceplugin_v1beta1_pb2 as pb
from protos import deviceplugin_v1beta1_pb2_grpc as pb_grpc
from services.simulator.kubelet import Kubelet, KubeletTimes
from shared.clock import ManualClock

RESOURCE = "media.example.com/nvenc"


class Plugin(pb_grpc.DevicePluginServicer):
    def __init__(self, kubelet: Kubelet, devices: dict[str, int | None], *, prefers: bool = False) -> None:
        self.kubelet = kubelet
        self.socket = kubelet.plugin_directory / "test.sock"
        self.devices = devices
        self.sick: set[str] = set()
        self.prefers = prefers
        self.refuse = ""
        self.allocated: list[list[str]] = []
        self.offered: list[list[str]] = []
        self.prepared: list[list[str]] = []
        self.stream_ended = asyncio.Event()
        self.asked = asyncio.Event()
        self.answering = asyncio.Event()
        self.answering.set()
        self._changed = asyncio.Event()
        self._hang_up = asyncio.Event()
        self._server: grpc.aio.Server | None = None

    async def start(self) -> None:
        # An old server unlinks the path when it goes, so it has to go first.
        await self.stop()
        self.socket.unlink(missing_ok=True)
        self._server = grpc.aio.server()
        pb_grpc.add_DevicePluginServicer_to_server(self, self._server)
        self._server.add_insecure_port(f"unix:{self.socket}")
        await self._server.start()

    async def register(self, resource: str = RESOURCE, version: str = "v1beta1") -> None:
        async with grpc.aio.insecure_channel(
            f"unix:{self.kubelet.socket}", options=[("grpc.use_local_subchannel_pool", 1)]
        ) as channel:
            stub: pb_grpc.RegistrationAsyncStub = pb_grpc.RegistrationStub(channel)
            request = pb.RegisterRequest(version=version, endpoint=self.socket.name, resource_name=resource)
            await stub.Register(request)

    async def stop(self) -> None:
        if self._server is not None:
            self._hang_up.set()
            await self._server.stop(grace=None)

    def say(self, *sick: str) -> None:
        self.sick = set(sick)
        self._changed.set()

    def hang_up(self) -> None:
        self._hang_up.set()

    def _list(self) -> pb.ListAndWatchResponse:
        return pb.ListAndWatchResponse(
            devices=[
                pb.Device(
                    ID=one,
                    health="Unhealthy" if one in self.sick else "Healthy",
                    topology=None if numa is None else pb.TopologyInfo(nodes=[pb.NUMANode(ID=numa)]),
                )
                for one, numa in self.devices.items()
            ]
        )

    async def GetDevicePluginOptions(self, request: pb.Empty, context: Any) -> pb.DevicePluginOptions:  # noqa: N802, ARG002 - the contract
        return pb.DevicePluginOptions(
            get_preferred_allocation_available=self.prefers, pre_start_required=True
        )

    async def ListAndWatch(  # noqa: N802 - the contract
        self,
        request: pb.Empty,  # noqa: ARG002 - the contract
        context: Any,  # noqa: ARG002 - the contract
    ) -> AsyncIterator[pb.ListAndWatchResponse]:
        self._hang_up.clear()
        self.stream_ended.clear()
        try:
            yield self._list()
            while True:
                changed = asyncio.create_task(self._changed.wait())
                ended = asyncio.create_task(self._hang_up.wait())
                done, rest = await asyncio.wait({changed, ended}, return_when=asyncio.FIRST_COMPLETED)
                for task in rest:
                    task.cancel()
                if ended in done:
                    return
                self._changed.clear()
                yield self._list()
        finally:
            self.stream_ended.set()

    async def GetPreferredAllocation(  # noqa: N802 - the contract
        self,
        request: pb.PreferredAllocationRequest,
        context: Any,  # noqa: ARG002 - the contract
    ) -> pb.PreferredAllocationResponse:
        asked = request.container_requests[0]
        self.offered.append(list(asked.available_deviceIDs))
        best = sorted(asked.available_deviceIDs, reverse=True)[: asked.allocation_size]
        return pb.PreferredAllocationResponse(
            container_responses=[pb.ContainerPreferredAllocationResponse(deviceIDs=best)]
        )

    async def Allocate(self, request: pb.AllocateRequest, context: Any) -> pb.AllocateResponse:  # noqa: N802 - the contract
        self.asked.set()
        await self.answering.wait()
        if self.refuse:
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, self.refuse)
        ids = list(request.container_requests[0].devices_ids)
        self.allocated.append(ids)
        return pb.AllocateResponse(
            container_responses=[pb.ContainerAllocateResponse(envs={"MEDIA_DEVICES": ",".join(ids)})]
        )

    async def PreStartContainer(  # noqa: N802 - the contract
        self,
        request: pb.PreStartContainerRequest,
        context: Any,  # noqa: ARG002 - the contract
    ) -> pb.PreStartContainerResponse:
        self.prepared.append(list(request.devices_ids))
        return pb.PreStartContainerResponse()


@pytest.fixture
def root() -> Iterator[Path]:
    # Sockets need short paths, and pytest's own directories are long.
    directory = Path(tempfile.mkdtemp(prefix="mf-"))
    yield directory
    shutil.rmtree(directory)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def kubelet(root: Path, clock: ManualClock) -> AsyncIterator[Kubelet]:
    boot = root / "proc/sys/kernel/random/boot_id"
    boot.parent.mkdir(parents=True)
    boot.write_text("boot-1\n")
    times = KubeletTimes(node_status_s=3600, grace_scale=0.0)
    async with Kubelet(root, "worker-1", times=times, clock=clock) as running:
        yield running


@pytest.fixture
async def plugin_on() -> AsyncIterator[Callable[..., Any]]:
    async with AsyncExitStack() as stack:

        async def start(
            kubelet: Kubelet, devices: dict[str, int | None], *, resource: str = RESOURCE, **options: Any
        ) -> Plugin:
            plugin = Plugin(kubelet, devices, **options)
            await plugin.start()
            stack.push_async_callback(plugin.stop)
            await plugin.register(resource)
            await kubelet.until(lambda: resource in kubelet.sets.resources)
            await kubelet.until(lambda: len(kubelet.sets.resources[resource].healthy) == len(devices))
            return plugin

        yield start


@pytest.fixture
def start_plugin(kubelet: Kubelet, plugin_on: Callable[..., Any]) -> Callable[..., Any]:
    async def start(devices: dict[str, int | None] | None = None, **options: Any) -> Any:
        return await plugin_on(kubelet, {"a": 0, "b": 1} if devices is None else devices, **options)

    return start


@pytest.fixture
def make_pod() -> Callable[..., dict[str, Any]]:
    def make(name: str, count: int = 1, *, resource: str = RESOURCE, **annotations: str) -> dict[str, Any]:
        container = {
            "name": "main",
            "image": "x",
            "resources": {"limits": {resource: str(count), "cpu": "1"}},
        }
        return {
            "metadata": {"namespace": "live", "name": name, "uid": f"uid-{name}", "annotations": annotations},
            "spec": {"nodeName": "worker-1", "containers": [container]},
        }

    return make
