"""What the manager hears and says, and how its parts are wired.

Hears inventory and heartbeats and decides which devices are registered; hears everybody else's facts about
devices only to project them.
"""

from __future__ import annotations

import asyncio
from datetime import datetime

from services.manager.act import Projection
from services.manager.decide import LOST, DeviceCase, Policy, Registrar, Seen
from services.manager.fleet import PROJECTED, Fleet
from services.manager.settings import ManagerSettings
from services.manager.startup import Startup
from shared.bus.port import Lease
from shared.clock import Clock
from shared.deciders.protocol import Effect
from shared.deciders.runner import Runner
from shared.events import AnyEvent, Entity, Payload, Unknown
from shared.events.world import Changed, Discovered, FoundDevice, Heartbeat, InventoryStated, Removed
from shared.host import Host
from shared.host.tasks import together
from shared.kube.client import connect

_INVENTORY = (Discovered, Changed, Removed)


class Inventory:
    """What every node says it has, and when it last said anything."""

    def __init__(self, clock: Clock) -> None:
        """Args: clock: for silence."""
        self._clock = clock
        self._found: dict[str, dict[str, FoundDevice]] = {}
        self._gone: dict[str, set[str]] = {}
        self._listed: set[str] = set()
        self._heard: dict[str, tuple[float, datetime]] = {}

    def hear(self, event: AnyEvent) -> tuple[str, ...]:
        """Take a fact of a node; keys whose standing in the inventory it may have changed."""
        node, key = event.of.place, event.of.entity
        self._heard[node] = (self._clock.monotonic(), event.time)
        have, gone = self._found.setdefault(node, {}), self._gone.setdefault(node, set())
        match event.data:
            case Discovered(device=device) | Changed(device=device):
                have[key] = device
                gone.discard(key)
                return (key,)
            case Removed():
                have.pop(key, None)
                gone.add(key)
                return (key,)
            case InventoryStated(devices=devices):
                before = set(have)
                have.clear()
                have.update((device.key, device) for device in devices)
                self._listed.add(node)
                return tuple(sorted(before | set(have)))
            case Heartbeat(device_keys=keys):
                return keys
        return ()

    def seen(self, node: str, key: str, listening_since_s: float | None) -> Seen:
        """What is known now of a device; silence counts only while we were listening."""
        now_s = self._clock.monotonic()
        heard_s, at = self._heard.get(node, (0.0, None))
        silent_s = 0.0 if listening_since_s is None else now_s - max(heard_s, listening_since_s)
        found = self._found.get(node, {}).get(key)
        listed = node in self._listed or key in self._gone.get(node, ())
        return Seen(listed, found, silent_s, at)


