"""Dead letters: what they say, and when two tellings of a fact are the same.

A dead letter's id is made from consumer, stream and sequence, so the letter that a service writes and the one
made from a server's advisory about the same message are stored once.
"""

from __future__ import annotations

import base64
from dataclasses import dataclass
from datetime import datetime

import orjson

from shared.errors import BadInput
from shared.events import FLEET, Address, AnyEvent, Cause, Event, event
from shared.events.workload import Rejected

_MAX_RAW_BYTES = 256 * 1024
"""Of a body that is carried: in base64, with the envelope, it stays below the largest event."""
_MAX_REASON = 2000
_VOLATILE = ("time", "source", "traceparent")
"""What may differ when a fact is said again after a crash: when, by which copy, in which trace."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """A message that a consumer could not take."""

    consumer: str
    stream: str
    sequence: int
    subject: str
    body: bytes
    reason: str
    field: str = ""
    attempts: int = 1
    event: AnyEvent | None = None


def dead_letter(refusal: Refusal, *, service: str, source: str, at: datetime) -> Event[Rejected]:
    """The event that carries a refused message, whole, with its reason.

    Args:
        refusal: what was refused, and why.
        service: who refused it.
        source: `/mediafleet/<service>/<instance>`.
        at: now.
    """
    try:
        place = Address.parse(refusal.subject).place
    except BadInput:
        place = FLEET
    raw, encoding, cut = _carried(refusal.body)
    about = refusal.event
    rejected = Rejected(
        consumer=refusal.consumer,
        stream=refusal.stream,
        sequence=refusal.sequence,
        subject=refusal.subject,
        field=refusal.field,
        reason=(refusal.reason[:_MAX_REASON] or "no reason given") + cut,
        attempts=refusal.attempts,
        raw=raw,
        encoding=encoding,
    )
    cause = Cause(
        f"refused\n{refusal.stream}\n{refusal.sequence}",
        about.id if about else None,
        about.correlationid if about else None,
        about.traceparent if about else None,
    )
    return event(rejected, (place, service), cause=cause, source=source, at=at)


def same_fact(stored: bytes, said: bytes) -> bool:
    """Whether two bodies with one id state the same fact: all but time, source and trace must be equal."""
    if stored == said:
        return True
    try:
        first, second = orjson.loads(stored), orjson.loads(said)
    except orjson.JSONDecodeError:
        return False
    if not isinstance(first, dict) or not isinstance(second, dict):
        return False
    for name in _VOLATILE:
        first.pop(name, None)
        second.pop(name, None)
    return bool(first == second)


def _carried(body: bytes) -> tuple[str, str, str]:
    """The body as text, its encoding, and a remark when it had to be cut."""
    cut = "" if len(body) <= _MAX_RAW_BYTES else f" (body of {len(body)} bytes cut; whole in the stream)"
    kept = body[:_MAX_RAW_BYTES]
    try:
        text = kept.decode()
        if len(orjson.dumps(text)) <= _MAX_RAW_BYTES * 4 // 3:
            return text, "utf-8", cut
    except UnicodeDecodeError:
        pass
    return base64.b64encode(kept).decode(), "base64", cut
