"""One simulated kubelet: device plugins, admission, pods, pod-resources and the checkpoint of one node.

It behaves like the real one where a device plugin can notice (k/k pkg/kubelet/cm/devicemanager):

    start       deletes every socket in device-plugins/ but nothing else, then serves kubelet.sock
    Register    dials the plugin and asks its options before it answers; then follows ListAndWatch
    stream end  every device unhealthy at once, never dialled again; the resource is forgotten after a grace
    list        each one replaces the sets and rewrites the checkpoint
    admission   one pod after another; Allocate has no deadline; a refusal fails the pod for good
    pod end     ids are free once the pod has ended; the checkpoint names them until the next admission
    node        capacity and allocatable follow at the node status period, not at once
    restart     running pods stay and keep their ids; resources are empty until plugins register again
    reboot      pods start anew: one whose devices are not registered yet fails for good

Usable alone: without a cluster port, `admit` and `end` take pods directly.
"""

from __future__ import annotations

import asyncio
import stat
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import grpc
import grpc.aio
import structlog

from protos import deviceplugin_v1beta1_pb2 as pb
from protos import deviceplugin_v1beta1_pb2_grpc as pb_grpc
from protos import podresources_v1_pb2_grpc as resources_grpc
from services.simulator import admission, pods
from services.simulator.device_sets import DeviceSets
from services.simulator.plugin_endpoint import PluginEndpoint
from services.simulator.pod_resources import PodResources
from shared.clock import SystemClock
from shared.errors import FleetError, Permanent

if TYPE_CHECKING:
    from collections.abc import Collection, Coroutine
    from datetime import datetime
    from pathlib import Path
    from types import TracebackType
    from typing import Self

    from services.simulator.cluster_port import ClusterPort
    from services.simulator.device_sets import Entry
    from shared.clock import Clock

    AioContext = grpc.aio.ServicerContext[object, object]

log = structlog.get_logger(__name__)

API_VERSION = "v1beta1"
CHECKPOINT = "kubelet_internal_checkpoint"
_UNSET_IP = "10.0.0.1"


@dataclass(frozen=True, slots=True)
class KubeletTimes:
    """How long things take, in seconds.

    Attributes:
        node_status_s: between two writes of the node's status (10 s by default in a real kubelet).
        plugin_grace_s: how long a resource outlives its plugin (endpointStopGracePeriod).
        grace_scale: how much of a pod's termination grace its containers really use.
        start_s: from admission until the containers run.
    """

    node_status_s: float = 10.0
    plugin_grace_s: float = 300.0
    grace_scale: float = 1.0
    start_s: float = 0.0


@dataclass(slots=True)
class _LocalPod:
    """A pod that this kubelet takes care of."""

    pod: pods.PodJson
    phase: Literal["pending", "running", "ending", "ended"] = "pending"
    started: datetime | None = None
    ip: str = ""
    task: asyncio.Task[None] | None = None

    @property
    def pending(self) -> bool:
        """Not admitted yet, and not asked to end either; may change during every await."""
        return self.phase == "pending"


@dataclass(frozen=True, slots=True)
class Admission:
    """What became of a pod at admission; `message` is what its status says when it was refused."""

    admitted: bool
    reason: str = ""
    message: str = ""


_DELETED_MEANWHILE = Admission(
    admitted=False, reason="Terminated", message="the pod was deleted before it ran"
)


