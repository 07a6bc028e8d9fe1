"""`python -m services.simulator`: a cluster in a process, until SIGTERM or Ctrl-C.

Prints one line of JSON when it serves: the URL of its API, and name and host root of every node. Samples go
to the bus of MEDIAFLEET_NATS_URL; without a bus, or while it is away, the cluster runs on.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import sys
from typing import TYPE_CHECKING

import structlog

from services.simulator.cluster import Cluster
from services.simulator.settings import SimulatorSettings
from shared.bus.nats import connect
from shared.errors import BadInput, FleetError
from shared.host import logging
from shared.host.settings import SharedSettings, load

if TYPE_CHECKING:
    from collections.abc import Sequence

log = structlog.get_logger(__name__)

_RECONNECT_S = 1.0
_STOP_S = 4.0
"""A service has 5 s from SIGTERM; what still hangs then is cut off."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run until told to stop; 0 then, 1 when it cannot run, 2 on bad settings."""
    parser = argparse.ArgumentParser(prog="python -m services.simulator", description=__doc__)
    parser.add_argument("--nodes", type=int, help="so many alike nodes instead of the demo's three")
    parser.add_argument("--port", type=int, help="port of the HTTP API; 0 takes a free one")
    parser.add_argument("--seed", type=int, help="what is invented follows from it")
    parser.add_argument("--kubelets", choices=("auto", "on", "off"), help="trees and kubelets with sockets")
    given = {name: value for name, value in vars(parser.parse_args(arguments)).items() if value is not None}
    try:
        shared = load(SharedSettings)
        settings = SimulatorSettings.model_validate(load(SimulatorSettings).model_dump() | given)
        logging.configure("simulator", shared.instance, shared.log_level)
        asyncio.run(_live(settings, shared))
    except BadInput as wrong:
        sys.stderr.write(f"simulator: {wrong}\n")
        return 2
    except (FleetError, OSError) as error:
        sys.stderr.write(f"simulator: {error}\n")
        return 1
    return 0


async def _live(settings: SimulatorSettings, shared: SharedSettings) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    async with Cluster(settings) as cluster:
        shown = cluster.snapshot()["nodes"]
        nodes = [{"name": node["name"], "host_root": node["hostRoot"]} for node in shown]
        sys.stdout.write(json.dumps({"url": cluster.url, "nodes": nodes}) + "\n")
        sys.stdout.flush()
        speaking = asyncio.create_task(_speak(cluster, shared), name="bus")
        stopped = asyncio.create_task(stop.wait(), name="stop")
        await asyncio.wait({speaking, stopped}, return_when=asyncio.FIRST_COMPLETED)
        log.info("stopping")
        cutting = loop.call_later(_STOP_S, os._exit, 1)
        speaking.cancel()
        stopped.cancel()
        await asyncio.wait({speaking, stopped})
    cutting.cancel()
    if not speaking.cancelled():
        speaking.result()


async def _speak(cluster: Cluster, shared: SharedSettings) -> None:
    """Give the cluster a bus for its samples, whenever one is there."""
    while True:
        if not cluster.settings.samples:
            await asyncio.Event().wait()
        try:
            async with connect(
                shared.nats_url,
                service="simulator",
                instance=shared.instance,
                clock=cluster.clock,
                access=shared.access,
            ) as bus:
                cluster.bus = bus
                await asyncio.Event().wait()
        except FleetError as gone:
            log.info("no bus for samples", reason=str(gone))
        finally:
            cluster.bus = None
        await asyncio.sleep(_RECONNECT_S)


if __name__ == "__main__":
    raise SystemExit(main())
