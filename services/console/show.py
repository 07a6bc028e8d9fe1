"""How the command line shows things: readable tables for people, JSON for machines."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import orjson
from rich.console import Console
from rich.table import Table
from rich.text import Text
from rich.tree import Tree

from services.console.why import Why
from services.console.words import colour, say
from shared.events import AnyEvent, Unknown

_PIPED_WIDTH = 200
"""Columns when nobody's terminal tells: tables in a file or a pipe are not folded at 80."""

console = Console(highlight=False, width=None if sys.stdout.isatty() else _PIPED_WIDTH)


def as_json(value: Any) -> None:
    """One JSON value on one line."""
    sys.stdout.write(orjson.dumps(value, default=str, option=orjson.OPT_NON_STR_KEYS).decode() + "\n")
    sys.stdout.flush()


def event_json(event: AnyEvent | Unknown) -> dict[str, Any]:
    """An event for machines: its envelope, and the bus subject it stands on."""
    if isinstance(event, Unknown):
        return {
            "address": event.address.subject,
            "id": event.id,
            "unknown": True,
            "raw": event.body.decode(errors="replace"),
        }
    envelope: dict[str, Any] = orjson.loads(event.encode())
    return {"address": event.address.subject, **envelope}


def event_line(event: AnyEvent | Unknown, *, since: float | None = None) -> Text:
    """An event as one line: time, domain, what about, what.

    Args:
        event: the event.
        since: shows the time as seconds after this POSIX time instead of the time of day.
    """
    if isinstance(event, Unknown):
        return Text(f"{'?':>12} {event.address.subject} (a type this version does not know)", "dim")
    moment = (
        f"{event.time:%H:%M:%S.%f}"[:-3] if since is None else f"{event.time.timestamp() - since:+8.2f} s"
    )
    line = Text(f"{moment} ", "dim")
    line.append(f"{event.address.domain:<11} ", "cyan")
    line.append(f"{event.subject:<38} ", "bold")
    line.append(say(event), colour(event))
    return line


def table(rows: Sequence[Mapping[str, Any]], columns: Mapping[str, str], *, empty: str) -> None:
    """Rows under headings; `empty` says what to do when there are none."""
    if not rows:
        console.print(empty)
        return
    shown = Table(box=None, header_style="bold", pad_edge=False)
    for heading in columns.values():
        shown.add_column(heading, overflow="fold")
    for row in rows:
        shown.add_row(*(_cell(row.get(key)) for key in columns))
    console.print(shown)


def _cell(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        return ", ".join(str(each) for each in value) or "-"
    return "-" if value in (None, "") else str(value)


def causal_tree(why: Why, *, omit: Iterable[str] = ()) -> Tree:
    """Causes one below the other, the event asked for, and below it what followed.

    Args:
        why: the chain.
        omit: facts (by name) that would only crowd the picture.
    """
    hidden = set(omit)
    root = Tree(Text(f"cause {why.lost} is no longer kept" if why.lost else "first evidence", "dim"))
    for event in why.causes:
        root.add(_node(event))
    levels = {0: root.add(_node(why.event, asked=True))}
    for depth, event in why.effects:
        parent = levels[max(level for level in levels if level < depth)]
        levels[depth] = parent if event.address.fact in hidden else parent.add(_node(event))
        for deeper in [level for level in levels if level > depth]:
            del levels[deeper]
    return root


def _node(event: AnyEvent, *, asked: bool = False) -> Text:
    line = Text(f"{event.address.domain}.{event.address.fact} ", "bold" if asked else "")
    line.append(f"{event.subject} ", "cyan")
    line.append(say(event), colour(event))
    line.append(f"  {event.time:%H:%M:%S.%f}"[:-3], "dim")
    return line
