"""`mediafleet demo`: real processes, a simulated cluster, a failing device, a loud neighbour, a verdict.

The verdict is read from the simulated API server's access log and the kubelets' state, never from our own
events; the timeline and the causal tree are what the events tell.
"""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Coroutine
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import aiohttp
from rich.text import Text

from services.console import read
from services.console.demo.cluster import SimulatedCluster
from services.console.demo.stage import ServiceDied, Stage, stage
from services.console.demo.story import NAMESPACES, Story
from services.console.demo.verdict import Check
from services.console.show import as_json, causal_tree, console, event_json, event_line
from services.console.why import Causes
from shared.bus.port import Bus
from shared.errors import BadInput
from shared.events import AnyEvent, Unknown
from shared.events.world import HealthReported
from shared.host.tasks import together

POLICY = Path(__file__).with_name("policy.yaml")
_CLUSTER_SERVICES = ("manager", "remediation", "guardian", "autoscaler", "alerting")
_TOLD_DOMAINS = ("device", "health", "allocation", "remediation", "sla", "scale", "alert", "deadletter")
_UNTOLD = {
    "granted",
    "stated",
    "step-proposed",
    "queued",
    "returned",
    "drain-planned",
    "snapshotted",
    "pushed",
}
"""Facts that would crowd the timeline; `mediafleet events` shows them."""
_SHORT_WINDOWS = {
    "MEDIAFLEET_BRIDGE__SLOTS_PER_ENGINE": "4",
    "MEDIAFLEET_BRIDGE__GRACE_S": "1",
    "MEDIAFLEET_SIMULATOR__NODE_STATUS_S": "0.5",
    "MEDIAFLEET_SIMULATOR__SAMPLE_S": "0.5",
}
"""What the demo changes besides the policy file."""
_ANSWER_WITHIN = aiohttp.ClientTimeout(total=10)


async def play(*, seed: int, keep: bool, machine: bool) -> int:
    """Play it; 0 when every step was seen, 1 when not, 130 when interrupted."""
    started = time.time()
    audience = _Audience(started, machine)
    _cancel_once_on_signals()
    environment = {"MEDIAFLEET_POLICY_FILE": str(POLICY), **_SHORT_WINDOWS}
    try:
        async with stage(environment) as here:
            return await _on(here, audience, seed, keep=keep)
    except asyncio.CancelledError:
        audience.tell("stopped")
        return 130
    except ServiceDied as died:
        audience.verdict([Check("every process lives", passed=False, seen=str(died))], started)
        return 1


async def attach(url: str, *, nats_url: str, seed: int, machine: bool) -> int:
    """The same on a simulated cluster and services that run already; exit codes as those of `play`.

    Raises:
        BadInput: no simulated cluster is at that URL, or the story was played on it before.
    """
    started = time.time()
    audience = _Audience(started, machine)
    _cancel_once_on_signals()
    try:
        async with aiohttp.ClientSession(timeout=_ANSWER_WITHIN) as session:
            cluster = SimulatedCluster(url.rstrip("/"), session)
            await _unplayed(cluster)
            audience.tell(f"bus at {nats_url}, API server at {cluster.url}, seed {seed}")
            return 0 if await _perform(cluster, nats_url, audience, seed) else 1
    except asyncio.CancelledError:
        audience.tell("stopped")
        return 130


async def _unplayed(cluster: SimulatedCluster) -> None:
    try:
        found = await cluster.request("GET", "/api/v1/namespaces")
    except aiohttp.ClientError as error:
        raise BadInput("--attach", f"no simulated cluster answers at {cluster.url}", "start it") from error
    if set(NAMESPACES) & {each["metadata"]["name"] for each in found["items"]}:
        raise BadInput("--attach", "the story was played on this cluster before", "start the cluster anew")


def _cancel_once_on_signals() -> None:
    """The first signal ends the play; a second one must not cut the clearing of the stage short."""
    task, loop = asyncio.current_task(), asyncio.get_running_loop()
    signalled = asyncio.Event()

    def stop() -> None:
        if task is not None and not signalled.is_set():
            signalled.set()
            task.cancel()

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop)


