"""The bridge of one node: what it hears, what it says, and how its parts are wired.

Hears, of its own node only: `device.registered|rejected|lost`, `inventory.removed`, `health.reported`, and
what remediation says of its cases. Says, through its own journal: `allocation.granted|bound|released|refused|
misaligned|stated`, `allocation.fenced` in answer to a quarantine, and `allocation.withdrawn` when the bus was
gone and the evidence fatal.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Final

import structlog

from services.bridge.allocator import Allocator
from services.bridge.board import Board
from services.bridge.decide import struck_out
from services.bridge.kubelet import KubeletPaths, look, socket_address
from services.bridge.ledger import Ledger
from services.bridge.plugin import Asked, Plugin, Timing
from services.bridge.record import Heard, NodeRecord
from services.bridge.settings import BridgeSettings
from services.bridge.store import DiskRecord
from shared.bus.port import Bus, Delivery, Disconnected, Subscription
from shared.clock import Clock
from shared.errors import BadInput, Refused
from shared.events import Cause, Payload, Unknown, device, event, remediation, world
from shared.host import Host
from shared.host.tasks import together
from shared.journal import Journal, acknowledged, read

SERVICE: Final = "bridge"
HEARD: Final[dict[str, tuple[type[Payload], ...]]] = {
    "device": (device.Registered, device.DeviceRejected, device.Lost),
    "inventory": (world.Removed,),
    "health": (world.HealthReported,),
    "remediation": (
        remediation.Opened,
        remediation.Quarantined,
        remediation.ProbationStarted,
        remediation.Readmitted,
        remediation.Closed,
        remediation.Retired,
        remediation.Held,
        remediation.HoldReleased,
        remediation.DeadlinePassed,
        remediation.RemediationSnapshotted,
    ),
}

_HEAR_AGAIN_S = 1.0
_LONGEST_SOCKET = "mediafleet-fpga-partition.sock"

log = structlog.get_logger()


class Bridge:
    """The parts of one node's bridge, made from settings; `run` brings them to life."""

    def __init__(
        self,
        settings: BridgeSettings,
        *,
        node: str,
        domain: str,
        root: Path,
        state_dir: Path,
        source: str,
        clock: Clock,
        timing: Timing | None = None,
    ) -> None:
        """Read the books, offer nothing yet.

        Args:
            settings: the bridge's own.
            node: the Kubernetes node.
            domain: resource domain.
            root: the host's root directory.
            state_dir: the node's state directory, shared with discovery.
            source: CloudEvents source of what is said.
            clock: the time.
            timing: of the plugins; the defaults suit a real kubelet.

        Raises:
            Refused: the state directory cannot be used, or the host root is too long for sockets.
            BadInput: no node is named.
        """
        if not node:
            raise BadInput("MEDIAFLEET_NODE_NAME", "is empty", "set it to the name of this Kubernetes node")
        self._settings = settings
        self._node = node
        self._source = source
        self._clock = clock
        self._timing = timing
        self._paths = KubeletPaths.under(root)
        for longest in (self._paths.pod_resources, self._paths.plugins / _LONGEST_SOCKET):
            socket_address(longest)
        self._discovered = state_dir / "journal"
        own = state_dir / SERVICE
        boot_id = _boot_id(root)
        self.journal = Journal(own / "journal")
        self.board = Board()
        self.allocator = Allocator(
            policy=settings.policy(domain),
            root=root,
            clock=clock,
            board=self.board,
            ledgers=DiskRecord(own / "ledger.json", Ledger),
            nodes=DiskRecord(own / "node.json", NodeRecord),
            look=lambda: look(self._paths, timeout_s=settings.kubelet_timeout_s),
            say=self._say,
            boot_id=boot_id,
            fresh_id=_fresh_id(node, boot_id, clock.now()),
        )

    async def run(self, bus: Bus, ready: Callable[[], None]) -> None:
        """Serve, hear and say until cancelled.

        Args:
            bus: the bus; it may be away at any time, also now.
            ready: called once everything was heard.
        """
        restate = _every(self._settings.restate_withdrawn_s, self.allocator.restate_withdrawals)
        try:
            await together(
                journal=self.journal.pump(bus),
                plugins=self._serve(),
                agree=self._agree(),
                hear=self._hear(bus, ready),
                alone=self._act_alone(bus),
                restate=restate,
            )
        finally:
            self.journal.close()

    async def _hear(self, bus: Bus, ready: Callable[[], None]) -> None:
        """Hear this node's facts; a bus that is away is waited for and heard from its oldest fact on."""
        while True:
            try:
                await self._consume(bus, ready)
            except Disconnected as error:
                log.warning("the bus cannot be heard", reason=str(error))
                await asyncio.sleep(_HEAR_AGAIN_S)

    async def _consume(self, bus: Bus, ready: Callable[[], None]) -> None:
        subscriptions = tuple(
            Subscription(domain, types, self._handle, place=self._node) for domain, types in HEARD.items()
        )
        async with bus.consume(SERVICE, subscriptions) as consumption:
            await consumption.until_caught_up()
            self.allocator.open()
            ready()
            restate = asyncio.create_task(
                _every(self._settings.restate_s, self.allocator.state, at_once=True), name="state"
            )
            try:
                await consumption.wait()
            finally:
                restate.cancel()

    async def _handle(self, delivery: Delivery) -> None:
        origin = delivery.origin
        self.allocator.apply(delivery.event, Heard(created=origin.created, sequence=origin.sequence))

    def _say(self, fact: Payload, entity: str, cause: Cause) -> None:
        made = event(fact, (self._node, entity), cause=cause, source=self._source, at=self._clock.now())
        self.journal.append(made)

    async def _serve(self) -> None:
        """One plugin per resource, from the first device of it on."""
        asked = Asked(self.allocator.allocate, self.allocator.prefer)
        serving: set[str] = set()
        async with asyncio.TaskGroup() as tasks:
            while True:
                for resource in self.board.resources:
                    if resource not in serving:
                        serving.add(resource)
                        plugin = Plugin(resource, self.board, asked, self._paths, timing=self._timing)
                        tasks.create_task(plugin.run(), name=f"plugin {resource}")
                await self.board.change()

    async def _agree(self) -> None:
        """Compare the books with the kubelet's: soon when somebody waits, else from time to time."""
        while True:
            wait_s = self._settings.busy_s
            try:
                await self.allocator.agree()
                if not self.allocator.busy:
                    wait_s = self._settings.reconcile_s
            except Refused as error:
                log.error("the books cannot be kept", reason=str(error))
                wait_s = self._settings.reconcile_s
            with suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    await self.allocator.news()

    async def _act_alone(self, bus: Bus) -> None:
        """With the bus gone for long, judge by the node's own journal."""
        away_since_s: float | None = None
        while True:
            await asyncio.sleep(min(1.0, self._settings.alone_after_s / 3))
            now_s = self._clock.monotonic()
            if bus.connected:
                away_since_s = None
                continue
            away_since_s = now_s if away_since_s is None else away_since_s
            if now_s - away_since_s >= self._settings.alone_after_s:
                self.judge_alone()

    def judge_alone(self) -> None:
        """Take a device from the kubelet that struck out by fatal evidence which the bus does not have."""
        waiting = (
            entry.event
            for entry in read(self._discovered, after=acknowledged(self._discovered))
            if not isinstance(entry.event, Unknown)
        )
        reports = ((each.of.entity, each.data) for each in waiting)
        for key, report in struck_out(
            (key, data) for key, data in reports if isinstance(data, world.HealthReported)
        ).items():
            self.allocator.consider(key, report)


async def run(host: Host, settings: BridgeSettings) -> None:
    """The service, as its process runs it."""
    bridge = Bridge(
        settings,
        node=host.shared.node_name,
        domain=host.shared.resource_domain,
        root=host.shared.host_root,
        state_dir=host.shared.state_dir,
        source=host.source,
        clock=host.clock,
    )
    await bridge.run(host.bus, host.ready)


async def _every(seconds: float, act: Callable[[], None], *, at_once: bool = False) -> None:
    if at_once:
        act()
    while True:
        await asyncio.sleep(seconds)
        act()


def _boot_id(root: Path) -> str:
    path = root / "proc/sys/kernel/random/boot_id"
    try:
        return path.read_text().strip()
    except OSError as error:
        raise Refused(f"{path} cannot be read ({error}); check MEDIAFLEET_HOST_ROOT") from error


def _fresh_id(node: str, boot_id: str, now: datetime) -> str:
    """A name for a new ledger that no earlier one of this node had."""
    return hashlib.sha256(f"{node} {boot_id} {now.isoformat()}".encode()).hexdigest()[:10]
