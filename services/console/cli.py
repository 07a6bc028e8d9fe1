"""The command line `mediafleet`: exit 0 well, 1 failed, 2 bad input; `--json` for machines.

Heavy imports stay inside the commands, so that `--help` and `discover` start quickly and `discover` needs
neither bus nor cluster.
"""

from __future__ import annotations

import asyncio
import getpass
import importlib.util
import os
import subprocess
import sys
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import orjson
import typer

from shared.errors import BadInput, FleetError

if TYPE_CHECKING:
    from shared.bus.port import Bus
    from shared.events import AnyEvent, Unknown

T = TypeVar("T")

SERVICES = (
    "discovery",
    "bridge",
    "manager",
    "remediation",
    "guardian",
    "autoscaler",
    "alerting",
    "authcallout",
    "simulator",
)

app = typer.Typer(
    name="mediafleet",
    help="Event-driven control plane for accelerators that transcode, stream and infer.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

Url = Annotated[str, typer.Option("--nats-url", envvar="MEDIAFLEET_NATS_URL", help="Where the bus is.")]
Json = Annotated[bool, typer.Option("--json", help="JSON for machines instead of text for people.")]
SOURCE = "/mediafleet/console/cli"
DEFAULT_URL = "nats://127.0.0.1:4222"


def main() -> None:
    """Run the command line; every expected error is one line that says what to do."""
    try:
        app()
    except BadInput as error:
        sys.stderr.write(f"mediafleet: {error}\n")
        raise SystemExit(2) from None
    except FleetError as error:
        sys.stderr.write(f"mediafleet: {error}\n")
        raise SystemExit(1) from None
    except KeyboardInterrupt:
        raise SystemExit(130) from None


@app.command()
def demo(
    *,
    seed: Annotated[int, typer.Option(help="Varies nodes, faults and load.")] = 1,
    keep: Annotated[
        bool, typer.Option("--keep", help="Leave everything running at the end, until Ctrl-C.")
    ] = False,
    cluster: Annotated[
        str,
        typer.Option(
            "--attach",
            metavar="URL",
            help="Play on the simulated cluster at this URL, with the services that run on --nats-url.",
        ),
    ] = "",
    url: Url = DEFAULT_URL,
    json: Json = False,
) -> None:
    """Play a device fault and an SLA breach on a simulated cluster, and judge the outcome."""
    from services.console.demo import attach, play

    if cluster:
        raise typer.Exit(asyncio.run(attach(cluster, nats_url=url, seed=seed, machine=json)))
    raise typer.Exit(asyncio.run(play(seed=seed, keep=keep, machine=json)))


@app.command()
def run(service: Annotated[str, typer.Argument(help=f"One of {', '.join(SERVICES)}.")]) -> None:
    """Start one service in this process; its settings come from the environment (see docs/settings.md)."""
    if service not in SERVICES or importlib.util.find_spec(f"services.{service}") is None:
        raise BadInput("SERVICE", f"there is no service {service!r}", f"use one of {', '.join(SERVICES)}")
    os.execv(sys.executable, [sys.executable, "-m", f"services.{service}"])  # noqa: S606 - this very interpreter, no shell


@app.command()
def provision(
    url: Url = DEFAULT_URL,
    *,
    replicas: Annotated[
        int, typer.Option(min=1, max=5, help="Servers that hold each stream: 3 on a cluster of servers.")
    ] = 1,
    json: Json = False,
) -> None:
    """Make or correct the streams and views on the bus; run again at will."""
    from services.console import read
    from services.console.show import as_json, console
    from shared.bus.provision import provision as reconcile

    changes = asyncio.run(reconcile(url, replicas=replicas, access=read.access()))
    if json:
        as_json([asdict(change) for change in changes])
    else:
        for change in changes:
            console.print(str(change), soft_wrap=True)
        console.print(f"{len(changes)} changes" if changes else "all as wanted: nothing to change")
    if any(change.what == "conflict" for change in changes):
        raise typer.Exit(1)


@app.command()
def discover(
    root: Annotated[Path, typer.Option(help="Root of the host's files.")] = Path("/"),
    node: Annotated[str, typer.Option(envvar="MEDIAFLEET_NODE_NAME", help="Name of the node.")] = "localhost",
    capture: Annotated[
        list[str] | None,
        typer.Option(help="KIND=FILE, repeatable; KIND is nvidia-smi-xml, rocm-smi-json or npu-smi-text."),
    ] = None,
    *,
    json: Json = False,
) -> None:
    """Find the devices of a host tree, or of captured tool output; needs neither bus nor cluster."""
    from services.console import rows
    from services.console.show import as_json, table

    # With `=`, so that a value that begins with a dash is still a value.
    command = [sys.executable, "-m", "services.discovery.offline", f"--root={root}", f"--node={node}"]
    command += [f"--capture={each}" for each in capture or []]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=False)  # noqa: S603 - this very interpreter, no shell
    if done.returncode:
        raise typer.Exit(done.returncode)
    found = orjson.loads(done.stdout)
    if json:
        as_json(found)
        return
    columns = {
        "device": "DEVICE",
        "model": "MODEL",
        "memory": "MEMORY",
        "engines": "ENC/DEC/JPEG",
        "numa": "NUMA",
        "serial": "SERIAL",
    }
    table(rows.found(found), columns, empty=f"no device found under {root}; try --capture KIND=FILE")


