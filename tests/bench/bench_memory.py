"""Resident memory of every service at idle, beside bare processes: `python -m tests.bench.bench_memory`.

The services run as the demo runs them, on three nodes with two devices each, until they have been quiet for a
while. RSS counts shared libraries in every process; the bare processes say how much of it that is.
"""

from __future__ import annotations

import argparse
import asyncio
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import aiohttp

from services.console.demo import start_services
from services.console.demo.stage import stage

_REACH_MIB = {"discovery": 70, "bridge": 70}
_CLUSTER_REACH_MIB = 110
_BARE = {
    "nats-py + pydantic + grpc.aio": "import nats, pydantic, grpc.aio",
    "the same + kubernetes_asyncio": "import nats, pydantic, grpc.aio, kubernetes_asyncio.client",
}
_PAUSE = "import sys; print(open('/proc/self/status').read().split('VmRSS:')[1].split()[0])"


def rss_mib(pid: int) -> float:
    """Resident set of a process, MiB."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.split("VmRSS:")[1].split()[0]) / 1024


def bare_mib(imports: str) -> float:
    """Resident set of a process that has done nothing but import."""
    done = subprocess.run([sys.executable, "-c", f"{imports}; {_PAUSE}"], capture_output=True, check=True)
    return int(done.stdout) / 1024


async def measure(quiet_s: float) -> dict[str, list[float]]:
    """MiB per service, one figure a process."""
    found: dict[str, list[float]] = defaultdict(list)
    async with stage({}) as here, aiohttp.ClientSession() as session:
        await start_services(here, session, seed=1)
        await asyncio.sleep(quiet_s)
        here.check()
        for running in here.running:
            found[running.name.partition("@")[0]].append(rss_mib(running.process.pid))
    return found


def main() -> None:
    """Print the table; services over their reach are marked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quiet", type=float, default=10.0, help="seconds of idling before the look")
    given = parser.parse_args()
    for what, imports in _BARE.items():
        sys.stdout.write(f"{'bare ' + what:<44} {bare_mib(imports):6.1f} MiB\n")
    for service, figures in asyncio.run(measure(given.quiet)).items():
        reach = None if service == "simulator" else _REACH_MIB.get(service, _CLUSTER_REACH_MIB)
        judged = "" if reach is None else f"reach {reach}, {'ok' if max(figures) <= reach else 'OVER'}"
        shown = " ".join(f"{each:.1f}" for each in sorted(figures))
        sys.stdout.write(f"{service:<44} {shown:>22} MiB  {judged}\n")


if __name__ == "__main__":
    main()
