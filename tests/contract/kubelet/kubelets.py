"""The kubelets that the bridge is held against: a small one of this suite, and the simulator's."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import grpc

from protos import deviceplugin_v1beta1_pb2 as api
from protos import deviceplugin_v1beta1_pb2_grpc as api_grpc
from protos import podresources_v1_pb2 as pods
from protos import podresources_v1_pb2_grpc as pods_grpc
from services.simulator.kubelet import Kubelet as SimulatedKubelet

Limits = Mapping[str, Mapping[str, int]]
"""Container to resource to count; a container whose name begins with `init` is an init container."""

_LOCAL = (("grpc.use_local_subchannel_pool", 1),)


class Kubelet(Protocol):
    """What the suite needs of a kubelet."""

    plugins: Path

    async def start(self) -> None:
        """Delete every socket of the plugin folder, serve."""
        ...

    async def stop(self) -> None:
        """As if killed: its sockets' files stay."""
        ...

    def registrations(self) -> int:
        """How often a plugin has registered."""
        ...

    def devices(self, resource: str) -> dict[str, str]:
        """Id to health, as the last list said; all unhealthy without a stream."""
        ...

    async def admit(self, name: str, limits: Limits) -> str:
        """Allocate for a pod; empty when it was admitted, else why not."""
        ...

    async def end(self, name: str) -> None:
        """The pod is gone; its ids are free, the checkpoint keeps them until the next admission."""
        ...

    def uid(self, name: str) -> str:
        """The uid of an admitted pod."""
        ...

    def answer(self, name: str, container: str, resource: str) -> api.ContainerAllocateResponse:
        """What the plugin answered for a container."""
        ...

    def held(self, name: str) -> list[str]:
        """Ids that a pod holds."""
        ...

    async def hang_up(self, resource: str) -> None:
        """End the stream from the kubelet's side; it never dials again by itself."""
        ...

    async def until(self, fact: Callable[[], bool]) -> None:
        """Wait until a fact about it is true."""
        ...


@dataclass(slots=True)
class _Entry:
    uid: str
    name: str
    container: str
    resource: str
    ids: tuple[str, ...]
    response: bytes
    ended: bool = False


@dataclass(slots=True)
class _Plugin:
    channel: grpc.aio.Channel
    options: api.DevicePluginOptions
    follow: asyncio.Task[None] | None = None
    healthy: dict[str, bool] = field(default_factory=dict)
    numa: dict[str, int] = field(default_factory=dict)
    lists: int = 0
    connected: bool = True


