"""Start the auth callout. It has no bus of streams, so it is no `shared.host` process, but ends like one."""

from __future__ import annotations

import asyncio
import signal
import sys

import structlog

from services.authcallout.service import run
from services.authcallout.settings import AuthcalloutSettings
from shared.errors import BadInput, FleetError
from shared.host import logging
from shared.host.settings import SharedSettings, load
from shared.host.tasks import together

_SERVICE = "authcallout"


async def _until_told(shared: SharedSettings, own: AuthcalloutSettings) -> None:
    told = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, told.set)

    async def stop() -> None:
        await told.wait()

    await together(stop=stop(), authcallout=run(shared, own))


def main() -> None:
    """Run until told to stop; exits 0 then, 1 on failure, 2 on bad settings."""
    log = structlog.get_logger()
    try:
        shared, own = load(SharedSettings), load(AuthcalloutSettings)
        logging.configure(_SERVICE, shared.instance, shared.log_level)
    except BadInput as error:
        sys.stderr.write(f"mediafleet {_SERVICE}: {error}\n")
        raise SystemExit(2) from None
    try:
        with asyncio.Runner() as runner:
            runner.run(_until_told(shared, own))
    except FleetError as error:
        log.error("stopped", reason=str(error))
        raise SystemExit(1) from None
    log.info("stopped")


main()
