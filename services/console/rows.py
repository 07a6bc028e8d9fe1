"""Rows of the tables that the command line shows, made from views and from discovered devices."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict

from shared.bus.port import Bus
from shared.devices.keys import parse
from shared.errors import BadInput


class Row(BaseModel):
    """A view's value as it stands, whatever its writer put into it."""

    model_config = ConfigDict(extra="allow")


async def _rows(bus: Bus, view: str) -> list[dict[str, Any]]:
    entries = await bus.view(view, Row).all()
    return [
        {"device": key, **entry.value.model_dump(mode="json")}
        for key, entry in sorted(entries.items())
        if entry.value is not None
    ]


async def devices(bus: Bus) -> list[dict[str, Any]]:
    """The manager's view of every device."""
    return await _rows(bus, "devices")


async def known(bus: Bus, place: str, entity: str) -> bool:
    """Whether the manager has seen the device (or the one it is part of); a workload always is."""
    try:
        key = parse(entity)
    except BadInput:
        return True
    view = bus.view("devices", Row)
    return any([(await view.get(f"{place}/{each}")) is not None for each in {key.device, key.physical}])


async def cases(bus: Bus) -> list[dict[str, Any]]:
    """Remediation's view of every case."""
    return await _rows(bus, "cases")


def found(unified: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Rows of discovered devices, from their JSON."""
    return [
        {
            "device": f"{device['node']}/{device['key']}",
            "model": device["model"],
            "memory": _gib(device["memory"]["totalBytes"]),
            "engines": _engines(device["codecEngine"]["engines"]),
            "numa": device["topology"]["numaNode"],
            "serial": device["serial"],
        }
        for device in unified
    ]


def _gib(size_bytes: int | None) -> str:
    return "unknown" if size_bytes is None else f"{size_bytes / 2**30:.1f} GiB"


def _engines(engines: Mapping[str, int | None]) -> str:
    return "/".join("?" if engines[kind] is None else str(engines[kind]) for kind in ("enc", "dec", "jpeg"))