class SmallKubelet(api_grpc.RegistrationServicer, pods_grpc.PodResourcesListerServicer):
    """As little of a kubelet as the contract needs, written from its documented behaviour alone."""

    def __init__(self, root: Path) -> None:
        self.plugins = root / "var/lib/kubelet/device-plugins"
        self._pod_resources = root / "var/lib/kubelet/pod-resources/kubelet.sock"
        self._plugins: dict[str, _Plugin] = {}
        self._entries: list[_Entry] = []
        self._servers: list[grpc.aio.Server] = []
        self._changed = asyncio.Event()
        self._born = 0
        self.registered: list[api.RegisterRequest] = []

    async def start(self) -> None:
        for folder in (self.plugins, self._pod_resources.parent):
            folder.mkdir(parents=True, exist_ok=True)
        for path in [*self.plugins.iterdir(), self._pod_resources]:
            if path.is_socket():
                path.unlink()
        registration, lister = grpc.aio.server(), grpc.aio.server()
        api_grpc.add_RegistrationServicer_to_server(self, registration)
        pods_grpc.add_PodResourcesListerServicer_to_server(self, lister)
        lister.add_insecure_port(f"unix:{self._pod_resources}")
        registration.add_insecure_port(f"unix:{self.plugins / 'kubelet.sock'}")
        self._servers = [lister, registration]
        for server in self._servers:
            await server.start()

    async def stop(self) -> None:
        for resource in list(self._plugins):
            await self.hang_up(resource)
            await self._plugins[resource].channel.close()
        for server in self._servers:
            await server.stop(grace=None)
        self._servers = []
        self._plugins = {}

    async def Register(self, request: api.RegisterRequest, context: Any) -> api.Empty:  # noqa: N802 - gRPC's name
        if request.version != "v1beta1" or "/" in request.endpoint:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "unsupported version or endpoint")
        channel = grpc.aio.insecure_channel(f"unix:{self.plugins / request.endpoint}", options=_LOCAL)
        stub: api_grpc.DevicePluginAsyncStub = api_grpc.DevicePluginStub(channel)
        try:
            options = await stub.GetDevicePluginOptions(api.Empty(), timeout=5)
        except grpc.aio.AioRpcError as error:
            await channel.close()
            await context.abort(grpc.StatusCode.UNKNOWN, f"failed to dial device plugin: {error.details()}")
        old = self._plugins.get(request.resource_name)
        if old is not None:
            await old.channel.close()
        plugin = self._plugins[request.resource_name] = _Plugin(channel, options)
        plugin.follow = asyncio.create_task(self._follow(plugin))
        self.registered.append(request)
        self._notify()
        return api.Empty()

    async def _follow(self, plugin: _Plugin) -> None:
        stub: api_grpc.DevicePluginAsyncStub = api_grpc.DevicePluginStub(plugin.channel)
        call = stub.ListAndWatch(api.Empty())
        try:
            async for message in call:
                plugin.healthy = {each.ID: each.health == "Healthy" for each in message.devices}
                plugin.numa = {e.ID: e.topology.nodes[0].ID for e in message.devices if e.topology.nodes}
                plugin.lists += 1
                self._write_checkpoint()
                self._notify()
        except grpc.aio.AioRpcError:
            pass  # however the stream ends, it has ended
        finally:
            call.cancel()
            plugin.connected = False
            self._notify()

    async def hang_up(self, resource: str) -> None:
        follow = self._plugins[resource].follow
        if follow is not None:
            follow.cancel()
            await asyncio.wait({follow})

    def registrations(self) -> int:
        return len(self.registered)

    def devices(self, resource: str) -> dict[str, str]:
        plugin = self._plugins.get(resource)
        if plugin is None:
            return {}
        return {
            id_: "Healthy" if healthy and plugin.connected else "Unhealthy"
            for id_, healthy in plugin.healthy.items()
        }

    async def admit(self, name: str, limits: Limits) -> str:
        self._entries = [each for each in self._entries if not each.ended]
        self._born += 1
        uid = f"uid-{name}-{self._born}"
        reusable: dict[str, list[str]] = {}
        for container, resources in limits.items():
            for resource, count in resources.items():
                try:
                    ids = await self._choose(resource, count, reusable.get(resource, []))
                    call = api.AllocateRequest(
                        container_requests=[api.ContainerAllocateRequest(devices_ids=ids)]
                    )
                    answer = await self._stub(resource).Allocate(call)
                except (LookupError, grpc.aio.AioRpcError) as error:
                    return error.details() or "" if isinstance(error, grpc.aio.AioRpcError) else str(error)
                response = answer.container_responses[0].SerializeToString()
                self._entries.append(_Entry(uid, name, container, resource, tuple(ids), response))
                self._write_checkpoint()
                if container.startswith("init"):
                    reusable[resource] = ids
        return ""

    async def _choose(self, resource: str, count: int, reusable: Sequence[str]) -> list[str]:
        held = {id_ for e in self._entries if e.resource == resource for id_ in e.ids}
        healthy = [id_ for id_, health in self.devices(resource).items() if health == "Healthy"]
        free = sorted(set(healthy) - held)
        if len(reusable) + len(free) < count:
            raise LookupError(f"requested {count} of {resource}, available {len(free)}")
        available = [*reusable, *free]
        if len(available) == count or not self._plugins[resource].options.get_preferred_allocation_available:
            return available[:count]
        question = api.ContainerPreferredAllocationRequest(
            available_deviceIDs=available,
            must_include_deviceIDs=list(reusable)[:count],
            allocation_size=count,
        )
        hint = await self._stub(resource).GetPreferredAllocation(
            api.PreferredAllocationRequest(container_requests=[question])
        )
        return list(hint.container_responses[0].deviceIDs)

    def _stub(self, resource: str) -> api_grpc.DevicePluginAsyncStub:
        return api_grpc.DevicePluginStub(self._plugins[resource].channel)

    async def end(self, name: str) -> None:
        for each in self._entries:
            each.ended = each.ended or each.name == name

    def uid(self, name: str) -> str:
        return next(each.uid for each in reversed(self._entries) if each.name == name)

    def answer(self, name: str, container: str, resource: str) -> api.ContainerAllocateResponse:
        (found,) = (
            each.response
            for each in self._entries
            if (each.name, each.container, each.resource) == (name, container, resource) and not each.ended
        )
        return api.ContainerAllocateResponse.FromString(found)

    def held(self, name: str) -> list[str]:
        return sorted(
            {id_ for each in self._entries if each.name == name and not each.ended for id_ in each.ids}
        )

    async def List(self, request: Any, context: Any) -> pods.ListPodResourcesResponse:  # noqa: ARG002, N802 - gRPC's signature
        return pods.ListPodResourcesResponse(
            pod_resources=[
                pods.PodResources(
                    name=each.name,
                    namespace="live",
                    containers=[
                        pods.ContainerResources(
                            name=each.container,
                            devices=[pods.ContainerDevices(resource_name=each.resource, device_ids=each.ids)],
                        )
                    ],
                )
                for each in self._entries
                if not each.ended and not each.container.startswith("init")
            ]
        )

    async def GetAllocatableResources(self, request: Any, context: Any) -> Any:  # noqa: ARG002, N802 - gRPC's signature
        await context.abort(grpc.StatusCode.UNIMPLEMENTED, "not asked for by this suite")

    async def Get(self, request: Any, context: Any) -> Any:  # noqa: ARG002, N802 - gRPC's signature
        await context.abort(grpc.StatusCode.UNIMPLEMENTED, "not asked for by this suite")

    def _write_checkpoint(self) -> None:
        entries = [
            {
                "PodUID": each.uid,
                "ContainerName": each.container,
                "ResourceName": each.resource,
                "DeviceIDs": {"-1": list(each.ids)},
                "AllocResp": base64.b64encode(each.response).decode(),
            }
            for each in self._entries
        ]
        document = {"Data": {"PodDeviceEntries": entries, "RegisteredDevices": {}}, "Checksum": 1}
        (self.plugins / "kubelet_internal_checkpoint").write_text(json.dumps(document))

    async def until(self, fact: Callable[[], bool]) -> None:
        async with asyncio.timeout(10):
            while not fact():
                await self._changed.wait()

    def _notify(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()


class Simulated:
    """The simulator's kubelet behind the same face."""

    def __init__(self, root: Path) -> None:
        self._kubelet = SimulatedKubelet(root, "worker-1")
        self.plugins = self._kubelet.plugin_directory
        self._born = 0
        self._uids: dict[str, str] = {}

    async def start(self) -> None:
        await self._kubelet.start()

    async def stop(self) -> None:
        await self._kubelet.stop()

    def registrations(self) -> int:
        return self._kubelet.registrations

    def devices(self, resource: str) -> dict[str, str]:
        sets = self._kubelet.sets.resources.get(resource)
        if sets is None:
            return {}
        healthy, unhealthy = (
            dict.fromkeys(sets.healthy, "Healthy"),
            dict.fromkeys(sets.unhealthy, "Unhealthy"),
        )
        return dict(sorted({**unhealthy, **healthy}.items()))

    async def admit(self, name: str, limits: Limits) -> str:
        self._born += 1
        uid = self._uids[name] = f"uid-{name}-{self._born}"
        containers: list[dict[str, Any]] = []
        init: list[dict[str, Any]] = []
        for container, resources in limits.items():
            quantities = {resource: str(count) for resource, count in resources.items()}
            body = {"name": container, "image": "busybox", "resources": {"limits": quantities}}
            (init if container.startswith("init") else containers).append(body)
        admission = await self._kubelet.admit(
            {
                "metadata": {"name": name, "namespace": "live", "uid": uid},
                "spec": {
                    "containers": containers,
                    "initContainers": init,
                    "nodeName": "worker-1",
                    "terminationGracePeriodSeconds": 0,
                },
            }
        )
        return "" if admission.admitted else admission.message

    async def end(self, name: str) -> None:
        await self._kubelet.end(self._uids[name])

    def uid(self, name: str) -> str:
        return self._uids[name]

    def answer(self, name: str, container: str, resource: str) -> api.ContainerAllocateResponse:
        entry = self._kubelet.sets.entries[self._uids[name], container, resource]
        return api.ContainerAllocateResponse.FromString(entry.response)

    def held(self, name: str) -> list[str]:
        held = self._kubelet.sets.of_pod(self._uids[name])
        return sorted({id_ for entry in held for id_ in entry.ids})

    async def hang_up(self, resource: str) -> None:
        await self._kubelet.endpoints[resource].close()

    async def until(self, fact: Callable[[], bool]) -> None:
        await self._kubelet.until(fact)
