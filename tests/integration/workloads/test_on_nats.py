"""The three services on a real nats-server that is killed in the middle."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from services.alerting.service import Alerting, RulesFile
from services.autoscaler.policy import AutoscalerPolicy
from services.autoscaler.service import Autoscaler
from services.guardian.policy import GuardianPolicy
from services.guardian.service import Guardian
from shared.bus.nats import NatsBus, connect
from shared.bus.port import Disconnected, Lease, LeaseLost
from shared.bus.provision import provision
from shared.bus.server import EmbeddedServer
from shared.clock import SystemClock
from shared.errors import FleetError
from shared.events import Payload, Unknown
from shared.events import workload as facts
from shared.host.tasks import together
from tests.integration.workloads.cluster import Cluster

DOMAIN = "media.example.com"
POLICY = GuardianPolicy(
    dry_run=False,
    grace_s=0,
    relief_wait_s=20,
    min_requests=0,
    min_age_s=0,
    scale_lease_s=4,
)


async def live(name: str, bus: NatsBus, act: Callable[[Lease], Awaitable[None]]) -> None:
    """Be active whenever the lease can be had, as a process does."""
    while True:
        try:
            async with bus.lease(name) as lease:
                await act(lease)
        except (LeaseLost, Disconnected):
            await asyncio.sleep(0.1)


async def sample(cluster: Cluster, bus: NatsBus) -> None:
    """Measure on, whether or not anybody can hear it."""
    pod = cluster.pods_["u-edge-1"]
    while True:
        try:
            await cluster.say_sample(bus, pod)
        except FleetError:
            await asyncio.sleep(0.05)
        await asyncio.sleep(0.05)


async def until(bus: NatsBus, wanted: type[Payload], within_s: float = 30.0) -> list[str]:
    """The facts of its domain, once one of the wanted type is there."""
    async with asyncio.timeout(within_s):
        while True:
            try:
                names = [
                    r.event.data.kind.fact
                    async for r in bus.history(wanted.kind.domain)
                    if not isinstance(r.event, Unknown)
                ]
            except FleetError:
                names = []
            if wanted.kind.fact in names:
                return names
            await asyncio.sleep(0.05)


async def test_a_server_killed_between_order_and_relief_costs_nothing(tmp_path: Path) -> None:
    clock = SystemClock()
    cluster = Cluster(clock, grace_s=0.3)
    cluster.deploy("edge", replicas=1)
    cluster.run("edge-1", tier="online", sla="120", load=0.3, owner="edge")
    cluster.run("batch-1", tier="batch", load=0.6)
    async with EmbeddedServer(tmp_path) as server, AsyncExitStack() as stack:
        await provision(server.url)

        async def join(service: str) -> NatsBus:
            return await stack.enter_async_context(connect(server.url, service=service, instance="0"))

        bus, buses = await join("tester"), [await join(s) for s in ("guardian", "autoscaler", "alerting")]
        await cluster.say_held(bus)
        kube: Any = cluster

        async def guardian(lease: Lease) -> None:
            made = Guardian(
                buses[0], kube, clock, policy=lambda: POLICY, source="/g/0", domain=DOMAIN, tick_s=0.5
            )
            await made.run(lease)

        async def autoscaler(lease: Lease) -> None:
            made = Autoscaler(
                buses[1], kube, clock, policy=AutoscalerPolicy, source="/s/0", domain=DOMAIN, sweep_s=5
            )
            await made.run(lease)

        async def alerting(lease: Lease) -> None:
            await Alerting(buses[2], clock, RulesFile(None), source="/a/0", look_s=5).run(lease)

        async def story() -> None:
            await until(bus, facts.SlaEvictionOrdered)
            await server.kill()
            await server.start()
            names = await until(bus, facts.Restored)
            assert [names.count(n) for n in ("breached", "eviction-ordered", "pod-evicted")] == [1, 1, 1]
            assert cluster.evictions == ["batch-1"]
            await until(bus, facts.ScaleExpired)
            assert cluster.workloads["live", "edge"].replicas == 1

        await together(
            story=story(),
            samples=sample(cluster, bus),
            guardian=live("guardian", buses[0], guardian),
            autoscaler=live("autoscaler", buses[1], autoscaler),
            alerting=live("alerting", buses[2], alerting),
        )
