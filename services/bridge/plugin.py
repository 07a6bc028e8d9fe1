"""One resource's device plugin: a gRPC server beside the kubelet's socket, registered whenever it is lost.

    waiting for kubelet.sock ──> serving ──> registered ──> lost (why) ──> waiting ...

Lost is any of three, because each alone is known to miss cases: our own socket is gone, kubelet.sock was made
anew, or the ListAndWatch stream ended. The kubelet never dials again by itself; only a new Register on a new
server brings its devices back. A pause that doubles keeps a kubelet that refuses from being asked in a loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import grpc
import structlog
from prometheus_client import Counter, Gauge

from protos import deviceplugin_v1beta1_pb2 as api
from protos import deviceplugin_v1beta1_pb2_grpc as api_grpc
from services.bridge.decide import Offered
from services.bridge.kubelet import KubeletPaths, SocketMark, mark, register, socket_address
from services.bridge.runtime import response
from shared.errors import FleetError, Refused, Temporary
from shared.vendors.runtime import RuntimeSpec

if TYPE_CHECKING:
    from services.bridge.board import Board

HEALTHY: Final = "Healthy"
UNHEALTHY: Final = "Unhealthy"
MAX_MESSAGE_BYTES: Final = 4 << 20
"""What the kubelet's gRPC client receives at most; a longer list ends the stream, over and over."""

_REGISTRATIONS = Counter(
    "mediafleet_bridge_registrations", "Registrations with the kubelet.", ["resource", "outcome"]
)
_LOSSES = Counter("mediafleet_bridge_losses", "How often a registered plugin was lost.", ["resource", "why"])
_REGISTERED = Gauge("mediafleet_bridge_registered", "1 while the kubelet watches the resource.", ["resource"])

Context = grpc.aio.ServicerContext[Any, Any]

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Timing:
    """How long the plugin waits for what.

    Attributes:
        poll_s: how often the sockets are looked at.
        debounce_s: how long kubelet.sock must stay the same before it is used: a starting kubelet deletes
        every
            socket just before it listens.
        register_s: the kubelet dials back within its own 10 s before it answers.
        open_s: after the registration the kubelet opens its stream at once; without one it is tried again.
        pause_s: first pause after a loss or a failed registration; doubles up to `longest_pause_s`.
        stable_s: a registration that lasted this long starts the pauses anew.
    """

    poll_s: float = 0.25
    debounce_s: float = 0.1
    register_s: float = 15.0
    open_s: float = 10.0
    pause_s: float = 0.1
    longest_pause_s: float = 5.0
    stable_s: float = 10.0


@dataclass(frozen=True, slots=True)
class Asked:
    """What a plugin asks of the node's allocator.

    Attributes:
        allocate: give ids of a resource to one container; raises `FleetError` to refuse.
        prefer: resource, available ids, required ids and size to the ids that fit best; never raises.
    """

    allocate: Callable[[str, Sequence[str]], Awaitable[RuntimeSpec]]
    prefer: Callable[[str, Sequence[str], Sequence[str], int], Sequence[str]]


def device_list(devices: Sequence[Offered]) -> api.ListAndWatchResponse:
    """The wire form of a device list; a NUMA node that is not known is left out.

    Raises:
        Refused: it is longer than the kubelet takes.
    """
    message = api.ListAndWatchResponse(
        devices=[
            api.Device(
                ID=device.id,
                health=HEALTHY if device.healthy else UNHEALTHY,
                topology=None
                if device.numa is None
                else api.TopologyInfo(nodes=[api.NUMANode(ID=device.numa)]),
            )
            for device in devices
        ]
    )
    if message.ByteSize() > MAX_MESSAGE_BYTES:
        raise Refused(
            f"{len(devices)} ids make {message.ByteSize()} bytes, the kubelet takes {MAX_MESSAGE_BYTES}:"
            " lower the slots per engine"
        )
    return message


