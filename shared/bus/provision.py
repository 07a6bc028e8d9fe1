"""Making the streams and buckets: one idempotent step, with credentials of its own.

What exists is compared field by field with what is wanted; only what differs is changed, and every change is
told. What the server does not let be changed in place (storage, denials) is told as `conflict` and left
alone: nothing here ever deletes data.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from shared.bus.access import Access
from shared.bus.nats.lease import BUCKET as LEASES
from shared.bus.nats.link import NO_STREAM, ApiError, Link
from shared.bus.nats.starts import BUCKET as ATTEMPTS
from shared.bus.nats.streams import AUDIT, DEAD_LETTERS, DEDUP_WINDOW_S, configuration
from shared.bus.permissions import VIEW_WRITERS
from shared.events import DOMAINS, Keeps

VIEWS = tuple(VIEW_WRITERS)
"""Buckets of the views; each has one writer."""
_AUDIT_AGE_S = 180 * 86400
_AUDIT_BYTES = 16 << 30
_ATTEMPTS_AGE_S = 86400
_VIEW_BYTES = 1 << 30
_SMALL_BYTES = 16 << 20
_NANOSECONDS = 1_000_000_000
_FIXED = ("storage", "deny_delete", "deny_purge", "retention")
"""What a stream keeps from its creation."""


@dataclass(frozen=True, slots=True)
class Change:
    """One difference that was found.

    Attributes:
        stream: whose.
        what: created, updated, or conflict (it cannot be changed in place and was left alone).
        field: of the configuration; empty for a creation.
        before: as found.
        after: as wanted.
    """

    stream: str
    what: str
    field: str = ""
    before: object = None
    after: object = None

    def __str__(self) -> str:
        if not self.field:
            return f"{self.stream}: {self.what}"
        return f"{self.stream}: {self.what} {self.field}: {self.before!r} -> {self.after!r}"


async def provision(
    url: str,
    *,
    replicas: int = 1,
    dedup_window_s: float = DEDUP_WINDOW_S,
    within_s: float = 30.0,
    access: Access | None = None,
) -> list[Change]:
    """Create what is missing and reconcile what differs.

    Args:
        url: of the server.
        replicas: of every stream; 3 on a cluster.
        dedup_window_s: how long a stream knows an id.
        within_s: until the connection stands.
        access: credentials and trust; none by default.

    Returns:
        What was changed; empty when all was as wanted.

    Raises:
        Refused: the server is too old.
    """
    link = Link("provision", "provision", access or Access())
    await link.open(url, within_s=within_s)
    try:
        changes: list[Change] = []
        for wanted in wanted_streams(replicas, dedup_window_s):
            changes += await _reconcile(link, wanted)
        return changes
    finally:
        await link.close()


def wanted_streams(replicas: int = 1, dedup_window_s: float = DEDUP_WINDOW_S) -> list[dict[str, Any]]:
    """The configuration of every stream, in the order in which they can be made."""
    domains = [configuration(domain) for domain in DOMAINS.values()]
    audited = [
        domain.stream
        for domain in DOMAINS.values()
        if domain.keeps is not Keeps.MEMORY and domain.stream != DEAD_LETTERS
    ]
    streams = [*domains, _audit(audited), *(_bucket(name, _VIEW_BYTES) for name in VIEWS)]
    streams.append(_bucket(LEASES, _SMALL_BYTES) | {"allow_msg_ttl": True})
    streams.append(_bucket(ATTEMPTS, _SMALL_BYTES) | {"max_age": _ATTEMPTS_AGE_S * _NANOSECONDS})
    for stream in streams:
        stream["num_replicas"] = replicas
        if stream["name"] != AUDIT:
            stream["duplicate_window"] = int(dedup_window_s * _NANOSECONDS)
    return streams


def _audit(sources: list[str]) -> dict[str, Any]:
    return {
        "name": AUDIT,
        "description": "everything that was said, for months",
        "subjects": [],
        "sources": [{"name": name} for name in sources],
        "retention": "limits",
        "storage": "file",
        "max_age": _AUDIT_AGE_S * _NANOSECONDS,
        "max_bytes": _AUDIT_BYTES,
        "discard": "old",
        # Restated facts keep their id, and every telling belongs in the audit.
        "duplicate_window": 0,
        "compression": "s2",
        "allow_direct": True,
        "deny_delete": True,
        "deny_purge": True,
    }


def _bucket(name: str, max_bytes: int) -> dict[str, Any]:
    return {
        "name": f"KV_{name}",
        "description": f"bucket {name}",
        "subjects": [f"$KV.{name}.>"],
        "retention": "limits",
        "storage": "file",
        "max_msgs_per_subject": 1,
        "max_bytes": max_bytes,
        "discard": "new",
        "allow_rollup_hdrs": True,
        "allow_direct": True,
        "deny_delete": True,
        "max_age": 0,
    }


async def _reconcile(link: Link, wanted: dict[str, Any]) -> list[Change]:
    name = wanted["name"]
    try:
        found = (await link.api(f"STREAM.INFO.{name}"))["config"]
    except ApiError as error:
        if error.err_code != NO_STREAM:
            raise
        await link.api(f"STREAM.CREATE.{name}", wanted)
        return [Change(name, "created")]
    changes = [
        Change(name, "conflict" if field in _FIXED else "updated", field, _said(found, field), value)
        for field, value in wanted.items()
        if not _same(_said(found, field), value)
    ]
    updates = {change.field: change.after for change in changes if change.what == "updated"}
    if updates:
        await link.api(f"STREAM.UPDATE.{name}", {**found, **updates})
    return changes


def _said(found: Mapping[str, Any], field: str) -> object:
    return found.get(field)


def _same(found: object, wanted: object) -> bool:
    """Whether a field is as wanted; the server leaves out what is empty and adds to sources."""
    if not wanted and not found:
        return True
    if isinstance(wanted, list) and isinstance(found, list):
        return _names(found) == _names(wanted)
    return found == wanted


def _names(values: list[Any]) -> list[str]:
    return sorted(value["name"] if isinstance(value, dict) else str(value) for value in values)
