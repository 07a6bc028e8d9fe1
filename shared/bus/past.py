"""What was said, whatever was compacted since: from the streams, and from the audit behind a snapshot."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

from shared.bus.port import Bus, Recorded
from shared.events import Payload, Unknown

SNAPSHOT = "snapshotted"
"""The fact that stands for all before it, in every domain whose logs are compacted."""


async def past(
    bus: Bus,
    wanted: Mapping[str, tuple[type[Payload], ...]],
    *,
    place: str | None = None,
    after: datetime | None = None,
) -> list[Recorded]:
    """Events by the time they were stored, each once.

    Where a log was compacted, what the audit holds of its device or workload is read too: the log, and what
    the other wanted domains said about it that they no longer keep.

    Args:
        bus: read only.
        wanted: payload classes by domain; () for all. Compaction is seen in domains of which all is wanted.
        place: only this node or namespace.
        after: only what was stored then or later.
    """
    found: dict[str, Recorded] = {}
    compacted: set[tuple[str, str]] = set()
    for domain, types in wanted.items():
        async for recorded in bus.history(domain, place=place, types=types):
            if after is None or recorded.stored_at >= after:
                found[recorded.event.id] = recorded
                address = recorded.event.address
                if address.fact == SNAPSHOT:
                    compacted.add((address.place, address.entity))
    for about in sorted(compacted):
        async for recorded in bus.audit(*about):
            if _is_wanted(recorded, wanted) and (after is None or recorded.stored_at >= after):
                found.setdefault(recorded.event.id, recorded)
    return sorted(found.values(), key=lambda recorded: recorded.stored_at)


def _is_wanted(recorded: Recorded, wanted: Mapping[str, tuple[type[Payload], ...]]) -> bool:
    event = recorded.event
    types = wanted.get(event.of.domain)
    if types is None:
        return False
    return not types or (not isinstance(event, Unknown) and isinstance(event.data, types))