@app.command()
def devices(url: Url = DEFAULT_URL, *, json: Json = False) -> None:
    """The fleet's devices as the manager sees them."""
    from services.console import rows
    from services.console.show import as_json, table

    found = _on_bus(url, rows.devices)
    if json:
        as_json(found)
        return
    columns = {
        "device": "DEVICE",
        "model": "MODEL",
        "state": "STATE",
        "verdict": "VERDICT",
        "phase": "PHASE",
        "epoch": "EPOCH",
        "pods": "PODS",
    }
    table(found, columns, empty="no devices: are discovery and manager running?")


@app.command()
def cases(
    url: Url = DEFAULT_URL,
    *,
    every: Annotated[bool, typer.Option("--all", help="Closed cases too.")] = False,
    json: Json = False,
) -> None:
    """Open cases: which device, in which state, since when and why."""
    from services.console import rows
    from services.console.show import as_json, table

    found = [row for row in _on_bus(url, rows.cases) if every or row["open"]]
    if json:
        as_json(found)
        return
    columns = {
        "device": "DEVICE",
        "state": "STATE",
        "epoch": "EPOCH",
        "strikes": "STRIKES",
        "reason": "REASON",
        "updated": "UPDATED",
    }
    table(found, columns, empty="no open cases")


@app.command()
def events(
    url: Url = DEFAULT_URL,
    *,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on with what comes.")] = False,
    subject: Annotated[str, typer.Option(help="Subject filter, as for `nats sub`.")] = "fleet.v1.>",
    since: Annotated[str, typer.Option(help="Only later ones: 10m, 2h, 1d or an RFC 3339 time.")] = "",
    json: Json = False,
) -> None:
    """Events of the streams, past and coming; one JSON object a line with --json."""
    from services.console import read
    from services.console.show import as_json, console, event_json, event_line

    wanted = read.Filter(subject)
    after = read.since(since, datetime.now(UTC)) if since else None

    def show(event: AnyEvent | Unknown) -> None:
        if json:
            as_json(event_json(event))
        else:
            console.print(event_line(event), soft_wrap=True)

    async def go(bus: Bus) -> None:
        if not follow or after is not None:
            for event in await read.past(bus, wanted, after):
                show(event)
        if follow:
            async for event in read.follow(bus, wanted):
                show(event)

    _on_bus(url, go)


@app.command()
def why(
    asked: Annotated[
        str, typer.Argument(metavar="DEVICE|POD|EVENT", help="uid or node/key, namespace/pod, or event id.")
    ],
    url: Url = DEFAULT_URL,
    *,
    json: Json = False,
) -> None:
    """What made it happen, back to the first evidence, and what followed."""
    from services.console import read
    from services.console.show import as_json, causal_tree, console, event_json
    from services.console.why import Causes
    from shared.events import Unknown

    kept = _on_bus(url, lambda bus: read.past(bus, read.Filter("fleet.v1.>")))
    found = Causes(event for event in kept if not isinstance(event, Unknown)).explain(asked)
    if json:
        as_json(
            {
                "event": event_json(found.event),
                "lost": found.lost,
                "causes": [event_json(event) for event in found.causes],
                "effects": [{"depth": depth, **event_json(event)} for depth, event in found.effects],
            }
        )
        return
    console.print(causal_tree(found))


