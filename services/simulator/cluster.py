"""The simulated cluster in one process: API server, controllers, nodes with kubelets, and what work feels.

A node of the demo has a host tree on disk and a kubelet with sockets in it. A node of a large cluster has
neither: it is a Node object with allocatable engines, its pods run at once, and whoever measures plays its
agents.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any, Final

import structlog

from services.simulator import hardware, load, pods, sampling
from services.simulator.api.controllers import running
from services.simulator.api.resources import NODES
from services.simulator.api.server import ApiServer
from services.simulator.control import Control
from services.simulator.hardware import Condition, NodeSpec, invented
from services.simulator.kubelet import Kubelet, KubeletTimes
from services.simulator.store_cluster import StoreCluster
from services.simulator.trees import HostTree, demo_root
from shared.clock import SystemClock
from shared.devices.keys import device_key
from shared.errors import BadInput, FleetError
from shared.events import Cause, event

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

    from services.simulator.settings import SimulatorSettings
    from shared.bus.port import Bus
    from shared.clock import Clock
    from shared.events.world import Sampled

log = structlog.get_logger(__name__)

SOURCE: Final = "/mediafleet/simulator/workloads"
_MANY: Final = 20
"""From so many nodes on, kubelets are left out unless asked for."""


@dataclass(slots=True)
class Node:
    """One node; tree and kubelet are None on a node that is only an object."""

    spec: NodeSpec
    address: str
    tree: HostTree | None = None
    kubelet: Kubelet | None = None


class Cluster:
    """Everything of one simulated cluster; an async context that leaves nothing behind."""

    def __init__(
        self,
        settings: SimulatorSettings,
        *,
        specs: tuple[NodeSpec, ...] = (),
        clock: Clock | None = None,
        bus: Bus | None = None,
    ) -> None:
        """Args: specs: the nodes, instead of those that the settings make; bus: where samples go."""
        self.settings = settings
        self.clock: Clock = clock or SystemClock()
        self.bus = bus
        self.url = ""
        random = Random(settings.seed)  # noqa: S311 - uids and names of a simulation, no secrets
        self.api = ApiServer(clock=self.clock, random=random)
        self.nodes: dict[str, Node] = {}
        self.control = Control(self)
        self._specs = specs or _specs(settings)
        self._stack = AsyncExitStack()
        self._window = 0
        self._started = invented("workloads", settings.seed, self.clock.now().isoformat())[:32]

    async def __aenter__(self) -> Self:
        try:
            await self._start()
        except BaseException:
            await self._stack.aclose()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stack.aclose()

    async def _start(self) -> None:
        self._stack.push_async_callback(self.api.stop)
        self._stack.push_async_callback(self.control.close)
        controllers = await self._stack.enter_async_context(running(self.api.store))
        port = StoreCluster(self.api.store, controllers.dispatch)
        whole = self.settings.kubelets == "on" or (
            self.settings.kubelets == "auto" and len(self._specs) < _MANY
        )
        base = self._base() if whole else Path()
        for index, spec in enumerate(self._specs):
            node = self.nodes[spec.name] = Node(spec, f"10.0.{index // 250}.{1 + index % 250}")
            if whole:
                await self._boot(node, demo_root(base, spec.name), port, f"10.244.{index % 250}")
            else:
                self.api.store.create(NODES, "", _hollow(node, self.settings.slots_per_engine))
        sampler = asyncio.create_task(self._sample(), name="sampler")
        self._stack.push_async_callback(_cancelled, sampler)
        self.url = await self.api.start(self.settings.host, self.settings.port)

    def _base(self) -> Path:
        if self.settings.root is not None:
            self.settings.root.mkdir(parents=True, exist_ok=True)
            return self.settings.root
        base = Path(tempfile.mkdtemp(prefix="mf-"))
        self._stack.callback(shutil.rmtree, base, ignore_errors=True)
        return base

    async def _boot(self, node: Node, root: Path, port: StoreCluster, subnet: str) -> None:
        node.tree = HostTree(root, node.spec)
        node.tree.build()
        settings = self.settings
        times = KubeletTimes(
            node_status_s=settings.node_status_s,
            plugin_grace_s=settings.plugin_grace_s,
            grace_scale=settings.grace_scale,
            start_s=settings.start_s,
        )
        node.kubelet = Kubelet(
            root,
            node.spec.name,
            cluster=port,
            times=times,
            clock=self.clock,
            address=node.address,
            pod_subnet=subnet,
            labels=dict(node.spec.labels),
        )
        await self._stack.enter_async_context(node.kubelet)

    # what happens to it

    def node(self, name: str) -> Node:
        """A node by name.

        Raises:
            BadInput: there is none.
        """
        if name not in self.nodes:
            known = ", ".join(list(self.nodes)[:5])
            raise BadInput("node", f"{name!r} is not simulated", f"write one of {known}")
        return self.nodes[name]

    def tree(self, name: str) -> HostTree:
        """The host tree of a node.

        Raises:
            BadInput: no such node, or it has none.
        """
        tree = self.node(name).tree
        if tree is None:
            raise BadInput("node", f"{name!r} has no host tree", "start the simulator with kubelets on")
        return tree

    def kubelet(self, name: str) -> Kubelet:
        """The kubelet of a node.

        Raises:
            BadInput: no such node, or it has none.
        """
        kubelet = self.node(name).kubelet
        if kubelet is None:
            raise BadInput("node", f"{name!r} has no kubelet", "start the simulator with kubelets on")
        return kubelet

    async def reboot(self, name: str, *, down_s: float = 0.0) -> None:
        """The machine starts anew: kernel log and boot id first, then the kubelet."""
        kubelet, tree = self.kubelet(name), self.tree(name)
        tree.reboot()
        await kubelet.reboot(down_s=down_s)

    # what work feels

    def conditions(self) -> dict[tuple[str, str], Condition]:
        """The condition of every device, by node and device key."""
        return {
            (name, device_key(device.model.vendor, device.bus_address)): device.condition
            for name, node in self.nodes.items()
            if node.tree is not None
            for device in node.tree.devices
        }

    def running(self) -> tuple[sampling.Running, ...]:
        """Every pod whose containers run on a node with a kubelet, with the ids it holds."""
        return tuple(
            one
            for node in self.nodes.values()
            if node.kubelet is not None
            for one in node.kubelet.running_pods()
        )

    def loads(self) -> dict[str, Any]:
        """What is true now, for the control interface: engines by node, and what every pod feels."""
        conditions, by_node = self.conditions(), dict[str, list[tuple[load.Work, str]]]()
        for one, _, pod in sampling.work(self.api.store, self.running()):
            about = "/".join(pods.name_of(pod))
            by_node.setdefault(str(pod["spec"]["nodeName"]), []).append((one, about))
        busy: dict[str, dict[str, float]] = {}
        feels: dict[str, dict[str, float]] = {}
        for name, members in by_node.items():
            local = {key: how for (node, key), how in conditions.items() if node == name}
            work = [one for one, _ in members]
            busy[name] = load.utilisation(work, local)
            felt = load.felt(work, local)
            feels |= {about: asdict(felt[one.pod_uid]) for one, about in members}
        return {"utilisation": busy, "pods": feels}

    async def _sample(self) -> None:
        while True:
            await asyncio.sleep(self.settings.sample_s)
            await self.publish_samples()

    async def publish_samples(self) -> int:
        """Measure every workload once and say it on the bus; how many samples there were."""
        self._window += 1
        window = sampling.Window(self._started, self._window, self.settings.sample_s, self.clock.now())
        measured = sampling.samples(self.api.store, self.running(), self.conditions(), window)
        if self.bus is None:
            return len(measured)
        try:
            async with asyncio.timeout(max(1.0, window.length_s)):
                await self._say(self.bus, measured, window)
        except (FleetError, TimeoutError) as gone:
            # A sample is worth nothing later: the next window has its own.
            log.info("samples lost", reason=str(gone) or "the bus is slow", window=window.n)
        return len(measured)

    async def _say(self, bus: Bus, measured: list[Sampled], window: sampling.Window) -> None:
        for sample in measured:
            fact = event(
                sample,
                (sample.pod.namespace, sample.pod.name),
                cause=Cause.source(self._started, f"{window.n}/{sample.pod.uid}"),
                source=SOURCE,
                at=window.at,
            )
            await bus.publish(fact)

    def snapshot(self) -> dict[str, Any]:
        """What there is now, for the control interface."""
        return {"nodes": [_shown(node) for node in self.nodes.values()]}


def _specs(settings: SimulatorSettings) -> tuple[NodeSpec, ...]:
    if settings.nodes:
        return hardware.fleet_nodes(settings.nodes, devices=settings.devices_per_node, seed=settings.seed)
    return hardware.demo_nodes(settings.seed)


def _hollow(node: Node, slots: int) -> dict[str, Any]:
    devices = node.spec.devices()
    quantities = {
        "cpu": "64",
        "memory": "263921164Ki",
        "pods": "250",
        "media.example.com/nvenc": str(sum(device.model.encoders for device in devices) * slots),
        "media.example.com/nvdec": str(sum(device.model.decoders for device in devices) * slots),
    }
    return {
        "metadata": {"name": node.spec.name, "labels": {"kubernetes.io/hostname": node.spec.name}},
        "spec": {},
        "status": {
            "capacity": quantities,
            "allocatable": quantities,
            "conditions": [{"type": "Ready", "status": "True", "reason": "KubeletReady"}],
            "addresses": [{"type": "InternalIP", "address": node.address}],
        },
    }


def _shown(node: Node) -> dict[str, Any]:
    devices = node.tree.devices if node.tree else node.spec.devices()
    return {
        "name": node.spec.name,
        "hostRoot": str(node.tree.root) if node.tree else None,
        "bootId": node.tree.boot_id if node.tree else None,
        "devices": [
            {
                "key": device_key(device.model.vendor, device.bus_address),
                "slot": device.slot,
                "vendor": device.model.vendor,
                "model": device.model.name,
                "busAddress": device.bus_address,
                "serial": device.serial,
                "present": device.present,
                "condition": device.condition,
                "uncorrectable": device.uncorrectable,
            }
            for device in devices
        ],
        "kubelet": node.kubelet.snapshot() if node.kubelet else None,
    }


async def _cancelled(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.wait([task])
