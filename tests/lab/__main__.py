"""`python -m tests.lab up|down|status|build`: a Kubernetes on this machine, real but for the hardware."""

from __future__ import annotations

import argparse
import asyncio
import sys

from tests.lab import build, lab, prerequisites
from tests.lab.layout import Layout
from tests.lab.system import LabError


def say(what: str) -> None:
    """Progress, at once even into a pipe."""
    print(what, flush=True)  # noqa: T201 - a command line's output


async def up(name: str) -> None:
    """Build what is missing, start, show the nodes."""
    if found := prerequisites.problems():
        raise LabError("\n".join(found))
    await build.build(say)
    running = lab.attach(name)
    if running is None:
        running = await lab.start(name, say)
    say(f"\nKUBECONFIG={running.kubeconfig}")
    say(f"kubectl:   {build.path('kubectl')}\n")
    say(await running.kubectl("get", "nodes", "-o", "wide"))


async def status(name: str) -> None:
    """What of the lab runs."""
    layout = Layout.read(name)
    if layout is None:
        say(f"there is no lab {name}; {len(build.missing())} programs to build")
        return
    for daemon, pid in lab.Lab(layout).running().items():
        say(f"{daemon:28} {pid}")
    say(f"KUBECONFIG={layout.kubeconfig}")


def main() -> int:
    """Run one command."""
    parser = argparse.ArgumentParser(prog="python -m tests.lab", description=__doc__)
    parser.add_argument("command", choices=("up", "down", "status", "build"))
    parser.add_argument("--name", default=lab.DEFAULT, help="several labs can be up at once")
    asked = parser.parse_args()
    commands = {
        "up": lambda: up(asked.name),
        "down": lambda: lab.down(asked.name, say),
        "status": lambda: status(asked.name),
        "build": lambda: build.build(say),
    }
    try:
        asyncio.run(commands[asked.command]())
    except (LabError, ExceptionGroup) as error:
        flat = error.exceptions if isinstance(error, ExceptionGroup) else [error]
        print("\n".join(f"lab: {each}" for each in flat), file=sys.stderr)  # noqa: T201 - a command line's output
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