class _Audience:
    """Tells the demo as it goes: lines for people, one JSON object a line for machines."""

    def __init__(self, started: float, machine: bool) -> None:  # noqa: FBT001 - one of two ways to tell
        self.started = started
        self._machine = machine
        self._verdicts: dict[str, str] = {}
        self._told: set[str] = set()

    def tell(self, line: str) -> None:
        """A line of narration."""
        if self._machine:
            as_json({"kind": "narration", "text": line, "at": datetime.now(UTC)})
        else:
            console.print(
                Text(f"{time.time() - self.started:+8.2f} s  {line}", "bold yellow"), soft_wrap=True
            )

    def told_the_end(self) -> bool:
        """Whether the services have said that both acts are over."""
        return {"readmitted", "restored", "resolved"} <= self._told

    async def follow(self, bus: Bus) -> None:
        """The timeline, until cancelled."""
        async for event in read.follow(bus, read.Filter("fleet.v1.>"), history=True):
            self._told.add(event.address.fact)
            if not self._news(event):
                continue
            if self._machine:
                as_json({"kind": "event", **event_json(event)})
            else:
                console.print(event_line(event, since=self.started), soft_wrap=True)

    def _news(self, event: AnyEvent) -> bool:
        """Whether the timeline tells it: verdicts only when they change."""
        if event.address.domain not in _TOLD_DOMAINS or event.address.fact in _UNTOLD:
            return False
        if isinstance(event.data, HealthReported):
            before, now = self._verdicts.get(event.subject), event.data.verdict
            self._verdicts[event.subject] = now
            return now != before or bool(event.data.evidence)
        return True

    def chain(self, events: list[AnyEvent], pod_uid: str) -> None:
        """Why a pod was evicted."""
        try:
            why = Causes(events).explain(pod_uid) if pod_uid else None
        except BadInput:
            why = None
        if why is None:
            self.tell("no eviction to explain")
        elif self._machine:
            as_json({"kind": "chain", "events": [each.id for each in (*why.causes, why.event)]})
        else:
            console.print()
            console.print(Text("why that pod was evicted", "bold"))
            console.print(causal_tree(why))

    def verdict(self, checks: list[Check], started: float) -> bool:
        """The summary; whether all passed."""
        passed = bool(checks) and all(check.passed for check in checks)
        took_s = time.time() - started
        if self._machine:
            for check in checks:
                as_json({"kind": "check", "step": check.step, "passed": check.passed, "seen": check.seen})
            as_json({"kind": "verdict", "passed": passed, "took_s": round(took_s, 2)})
            return passed
        console.print()
        for check in checks:
            mark = Text("ok   " if check.passed else "FAIL ", "green" if check.passed else "bold red")
            console.print(mark + Text(f"{check.step}: ", "bold") + Text(check.seen), soft_wrap=True)
        word = "every step was seen" if passed else "not every step was seen"
        console.print(Text(f"{word} at the API server and the kubelets, in {took_s:.1f} s", "bold"))
        return passed


async def _on(here: Stage, audience: _Audience, seed: int, *, keep: bool) -> int:
    audience.tell(f"bus at {here.nats_url}, demo policy {POLICY.name}: short windows, seed {seed}")
    async with aiohttp.ClientSession(timeout=_ANSWER_WITHIN) as session:
        cluster = await start_services(here, session, seed=seed)
        audience.tell(f"{len(here.running)} processes started; API server at {cluster.url}")
        passed = await _perform(cluster, here.nats_url, audience, seed, watch=_watch(here))
        if keep:
            audience.tell("left running until Ctrl-C; for other terminals:")
            audience.tell(f"export MEDIAFLEET_NATS_URL={here.nats_url} MEDIAFLEET_KUBE_URL={cluster.url}")
            await _tell_what_ends(here, audience)
    return 0 if passed else 1


async def _tell_what_ends(here: Stage, audience: _Audience) -> None:
    """Say when a process that was left running ends, for ever; the others go on."""
    told: set[str] = set()
    while True:
        for each in here.running:
            if each.process.returncode is not None and each.name not in told:
                told.add(each.name)
                audience.tell(f"{each.name} ended with {each.process.returncode}; its log: {each.log}")
        await asyncio.sleep(0.5)


async def _perform(
    cluster: SimulatedCluster,
    nats_url: str,
    audience: _Audience,
    seed: int,
    **beside: Coroutine[Any, Any, None],
) -> bool:
    """Story and timeline, then cause and verdict; whether every step was seen."""
    story = Story(cluster, audience.tell, curtain=audience.told_the_end)
    async with read.bus(nats_url) as bus:
        await together(story=story.play(seed), timeline=audience.follow(bus), **beside)
        kept = await read.past(bus, read.Filter("fleet.v1.>"))
    audience.chain([event for event in kept if not isinstance(event, Unknown)], story.evicted)
    return audience.verdict(story.checks, audience.started)


async def start_services(here: Stage, session: aiohttp.ClientSession, *, seed: int) -> SimulatedCluster:
    """Start the simulated cluster and every service on it."""
    more = {"MEDIAFLEET_SIMULATOR__SEED": str(seed), "MEDIAFLEET_SIMULATOR__ROOT": str(here.directory / "n")}
    url, nodes = await here.simulator(more)
    for service in _CLUSTER_SERVICES:
        await here.start(service, f"services.{service}", {"MEDIAFLEET_KUBE_URL": url})
    for name, root in nodes.items():
        for service in ("discovery", "bridge"):
            await here.start(f"{service}@{name}", f"services.{service}", _node(here, name, root))
    return SimulatedCluster(url, session)


def _node(here: Stage, name: str, root: str) -> dict[str, str]:
    return {
        "MEDIAFLEET_NODE_NAME": name,
        "MEDIAFLEET_HOST_ROOT": root,
        "MEDIAFLEET_STATE_DIR": str(here.directory / "state" / name),
    }


async def _watch(here: Stage) -> None:
    """Raise when a process ends by itself."""
    while True:
        here.check()
        await asyncio.sleep(0.5)
