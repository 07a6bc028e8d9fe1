"""A small cluster of real processes that is broken on purpose, and its witnesses.

Two witnesses are ours: the kubelets' state, looked at again and again, and the events as they are said. The
third is the API server's access log. What they saw is judged in `invariants`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import aiohttp
import orjson

from services.console.demo.cluster import PodOnNode, SimulatedCluster, State
from services.console.demo.stage import Stage, stage
from shared.bus.nats import NatsBus, connect
from shared.bus.port import Delivery, Subscription
from shared.events import CATALOGUE, AnyEvent, Payload, Unknown
from shared.events import remediation as say
from shared.events import workload as facts
from shared.events.parts import PodRef
from shared.journal import acknowledged, read

Json = dict[str, Any]
PayloadT = TypeVar("PayloadT", bound=Payload)

CLUSTER_SERVICES = ("manager", "remediation", "guardian", "autoscaler", "alerting")
NODES = ("node-0000", "node-0001")
DOMAIN = "media.example.com"
WORK = "work"
_HEARD = (
    "inventory",
    "health",
    "allocation",
    "repair",
    "device",
    "remediation",
    "sla",
    "scale",
    "alert",
    "command",
    "deadletter",
)
_BUS_AWAY = ("bus_error", "bus does not answer")
_LOOK_S = 0.1
_ENVIRONMENT = {
    "MEDIAFLEET_POLICY_FILE": str(Path(__file__).with_name("policy.yaml")),
    "MEDIAFLEET_DISCOVERY__HEARTBEAT_S": "0.5",
    "MEDIAFLEET_DISCOVERY__PROBE_S": "4",
    "MEDIAFLEET_DISCOVERY__FAST_PROBE_S": "0.5",
    "MEDIAFLEET_DISCOVERY__WATCH_S": "0.2",
    "MEDIAFLEET_DISCOVERY__QUIET_S": "0.3",
    "MEDIAFLEET_DISCOVERY__SETTLE_WINDOWS": "5",
    "MEDIAFLEET_BRIDGE__SLOTS_PER_ENGINE": "4",
    "MEDIAFLEET_BRIDGE__RECONCILE_S": "0.5",
    "MEDIAFLEET_BRIDGE__BUSY_S": "0.1",
    "MEDIAFLEET_BRIDGE__SETTLE_S": "0.5",
    "MEDIAFLEET_BRIDGE__GRACE_S": "1",
    "MEDIAFLEET_BRIDGE__ALONE_AFTER_S": "1",
    "MEDIAFLEET_BRIDGE__RESTATE_WITHDRAWN_S": "1",
    "MEDIAFLEET_GUARDIAN__TICK_S": "0.5",
    "MEDIAFLEET_SIMULATOR__NODES": str(len(NODES)),
    "MEDIAFLEET_SIMULATOR__DEVICES_PER_NODE": "3",
    "MEDIAFLEET_SIMULATOR__KUBELETS": "on",
    "MEDIAFLEET_SIMULATOR__NODE_STATUS_S": "0.3",
    "MEDIAFLEET_SIMULATOR__SAMPLE_S": "0.3",
}


@dataclass(frozen=True, slots=True)
class Sick:
    """A device that is broken, with who held it when it broke.

    Attributes:
        pods: pod (`namespace/name`) to UID.
        log_at: position of the access log before.
        heard_at: how many events were heard before.
    """

    node: str
    device: str
    pods: dict[str, str]
    log_at: int
    heard_at: int

    @property
    def about(self) -> str:
        return f"{self.node}/{self.device}"


@dataclass(frozen=True, slots=True)
class Look:
    """The kubelets at one moment.

    Attributes:
        began_s, ended_s: wall time, seconds since the epoch.
        healthy: `node/device` to how many of its ids the kubelet may give.
        holders: `node/device` to the UIDs of the pods that hold ids of it.
    """

    began_s: float
    ended_s: float
    healthy: dict[str, int]
    holders: dict[str, frozenset[str]]


@dataclass
class Site:
    """Everything, and what was seen of it.

    Attributes:
        ever_held: `node/device` to the UIDs of all pods that were seen to hold it.
        injected: stream and sequence of what was published as no event: its dead letters are wanted.
    """

    stage: Stage
    cluster: SimulatedCluster
    bus: NatsBus
    url: str
    roots: dict[str, str]
    heard: list[AnyEvent] = field(default_factory=list)
    looks: list[Look] = field(default_factory=list)
    ever_held: dict[str, set[str]] = field(default_factory=dict)
    injected: set[tuple[str, int]] = field(default_factory=set)
    _news: asyncio.Condition = field(default_factory=asyncio.Condition)
    witnesses: list[asyncio.Task[None]] = field(default_factory=list)
    _pods: int = 0

    # ------------------------------------------------------------------ processes

    async def start(self) -> None:
        """Every service once."""
        for service in CLUSTER_SERVICES:
            await self.start_copy(service, 1)
        for node in self.roots:
            for service in ("discovery", "bridge"):
                await self.stage.start(f"{service}@{node}", f"services.{service}", self._node(node))

    async def start_copy(self, service: str, number: int) -> str:
        """One more copy of a cluster service; its name."""
        name = f"{service}-{number}"
        await self.stage.start(name, f"services.{service}", {"MEDIAFLEET_KUBE_URL": self.url})
        return name

    def _node(self, node: str) -> dict[str, str]:
        return {
            "MEDIAFLEET_NODE_NAME": node,
            "MEDIAFLEET_HOST_ROOT": self.roots[node],
            "MEDIAFLEET_STATE_DIR": str(self.state_dir(node)),
        }

    def state_dir(self, node: str) -> Path:
        return self.stage.directory / "state" / node

    def logged(self, name: str) -> list[Json]:
        """What a process logged, as it is now."""
        lines = self.stage.directory.joinpath("logs", f"{name}.log").read_bytes().splitlines()
        found = []
        for line in lines:
            with suppress(ValueError):
                found.append(orjson.loads(line))
        return found

    def runs(self, name: str) -> bool:
        """Whether such a process runs."""
        return any(each.name == name for each in self.stage.running)

    def copies(self, service: str) -> list[str]:
        """The running copies of a cluster service."""
        return [each.name for each in self.stage.running if each.name.startswith(f"{service}-")]

    async def metric(self, name: str) -> int:
        """The sum of a metric over all services."""
        total = 0.0
        async with aiohttp.ClientSession() as session:
            for each in self.stage.running:
                port = next(
                    (x["health_port"] for x in reversed(self.logged(each.name)) if "health_port" in x), 0
                )
                if port:
                    async with session.get(f"http://127.0.0.1:{port}/metrics") as answer:
                        lines = (await answer.text()).splitlines()
                    total += sum(float(x.rpartition(" ")[2]) for x in lines if x.startswith(f"{name}{{"))
        return int(total)

    def _last_active(self, name: str) -> str:
        """When a copy last became active, by its log; empty when it is not."""
        at = ""
        for line in self.logged(name):
            if line.get("event") == "active":
                at = line["timestamp"]
            elif line.get("event") in ("lease_over", "started"):
                at = ""
        return at

    async def active(self, service: str) -> str:
        """The copy of a service that holds its lease."""

        def found() -> list[str]:
            return [name for name in self.copies(service) if self._last_active(name)]

        await self.until(f"a copy of {service} is active", lambda: bool(found()))
        return max(found(), key=self._last_active)

    async def until_logs(self, name: str, event: str, *, after_s: float) -> None:
        """Wait until a process logged something after a moment."""

        def logged() -> bool:
            return any(
                line.get("event") == event and datetime.fromisoformat(line["timestamp"]).timestamp() > after_s
                for line in self.logged(name)
            )

        await self.until(f"{name} logs {event!r}", logged)

    async def until_stands_by(self, name: str) -> None:
        """Wait until a copy has started, whether or not it is active."""
        await self.until(
            f"{name} has started", lambda: any(line.get("event") == "started" for line in self.logged(name))
        )

    # ------------------------------------------------------------------ waiting

    async def until(self, what: str, happened: Callable[[], bool], within_s: float = 15.0) -> None:
        """Wait for a condition on what was seen; looked at after each event and each look."""
        try:
            async with asyncio.timeout(within_s), self._news:
                await self._news.wait_for(happened)
        except TimeoutError:
            for each in self.witnesses:
                if each.done():
                    each.result()  # whoever should have seen it is gone, and says why
            self.stage.check()
            raise AssertionError(f"not within {within_s:g} s: {what}\n{self.story()}") from None

    async def said(
        self,
        fact: type[PayloadT],
        about: str = "",
        *,
        since: int = 0,
        where: Callable[[PayloadT], bool] = lambda _: True,
        within_s: float = 15.0,
    ) -> AnyEvent:
        """The first such event after a mark, once it is there."""

        def found() -> AnyEvent | None:
            for event in self.heard[since:]:
                named = not about or _concerns(event, about)
                if named and isinstance(event.data, fact) and where(event.data):
                    return event
            return None

        await self.until(
            f"{fact.kind.name} about {about or 'anything'}", lambda: found() is not None, within_s
        )
        event = found()
        assert event is not None
        return event

    async def said_times(self, times: int, fact: type[Payload], sick: Sick, within_s: float = 15.0) -> None:
        """Wait until it was said so often about a device since it broke."""

        def enough() -> bool:
            return len(self.has_said(fact, sick)) >= times

        await self.until(f"{times} x {fact.kind.name} about {sick.about}", enough, within_s)

    def has_said(self, fact: type[Payload], sick: Sick) -> list[AnyEvent]:
        """Such events about a device since it broke."""
        return [
            e for e in self.heard[sick.heard_at :] if isinstance(e.data, fact) and _concerns(e, sick.about)
        ]

    def story(self, last: int = 40) -> str:
        """The last events and troubles, for a failure's message."""
        told = [e for e in self.heard if e.address.domain not in ("health", "device", "inventory")]
        lines = [
            f"  {e.time:%H:%M:%S.%f} {e.address.domain}.{e.address.fact} {e.subject} {str(e.data)[:150]}"
            for e in told[-last:]
        ]
        for log in sorted(self.stage.directory.joinpath("logs").iterdir()):
            troubles = [
                line
                for line in self.logged(log.stem)
                if line.get("level") in ("warning", "error", "critical") and line["event"] not in _BUS_AWAY
            ]
            lines += [f"  {log.stem}: {orjson.dumps(line).decode()[:300]}" for line in troubles[-6:]]
        return "\n".join(lines)

    async def _news_came(self) -> None:
        async with self._news:
            self._news.notify_all()

    async def listen(self) -> None:
        """Hear everything, until cancelled."""

        async def take(delivery: Delivery) -> None:
            self.heard.append(delivery.event)
            await self._news_came()

        subscriptions = tuple(
            Subscription(domain, tuple(p for (of, _), (p, _) in CATALOGUE.items() if of == domain), take)
            for domain in _HEARD
        )
        async with self.bus.consume("chaos", subscriptions) as consumption:
            await consumption.wait()

    async def watch(self) -> None:
        """Look at the kubelets again and again, until cancelled."""
        while True:
            began_s = time.time()
            state = await self.cluster.state()
            self.looks.append(_look(state, began_s, time.time()))
            for about, uids in self.looks[-1].holders.items():
                self.ever_held.setdefault(about, set()).update(uids)
            await self._news_came()
            await asyncio.sleep(_LOOK_S)

    @property
    def now(self) -> Look:
        """The last look."""
        return self.looks[-1]

    async def look_again(self) -> Look:
        """A look that began after this call."""
        asked_s = time.time()
        await self.until("a look at the kubelets", lambda: self.now.began_s > asked_s)
        return self.now

    # ------------------------------------------------------------------ the cluster

    async def occupy(
        self, node: str, holders: int = 2, *, labels: Json | None = None, tier: str = "batch"
    ) -> Sick:
        """Run pods on a node until one of its well devices is held by so many of them; that device."""
        mine: dict[str, str] = {}
        for _ in range(12):
            name, uid = await self._pod(node, labels or {}, tier)
            mine[uid] = f"{WORK}/{name}"
            await self.until(f"{name} runs with an engine", partial(self._holds_something, uid))
            for device in self.devices(node):
                about = f"{node}/{device}"
                held = self.now.holders.get(about, frozenset())
                if len(held & set(mine)) >= holders:
                    pods = {mine.get(u, u): u for u in held}
                    return Sick(node, device, pods, await self.cluster.log_position(), len(self.heard))
        raise AssertionError(f"no device of {node} got {holders} pods: {self.now.holders}")

    def _holds_something(self, uid: str) -> bool:
        return any(uid in held for held in self.now.holders.values())

    async def _pod(self, node: str, labels: Json, tier: str) -> tuple[str, str]:
        self._pods += 1
        body = {
            "metadata": {
                "name": f"pod-{self._pods}",
                "labels": {"app": f"pod-{self._pods}", f"{DOMAIN}/tier": tier, **labels},
            },
            "spec": {
                "nodeName": node,
                "terminationGracePeriodSeconds": 5,
                "containers": [
                    {
                        "name": "main",
                        "image": "example/media:1",
                        "resources": {
                            "limits": {f"{DOMAIN}/nvenc": "1"},
                            "requests": {f"{DOMAIN}/nvenc": "1"},
                        },
                    }
                ],
            },
        }
        made = await self.cluster.request("POST", f"/api/v1/namespaces/{WORK}/pods", body)
        return made["metadata"]["name"], made["metadata"]["uid"]

    def devices(self, node: str) -> list[str]:
        """Devices of a node that its kubelet may give."""
        return sorted(
            about.partition("/")[2]
            for about, count in self.now.healthy.items()
            if about.startswith(f"{node}/") and count
        )

    async def clear(self) -> None:
        """Delete every pod of ours that is left."""
        answer = await self.cluster.request("GET", f"/api/v1/namespaces/{WORK}/pods")
        for pod in answer["items"]:
            with suppress(Exception):  # evicted meanwhile
                await self.cluster.request(
                    "DELETE", f"/api/v1/namespaces/{WORK}/pods/{pod['metadata']['name']}"
                )
        uids = {pod["metadata"]["uid"] for pod in answer["items"]}
        await self.until(
            "our pods are gone", lambda: not any(uids & held for held in self.now.holders.values())
        )

    async def fault(self, sick: Sick, kind: str, **more: Any) -> None:
        """Something happens to a device."""
        body = {"node": sick.node, "device": sick.device, "kind": kind, **more}
        await self.cluster.request("POST", "/simulator/v1/device-faults", body)

    async def break_fatally(self, sick: Sick) -> None:
        """The device falls off its bus, by the kernel log."""
        await self.fault(sick, "xid", code=79)

    async def heal(self, sick: Sick) -> None:
        """Fate: the device is well again."""
        await self.fault(sick, "heal")

    async def api_fault(self, **fault: Any) -> None:
        """The API server answers the next requests so."""
        await self.cluster.request("POST", "/simulator/v1/faults", fault)

    async def until_met(self, path: str, within_s: float = 15.0) -> None:
        """Wait until every fault of a path has met its request, which may still hang."""

        async def met() -> int:
            answer = await self.cluster.request("GET", "/simulator/v1/faults")
            return int(all(path not in each["path"] for each in answer["faults"]))

        await self.until_true(f"requests to {path} met their faults", met, 1, within_s)

    async def protect(self, name: str, labels: Json, least: int) -> None:
        """A disruption budget that lets none of these pods go."""
        body = {
            "apiVersion": "policy/v1",
            "kind": "PodDisruptionBudget",
            "metadata": {"name": name},
            "spec": {"minAvailable": least, "selector": {"matchLabels": labels}},
        }
        path = f"/apis/policy/v1/namespaces/{WORK}/poddisruptionbudgets"
        await self.cluster.request("POST", path, body)

    async def unprotect(self, name: str) -> None:
        """The budget is gone."""
        path = f"/apis/policy/v1/namespaces/{WORK}/poddisruptionbudgets/{name}"
        await self.cluster.request("DELETE", path)

    # ------------------------------------------------------------------ the usual course

    async def drained(self, sick: Sick, within_s: float = 15.0) -> None:
        """Wait until nobody holds the device and the kubelet gives it to nobody."""
        await self.said(say.Drained, sick.about, since=sick.heard_at, within_s=within_s)
        await self.until(
            f"{sick.about} is given to nobody",
            lambda: not self.now.healthy.get(sick.about) and not self.now.holders.get(sick.about),
        )

    async def closed(self, sick: Sick, within_s: float = 20.0) -> None:
        """Wait for the end of the case, and for the kubelet to offer the device again."""
        await self.said(say.Closed, sick.about, since=sick.heard_at, within_s=within_s)
        await self.until(f"{sick.about} is offered again", lambda: bool(self.now.healthy.get(sick.about)))

    async def another(self, sick: Sick) -> Sick:
        """Another well device of the same node, that none of our pods holds."""
        others = [d for d in self.devices(sick.node) if d != sick.device]
        free = [d for d in others if not self.now.holders.get(f"{sick.node}/{d}")]
        return Sick(sick.node, free[0], {}, await self.cluster.log_position(), len(self.heard))

    async def until_logged(self, what: str, sick: Sick, count: int, within_s: float = 10.0) -> None:
        """Wait until so many evictions of its pods were granted."""

        async def granted() -> int:
            return sum(each["status"] == 201 for each in await self.evictions(sick))

        await self.until_true(what, granted, count, within_s)

    async def until_true(
        self, what: str, count: Callable[[], Awaitable[int]], wanted: int, within_s: float = 10.0
    ) -> None:
        """Wait until something outside, asked again and again, has reached a number."""
        try:
            async with asyncio.timeout(within_s):
                while True:
                    if await count() >= wanted:
                        return
                    await asyncio.sleep(_LOOK_S / 2)
        except TimeoutError:
            raise AssertionError(f"not within {within_s:g} s: {what}\n{self.story()}") from None

    async def said_by_journal(self, node: str, journal: str, fact: type[Payload], entity: str) -> None:
        """Wait until a node's journal on disk holds such an event that the bus does not have."""
        folder = self.state_dir(node) / journal

        def found() -> bool:
            entries = read(folder, after=acknowledged(folder))
            return any(
                not isinstance(each.event, Unknown)
                and isinstance(each.event.data, fact)
                and each.event.of.entity == entity
                for each in entries
            )

        await self.until(f"{fact.kind.name} about {entity} in {folder}", found)

    async def restart_kubelet(self, node: str, *, action: str = "restart", down_s: float = 0.0) -> None:
        """The kubelet's process, or its whole machine, starts anew."""
        body = {"node": node, "action": action, "down_s": down_s}
        await self.cluster.request("POST", "/simulator/v1/kubelet", body)

    async def until_phase(self, resource: str, phase: str) -> None:
        """Wait until a MediaResource shows a phase."""

        async def shown() -> int:
            path = f"/apis/{DOMAIN}/v1alpha1/mediaresources/{resource}"
            answer = await self.cluster.request("GET", path)
            return int((answer.get("status") or {}).get("phase") == phase)

        await self.until_true(f"{resource} is {phase}", shown, 1)

    async def alerted_once(self, sick: Sick) -> None:
        """Wait until the quarantine's alert is resolved; it was raised once."""
        about = f"{sick.node}/remediation-{sick.device}"
        await self.said(facts.AlertResolved, about, since=sick.heard_at)
        raised = [
            e
            for e in self.heard[sick.heard_at :]
            if isinstance(e.data, facts.AlertRaised) and e.subject == about
        ]
        assert len(raised) == 1, raised

    def next_number(self) -> int:
        """For names."""
        self._pods += 1
        return self._pods

    async def evicted(self, sick: Sick) -> list[str]:
        """UIDs of the pods whose eviction was granted, in that order."""
        return [
            orjson.loads(each["body"])["deleteOptions"]["preconditions"]["uid"]
            for each in await self.evictions(sick)
            if each["status"] == 201
        ]

    async def evictions(self, sick: Sick) -> list[Json]:
        """Eviction requests for the pods that held the device, as the API server logged them."""
        log = await self.cluster.access_log(sick.log_at)
        names = {f"/api/v1/namespaces/{a.replace('/', '/pods/')}/eviction" for a in sick.pods}
        return [each for each in log if each["path"] in names]