class Manager:
    """The registrar's hands while one lease lasts."""

    hears: tuple[type[Payload], ...] = (*_INVENTORY, InventoryStated, Heartbeat, *PROJECTED)

    def __init__(self, host: Host, settings: ManagerSettings) -> None:
        """Args: host: the process. settings: when to give a device up, how to project."""
        self._host = host
        self._settings = settings
        self._inventory = Inventory(host.clock)
        self._fleet = Fleet()
        self._projection: Projection | None = None
        self._runner: Runner[DeviceCase, Seen, Policy] | None = None

    async def run(self, lease: Lease) -> None:
        """Register and project until the lease ends."""
        host, settings = self._host, self._settings
        async with connect(
            host.shared.kube_url,
            component="mediafleet-manager",
            instance=host.shared.instance,
            domain=host.shared.resource_domain,
        ) as kube:
            runner = self._runner = Runner(
                host.bus,
                Registrar(),
                self,
                policy=lambda: settings.policy,
                clock=host.clock,
                source=host.source,
                service="manager",
                compact_after_s=lambda _: settings.compact_after_s,
            )
            self._projection = Projection(
                self._fleet,
                host.bus,
                kube,
                host.clock,
                domain=host.shared.resource_domain,
                at_once=settings.project_at_once,
            )
            await self._recover()
            await together(
                manager=runner.run(lease),
                projection=self._projection.run(lambda: _until_caught_up(runner)),
                silence=self._sweep(runner),
                startup=Startup(kube, taint=settings.startup_taint, domain=host.shared.resource_domain).run(),
            )

    async def _recover(self) -> None:
        """Read what the streams keep: a consumer taken over begins where its last holder stood."""
        by_domain: dict[str, list[type[Payload]]] = {}
        for payload in self.hears:
            if payload is not Heartbeat:
                by_domain.setdefault(payload.kind.domain, []).append(payload)
        for domain, types in by_domain.items():
            async for record in self._host.bus.history(domain, types=tuple(types)):
                if not isinstance(record.event, Unknown):
                    self.observe(record.event)

    # ---------------------------------------------------------------- hands of the registrar

    def route(self, event: AnyEvent) -> Entity | None:
        """An inventory fact concerns its device; everything else only the projection."""
        return (
            Entity("device", event.of.place, event.of.entity) if isinstance(event.data, _INVENTORY) else None
        )

    def observe(self, event: AnyEvent) -> None:
        """Note what nodes say, and project what everybody says."""
        if isinstance(event.data, (*_INVENTORY, InventoryStated, Heartbeat)):
            keys = self._inventory.hear(event)
            if not isinstance(event.data, _INVENTORY):
                self._ask_again(event, keys)
            return
        changed = self._fleet.hear(event)
        if self._projection is not None:
            self._projection.touch(*changed)

    def _ask_again(self, event: AnyEvent, keys: tuple[str, ...]) -> None:
        """A list concerns every device it names or leaves out; a heartbeat only those given up before."""
        runner = self._runner
        if runner is None:
            return
        for key in keys:
            of = Entity("device", event.of.place, key)
            case = runner.case(of)
            if isinstance(event.data, InventoryStated) or (case is not None and case.state == LOST):
                runner.nudge(of)

    def correlation(self, of: Entity, fact: Payload) -> str:
        """The device and its generation."""
        return f"device:{of.about}#{getattr(fact, 'generation', 0)}"

    async def gather(self, of: Entity, case: DeviceCase, cause: AnyEvent | None) -> Seen:
        """What the node's inventory says."""
        del case, cause
        since_s = None if self._runner is None else self._runner.listening_since_s
        return self._inventory.seen(of.place, of.entity, since_s)

    async def act(self, effect: Effect, case: DeviceCase) -> Payload:
        """Never asked: registration has no effects."""
        raise RuntimeError(f"the registrar of {case.key} ordered {effect.key}, and it has no effects")

    def failed(self, effect: Effect, error: Exception) -> Payload:
        """Never asked: registration has no effects."""
        raise RuntimeError(f"the registrar has no effects, not {effect.key}") from error

    def said(self, fact: AnyEvent, case: DeviceCase) -> None:
        """Nothing: own facts are heard like everybody's."""
        del fact, case

    async def _sweep(self, runner: Runner[DeviceCase, Seen, Policy]) -> None:
        """Ask again about devices of nodes that have gone silent; now and then project everything anew."""
        settings, projected_s = self._settings, self._host.clock.monotonic()
        while True:
            await asyncio.sleep(settings.sweep_every_s)
            for of, case in list(runner.open_cases()):
                seen = self._inventory.seen(case.node, case.key, runner.listening_since_s)
                if seen.silent_s >= settings.silent_after_s:
                    runner.nudge(of)
            if (
                self._projection is not None
                and self._host.clock.monotonic() - projected_s >= settings.resync_every_s
            ):
                projected_s = self._host.clock.monotonic()
                self._projection.resync()


async def _until_caught_up(runner: Runner[DeviceCase, Seen, Policy]) -> None:
    while not runner.caught_up:  # noqa: ASYNC110 - the consumption that will tell is not made yet
        await asyncio.sleep(0.05)


async def run(host: Host, settings: ManagerSettings) -> None:
    """Be the manager whenever the lease is ours."""
    await host.while_active(lambda lease: Manager(host, settings).run(lease))
