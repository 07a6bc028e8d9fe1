"""What discovery must not forget when it is restarted: where it stood in the kernel log, and what it knew.

One small file, replaced by rename. Without it a restart would count old kernel lines again, take a fault
between two looks for history, and not miss a device that vanished meanwhile. A file that cannot be read is
set aside: the node then starts as if it were new.
"""

from __future__ import annotations

from pathlib import Path

import structlog
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from shared.devices.model import RawDevice
from shared.devices.readings import Readings

log = structlog.get_logger()


class Known(BaseModel):
    """One device as it was last seen.

    Attributes:
        window_id: the last window reported of it in this boot; -1 before the first.
    """

    model_config = ConfigDict(frozen=True)

    device: RawDevice
    baseline: dict[str, Readings] = Field(default_factory=dict)
    driver: bool | None = None
    window_id: int = -1


class Memory(BaseModel):
    """What is kept.

    Attributes:
        boot_id: of the boot that `sequence` and the counters belong to.
        sequence: number of the last kernel record that was read; -1 before the first.
        devices: by key.
        answered: epoch and attempt of the last request that was answered, by key and kind of request.
    """

    model_config = ConfigDict(frozen=True)

    boot_id: str = ""
    sequence: int = -1
    devices: dict[str, Known] = Field(default_factory=dict)
    answered: dict[str, tuple[int, int]] = Field(default_factory=dict)


def load(path: Path) -> Memory:
    """What was kept; an empty memory when there is none or it cannot be read."""
    try:
        return Memory.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        return Memory()
    except (OSError, ValidationError) as error:
        log.error(
            "discovery's memory cannot be read; it is set aside", path=str(path), reason=str(error)[:500]
        )
        try:
            path.replace(path.with_suffix(".broken"))
        except OSError as also:
            log.warning("it cannot be set aside either", reason=also.strerror)
        return Memory()


def save(path: Path, memory: Memory) -> None:
    """Keep it. A disk that refuses is logged: the service works on, only a restart would know less."""
    aside = path.with_suffix(".new")
    try:
        aside.write_text(memory.model_dump_json(), encoding="utf-8")
        aside.replace(path)
    except OSError as error:
        log.warning("discovery's memory cannot be written", path=str(path), reason=error.strerror)
