"""A process that holds a lease and consumes; run as a script, it tells what it does line by line.

argv: url, kill (window that kills the process, -1 for none), wait (window that never ends, -1 for none)
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys

from shared.bus.nats import connect
from shared.bus.port import Delivery, LeaseLost, Subscription
from shared.events.world import HealthReported


def tell(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


async def main(url: str, kill: int, wait: int) -> None:
    async def handle(delivery: Delivery) -> None:
        data = delivery.event.data
        assert isinstance(data, HealthReported)
        tell(f"start {data.window_id}")
        if data.window_id == kill:
            os.kill(os.getpid(), signal.SIGKILL)
        if data.window_id == wait:
            await asyncio.Event().wait()
        tell(f"done {data.window_id}")

    subscription = Subscription("health", (HealthReported,), handle)
    async with (
        connect(url, service="worker", instance=str(os.getpid()), lease_ttl_s=1) as bus,
        bus.lease("worker") as lease,
    ):
        tell(f"lease {lease.number}")
        try:
            async with bus.consume("worker", (subscription,), lease=lease) as consumption:
                await consumption.until_caught_up()
                tell("caught up")
                await consumption.wait()
        except LeaseLost:
            tell("lost")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])))
