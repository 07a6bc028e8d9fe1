"""One service as one process: settings, logs, health, the bus, and an orderly end.

    main("remediation", RemediationSettings, run)

`run(host, settings)` is the service; it goes on until it is cancelled. SIGTERM or Ctrl-C cancels it; leaving
its `async with` blocks finishes lanes and releases the lease; what still runs after `stop_within_s` is cut
off. An error that the service does not handle ends the process; the supervisor restarts it.
"""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

import structlog
from prometheus_client import Gauge, Info

from shared.bus.nats import connect
from shared.bus.port import Bus, Disconnected, Lease, LeaseLost
from shared.clock import Clock, SystemClock
from shared.errors import BadInput, FleetError, Yields
from shared.host import health, logging
from shared.host.settings import ServiceSettings, SharedSettings, load

SettingsT = TypeVar("SettingsT", bound=ServiceSettings)

_READY = Gauge("mediafleet_ready", "1 while the service may get work, else 0.", ["service"])
_CONNECTED = Gauge(
    "mediafleet_bus_connected", "1 while the connection to the bus is up, else 0.", ["service"]
)
_ACTIVE = Gauge("mediafleet_active", "1 while this replica holds its service's lease.", ["service"])
_BUILD = Info("mediafleet_service", "Which service this process is.")

_BUS_SILENT_S = 60.0
"""A bus that claims to be connected and does not answer for this long is a dead connection: restart."""

_STAND_BY_S = 0.2
_YIELD_S = 15.0
"""How long a replica that yields leaves the lease to others; longer than a lease lasts."""

COLLECT_AFTER = (10_000, 20, 20)
"""Thresholds of the garbage collector. Events make no cycles, so the default of 700 new objects only searches
for what is not there: a twelfth of what it costs to consume one."""

log = structlog.get_logger()


@dataclass(slots=True)
class Host:
    """What a service gets from its process."""

    service: str
    shared: SharedSettings
    clock: Clock
    bus: Bus
    not_ready: str = "starting"

    @property
    def source(self) -> str:
        """The CloudEvents source of what it says."""
        return f"/mediafleet/{self.service}/{self.shared.instance}"

    def ready(self, why_not: str = "") -> None:
        """Say that work is welcome, or why not."""
        self.not_ready = why_not

    async def while_active(self, act: Callable[[Lease], Awaitable[None]]) -> None:
        """Be the active replica whenever the lease can be had, for ever; a lost lease or bus means stand by.

        What yields (a log holds facts of a newer version) leaves the lease to other replicas for a while.

        Args:
            act: consume and decide until something ends it.
        """
        self.ready()
        while True:
            pause_s = _STAND_BY_S
            try:
                async with self.bus.lease(self.service) as lease:
                    _ACTIVE.labels(self.service).set(1)
                    log.info("active", lease=lease.number)
                    await act(lease)
            except (LeaseLost, Disconnected) as error:
                log.warning("standing by", reason=str(error))
            except Yields as error:
                log.error("the lease is left to others", reason=str(error), for_s=_YIELD_S)
                pause_s = _YIELD_S
            finally:
                _ACTIVE.labels(self.service).set(0)
            await asyncio.sleep(pause_s)


Run = Callable[[Host, SettingsT], Awaitable[None]]


def main(service: str, settings: type[SettingsT], run: Run[SettingsT]) -> None:
    """Run a service until it is told to stop; exits 0 then, 1 on failure, 2 on bad settings."""
    try:
        shared, own = load(SharedSettings), load(settings)
        logging.configure(service, shared.instance, shared.log_level)
    except BadInput as error:
        sys.stderr.write(f"mediafleet {service}: {error}\n")
        raise SystemExit(2) from None
    try:
        with asyncio.Runner() as runner:
            runner.run(_live(service, shared, own, run))
    except FleetError as error:
        log.error("stopped", reason=str(error))
        raise SystemExit(1) from None