def _concerns(event: AnyEvent, about: str) -> bool:
    return event.subject == about or getattr(event.data, "case", "") == about


def _look(state: State, began_s: float, ended_s: float) -> Look:
    healthy: dict[str, int] = {}
    holders: dict[str, set[str]] = {}
    for node, body in state.nodes.items():
        for device in body["devices"]:
            about = f"{node}/{device['key']}"
            healthy[about] = len(state.ids_of(node, device["key"])[0])
    for pod in state.pods():
        for about in _devices_of(pod, healthy):
            holders.setdefault(about, set()).add(pod.uid)
    return Look(began_s, ended_s, healthy, {about: frozenset(uids) for about, uids in holders.items()})


def _devices_of(pod: PodOnNode, known: Iterable[str]) -> set[str]:
    ids = [f"{pod.node}/{id_}" for id_ in pod.ids]
    return {about for about in known if any(id_.startswith(f"{about}-") or id_ == about for id_ in ids)}


@asynccontextmanager
async def site() -> AsyncIterator[Site]:
    """The cluster, ready: every service runs, every engine is offered."""
    async with stage(_ENVIRONMENT) as here, aiohttp.ClientSession() as session:
        url, roots = await here.simulator({"MEDIAFLEET_SIMULATOR__ROOT": str(here.directory / "n")})
        cluster = SimulatedCluster(url, session)
        for namespace in (WORK, "live", "loud"):
            await cluster.namespace(namespace)
        async with connect(here.nats_url, service="chaos", instance="witness") as bus:
            made = Site(here, cluster, bus, url, roots)
            made.witnesses = own = [
                asyncio.create_task(made.listen(), name="chaos-listen"),
                asyncio.create_task(made.watch(), name="chaos-watch"),
            ]
            try:
                await made.start()
                await made.until(
                    "every device is offered",
                    lambda: bool(made.looks) and all(made.now.healthy.values()),
                    within_s=30,
                )
                await made.until("every cluster service is active", made_active(made), within_s=30)
                yield made
            finally:
                for task in own:
                    task.cancel()
                await asyncio.gather(*own, return_exceptions=True)


def made_active(site: Site) -> Callable[[], bool]:
    """Whether every cluster service says that it is active."""

    def active() -> bool:
        return all(
            any(line.get("event") == "active" for line in site.logged(f"{service}-1"))
            for service in CLUSTER_SERVICES
        )

    return active


def ref(about: str, uid: str) -> PodRef:
    """A pod as events name it."""
    namespace, _, name = about.partition("/")
    return PodRef(namespace=namespace, name=name, uid=uid)