class Servicer(api_grpc.DevicePluginServicer):
    """Answers the kubelet for one resource, for the life of one server."""

    OPTIONS: Final = api.DevicePluginOptions(
        pre_start_required=False, get_preferred_allocation_available=True
    )

    def __init__(self, resource: str, board: Board, asked: Asked) -> None:
        self._resource = resource
        self._board = board
        self._asked = asked
        self.opened = 0
        self.ended = 0

    async def GetDevicePluginOptions(self, request: api.Empty, context: Context) -> api.DevicePluginOptions:  # noqa: ARG002, N802 - gRPC's signature
        """The options that the kubelet goes by."""
        return self.OPTIONS

    async def ListAndWatch(  # noqa: N802 - gRPC's name
        self,
        request: api.Empty,  # noqa: ARG002 - gRPC's signature
        context: Context,
    ) -> AsyncIterator[api.ListAndWatchResponse]:
        """The list at once, then again whenever it changes."""
        with self._board.stream(self._resource) as stream:
            self.opened += 1
            try:
                while True:
                    revision, devices = await self._board.next(stream)
                    yield device_list(devices)
                    # gRPC asks for the next message once this one is written.
                    self._board.delivered(stream, revision)
            except Refused as error:
                log.error("the device list cannot be sent", resource=self._resource, reason=str(error))
                await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, str(error))
            finally:
                self.ended += 1

    async def GetPreferredAllocation(  # noqa: N802 - gRPC's name
        self,
        request: api.PreferredAllocationRequest,
        context: Context,  # noqa: ARG002 - gRPC's signature
    ) -> api.PreferredAllocationResponse:
        """A hint; an error here would fail the pod's admission, so there is always an answer."""
        return api.PreferredAllocationResponse(
            container_responses=[
                api.ContainerPreferredAllocationResponse(
                    deviceIDs=self._asked.prefer(
                        self._resource,
                        each.available_deviceIDs,
                        each.must_include_deviceIDs,
                        each.allocation_size,
                    )
                )
                for each in request.container_requests
            ]
        )

    async def Allocate(self, request: api.AllocateRequest, context: Context) -> api.AllocateResponse:  # noqa: N802 - gRPC's name
        """Give ids to one container, or refuse with a reason that ends up in the pod's status."""
        if len(request.container_requests) != 1:
            reason = f"{len(request.container_requests)} containers in one Allocate; the kubelet sends one"
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, reason)
        try:
            spec = await self._asked.allocate(self._resource, request.container_requests[0].devices_ids)
        except FleetError as error:
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(error))
        return api.AllocateResponse(container_responses=[response(spec)])

    async def PreStartContainer(  # noqa: N802 - gRPC's name
        self,
        request: api.PreStartContainerRequest,  # noqa: ARG002 - gRPC's signature
        context: Context,  # noqa: ARG002 - gRPC's signature
    ) -> api.PreStartContainerResponse:
        """Nothing to do before a start; the options do not ask for it."""
        return api.PreStartContainerResponse()


