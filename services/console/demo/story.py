"""The demo's story: a device fails and is taken out, healed and readmitted; then a neighbour is too loud.

Everything is done as a user, an operator or fate would do it: objects are created at the API server, a kernel
line is written, a load rises. What follows is up to the services.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from services.console.demo import verdict
from services.console.demo.cluster import NotSeen, PodOnNode, SimulatedCluster, State
from services.console.demo.verdict import Check

TELL = Callable[[str], None]

_DOMAIN = "media.example.com"
NAMESPACES = _LIVE, _BATCH = "live", "batch"
"""What the story makes on the cluster."""
_SLA_MS = 60
_BASE_MS = 20
_CALM, _LOUD, _OWN = 0.05, 0.75, 0.25
"""Shares of one engine: the neighbour before and after it grows, and the live stream itself."""


@dataclass(slots=True)
class Cast:
    """Who plays: chosen by the seed.

    Attributes:
        failing: the node whose device fails; loud: the node where a neighbour grows loud.
        code: the fault's code where the vendor's line takes one.
    """

    failing: str
    loud: str
    code: int | None


@dataclass(slots=True)
class Story:
    """One run of it.

    Attributes:
        tell: says a line of narration.
        checks: what was found, for the verdict.
        evicted: uid of an evicted pod whose chain is worth showing.
        curtain: whether the services have told the end; waited for a little, so that the timeline is whole.
    """

    cluster: SimulatedCluster
    tell: TELL
    within_s: float = 30.0
    checks: list[Check] = field(default_factory=list)
    evicted: str = ""
    curtain: Callable[[], bool] = lambda: True

    async def play(self, seed: int) -> None:
        """Both acts; stops at the first thing that does not happen."""
        try:
            cast = await self._cast(seed)
            await self._fault(cast)
            await self._breach(cast)
            async with asyncio.timeout(self.within_s):
                while not self.curtain():  # noqa: ASYNC110 - told by a stream, not by an event
                    await asyncio.sleep(0.1)
        except TimeoutError:
            self.tell("the services have not told the end yet")
        except NotSeen as missing:
            self.checks.append(Check("the story goes on", passed=False, seen=str(missing)))

    async def _cast(self, seed: int) -> Cast:
        """Wait until every node offers its engines, and choose."""
        state = await self.cluster.until(
            "every node's engines in its allocatable",
            lambda now: all(_offered(now, node) for node in now.nodes),
            self.within_s,
        )
        for namespace in NAMESPACES:
            await self.cluster.namespace(namespace)
        nodes = sorted(state.nodes)
        failing, loud = nodes[seed % len(nodes)], nodes[(seed + 1) % len(nodes)]
        for node in nodes:
            resource, count = _offered(state, node)[0]
            devices = state.nodes[node]["devices"]
            self.tell(f"{node}: {len(devices)} x {devices[0]['model']}, {count} of {resource}")
        nvidia = state.nodes[failing]["devices"][0]["vendor"] == "nvidia"
        return Cast(failing, loud, (48, 46, 119)[seed // len(nodes) % 3] if nvidia else None)

    # ------------------------------------------------------------------ a device fails

    async def _fault(self, cast: Cast) -> None:
        cluster, node = self.cluster, cast.failing
        state = await cluster.state()
        resource, offered = _offered(state, node)[0]
        devices = state.nodes[node]["devices"]
        half = max(1, offered // len(devices) // 2)
        await cluster.cordon(*(each for each in state.nodes if each != node))
        pod = _pod({resource: str(half)}, "batch", load=_CALM)
        await cluster.deploy(_BATCH, "transcode", 3, pod, {})
        state = await cluster.until(
            f"three transcode pods running with devices on {node}",
            lambda now: len(_running(now, _BATCH, "transcode", node)) == 3,  # noqa: PLR2004 - asked for above
            self.within_s,
        )
        await cluster.cordon(cast.loud)
        running = _running(state, _BATCH, "transcode", node)
        device = max(
            (each["key"] for each in devices),
            key=lambda key: sum(any(i.startswith(key) for i in p.ids) for p in running),
        )
        victims = {pod.about: pod.uid for pod in running if any(id_.startswith(device) for id_ in pod.ids)}
        spared = [pod.about for pod in running if pod.about not in victims]
        self.checks.append(
            Check(
                "pods got devices",
                passed=True,
                seen=f"{len(running)} pods on {node}, {len(victims)} of them on {device}",
            )
        )
        before = await cluster.log_position()
        self.tell(
            f"fault: {node}/{device} reports memory errors; "
            f"{', '.join(victims)} use it, {', '.join(spared)} does not"
        )
        fault = {"node": node, "device": device}
        await cluster.request("POST", "/simulator/v1/device-faults", {**fault, "kind": "ecc", "count": 2})
        line = {
            **fault,
            "kind": "line",
            "times": 3,
            "every_s": 1.1,
            **({"code": cast.code} if cast.code else {}),
        }
        await cluster.request("POST", "/simulator/v1/device-faults", line)
        await cluster.until(
            f"the kubelet of {node} gives {device} to nobody",
            lambda now: not now.ids_of(node, device)[0] and bool(now.ids_of(node, device)[1]),
            self.within_s,
        )
        self.checks.append(
            Check("the kubelet was told", passed=True, seen=f"every id of {device} is unhealthy")
        )
        await cluster.until(
            f"nobody holds {device}",
            lambda now: not any(id_.startswith(device) for pod in now.pods() for id_ in pod.ids),
            self.within_s,
        )
        self.evicted = next(iter(victims.values()))
        self.tell(f"fate: {node}/{device} is well again")
        await cluster.request("POST", "/simulator/v1/device-faults", {**fault, "kind": "heal"})
        await cluster.until(
            f"the kubelet of {node} may give {device} again",
            lambda now: now.may_give(node, device),
            self.within_s,
        )
        self.checks.append(
            Check("the device is allocatable again", passed=True, seen=f"ids of {device} are healthy again")
        )
        name = f"{node}-{device}"
        story = ("Quarantined", "Draining", "Diagnosing", "Probation", "Healthy")
        await self._seen(
            lambda log: verdict.went_through("its MediaResource tells the case", log, name, story), before
        )
        await self._seen(
            lambda log: verdict.event_recorded("an alert stands on the node", log, "DeviceQuarantined", node),
            before,
        )
        log = await cluster.access_log(before)
        self.checks.append(
            verdict.only_these_evicted("its pods, and only those, were evicted", log, victims, "remediation")
        )

    # ------------------------------------------------------------------ a neighbour grows loud

    async def _breach(self, cast: Cast) -> None:
        cluster, node = self.cluster, cast.loud
        state = await cluster.state()
        resource, _ = _offered(state, node)[0]
        await cluster.cordon(*(each for each in state.nodes if each != node))
        live = _pod({resource: "1"}, "online", base_ms=_BASE_MS, sla_ms=_SLA_MS)
        await cluster.deploy(_LIVE, "rtmp-edge", 1, live, {"simulator.mediafleet/workload-load": str(_OWN)})
        edge = (await self._one(node, _LIVE, "rtmp-edge")).ids[0]
        await cluster.deploy(_BATCH, "clips", 1, _pod({resource: "1"}, "batch", load=_CALM), {})
        clip = await self._one(node, _BATCH, "clips")
        engine = edge.rpartition("-s")[0]
        if clip.ids[0].rpartition("-s")[0] != engine:
            raise NotSeen(
                f"rtmp-edge is on {engine}, clips on {clip.ids[0]}: the demo needs them on one engine"
            )
        await cluster.cordon(node)
        await asyncio.sleep(_SAMPLES_S)
        calm = await self._utilisation(node, engine)
        before = await cluster.log_position()
        self.tell(
            f"load: {clip.about} grows from {_CALM:.0%} to {_LOUD:.0%} of {node}/{engine}, "
            f"which it shares with live/rtmp-edge (p99 target {_SLA_MS} ms)"
        )
        await cluster.request(
            "POST", "/simulator/v1/load", {"namespace": _BATCH, "pod": clip.name, "load": _LOUD}
        )
        loud = await self._utilisation(node, engine)
        await cluster.until(
            f"{clip.about} has left {engine}",
            lambda now: all(pod.uid != clip.uid for pod in now.pods()),
            self.within_s,
        )
        await self._seen(
            lambda log: verdict.scaled_up("the live workload was scaled up", log, "live/rtmp-edge", 1), before
        )
        await cluster.until(
            "a second replica of live/rtmp-edge runs",
            lambda now: sum(pod.phase == "running" for pod in _of(now, _LIVE, "rtmp-edge")) == 2,  # noqa: PLR2004 - the scale-up
            self.within_s,
        )
        after = await self._utilisation(node, engine)
        p99 = [_BASE_MS / (1 - min(each, 0.95)) for each in (calm, loud, after)]
        seen = f"p99 {p99[0]:.0f} ms, loud {p99[1]:.0f} ms or more, now {p99[2]:.0f} ms; target {_SLA_MS} ms"
        self.checks.append(Check("the SLA is restored", passed=p99[2] <= 0.9 * _SLA_MS < p99[1], seen=seen))
        log = await cluster.access_log(before)
        self.checks.append(
            verdict.only_these_evicted(
                "the neighbour on the same engine, and only it, was evicted",
                log,
                {clip.about: clip.uid},
                "guardian",
            )
        )

    async def _one(self, node: str, namespace: str, app: str) -> PodOnNode:
        state = await self.cluster.until(
            f"{namespace}/{app} running on {node}",
            lambda now: bool(_running(now, namespace, app, node)),
            self.within_s,
        )
        return _running(state, namespace, app, node)[0]

    async def _utilisation(self, node: str, engine: str) -> float:
        answer = await self.cluster.request("GET", "/simulator/v1/load")
        return float(answer["utilisation"].get(node, {}).get(engine) or 0.0)

    async def _seen(self, look: Callable[[list[dict[str, Any]]], Check], since: int) -> None:
        """Wait until a check of the access log passes; what it says at last stands."""

        async def checked() -> Check:
            return look(await self.cluster.access_log(since))

        self.checks.append(await _passing(checked, self.within_s))


async def _passing(checked: Callable[[], Awaitable[Check]], within_s: float) -> Check:
    check = await checked()
    try:
        async with asyncio.timeout(within_s):
            while not check.passed:
                await asyncio.sleep(0.1)
                check = await checked()
    except TimeoutError:
        pass  # the last look is the verdict
    return check


_SAMPLES_S = 2.0
"""Some windows of calm before the load rises, so that the guardian knows what is usual."""


def _offered(state: State, node: str) -> list[tuple[str, int]]:
    """Resources for encoders, else decoders, that a node offers, and how many slots."""
    found = []
    for name in (f"{_DOMAIN}/nvenc", f"{_DOMAIN}/nvdec"):
        healthy = len(state.resource(node, name)["healthy"])
        if healthy:
            found.append((name, healthy))
    return found


def _of(state: State, namespace: str, app: str) -> list[PodOnNode]:
    return [pod for pod in state.pods() if pod.namespace == namespace and pod.name.startswith(f"{app}-")]


def _running(state: State, namespace: str, app: str, node: str) -> list[PodOnNode]:
    return [
        pod for pod in _of(state, namespace, app) if pod.node == node and pod.phase == "running" and pod.ids
    ]


def _pod(
    limits: dict[str, str],
    tier: str,
    *,
    load: float | None = None,
    base_ms: int = _BASE_MS,
    sla_ms: int | None = None,
) -> dict[str, Any]:
    annotations = {"simulator.mediafleet/base-latency-ms": str(base_ms)}
    if load is not None:
        annotations["simulator.mediafleet/load"] = str(load)
    if sla_ms is not None:
        annotations["sla/latency-p99-ms"] = str(sla_ms)
    return {"limits": limits, "labels": {f"{_DOMAIN}/tier": tier}, "annotations": annotations}
