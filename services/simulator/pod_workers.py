"""What a kubelet does with pods: admit one after another, run, report, end.

admission   Allocate has no deadline; a refusal fails the pod for good
pod end     ids are free once the pod has ended; the checkpoint names them until the next admission
restart     containers run on, and nobody looks after them while the kubelet is away
reboot      containers died: pods are admitted again, and one whose devices are not registered yet fails
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import structlog

from services.simulator import admission, pods
from services.simulator.tasks import OwnedTasks, ended
from shared.errors import Permanent

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection
    from datetime import datetime

    from services.simulator.cluster_port import ClusterPort
    from services.simulator.device_plugins import DevicePlugins
    from services.simulator.device_sets import Entry
    from shared.clock import Clock

log = structlog.get_logger(__name__)

_KILLED = 143
"""Exit code of a container that SIGTERM ended."""


@dataclass(frozen=True, slots=True)
class Admission:
    """What became of a pod at admission; `message` is what its status says when it was refused."""

    admitted: bool
    reason: str = ""
    message: str = ""


_DELETED_MEANWHILE = Admission(
    admitted=False, reason="Terminated", message="the pod was deleted before it ran"
)


@dataclass(frozen=True, slots=True)
class PodTimes:
    """How long pods take, in seconds.

    Attributes:
        grace_scale: how much of a pod's termination grace its containers really use.
        start_s: from admission until the containers run.
    """

    grace_scale: float = 1.0
    start_s: float = 0.0


@dataclass(slots=True)
class LocalPod:
    """A pod that this kubelet takes care of."""

    pod: pods.PodJson
    phase: Literal["pending", "running", "ending", "ended"] = "pending"
    started: datetime | None = None
    ip: str = ""
    task: asyncio.Task[None] | None = None

    def pending(self) -> bool:
        """Not admitted yet, and not asked to end either; may change during every await."""
        return self.phase == "pending"

    async def interrupt(self) -> None:
        """End what goes on for it now."""
        if self.task is not None:
            await ended(self.task)
            self.task = None


class PodWorkers:
    """The pods of one node."""

    def __init__(
        self,
        node: str,
        plugins: DevicePlugins,
        *,
        cluster: ClusterPort | None,
        times: PodTimes,
        clock: Clock,
        address: str,
        subnet: str,
        changed: Callable[[], Awaitable[None]],
    ) -> None:
        """Args: subnet: the first three bytes of the pods' addresses; changed: called after every change."""
        self._node = node
        self._plugins = plugins
        self._cluster = cluster
        self._times = times
        self._clock = clock
        self._address = address
        self._subnet = subnet
        self._changed = changed
        self._pods: dict[str, LocalPod] = {}
        self._addresses = 0
        self._tasks = OwnedTasks()
        self._admitting = asyncio.Lock()
        self._attended = asyncio.Event()

    # who is there

    def running(self) -> tuple[tuple[pods.PodJson, tuple[Entry, ...]], ...]:
        """Pods whose containers run, with what they hold."""
        sets = self._plugins.sets
        return tuple(
            (local.pod, sets.of_pod(uid)) for uid, local in self._pods.items() if local.phase == "running"
        )

    def active(self) -> Collection[pods.PodJson]:
        """Pods that have not ended."""
        return [local.pod for local in self._pods.values() if local.phase != "ended"]

    def shown(self) -> list[dict[str, Any]]:
        """Every pod it knows, for the control interface; an ended one holds nothing, whatever is on disk."""
        sets = self._plugins.sets
        return [
            {
                "namespace": pods.name_of(local.pod)[0],
                "name": pods.name_of(local.pod)[1],
                "uid": uid,
                "phase": local.phase,
                "devices": {
                    entry.resource: sorted(entry.ids) for entry in sets.of_pod(uid) if local.phase != "ended"
                },
            }
            for uid, local in self._pods.items()
        ]

    # the kubelet's own life

    def attend(self) -> None:
        """Take care of pods from now on."""
        self._attended.set()

    def leave(self) -> None:
        """The kubelet is away: containers run on, nothing begins and nothing ends."""
        self._attended.clear()

    async def crash(self) -> tuple[LocalPod, ...]:
        """Every container dies with the machine; the pods that are to be admitted anew."""
        # A pod whose admission is under way is refused by it: its plugin is gone.
        survivors = tuple(local for local in self._pods.values() if local.phase == "running")
        for local in survivors:
            await local.interrupt()
            local.phase = "pending"
        return survivors

    def begin(self, *again: LocalPod) -> None:
        """Admit pods, in order."""
        for local in again:
            name = f"{self._node} admits {pods.name_of(local.pod)[1]}"
            self._tasks.spawn(name, self._admitted(local))

    async def close(self) -> None:
        """Stop looking after pods for good."""
        await self._tasks.cancel()

    # pods come and go

    async def follow(self, cluster: ClusterPort) -> None:
        """Do what the API server says about the node's pods, for ever."""
        async for kind, pod in cluster.pods_on(self._node):
            uid = pods.uid_of(pod)
            local = self._pods.get(uid)
            if kind == "DELETED":
                if local is not None:
                    await local.interrupt()
                    local.phase = "ended"
                    del self._pods[uid]
            elif local is not None:
                local.pod = pod
                if pods.deleting(pod) and local.phase != "ending":
                    await self._end(local)
            elif pods.deleting(pod):
                await self._end(self._known(pod))
            elif not pods.ended(pod):
                self.begin(self._known(pod))
            await self._changed()

    async def admit(self, pod: pods.PodJson) -> Admission:
        """Admit and run a pod, as if it had been bound to this node."""
        return await self._admit(self._known(pod))

    async def terminate(self, pod_uid: str) -> None:
        """End a pod after its grace and forget it, as if it had been deleted."""
        local = self._pods[pod_uid]
        await self._end(local)
        if local.task is not None:
            await asyncio.wait([local.task])

    def _known(self, pod: pods.PodJson) -> LocalPod:
        local = self._pods[pods.uid_of(pod)] = LocalPod(pod)
        return local

    async def _admitted(self, local: LocalPod) -> None:
        await self._admit(local)

    async def _admit(self, local: LocalPod) -> Admission:
        await self._attended.wait()
        async with self._admitting:
            if not local.pending():
                return _DELETED_MEANWHILE
            sets, endpoints = self._plugins.sets, self._plugins.endpoints
            sets.collect({pods.uid_of(pod) for pod in self.active()})
            try:
                run_for_s = pods.run_for_s(local.pod)
                await admission.allocate(local.pod, sets, endpoints, self._plugins.write_checkpoint)
                await admission.pre_start(local.pod, sets, endpoints)
            except Permanent as refused:
                return await self._refuse(local, refused.reason)
        if self._times.start_s:
            await asyncio.sleep(self._times.start_s)
        if not local.pending():
            return _DELETED_MEANWHILE
        local.phase, local.started = "running", self._clock.now()
        self._addresses += 1
        local.ip = f"{self._subnet}.{1 + self._addresses % 254}"
        await self._report(local)
        if run_for_s is not None:
            local.task = self._tasks.spawn(f"{self._node} runs", self._complete(local, run_for_s))
        await self._changed()
        return Admission(admitted=True)

    async def _refuse(self, local: LocalPod, why: str) -> Admission:
        if local.pending():
            local.phase = "ended"
            log.info("pod refused", node=self._node, pod=pods.name_of(local.pod), reason=why)
            await self._write(local, pods.rejected(why, admission.REASON, self._clock.now()))
        await self._changed()
        return Admission(admitted=False, reason=admission.REASON, message=why)

    async def _complete(self, local: LocalPod, run_for_s: float) -> None:
        await asyncio.sleep(run_for_s)
        await self._attended.wait()
        local.phase = "ended"
        now = self._clock.now()
        await self._write(local, pods.finished(local.pod, at=now, exit_code=0, reason="Completed"))
        await self._changed()

    async def _end(self, local: LocalPod) -> None:
        await local.interrupt()
        name = f"{self._node} ends {pods.name_of(local.pod)[1]}"
        grace_s = pods.grace_s(local.pod) * self._times.grace_scale if local.phase == "running" else 0.0
        local.phase = "ending"
        local.task = self._tasks.spawn(name, self._ending(local, grace_s))

    async def _ending(self, local: LocalPod, grace_s: float) -> None:
        await self._attended.wait()
        await asyncio.sleep(grace_s)
        local.phase = "ended"
        if self._cluster is not None:
            now = self._clock.now()
            await self._write(local, pods.finished(local.pod, at=now, exit_code=_KILLED, reason="Error"))
            await self._cluster.remove_pod(local.pod)
        self._pods.pop(pods.uid_of(local.pod), None)
        await self._changed()

    # what the API server is told

    async def report_health(self, resource: str, ids: frozenset[str]) -> None:
        """Devices changed their health: the pods that hold them say so."""
        for uid, local in list(self._pods.items()):
            held = self._plugins.sets.of_pod(uid)
            if local.phase == "running" and any(e.resource == resource and e.ids & ids for e in held):
                await self._report(local)

    async def _report(self, local: LocalPod) -> None:
        sets = self._plugins.sets
        status = pods.running(
            local.pod,
            started=local.started or self._clock.now(),
            ip=local.ip,
            host_ip=self._address,
            held=sets.of_pod(pods.uid_of(local.pod)),
            health=sets.health,
        )
        await self._write(local, status)

    async def _write(self, local: LocalPod, status: dict[str, Any]) -> None:
        if self._cluster is not None:
            await self._cluster.write_pod_status(local.pod, status)