class Plugin:
    """The plugin of one resource, over all its servers."""

    def __init__(
        self, resource: str, board: Board, asked: Asked, paths: KubeletPaths, *, timing: Timing | None = None
    ) -> None:
        """Nothing is served until `run`.

        Args:
            resource: its full name; the last part names the socket.
            board: where the lists are.
            asked: who answers.
            paths: the kubelet's.
            timing: how long to wait for what.

        Raises:
            Refused: the socket's path would be too long.
        """
        self._resource = resource
        self._board = board
        self._asked = asked
        self._paths = paths
        self._timing = timing or Timing()
        self._socket = paths.plugins / f"mediafleet-{resource.rpartition('/')[2]}.sock"
        self._address = socket_address(self._socket)

    async def run(self) -> None:
        """Serve and stay registered, for ever."""
        pause_s = self._timing.pause_s
        while True:
            kubelet = await self._kubelet()
            began_s = asyncio.get_running_loop().time()
            why = await self._serve_until_lost(kubelet)
            lasted_s = asyncio.get_running_loop().time() - began_s
            log.warning("lost the kubelet", resource=self._resource, why=why, after_s=round(lasted_s, 3))
            if lasted_s >= self._timing.stable_s:
                pause_s = self._timing.pause_s
            await self._pause(kubelet, pause_s)
            pause_s = min(pause_s * 2, self._timing.longest_pause_s)

    async def _kubelet(self) -> SocketMark:
        """Wait for the kubelet's socket, and until it stays the same for a moment."""
        seen: SocketMark | None = None
        while True:
            found = mark(self._paths.registration)
            if found is not None and found == seen:
                return found
            seen = found
            await asyncio.sleep(self._timing.debounce_s if found else self._timing.poll_s)

    async def _serve_until_lost(self, kubelet: SocketMark) -> str:
        try:
            async with self._server() as (servicer, own):
                await register(
                    self._paths,
                    self._resource,
                    self._socket.name,
                    Servicer.OPTIONS,
                    timeout_s=self._timing.register_s,
                )
                _REGISTRATIONS.labels(self._resource, "registered").inc()
                log.info("registered", resource=self._resource, endpoint=self._socket.name)
                _REGISTERED.labels(self._resource).set(1)
                why = await self._until_lost(servicer, own, kubelet)
                _LOSSES.labels(self._resource, why).inc()
                return why
        except Temporary as error:
            _REGISTRATIONS.labels(self._resource, "failed").inc()
            return error.reason
        finally:
            _REGISTERED.labels(self._resource).set(0)

    @asynccontextmanager
    async def _server(self) -> AsyncIterator[tuple[Servicer, SocketMark]]:
        """A new server on a new socket; the old one of the same name is in its way."""
        servicer = Servicer(self._resource, self._board, self._asked)
        server = grpc.aio.server(options=(("grpc.so_reuseport", 0),))
        api_grpc.add_DevicePluginServicer_to_server(servicer, server)
        _unlink(self._socket)
        try:
            server.add_insecure_port(self._address)
            await server.start()
            own = mark(self._socket)
            if own is None:
                raise Temporary(f"{self._socket} was deleted while it was made")
            yield servicer, own
        except RuntimeError as error:  # grpcio's way to say that it cannot bind
            raise Temporary(f"{self._socket} cannot be served: {error}") from error
        finally:
            await server.stop(grace=None)

    async def _until_lost(self, servicer: Servicer, own: SocketMark, kubelet: SocketMark) -> str:
        """Why the registration counts for nothing any more."""
        loop = asyncio.get_running_loop()
        open_by_s = loop.time() + self._timing.open_s
        while True:
            if servicer.ended and servicer.ended == servicer.opened:
                return "the stream ended"
            if mark(self._socket) != own:
                return "our socket is gone"
            if (now := mark(self._paths.registration)) is not None and now != kubelet:
                return "kubelet.sock was made anew"
            if not servicer.opened and loop.time() >= open_by_s:
                return "the kubelet opened no stream"
            await self._change(self._timing.poll_s)

    async def _change(self, within_s: float) -> None:
        """Wait for a change on the board, at most so long."""
        try:
            async with asyncio.timeout(within_s):
                await self._board.change()
        except TimeoutError:
            pass  # time to look at the sockets

    async def _pause(self, kubelet: SocketMark, seconds: float) -> None:
        """Wait, but not when a new kubelet is there already."""
        loop = asyncio.get_running_loop()
        until_s = loop.time() + seconds
        while (left_s := until_s - loop.time()) > 0:
            now = mark(self._paths.registration)
            if now is not None and now != kubelet:
                return
            await asyncio.sleep(min(left_s, self._timing.poll_s))


def _unlink(path: Path) -> None:
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        raise Temporary(f"{path} cannot be replaced: {error}") from error
