"""One simulated kubelet: device plugins, admission, pods, pod-resources and the checkpoint of one node.

It behaves like the real one where a device plugin can notice (k/k pkg/kubelet/cm/devicemanager); the rules
stand in `device_plugins`, `admission` and `pod_workers`. Its own life:

    start       deletes every socket in device-plugins/ but nothing else, then serves kubelet.sock
    node        capacity and allocatable follow at the node status period, not at once
    restart     running pods stay and keep their ids; resources are empty until plugins register again
    reboot      pods start anew: one whose devices are not registered yet fails for good

Usable alone: without a cluster port, `admit` and `end` take pods directly.
"""

from __future__ import annotations

import asyncio
import stat
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import grpc
import grpc.aio

from protos import deviceplugin_v1beta1_pb2_grpc as plugins_grpc
from protos import podresources_v1_pb2_grpc as resources_grpc
from services.simulator import node_status
from services.simulator.device_plugins import DevicePlugins
from services.simulator.pod_resources import PodResources
from services.simulator.pod_workers import Admission, PodTimes, PodWorkers
from services.simulator.tasks import OwnedTasks
from shared.clock import SystemClock

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from types import TracebackType
    from typing import Self

    from services.simulator.cluster_port import ClusterPort
    from services.simulator.device_sets import DeviceSets, Entry
    from services.simulator.plugin_endpoint import PluginEndpoint
    from services.simulator.pods import PodJson
    from shared.clock import Clock

__all__ = ["Admission", "Kubelet", "KubeletTimes"]


@dataclass(frozen=True, slots=True)
class KubeletTimes(PodTimes):
    """How long things take, in seconds; see `PodTimes` for those of pods.

    Attributes:
        node_status_s: between two looks at the node's status (10 s by default in a real kubelet).
        plugin_grace_s: how long a resource outlives its plugin (endpointStopGracePeriod).
    """

    node_status_s: float = 10.0
    plugin_grace_s: float = 300.0


