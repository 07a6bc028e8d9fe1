"""Names that the server checks permissions by: consumers and inboxes.

A permission matches whole tokens of a subject, never half of one. So a client's consumers take their names
from a small set that belongs to it alone: the set can be written down in its credentials, and no other client
may pull from them, acknowledge for them, change or delete them.
"""

from __future__ import annotations

from shared.events import escape

DURABLE_SLOTS = 6
"""Names of one family's durables, taken in turn: a new holder's never has the name of the one before."""
READER_SLOTS = 8
"""Readers of one service and stream at once (people who follow events, say)."""
PLACED_SLOTS = 4
"""Of one node's agent: its own, one that is being replaced, and those of processes that died just now."""


def durables(family: str) -> tuple[str, ...]:
    """The names of a family's durable consumers, which outlive their holder."""
    return tuple(f"{family}-{slot}" for slot in range(DURABLE_SLOTS))


def readers(family: str, place: str | None = None) -> tuple[str, ...]:
    """The names of a family's ephemeral consumers; those of one place where a place is given."""
    if place is None:
        return tuple(f"{family}_{slot}" for slot in range(READER_SLOTS))
    return tuple(f"{family}_{escape(place)}_{slot}" for slot in range(PLACED_SLOTS))


def reader(service: str) -> str:
    """The family of a service's readers that acknowledge nothing (of views, of advisories)."""
    return f"{service}_reader"


def inbox(service: str, place: str = "") -> str:
    """The prefix of a client's reply subjects; of a node's agent its own, as all agents share an account."""
    return f"_INBOX_{service}_{escape(place)}" if place else f"_INBOX_{service}"
