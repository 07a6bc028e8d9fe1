"""A live stream and a neighbour that grows loud on its engine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from services.console.demo.cluster import PodOnNode, State
from shared.events import Payload
from shared.events import workload as facts
from tests.chaos.site import DOMAIN, Site

LIVE, BATCH = "live", "loud"
_SLA_MS, _BASE_MS = 60, 20
_CALM, _LOUD, _OWN = 0.05, 0.75, 0.25
"""Shares of one engine: the neighbour before and after it grows, and the live stream itself."""


@dataclass
class Breach:
    """One live workload, its neighbour, and what became of them."""

    site: Site
    node: str
    name: str
    edge: PodOnNode
    loud: PodOnNode
    log_at: int
    heard_at: int

    @classmethod
    async def staged(cls, site: Site, node: str) -> Breach:
        """Run both on one engine of a node, calm."""
        number = site.next_number()
        live, batch = f"edge-{number}", f"clips-{number}"
        other = [each for each in site.roots if each != node]
        await site.cluster.cordon(*other)
        await site.cluster.deploy(
            LIVE, live, 1, _pod("online", sla_ms=_SLA_MS), {"simulator.mediafleet/workload-load": str(_OWN)}
        )
        edge = await _running(site, LIVE, live)
        await site.cluster.deploy(BATCH, batch, 1, _pod("batch", load=_CALM), {})
        clips = await _running(site, BATCH, batch)
        await site.cluster.cordon(node)
        assert _engine(edge) == _engine(clips), "the neighbour lies on another engine"
        return cls(site, node, live, edge, clips, await site.cluster.log_position(), len(site.heard))

    async def grow_loud(self) -> None:
        """The neighbour takes most of the engine."""
        body = {"namespace": BATCH, "pod": self.loud.name, "load": _LOUD}
        await self.site.cluster.request("POST", "/simulator/v1/load", body)

    async def said(self, fact: type[Payload], within_s: float = 25.0) -> None:
        """Wait until it was said about the live workload."""
        await self.site.said(fact, f"{LIVE}/deployment-{self.name}", since=self.heard_at, within_s=within_s)

    async def until_evicted(self) -> None:
        """Wait until the API server has let the neighbour go."""

        async def granted() -> int:
            return sum(each["status"] == 201 for each in await self.evictions())

        await self.site.until_true(f"{self.loud.name} is evicted", granted, 1)

    async def relieved(self, replicas: int) -> None:
        """Wait until the SLA is met again, with so many replicas, and the neighbour evicted exactly once."""
        await self.said(facts.Restored, within_s=30)
        await self.site.cluster.until(
            f"{replicas} replicas of {self.name} run",
            lambda now: len(_of(now, LIVE, self.name)) == replicas,
            15,
        )
        scale = await self.site.cluster.request(
            "GET", f"/apis/apps/v1/namespaces/{LIVE}/deployments/{self.name}/scale"
        )
        assert scale["spec"]["replicas"] == replicas
        granted = [each for each in await self.evictions() if each["status"] == 201]
        assert len(granted) == 1, await self.evictions()

    async def evictions(self) -> list[dict[str, Any]]:
        """Eviction requests for the neighbour's first pod."""
        log = await self.site.cluster.access_log(self.log_at)
        return [each for each in log if each["path"].endswith(f"/{self.loud.name}/eviction")]

    async def end(self) -> None:
        """Both workloads go."""
        for namespace, name in ((LIVE, self.name), (BATCH, f"clips-{self.name.rpartition('-')[2]}")):
            path = f"/apis/apps/v1/namespaces/{namespace}/deployments/{name}"
            await self.site.cluster.request("DELETE", path)
        await self.site.cluster.cordon()


def _pod(tier: str, *, load: float | None = None, sla_ms: int | None = None) -> dict[str, Any]:
    annotations = {"simulator.mediafleet/base-latency-ms": str(_BASE_MS)}
    if load is not None:
        annotations["simulator.mediafleet/load"] = str(load)
    if sla_ms is not None:
        annotations["sla/latency-p99-ms"] = str(sla_ms)
    return {
        "limits": {f"{DOMAIN}/nvdec": "1"},
        "labels": {f"{DOMAIN}/tier": tier},
        "annotations": annotations,
    }


async def _running(site: Site, namespace: str, app: str) -> PodOnNode:
    state = await site.cluster.until(
        f"{namespace}/{app} runs", lambda now: any(p.phase == "running" for p in _of(now, namespace, app)), 15
    )
    return _of(state, namespace, app)[0]


def _of(state: State, namespace: str, app: str) -> list[PodOnNode]:
    return [
        pod
        for pod in state.pods()
        if pod.namespace == namespace
        and pod.name.startswith(f"{app}-")
        and pod.phase == "running"
        and pod.ids
    ]


def _engine(pod: PodOnNode) -> str:
    return pod.ids[0].rpartition("-s")[0]