class Kubelet:
    """The kubelet of one node, over a directory that stands for the node's root."""

    def __init__(
        self,
        root: Path,
        node: str,
        *,
        cluster: ClusterPort | None = None,
        times: KubeletTimes | None = None,
        clock: Clock | None = None,
        address: str = "10.0.0.1",
        pod_subnet: str = "10.244.0",
        labels: dict[str, str] | None = None,
    ) -> None:
        """Args: pod_subnet: the first three bytes of its pods' addresses."""
        self.root = root
        self.node = node
        self.plugin_directory = root / "var/lib/kubelet/device-plugins"
        self.socket = self.plugin_directory / "kubelet.sock"
        self.pod_resources_socket = root / "var/lib/kubelet/pod-resources/kubelet.sock"
        self._cluster = cluster
        self._times = times or KubeletTimes()
        self._clock: Clock = clock or SystemClock()
        self._ready_since = self._clock.now()
        self._address = address
        self._labels = labels or {}
        self._changed = asyncio.Condition()
        self._tasks = OwnedTasks()
        self._servers: tuple[grpc.aio.Server, ...] = ()
        self._plugins = DevicePlugins(
            self.plugin_directory,
            clock=self._clock,
            boot_id=lambda: self.boot_id,
            changed=self._devices_changed,
        )
        self._workers = PodWorkers(
            node,
            self._plugins,
            cluster=cluster,
            times=self._times,
            clock=self._clock,
            address=address,
            subnet=pod_subnet,
            changed=self._notify,
        )

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    # its life

    async def start(self) -> None:
        """Serve both sockets, then take care of the node and of the pods bound to it."""
        await self._serve()
        if self._cluster is not None:
            await self._cluster.register_node(node_status.registration(self.node, self._labels))
            await self.sync_node()
            self._tasks.spawn(f"{self.node} pods", self._workers.follow(self._cluster))
        self._tasks.spawn(f"{self.node} status", self._report_node())

    async def stop(self) -> None:
        """End everything it started; the checkpoint stays, as after a kill."""
        await self._tasks.cancel()
        await self._workers.close()
        await self._hang_up()

    async def restart(self, *, down_s: float = 0.0) -> None:
        """The kubelet's process starts anew; pods keep running. ``down_s``: how long it is away."""
        await self._hang_up()
        await self._notify()
        await asyncio.sleep(down_s)
        await self._serve()
        await self._notify()

    async def reboot(self, *, down_s: float = 0.0) -> None:
        """The machine starts anew: containers died, every bound pod is admitted again, in order."""
        await self._hang_up()
        survivors = await self._workers.crash()
        await asyncio.sleep(down_s)
        await self._serve()
        await self.sync_node()
        self._workers.begin(*survivors)
        await self._notify()

    async def _serve(self) -> None:
        for socket in (self.socket, self.pod_resources_socket):
            socket.parent.mkdir(parents=True, exist_ok=True)
        for path in self.plugin_directory.iterdir():
            if stat.S_ISSOCK(path.lstat().st_mode):
                path.unlink()
        self.pod_resources_socket.unlink(missing_ok=True)
        self._plugins.restore()
        registration, resources = grpc.aio.server(), grpc.aio.server()
        plugins_grpc.add_RegistrationServicer_to_server(self._plugins, registration)
        lister = PodResources(lambda: self._plugins.sets, self._workers.active)
        resources_grpc.add_PodResourcesListerServicer_to_server(lister, resources)
        self._servers = (resources, registration)
        for server, socket in ((resources, self.pod_resources_socket), (registration, self.socket)):
            server.add_insecure_port(f"unix:{socket}")
            await server.start()
        self._workers.attend()

    async def _hang_up(self) -> None:
        self._workers.leave()
        await self._plugins.hang_up()
        for server in self._servers:
            await server.stop(grace=None)
        self._servers = ()

    async def _notify(self) -> None:
        async with self._changed:
            self._changed.notify_all()

    async def _devices_changed(self, resource: str, ids: frozenset[str]) -> None:
        await self._workers.report_health(resource, ids)
        await self._notify()

    async def until(self, fact: Callable[[], bool], *, timeout_s: float = 10.0) -> None:
        """Wait until ``fact()`` is true of this kubelet; for tests and demos.

        Raises:
            TimeoutError: it did not become true in time.
        """
        async with asyncio.timeout(timeout_s), self._changed:
            await self._changed.wait_for(fact)

    # what it knows

    @property
    def sets(self) -> DeviceSets:
        """Ids by resource, their health and their holders."""
        return self._plugins.sets

    @property
    def endpoints(self) -> dict[str, PluginEndpoint]:
        """The connected plugin of each resource."""
        return self._plugins.endpoints

    @property
    def registrations(self) -> int:
        """How many registrations it accepted."""
        return self._plugins.registrations

    @property
    def checkpoint_file(self) -> Path:
        """Where the checkpoint lies."""
        return self._plugins.checkpoint_file

    @property
    def boot_id(self) -> str:
        """As the node's kernel says it; empty when the directory has none."""
        path = self.root / "proc/sys/kernel/random/boot_id"
        return path.read_text(encoding="utf-8").strip() if path.exists() else ""

    def running_pods(self) -> tuple[tuple[PodJson, tuple[Entry, ...]], ...]:
        """Pods whose containers run, with what they hold."""
        return self._workers.running()

    def snapshot(self) -> dict[str, Any]:
        """What it knows now, for the control interface: resources, ids, pods."""
        return {
            "node": self.node,
            "bootId": self.boot_id,
            "registrations": self.registrations,
            "resources": {
                name: {
                    "capacity": len(sets.healthy) + len(sets.unhealthy),
                    "allocatable": len(sets.healthy),
                    "healthy": sorted(sets.healthy),
                    "unhealthy": sorted(sets.unhealthy),
                    "connected": sets.stopped_at_s is None,
                }
                for name, sets in sorted(self.sets.resources.items())
            },
            "pods": self._workers.shown(),
        }

    # pods, when there is no cluster

    async def admit(self, pod: PodJson) -> Admission:
        """Admit and run a pod, as if it had been bound to this node."""
        return await self._workers.admit(pod)

    async def end(self, pod_uid: str) -> None:
        """End a pod after its grace and forget it, as if it had been deleted."""
        await self._workers.terminate(pod_uid)

    # the node

    async def _report_node(self) -> None:
        while True:
            await asyncio.sleep(self._times.node_status_s)
            await self.sync_node()

    async def sync_node(self) -> None:
        """Forget resources past their grace and write the node's status; runs by itself every period."""
        self._plugins.forget_stopped(self._times.plugin_grace_s)
        node = await self._cluster.node(self.node) if self._cluster is not None else None
        if self._cluster is not None and node is not None:
            status = node_status.status(
                node,
                self._plugins.quantities(),
                name=self.node,
                address=self._address,
                boot_id=self.boot_id,
                now=self._clock.now(),
                ready_since=self._ready_since,
            )
            if node_status.says_more(node, status):
                await self._cluster.write_node_status(self.node, status)
        await self._notify()