async def _live(service: str, shared: SharedSettings, own: SettingsT, run: Run[SettingsT]) -> None:
    await _Process(service, shared, own, run).live()


class _Watch:
    """Whether the bus answers: for readiness at once, for liveness when it is dead but says it lives."""

    _EVERY_S = 10.0

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._bus: Bus | None = None
        self._answered_s = 0.0

    async def run(self, bus: Bus) -> None:
        """Ask for ever."""
        self._bus, self._answered_s = bus, self._clock.monotonic()
        while True:
            await asyncio.sleep(self._EVERY_S)  # first, too: a service starts before it has joined the bus
            try:
                await bus.ping()
                self._answered_s = self._clock.monotonic()
            except Disconnected as error:
                log.warning("bus does not answer", reason=str(error))
                if not bus.connected:  # known to be down, not dead: the silence begins when it is up again
                    self._answered_s = self._clock.monotonic()

    def ready(self) -> str:
        """Why no work may come; empty when it may."""
        return "" if self._bus is not None and self._bus.connected else "the bus is not connected"

    def live(self) -> str:
        """Why the process should be restarted; empty when it should not. A bus that is down is no reason."""
        if self._bus is None or not self._bus.connected:
            return ""
        silent_s = self._clock.monotonic() - self._answered_s
        return f"the bus connection has been dead for {silent_s:.0f} s" if silent_s > _BUS_SILENT_S else ""


class _Process(Generic[SettingsT]):
    """The life of one process."""

    def __init__(self, service: str, shared: SharedSettings, own: SettingsT, run: Run[SettingsT]) -> None:
        self._service, self._shared, self._own, self._run = service, shared, own, run
        self._clock = SystemClock()
        self._watch = _Watch(self._clock)
        self._host: Host | None = None

    async def live(self) -> None:
        """Until stopped or broken."""
        _BUILD.info({"service": self._service, "instance": self._shared.instance})
        # Asked when they are scraped: a bus that is lost is nobody's event.
        _READY.labels(self._service).set_function(lambda: float(not self._ready()))
        _CONNECTED.labels(self._service).set_function(lambda: float(not self._watch.ready()))
        at = self._shared
        async with health.serve(
            at.health_host, at.health_port, live=self._watch.live, ready=self._ready
        ) as endpoint:
            log.info("started", health_port=endpoint.port)
            working = asyncio.create_task(self._work(), name=self._service)
            loop = asyncio.get_running_loop()
            stop = asyncio.create_task(_signalled(loop), name="stop")
            await asyncio.wait({working, stop}, return_when=asyncio.FIRST_COMPLETED)
            stop.cancel()
            if not working.done():
                log.info("stopping")
                if self._host is not None:
                    self._host.ready("stopping")
                working.cancel()
                await asyncio.wait({working}, timeout=at.stop_within_s)
            if not working.done():
                log.error("did not stop in time", stop_within_s=at.stop_within_s)
                os._exit(1)  # a task that ignores its cancellation would hold the loop's own end up too
            if not working.cancelled():
                working.result()
        log.info("stopped")

    async def _work(self) -> None:
        at = self._shared
        async with connect(
            at.nats_url,
            service=self._service,
            instance=at.instance,
            clock=self._clock,
            within_s=None,
            access=at.access,
        ) as bus:
            self._host = Host(self._service, at, self._clock, bus)
            watching = asyncio.create_task(self._watch.run(bus), name="bus-watch")
            gc.collect()
            gc.freeze()  # what was loaded at start stays: no collection walks it again
            gc.set_threshold(*COLLECT_AFTER)
            try:
                await self._run(self._host, self._own)
            finally:
                watching.cancel()

    def _ready(self) -> str:
        if self._host is None:
            return "connecting to the bus"
        return self._host.not_ready or self._watch.ready()


async def _signalled(loop: asyncio.AbstractEventLoop) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    await stop.wait()
