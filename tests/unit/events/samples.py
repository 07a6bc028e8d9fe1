"""A full and a minimal sample of every event type, for tests/fixtures/events/v1.

    python -m tests.unit.events.samples

writes the samples that are missing and touches none that is there: what was shipped once is parsed for ever.
"""

from __future__ import annotations

import json
import types
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import AwareDatetime, BaseModel

from shared.events import CATALOGUE, AnyEvent, Cause, Payload, event

SAMPLES = Path(__file__).resolve().parents[2] / "fixtures" / "events" / "v1"
AT = datetime(2026, 3, 1, 12, 30, 15, 250000, tzinfo=UTC)
BOOT = "5f3c9a52-0d11-4f0e-9f58-3a1b7c2d9e40"
KEY = "nvidia-0000-3b-00-0"
_TEXTS = {
    "boot_id": BOOT,
    "key": KEY,
    "device": KEY,
    "engine": f"{KEY}-enc-1",
    "vendor": "nvidia",
    "bus_address": "0000:3b:00.0",
    "node": "worker-3",
    "uid": "0b7a2f04-6a58-4a70-8d0c-6f1d2a3b4c5d",
    "namespace": "live",
    "serial": "1320220012345",
    "kind": "Deployment",
    "name": "rtmp-edge",
    "tier": "batch",
    "resource": "media.example.com/nvenc",
    "verdict": "unhealthy",
    "outcome": "passed",
    "class_": "fatal",
    "code": "79",
    "raw": "NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus.",
    "reason": "because the tests say so",
    "step": "reset",
    "encoding": "utf-8",
    "kernel": "6.8.0-45-generic",
    "toolkit": "1.16.2",
    "Evidence.kind": "kernel-line",
    "Evidence.scope": "device",
    "Compatibility.verdict": "compatible",
    "Attribution.verdict": "neighbour",
    "UnifiedDevice.uid": "nvidia-worker-3-0000:3b:00.0",
    "UnifiedDevice.model": "Tesla T4",
    "UnifiedDevice.parent": KEY,
    "UnifiedDevice.capabilities": "h264-encode",
    "Topology.pci_path": "0000:3a:00.0",
    "Firmware.driver": "550.54.15",
    "Rejected.consumer": "remediation",
    "Rejected.stream": "FLEET_HEALTH",
    "Rejected.subject": f"fleet.v1.health.worker-3.{KEY}.reported",
    "Rejected.raw": "{}",
}
_NUMBERS = {
    "share": 0.75,
    "drop_ratio": 0.01,
    "status": 201,
    "epoch": 4,
    "total_bytes": 16 << 30,
    "allocatable_bytes": 15 << 30,
    "bandwidth_bytes_per_s": 320_000_000_000,
}
_PLACES = {"sample": "live", "sla": "live", "scale": "live", "alert": "live"}
_ENTITIES = {
    "node": "agent",
    "sample": "rtmp-edge-7d9f",
    "sla": "deployment-rtmp-edge",
    "scale": "deployment-rtmp-edge",
    "alert": "sla-deployment-rtmp-edge",
    "deadletter": "remediation",
}


def samples() -> Iterator[tuple[str, AnyEvent]]:
    """File name and event, two of every type; the second has only what it needs."""
    for payload, _ in CATALOGUE.values():
        kind = payload.kind
        of = _PLACES.get(kind.domain, "worker-3"), _ENTITIES.get(kind.domain, KEY)
        for suffix, full in (("", True), (".minimal", False)):
            yield (
                f"{kind.name}{suffix}.json",
                event(
                    fill(payload, full=full),
                    of,
                    cause=Cause("sample", "cause-id" if full else None),
                    source=f"/mediafleet/{kind.said_by[0]}/0",
                    at=AT,
                    correlationid=f"{kind.domain}:{of[0]}/{of[1]}#4" if full else None,
                ),
            )


def fill(model: type[BaseModel], *, full: bool) -> Any:
    """A payload or a part with plausible values, in every field or only in those that it needs."""
    return model(
        **{
            name: _value(model, name, field.annotation, full=full)
            for name, field in model.model_fields.items()
            if full or field.is_required()
        }
    )


def _value(model: type[BaseModel], name: str, annotation: Any, *, full: bool) -> Any:
    origin, inner = get_origin(annotation), get_args(annotation)
    if origin in (Annotated, Union, types.UnionType):
        return _value(model, name, inner[0], full=full)
    if origin is Literal:
        return inner[0]
    if origin is tuple:
        return (_value(model, name, inner[0], full=full),)
    if origin is dict:
        return {KEY: _value(model, name, inner[1], full=full)} if full else {}
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return fill(annotation, full=full)
    return _plain(f"{model.__name__}.{name}", name, annotation)


def _plain(path: str, name: str, annotation: Any) -> Any:
    if annotation in (AwareDatetime, datetime):
        return AT
    if annotation is bool:
        return True
    if annotation in (int, float):
        return _NUMBERS.get(name, 3 if annotation is int else 12.5)
    return _TEXTS.get(path, _TEXTS.get(name, f"some-{name.replace('_', '-')}"))


def write(folder: Path) -> list[str]:
    """Write the samples that are not there yet, and return their names."""
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for name, made in samples():
        if not (folder / name).exists():
            (folder / name).write_text(text(made, whole=".minimal." not in name))
            written.append(name)
    return written


def text(made: AnyEvent, *, whole: bool) -> str:
    """The event as a file; `whole` or without what has a default."""
    body = json.loads(made.encode())
    if not whole:
        body["data"] = made.data.model_dump(mode="json", by_alias=True, exclude_unset=True)
    return json.dumps(body, indent=2) + "\n"


def payload_of(sample: Path) -> type[Payload]:
    """The payload class of a sample, by the file's name."""
    domain, fact, *_ = sample.name.split(".")
    return CATALOGUE[(domain, fact)][0]


if __name__ == "__main__":
    write(SAMPLES)
