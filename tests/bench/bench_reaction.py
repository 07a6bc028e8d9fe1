"""From the third strike to the eviction request: `python -m tests.bench.bench_reaction`.

Real nats-server on file storage, remediation as a process of its own, the simulated API server as another;
this process plays the nodes: it reports health, and answers a quarantine with who holds the device, as a
bridge does. Times are read from the API server's access log (monotonic clock of the same machine).
"""

from __future__ import annotations

import argparse
import asyncio
import math
import statistics
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime

import aiohttp

from services.console.demo.cluster import SimulatedCluster
from services.console.demo.stage import Stage, stage
from services.console.demo.verdict import evictions
from shared.bus.nats import NatsBus, connect
from shared.bus.port import Delivery, Subscription
from shared.clock import SystemClock
from shared.events import Cause, Payload, event
from shared.events.parts import Evidence, PodRef, Window
from shared.events.remediation import Quarantined
from shared.events.world import Fenced, HealthReported, Heartbeat

KEY = "nvidia-0000-3b-00-0"
_POLICY = """
remediation:
  budgets: {}
  common_cause: {count: {node: 100000, rack: 100000, model: 100000, cluster: 100000}}
guardian: {dry_run: true}
"""


@dataclass
class Fleet:
    """Nodes of one device and one pod each, played by this process.

    Attributes:
        pods: pod by node.
        quarantined_s: monotonic time at which a node's quarantine was heard.
    """

    cluster: SimulatedCluster
    bus: NatsBus
    nodes: tuple[str, ...]
    boot: str = "boot-1"
    pods: dict[str, PodRef] = field(default_factory=dict)
    quarantined_s: dict[str, float] = field(default_factory=dict)
    _n: int = 0
    _read: int = 0
    _evicted: dict[str, float] = field(default_factory=dict)

    async def furnish(self) -> None:
        """One running pod per node, and a first healthy word of every device."""
        await self.cluster.namespace("work")
        await asyncio.gather(*(self._furnish(node) for node in self.nodes))

    async def _furnish(self, node: str) -> None:
        pod = {
            "metadata": {"name": f"pod-{node}", "labels": {"media.example.com/tier": "batch"}},
            "spec": {
                "nodeName": node,
                "terminationGracePeriodSeconds": 0,
                "containers": [{"name": "c", "image": "i"}],
            },
        }
        made = await self.cluster.request("POST", "/api/v1/namespaces/work/pods", pod)
        self.pods[node] = PodRef(namespace="work", name=made["metadata"]["name"], uid=made["metadata"]["uid"])
        await self.say(
            node,
            "agent",
            Heartbeat(boot_id=self.boot, n=0, device_keys=(KEY,), journal_depth=0, journal_lost=0),
        )
        await self.report(node, 0, "")

    async def say(self, node: str, entity: str, payload: Payload, cause: Cause | None = None) -> None:
        """Publish as that node would."""
        self._n += 1
        why = cause or Cause.source(self.boot, self._n)
        await self.bus.publish(
            event(payload, (node, entity), cause=why, source="/bench", at=datetime.now(UTC))
        )

    async def report(self, node: str, window: int, code: str) -> None:
        """One window of health; a code makes it unhealthy."""
        evidence = Evidence.model_validate(
            {
                "id": f"{node}-{window}",
                "kind": "kernel-line",
                "code": code,
                "class": "transient",
                "at": datetime.now(UTC),
            }
        )
        reported = HealthReported(
            boot_id=self.boot,
            window_id=window,
            verdict="unhealthy" if code else "healthy",
            streak=1,
            evidence=(evidence,) if code else (),
        )
        await self.say(node, KEY, reported)

    async def fence(self, delivery: Delivery) -> None:
        """Answer a quarantine as the bridge does, at once."""
        said = delivery.event
        assert isinstance(said.data, Quarantined)
        node = said.of.place
        self.quarantined_s[node] = time.monotonic()
        fenced = Fenced(
            epoch=said.data.epoch,
            holders=(self.pods[node],),
            as_of=Window(boot_id=self.boot, window_id=3),
        )
        await self.say(node, KEY, fenced, Cause.of(said))

    async def evicted_s(self, count: int, within_s: float) -> dict[str, float]:
        """Monotonic time of each node's eviction request, once there are so many."""
        async with asyncio.timeout(within_s):
            while True:
                news = await self.cluster.access_log(self._read)  # only what is new: reading costs the server
                self._read = news[-1]["number"] if news else self._read
                for each in evictions(news):
                    self._evicted[each.pod.removeprefix("work/pod-")] = each.at_s
                if len(self._evicted) >= count:
                    return self._evicted
                await asyncio.sleep(0.02)