class Kubelet(pb_grpc.RegistrationServicer):
    """The kubelet of one node, over a directory that stands for the node's root."""

    def __init__(
        self,
        root: Path,
        node: str,
        *,
        cluster: ClusterPort | None = None,
        times: KubeletTimes | None = None,
        clock: Clock | None = None,
        address: str = _UNSET_IP,
        pod_subnet: str = "10.244.0",
        labels: dict[str, str] | None = None,
    ) -> None:
        """Args: pod_subnet: the first three bytes of its pods' addresses."""
        self.root = root
        self.node = node
        self.plugin_directory = root / "var/lib/kubelet/device-plugins"
        self.socket = self.plugin_directory / "kubelet.sock"
        self.pod_resources_socket = root / "var/lib/kubelet/pod-resources/kubelet.sock"
        self.checkpoint_file = self.plugin_directory / CHECKPOINT
        self.registrations = 0
        self.endpoints: dict[str, PluginEndpoint] = {}
        self.sets = DeviceSets()
        self._cluster = cluster
        self._times = times or KubeletTimes()
        self._clock: Clock = clock or SystemClock()
        self._address = address
        self._pod_subnet = pod_subnet
        self._labels = labels or {}
        self._pods: dict[str, _LocalPod] = {}
        self._addresses = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._followers: set[asyncio.Task[None]] = set()
        self._admitting = asyncio.Lock()
        self._changed = asyncio.Condition()
        self._servers: tuple[grpc.aio.Server, ...] = ()
        self._dropped: set[str] = set()

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
            await self._cluster.register_node(self._node_object())
            await self.sync_node()
            self._spawn(self._tasks, f"{self.node}-pods", self._follow_pods(self._cluster))
        self._spawn(self._tasks, f"{self.node}-status", self._report_node())

    async def stop(self) -> None:
        """End everything it started; the sockets' files and the checkpoint stay, as after a kill."""
        await _cancel(self._tasks)
        await self._hang_up()

    async def restart(self, *, down_s: float = 0.0) -> None:
        """The kubelet's process starts anew; pods keep running. ``down_s``: how long it is away."""
        await self._hang_up()
        if down_s:
            await asyncio.sleep(down_s)
        await self._serve()
        await self._notify()

    async def reboot(self, *, down_s: float = 0.0) -> None:
        """The machine starts anew: containers died, every bound pod is admitted again, in order."""
        await self._hang_up()
        # A pod whose admission is under way is refused by it: its plugin is gone.
        survivors = [local for local in self._pods.values() if local.phase == "running"]
        for local in survivors:
            await _stop_task(local)
            local.phase = "pending"
        if down_s:
            await asyncio.sleep(down_s)
        await self._serve()
        await self.sync_node()
        for local in survivors:
            self._spawn(self._tasks, f"{self.node}-admit", self._admitted(local))
        await self._notify()

    async def _serve(self) -> None:
        for socket in (self.socket, self.pod_resources_socket):
            socket.parent.mkdir(parents=True, exist_ok=True)
        for path in self.plugin_directory.iterdir():
            if stat.S_ISSOCK(path.lstat().st_mode):
                path.unlink()
        self.pod_resources_socket.unlink(missing_ok=True)
        self.sets = DeviceSets()
        if self.checkpoint_file.exists():
            self.sets.restore(self.checkpoint_file.read_text(encoding="utf-8"), self._clock.monotonic())
        lister = PodResources(lambda: self.sets, self._active_pods)
        registration, resources = grpc.aio.server(), grpc.aio.server()
        pb_grpc.add_RegistrationServicer_to_server(self, registration)
        resources_grpc.add_PodResourcesListerServicer_to_server(lister, resources)
        self._servers = (resources, registration)
        for server, socket in ((resources, self.pod_resources_socket), (registration, self.socket)):
            server.add_insecure_port(f"unix:{socket}")
            await server.start()

    async def _hang_up(self) -> None:
        await _cancel(self._followers)
        for endpoint in self.endpoints.values():
            await endpoint.close()
        self.endpoints.clear()
        for server in self._servers:
            await server.stop(grace=None)
        self._servers = ()

    def _spawn(
        self, owner: set[asyncio.Task[None]], name: str, work: Coroutine[Any, Any, None]
    ) -> asyncio.Task[None]:
        task = asyncio.create_task(_reported(name, work), name=name)
        owner.add(task)
        task.add_done_callback(owner.discard)
        return task

    async def _notify(self) -> None:
        async with self._changed:
            self._changed.notify_all()

    async def until(self, fact: Any, *, timeout_s: float = 10.0) -> None:
        """Wait until ``fact()`` is true of this kubelet; for tests and demos.

        Raises:
            TimeoutError: it did not become true in time.
        """
        async with asyncio.timeout(timeout_s), self._changed:
            await self._changed.wait_for(fact)

    # device plugins

    async def Register(  # noqa: N802 - the contract's name
        self, request: pb.RegisterRequest, context: AioContext
    ) -> pb.Empty:
        """A plugin announces itself; it must already serve, since its options are asked before the answer."""
        try:
            _check_registration(request)
            endpoint = PluginEndpoint(request.resource_name, self.plugin_directory / request.endpoint)
            await endpoint.connect()
        except Permanent as refused:
            await context.abort(grpc.StatusCode.UNKNOWN, refused.reason)
        self.registrations += 1
        self.endpoints[endpoint.resource] = endpoint
        self.sets.connected(endpoint.resource)
        self._dropped.discard(endpoint.resource)
        self._spawn(self._followers, f"{self.node}-{endpoint.resource}", self._follow(endpoint))
        await self._notify()
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
            changed = self.sets.listed(resource, healthy, unhealthy, topology)
            self._write_checkpoint()
            await self._tell_health(resource, changed)
            await self._notify()
        # A plugin that registered again has another endpoint already: then this end says nothing about it.
        if self.endpoints.get(resource) is endpoint:
            fallen = self.sets.disconnected(resource, self._clock.monotonic())
            del self.endpoints[resource]
            await self._tell_health(resource, fallen)
        await endpoint.close()
        await self._notify()

    def _write_checkpoint(self) -> None:
        aside = self.checkpoint_file.with_name(f".{CHECKPOINT}.new")
        aside.write_text(self.sets.checkpoint(self.boot_id), encoding="utf-8")
        aside.replace(self.checkpoint_file)

    @property
    def boot_id(self) -> str:
        """As the node's kernel says it; empty when the directory has none."""
        path = self.root / "proc/sys/kernel/random/boot_id"
        return path.read_text(encoding="utf-8").strip() if path.exists() else ""

    # pods

    async def admit(self, pod: pods.PodJson) -> Admission:
        """Admit and run a pod, as if it had been bound to this node."""
        local = self._pods[pods.uid_of(pod)] = _LocalPod(pod)
        return await self._admit(local)

    async def end(self, pod_uid: str) -> None:
        """End a pod after its grace and forget it, as if it had been deleted."""
        local = self._pods[pod_uid]
        await _stop_task(local)
        await self._terminate(local)

    def running_pods(self) -> tuple[tuple[pods.PodJson, tuple[Entry, ...]], ...]:
        """Pods whose containers run, with what they hold."""
        return tuple(
            (local.pod, self.sets.of_pod(uid))
            for uid, local in self._pods.items()
            if local.phase == "running"
        )

    def _active_pods(self) -> Collection[pods.PodJson]:
        return [local.pod for local in self._pods.values() if local.phase != "ended"]

    async def _follow_pods(self, cluster: ClusterPort) -> None:
        async for kind, pod in cluster.pods_on(self.node):
            uid = pods.uid_of(pod)
            local = self._pods.get(uid)
            if kind == "DELETED":
                if local is not None:
                    await _stop_task(local)
                    local.phase = "ended"
                    del self._pods[uid]
            elif local is None:
                if pods.deleting(pod) or not pods.ended(pod):
                    local = self._pods[uid] = _LocalPod(pod)
                    work = self._terminate(local) if pods.deleting(pod) else self._admitted(local)
                    self._spawn(self._tasks, f"{self.node}-{pod['metadata']['name']}", work)
            else:
                local.pod = pod
                if pods.deleting(pod) and local.phase != "ending":
                    await _stop_task(local)
                    local.task = self._spawn(
                        self._tasks, f"{self.node}-{pod['metadata']['name']}-end", self._terminate(local)
                    )
            await self._notify()

    async def _admitted(self, local: _LocalPod) -> None:
        await self._admit(local)

    async def _admit(self, local: _LocalPod) -> Admission:
        async with self._admitting:
            if local.phase != "pending":
                return Admission(admitted=False, reason="Terminated", message="the pod was deleted meanwhile")
            self.sets.collect({pods.uid_of(pod) for pod in self._active_pods()})
            try:
                if await admission.allocate(local.pod, self.sets, self.endpoints):
                    self._write_checkpoint()
                await admission.pre_start(local.pod, self.sets, self.endpoints)
                run_for_s = pods.run_for_s(local.pod)
            except Permanent as refused:
                local.phase = "ended"
                log.info("pod refused", node=self.node, pod=pods.name_of(local.pod), reason=refused.reason)
                await self._write_status(
                    local, pods.rejected(refused.reason, admission.REASON, self._clock.now())
                )
                await self._notify()
                return Admission(admitted=False, reason=admission.REASON, message=refused.reason)
        if self._times.start_s:
            await asyncio.sleep(self._times.start_s)
        if not local.pending:
            return _DELETED_MEANWHILE
        local.phase, local.started = "running", self._clock.now()
        self._addresses += 1
        local.ip = f"{self._pod_subnet}.{1 + self._addresses % 254}"
        await self._tell_running(local)
        if run_for_s is not None:
            local.task = self._spawn(self._tasks, f"{self.node}-run", self._complete(local, run_for_s))
        await self._notify()
        return Admission(admitted=True)

    async def _complete(self, local: _LocalPod, run_for_s: float) -> None:
        await asyncio.sleep(run_for_s)
        local.phase = "ended"
        now = self._clock.now()
        await self._write_status(local, pods.finished(local.pod, at=now, exit_code=0, reason="Completed"))
        await self._notify()

    async def _terminate(self, local: _LocalPod) -> None:
        was_running, local.phase = local.phase == "running", "ending"
        if was_running:
            await asyncio.sleep(pods.grace_s(local.pod) * self._times.grace_scale)
        local.phase = "ended"
        if self._cluster is not None:
            now = self._clock.now()
            await self._write_status(local, pods.finished(local.pod, at=now, exit_code=143, reason="Error"))
            await self._cluster.remove_pod(local.pod)
        self._pods.pop(pods.uid_of(local.pod), None)
        await self._notify()

    async def _tell_running(self, local: _LocalPod) -> None:
        held = self.sets.of_pod(pods.uid_of(local.pod))
        started = local.started or self._clock.now()
        status = pods.running(
            local.pod, started=started, ip=local.ip, host_ip=self._address, held=held, health=self.sets.health
        )
        await self._write_status(local, status)

    async def _tell_health(self, resource: str, ids: frozenset[str]) -> None:
        for uid, local in list(self._pods.items()):
            held = self.sets.of_pod(uid)
            if local.phase == "running" and any(e.resource == resource and e.ids & ids for e in held):
                await self._tell_running(local)

    async def _write_status(self, local: _LocalPod, status: dict[str, Any]) -> None:
        if self._cluster is not None:
            await self._cluster.write_pod_status(local.pod, status)

    # the node

    async def _report_node(self) -> None:
        while True:
            await asyncio.sleep(self._times.node_status_s)
            await self.sync_node()

    async def sync_node(self) -> None:
        """Forget resources past their grace and write the node's status; runs by itself every period."""
        gone = self.sets.forget_stopped(self._clock.monotonic(), self._times.plugin_grace_s)
        if gone:
            self._dropped |= set(gone)
            self._write_checkpoint()
        if self._cluster is not None:
            node = await self._cluster.node(self.node)
            if node is not None:
                await self._cluster.write_node_status(self.node, self._node_status(node))
        await self._notify()

    def _node_object(self) -> dict[str, Any]:
        return {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {
                "name": self.node,
                "labels": {
                    "kubernetes.io/hostname": self.node,
                    "kubernetes.io/os": "linux",
                    "kubernetes.io/arch": "amd64",
                    **self._labels,
                },
            },
            "spec": {},
        }

    def _node_status(self, node: dict[str, Any]) -> dict[str, Any]:
        capacity = {"cpu": "64", "memory": "263921164Ki", "ephemeral-storage": "959Gi", "pods": "250"}
        allocatable = {**capacity, "cpu": "63", "memory": "259726860Ki"}
        ours = self.sets.capacity() | dict.fromkeys(self._dropped, (0, 0))
        # What somebody else put into capacity (a byte quantity of memory, say) is allocatable as it stands.
        before = (node.get("status") or {}).get("capacity") or {}
        allocatable |= {name: before[name] for name in before if "/" in name and name not in ours}
        for name, (total, free) in ours.items():
            capacity[name], allocatable[name] = str(total), str(free)
        beat = self._clock.now().strftime("%Y-%m-%dT%H:%M:%SZ")
        return {
            "capacity": capacity,
            "allocatable": allocatable,
            "conditions": [
                {
                    "type": "Ready",
                    "status": "True",
                    "reason": "KubeletReady",
                    "message": "kubelet is posting ready status",
                    "lastHeartbeatTime": beat,
                    "lastTransitionTime": beat,
                }
            ],
            "addresses": [
                {"type": "InternalIP", "address": self._address},
                {"type": "Hostname", "address": self.node},
            ],
            "nodeInfo": {
                "bootID": self.boot_id,
                "kubeletVersion": "v1.36.0",
                "operatingSystem": "linux",
                "architecture": "amd64",
            },
        }

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
            "pods": [
                {
                    "namespace": pods.name_of(local.pod)[0],
                    "name": pods.name_of(local.pod)[1],
                    "uid": uid,
                    "phase": local.phase,
                    # An ended pod's ids are free, whatever the checkpoint still says.
                    "devices": {
                        entry.resource: sorted(entry.ids)
                        for entry in self.sets.of_pod(uid)
                        if local.phase != "ended"
                    },
                }
                for uid, local in self._pods.items()
            ],
        }


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


async def _reported(name: str, work: Coroutine[Any, Any, None]) -> None:
    try:
        await work
    except FleetError as error:
        log.warning("task failed", task=name, error=str(error))


async def _stop_task(local: _LocalPod) -> None:
    if local.task is not None:
        local.task.cancel()
        await asyncio.wait([local.task])
        local.task = None


async def _cancel(tasks: set[asyncio.Task[None]]) -> None:
    pending = list(tasks)
    for task in pending:
        task.cancel()
    if pending:
        await asyncio.wait(pending)
