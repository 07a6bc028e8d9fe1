"""What discovery does when remediation asks: deep checks, and repair steps for which it has a program."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import structlog

from services.discovery import tools
from services.discovery.decide import Probe, examine
from services.discovery.health import Health
from services.discovery.settings import DiscoverySettings
from shared.bus.port import Delivery
from shared.clock import Clock
from shared.devices.keys import parse
from shared.devices.model import RawDevice
from shared.errors import BadInput
from shared.events import Cause, Payload
from shared.events.remediation import DiagnosisRequested, RepairRequested
from shared.events.world import Diagnosed, RepairDone

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Request:
    """One thing asked about one device; ``kind`` tells diagnoses from each repair step."""

    key: str
    kind: str
    epoch: int
    attempt: int


class Node(Protocol):
    """What an executor needs of the service it belongs to."""

    health: Health

    @property
    def devices(self) -> Mapping[str, RawDevice]:
        """What is on the node now, by key."""
        ...

    async def probe(self, device: RawDevice) -> Probe:
        """Probe one physical device."""
        ...

    def answered(self, request: Request) -> bool:
        """This request, or a later one of its kind, was answered already."""
        ...

    def answer(self, request: Request, fact: Payload, cause: Cause) -> None:
        """Say the answer to a request, once."""
        ...


class Executor:
    """Answers requests about devices of this node, each once; one whose deadline has passed is left alone."""

    def __init__(self, node: Node, settings: DiscoverySettings, clock: Clock, root: Path) -> None:
        """Args: node: the service. settings: of it. clock: for deadlines. root: of the host's files."""
        self._node = node
        self._settings = settings
        self._clock = clock
        self._root = root

    async def handle(self, delivery: Delivery) -> None:
        """Take one request.

        Raises:
            BadInput: it is about no device key.
        """
        request, key = delivery.event.data, delivery.event.of.entity
        if not isinstance(request, (DiagnosisRequested, RepairRequested)):
            return
        parse(key, "subject")
        if request.deadline <= self._clock.now():
            return
        cause = Cause.of(delivery.event)
        if isinstance(request, DiagnosisRequested):
            await self._diagnose(key, request, cause)
        else:
            await self._repair(key, request, cause)

    async def _diagnose(self, key: str, request: DiagnosisRequested, cause: Cause) -> None:
        asked = Request(key, "diagnosis", request.epoch, request.attempt)
        if self._node.answered(asked):
            return
        device = self._node.devices.get(key)
        asked_s = self._clock.monotonic()
        before = after = Probe(present=False, answer="none", detail="no such device on this node")
        if device is not None:
            self._node.health.watch_closely(key)
            before = await self._node.probe(device)
            await asyncio.sleep(self._settings.quiet_s)
            after = await self._node.probe(device)
        outcome, checks = examine(
            before,
            after,
            counted_since=self._node.health.counted_since(key, asked_s),
            limits=self._settings.limits,
        )
        log.info("diagnosed", key=key, epoch=request.epoch, attempt=request.attempt, outcome=outcome)
        fact = Diagnosed(
            epoch=request.epoch,
            attempt=request.attempt,
            as_of=self._node.health.window(key),
            outcome=outcome,
            checks=checks,
            serial=device.serial if device else None,
        )
        self._node.answer(asked, fact, cause)

    async def _repair(self, key: str, request: RepairRequested, cause: Cause) -> None:
        asked = Request(key, f"repair-{request.step}", request.epoch, request.attempt)
        device = self._node.devices.get(key)
        if device is None or self._node.answered(asked):
            return
        command = self._settings.repair_commands.get(f"{device.vendor}/{request.step}")
        if not command:
            return  # another executor's
        names = {"bus_address": device.bus_address, "key": key, "serial": device.serial or ""}
        try:
            program, *arguments = [part.format_map(names) for part in command]
        except (KeyError, ValueError, IndexError) as error:
            raise BadInput(
                f"MEDIAFLEET_DISCOVERY__REPAIR_COMMANDS {device.vendor}/{request.step}",
                f"{error!r} cannot be filled in",
                "use {bus_address}, {key} and {serial} only",
            ) from error
        path = self._root / program.lstrip("/")
        output = await tools.run(path, arguments, self._settings.repair_deadline_s)
        outcome = {"answered": "succeeded", "failed": "failed", "hung": "ambiguous"}[output.answer]
        log.info("repaired", key=key, step=request.step, outcome=outcome)
        self._node.health.watch_closely(key)
        fact = RepairDone(
            epoch=request.epoch,
            step=request.step,
            attempt=request.attempt,
            as_of=self._node.health.window(key),
            outcome=outcome,
            detail=(output.detail or " ".join(output.text.split()))[:500],
        )
        self._node.answer(asked, fact, cause)
