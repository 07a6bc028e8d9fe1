"""`mediafleet uninstall` at the terminal: show, ask, remove, tell."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from dataclasses import asdict

import typer

from services.console.show import as_json, console, table
from services.console.uninstall import PART_OF, STARTUP_TAINT, Step, Uninstall
from shared.errors import BadInput, Refused
from shared.kube.client import connect
from shared.kube.models import Pod

_LEFT = """\
Not touched: running pods, streams and views on the bus, and files on nodes (/var/lib/mediafleet, and sockets
mediafleet-*.sock in /var/lib/kubelet/device-plugins). See docs/kubernetes.md."""


async def remove(
    url: str,
    *,
    domain: str,
    startup_taint: str,
    definitions: bool,
    yes: bool,
    dry_run: bool,
    machine: bool,
) -> bool:
    """Show what will be removed, ask unless told not to, remove it; False when something is left.

    Raises:
        BadInput: nobody can be asked.
        Refused: mediafleet still runs there and would write it all again.
        FleetError: the API server could not be asked.
    """
    async with connect(url or None, component="mediafleet-console", domain=domain, timeout_s=15.0) as kube:
        hand = Uninstall(
            kube, domain=domain, startup_taint=startup_taint or STARTUP_TAINT, definitions=definitions
        )
        running, steps = await hand.running(), await hand.plan()
        if dry_run:
            _show(steps, running, dry_run=True, machine=machine)
            return True
        if running:
            raise Refused(
                f"mediafleet still runs ({', '.join(_name(pod) for pod in running[:5])}) and would write all"
                f" again: delete its workloads first (kubectl delete deployments,daemonsets -l {PART_OF}"
                f" -n {running[0].namespace}), or look with --dry-run"
            )
        if not machine:
            _show(steps, running, dry_run=False, machine=False)
        if steps and not yes:
            await _ask(len(steps))
        done = await hand.carry_out(steps, lambda step: None if machine else _tell(step))
        if machine:
            _show(done, running, dry_run=False, machine=True)
        failed = [step for step in done if step.outcome == "failed"]
        if steps and not machine:
            console.print(f"{len(done) - len(failed)} removed, {len(failed)} left\n{_LEFT}", soft_wrap=True)
        return not failed


async def _ask(count: int) -> None:
    if not sys.stdin.isatty():
        raise BadInput("--yes", "nobody can be asked here", "add --yes, or --dry-run to look only")
    if not await asyncio.to_thread(typer.confirm, f"Remove these {count}?"):
        raise Refused("nothing was removed: it was not confirmed")


def _show(steps: Sequence[Step], running: Sequence[Pod], *, dry_run: bool, machine: bool) -> None:
    if machine:
        as_json(
            {
                "dry_run": dry_run,
                "running": [_name(pod) for pod in running],
                "steps": [asdict(step) for step in steps],
            }
        )
        return
    columns = {"what": "WHAT", "of": "OF", "name": "NAME"}
    table([asdict(step) for step in steps], columns, empty="nothing of mediafleet is in this cluster")
    if running:
        console.print(f"still running: {', '.join(_name(pod) for pod in running)}", soft_wrap=True)


def _tell(step: Step) -> None:
    about = f"{step.what} {step.of} {step.name}".rstrip()
    console.print(f"{step.outcome:<8} {about}{f': {step.detail}' if step.detail else ''}", soft_wrap=True)


def _name(pod: Pod) -> str:
    return f"{pod.namespace}/{pod.name}"