@asynccontextmanager
async def fleet(nodes: int) -> AsyncIterator[Fleet]:
    """A furnished fleet with a remediation service that watches it."""
    async with stage({}) as here, aiohttp.ClientSession() as session:
        policy = here.directory / "policy.yaml"
        policy.write_text(_POLICY)
        url = await _simulator(here, nodes)
        cluster = SimulatedCluster(url, session)
        names = tuple(f"node-{index:04d}" for index in range(nodes))
        more = {"MEDIAFLEET_KUBE_URL": url, "MEDIAFLEET_POLICY_FILE": str(policy)}
        async with connect(here.nats_url, service="bench", instance="0", clock=SystemClock()) as bus:
            made = Fleet(cluster, bus, names)
            await made.furnish()
            heard = Subscription("remediation", (Quarantined,), made.fence)
            async with bus.consume("bench", (heard,)) as consumption:
                await consumption.until_caught_up()
                await here.start("remediation", "services.remediation", more)
                await asyncio.sleep(3)
                here.check()
                yield made


async def _simulator(here: Stage, nodes: int) -> str:
    more = {"MEDIAFLEET_SIMULATOR__NODES": str(nodes), "MEDIAFLEET_SIMULATOR__KUBELETS": "off"}
    return (await here.simulator(more))[0]


async def one_after_another(nodes: int) -> None:
    """Strike out one device after another; from the third strike's publish to the eviction request."""
    async with fleet(nodes) as made:
        struck: dict[str, float] = {}
        for node in made.nodes:
            for window in (1, 2):
                await made.report(node, window, "48")
        for count, node in enumerate(made.nodes, 1):
            struck[node] = time.monotonic()
            await made.report(node, 3, "48")
            evicted = await made.evicted_s(count, 20)
        spans = sorted((evicted[node] - struck[node]) * 1000 for node in made.nodes)
        p50, p99 = statistics.median(spans), spans[math.ceil(len(spans) * 0.99) - 1]
        _print(
            "third strike -> eviction request",
            f"p50 {p50:.1f} ms, p99 {p99:.1f} ms [{spans[0]:.1f}..{spans[-1]:.1f}]",
            "p50 <= 15, p99 <= 60",
        )


async def all_at_once(nodes: int, run: int) -> None:
    """Every device faults at once with a code of its own; when the last is quarantined, and evicted from."""
    async with fleet(nodes) as made:
        for window in (1, 2):
            await asyncio.gather(
                *(made.report(node, window, f"c{index}") for index, node in enumerate(made.nodes))
            )
        await asyncio.sleep(1)
        started_s = time.monotonic()
        await asyncio.gather(*(made.report(node, 3, f"c{index}") for index, node in enumerate(made.nodes)))
        said_s = time.monotonic()
        evicted = await made.evicted_s(nodes, 60)
        quarantined_s = max(made.quarantined_s.values()) - started_s
        evicted_s = max(evicted.values()) - started_s
        _print(
            f"{nodes} devices on {nodes} nodes at once, run {run}",
            f"reported in {said_s - started_s:.2f} s, last quarantined {quarantined_s:.2f} s, "
            f"last eviction {evicted_s:.2f} s",
            "<= 1 s, <= 3 s",
        )


def _print(what: str, figures: str, reach: str) -> None:
    sys.stdout.write(f"{what:<50} {figures}   (reach {reach})\n")
    sys.stdout.flush()


def main() -> None:
    """Print both benches."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--single", type=int, default=200, help="devices struck out one after another")
    parser.add_argument("--many", type=int, default=200, help="devices that fault at once")
    parser.add_argument("--runs", type=int, default=3, help="repetitions of the second bench")
    given = parser.parse_args()
    asyncio.run(one_after_another(given.single))
    for run in range(1, given.runs + 1):
        asyncio.run(all_at_once(given.many, run))


if __name__ == "__main__":
    main()