def _say(fact: str, about: str, *, reason: str, until: str = "", url: str) -> None:
    """Say a person's word about a device or workload; its owner answers in its own log."""
    from pydantic import ValidationError

    from services.console import read, rows
    from shared.events import CATALOGUE, Cause, event
    from shared.events.envelope import bad_field

    request, now = str(uuid.uuid4()), datetime.now(UTC)
    word = {"request_id": request, "owner": getpass.getuser(), "reason": reason}
    place, entity = read.entity(about)
    try:
        payload = CATALOGUE[("command", fact)][0].model_validate(
            {**word, "until": read.until(until, now) if until else None}
        )
    except ValidationError as error:
        raise bad_field(error, "say in a few words why") from error
    said = event(payload, (place, entity), cause=Cause.source("console", request), source=SOURCE, at=now)

    async def say(bus: Bus) -> None:
        if not await rows.known(bus, place, entity):
            raise BadInput("DEVICE", f"no device {place}/{entity} is known", "see `mediafleet devices`")
        await bus.publish(said)

    _on_bus(url, say)
    typer.echo(f"said as {said.id}; the answer stands in its log: mediafleet why {said.id}")


Reason = Annotated[str, typer.Option("--reason", help="Why; it stands in the log.")]
Until = Annotated[str, typer.Option("--until", help="How long: 30m, 2h, 1d; empty: until released.")]
Device = Annotated[str, typer.Argument(metavar="DEVICE", help="uid or node/key.")]
Held = Annotated[
    str,
    typer.Argument(
        metavar="DEVICE|WORKLOAD", help="uid or node/key, or namespace/kind-name: live/deployment-edge."
    ),
]


@app.command()
def hold(device: Held, reason: Reason, until: Until = "", url: Url = DEFAULT_URL) -> None:
    """Keep everybody's hands off a device or workload: no automatic step until it is released."""
    _say("hold-requested", device, reason=reason, until=until, url=url)


@app.command()
def release(device: Held, reason: Reason, url: Url = DEFAULT_URL) -> None:
    """End a hold; a device that was out, a retired one too, comes back by diagnosis and probation."""
    _say("release-requested", device, reason=reason, url=url)


@app.command()
def approve(device: Device, reason: Reason, url: Url = DEFAULT_URL) -> None:
    """Let the step go on that waits for a person; `fleet/budget` ends a freeze of many alike faults."""
    _say("approve-requested", device, reason=reason, url=url)


@app.command()
def retire(device: Device, reason: Reason, url: Url = DEFAULT_URL) -> None:
    """Take a device out for good: no new pod gets it; those that run on it stay until they end."""
    _say("retire-requested", device, reason=reason, url=url)


@app.command()
def uninstall(
    *,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would be removed.")] = False,
    crds: Annotated[bool, typer.Option("--crds", help="The definitions of custom resources too.")] = False,
    kube_url: Annotated[
        str,
        typer.Option(
            envvar="MEDIAFLEET_KUBE_URL", help="API server by plain URL; empty: in-cluster, else kubeconfig."
        ),
    ] = "",
    domain: Annotated[
        str, typer.Option(envvar="MEDIAFLEET_RESOURCE_DOMAIN", help="Domain of labels, taints and resources.")
    ] = "media.example.com",
    startup_taint: Annotated[
        str,
        typer.Option(
            envvar="MEDIAFLEET_MANAGER__STARTUP_TAINT", help="Key of the startup taint, if another."
        ),
    ] = "",
    json: Json = False,
) -> None:
    """Remove every taint, label, capacity entry and custom resource of ours; running pods are left alone."""
    from services.console.removal import remove

    done = asyncio.run(
        remove(
            kube_url,
            domain=domain,
            startup_taint=startup_taint,
            definitions=crds,
            yes=yes,
            dry_run=dry_run,
            machine=json,
        )
    )
    if not done:
        raise typer.Exit(1)


def _on_bus(url: str, act: Callable[[Bus], Awaitable[T]]) -> T:
    from services.console import read

    async def go() -> T:
        async with read.bus(url) as bus:
            return await act(bus)

    return asyncio.run(go())
