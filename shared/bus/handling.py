"""Which event the running task handles, so that every line logged meanwhile says so.

The event itself is put into the context of the task, and read only when a line is written: most events are
handled without a word, and pay for one context variable. Tasks started meanwhile inherit it.
"""

from __future__ import annotations

from collections.abc import MutableMapping
from contextvars import ContextVar
from typing import Any

from shared.events import AnyEvent

_HANDLED: ContextVar[AnyEvent | None] = ContextVar("handled", default=None)


def handling(event: AnyEvent | None) -> None:
    """From here on the running task handles this event; None: none."""
    _HANDLED.set(event)


def add_event(_: Any, __: str, line: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """A structlog processor: the event's id, what it is about, its case and its trace.

    What the line says itself is right: a fact that an event led to has an id of its own.
    """
    event = _HANDLED.get()
    if event is None:
        return line
    line.setdefault("event_id", event.id)
    line.setdefault("about", event.subject)
    if event.correlationid:
        line.setdefault("case", event.correlationid)
    if event.traceparent:
        line.setdefault("trace_id", event.traceparent.split("-")[1])
    return line
