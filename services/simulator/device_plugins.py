"""The kubelet's side of all device plugins of a node: registration, lists, and the checkpoint on disk.

Register    dials the plugin and asks its options before it answers; then follows ListAndWatch
list        each one replaces the sets and rewrites the checkpoint
stream end  every device unhealthy at once, never dialled again; forgotten after a grace
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import grpc
import grpc.aio
import structlog

from protos import deviceplugin_v1beta1_pb2 as pb
from protos import deviceplugin_v1beta1_pb2_grpc as pb_grpc
from services.simulator.device_sets import DeviceSets
from services.simulator.plugin_endpoint import PluginEndpoint
from services.simulator.tasks import OwnedTasks
from shared.errors import BadInput, Permanent

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from shared.clock import Clock

    AioContext = grpc.aio.ServicerContext[object, object]

log = structlog.get_logger(__name__)

API_VERSION = "v1beta1"
CHECKPOINT = "kubelet_internal_checkpoint"


class DevicePlugins(pb_grpc.RegistrationServicer):
    """Who serves what, and who holds what.

    Attributes:
        sets: ids by resource, and their holders.
        endpoints: the connected plugin of a resource.
        registrations: how many there were since the start.
        dropped: resources that were forgotten: the node goes on naming them with nothing to give.
    """

    def __init__(
        self,
        directory: Path,
        *,
        clock: Clock,
        boot_id: Callable[[], str],
        changed: Callable[[str, frozenset[str]], Awaitable[None]],
    ) -> None:
        """Args: changed: called with a resource and the ids whose health changed, at every list and end."""
        self.directory = directory
        self.checkpoint_file = directory / CHECKPOINT
        self.sets = DeviceSets()
        self.endpoints: dict[str, PluginEndpoint] = {}
        self.registrations = 0
        self.dropped: set[str] = set()
        self._clock = clock
        self._boot_id = boot_id
        self._changed = changed
        self._followers = OwnedTasks()

    async def Register(  # noqa: N802 - the contract's name
        self, request: pb.RegisterRequest, context: AioContext
    ) -> pb.Empty:
        """A plugin announces itself; it must already serve, since its options are asked before the answer."""
        try:
            _check_registration(request)
            endpoint = PluginEndpoint(request.resource_name, self.directory / request.endpoint)
            await endpoint.connect()
        except Permanent as refused:
            await context.abort(grpc.StatusCode.UNKNOWN, refused.reason)
        self.registrations += 1
        self.endpoints[endpoint.resource] = endpoint
        self.sets.connected(endpoint.resource)
        self.dropped.discard(endpoint.resource)
        self._followers.spawn(f"plugin {endpoint.resource}", self._follow(endpoint))
        await self._changed(endpoint.resource, frozenset())
        return pb.Empty()

    async def _follow(self, endpoint: PluginEndpoint) -> None:
        resource = endpoint.resource
        async for response in endpoint.lists():
            healthy = {device.ID for device in response.devices if device.health == "Healthy"}
            topology = {
                device.ID: tuple(node.ID for node in device.topology.nodes)
                for device in response.devices
                if device.HasField("topology")
            }
            unhealthy = {device.ID for device in response.devices} - healthy
            turned = self.sets.listed(resource, healthy, unhealthy, topology)
            self.write_checkpoint()
            await self._changed(resource, turned)
        fallen: frozenset[str] = frozenset()
        # A plugin that registered again has another endpoint already: then this end says nothing about it.
        if self.endpoints.get(resource) is endpoint:
            fallen = self.sets.disconnected(resource, self._clock.monotonic())
            del self.endpoints[resource]
        await endpoint.close()
        await self._changed(resource, fallen)

    def forget_stopped(self, grace_s: float) -> None:
        """Drop resources whose plugin stayed away for longer than the grace."""
        gone = self.sets.forget_stopped(self._clock.monotonic(), grace_s)
        if gone:
            self.dropped |= set(gone)
            self.write_checkpoint()

    def quantities(self) -> dict[str, tuple[int, int]]:
        """Capacity and allocatable of every resource there is or was."""
        return {**dict.fromkeys(self.dropped, (0, 0)), **self.sets.capacity()}

    def write_checkpoint(self) -> None:
        """Write what is known to disk, whole."""
        aside = self.checkpoint_file.with_name(f".{CHECKPOINT}.new")
        aside.write_text(self.sets.checkpoint(self._boot_id()), encoding="utf-8")
        aside.replace(self.checkpoint_file)

    def restore(self) -> None:
        """Begin anew with what the checkpoint says; a broken one is passed over, as in a kubelet."""
        self.sets = DeviceSets()
        if self.checkpoint_file.exists():
            try:
                self.sets.restore(
                    self.checkpoint_file.read_text(encoding="utf-8", errors="replace"),
                    self._clock.monotonic(),
                )
            except BadInput as broken:
                log.warning("checkpoint passed over", file=str(self.checkpoint_file), reason=str(broken))

    async def hang_up(self) -> None:
        """Leave every plugin, as a process that ends."""
        await self._followers.cancel()
        for endpoint in self.endpoints.values():
            await endpoint.close()
        self.endpoints.clear()


def _check_registration(request: pb.RegisterRequest) -> None:
    if request.version != API_VERSION:
        raise Permanent(
            f'requested API version "{request.version}" is not supported by kubelet. '
            f'Supported version is ["{API_VERSION}"]'
        )
    name = request.resource_name
    prefix, _, rest = name.partition("/")
    if not prefix or not rest or "kubernetes.io" in prefix or name.startswith("requests."):
        raise Permanent(f'the ResourceName "{name}" is invalid')
