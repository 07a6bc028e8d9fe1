"""The causal graph of events: what made one happen, back to the first evidence, and what followed from it.

Pure: works on events that somebody else read.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from shared.devices.keys import parse_uid
from shared.errors import BadInput
from shared.events import AnyEvent
from shared.events.remediation import EvictionOrdered, PodEvicted
from shared.events.workload import SlaEvictionOrdered, SlaPodEvicted

_EVICTIONS = (EvictionOrdered, PodEvicted, SlaEvictionOrdered, SlaPodEvicted)
_TURNING_POINTS = ("quarantined", "held", "retired", "breached", "opened", "struck")
"""Facts that a person means by "why this device", most telling first."""


@dataclass(frozen=True, slots=True)
class Why:
    """An event in its causal chain.

    Attributes:
        event: the event asked for.
        causes: what made it happen, first evidence first.
        effects: what followed from it, with the depth below it, in causal order.
        lost: id of a cause that no stream keeps any more; None when the chain is whole.
    """

    event: AnyEvent
    causes: tuple[AnyEvent, ...]
    effects: tuple[tuple[int, AnyEvent], ...]
    lost: str | None = None


class Causes:
    """Events by id and by what they caused."""

    def __init__(self, events: Iterable[AnyEvent]) -> None:
        """Args: events: in any order; a second copy of one (audit and stream) is the same event."""
        self._by_id: dict[str, AnyEvent] = {}
        self._after: dict[str, list[AnyEvent]] = {}
        for event in events:
            if event.id in self._by_id:
                continue
            self._by_id[event.id] = event
            if event.causationid is not None:
                self._after.setdefault(event.causationid, []).append(event)

    def explain(self, asked: str) -> Why:
        """The chain of an event id, a device (uid or node/key) or a pod (namespace/name or its uid).

        Raises:
            BadInput: nothing known answers to that name.
        """
        event = self._find(asked)
        causes: list[AnyEvent] = []
        seen, at, lost = {event.id}, event, None
        while at.causationid is not None and at.causationid not in seen:
            seen.add(at.causationid)
            before = self._by_id.get(at.causationid)
            if before is None:
                lost = at.causationid
                break
            causes.append(before)
            at = before
        causes.reverse()
        return Why(event, tuple(causes), tuple(self._below(event, 1, {event.id})), lost)

    def _below(self, event: AnyEvent, depth: int, seen: set[str]) -> Iterator[tuple[int, AnyEvent]]:
        for after in sorted(self._after.get(event.id, ()), key=lambda each: each.time):
            if after.id not in seen:
                seen.add(after.id)
                yield depth, after
                yield from self._below(after, depth + 1, seen)

    def _find(self, asked: str) -> AnyEvent:
        found = self._by_id.get(asked) or self._of_pod(asked) or self._of_entity(_about(asked))
        if found is None:
            raise BadInput(
                "DEVICE|POD|EVENT",
                f"no event is known of {asked!r}",
                "give node/key, a device uid, namespace/pod or an event id; see `mediafleet events`",
            )
        return found

    def _of_pod(self, asked: str) -> AnyEvent | None:
        evictions = [
            event
            for event in self._by_id.values()
            if isinstance(event.data, _EVICTIONS) and asked in (event.data.pod.uid, str(event.data.pod))
        ]
        return max(evictions, key=lambda event: event.time, default=None)

    def _of_entity(self, about: str) -> AnyEvent | None:
        """The most telling fact of the latest case of a device or workload."""
        events = [event for event in self._by_id.values() if event.subject == about]
        latest = max((event.epoch or 0 for event in events), default=0)
        for fact in _TURNING_POINTS:
            of_kind = [
                each for each in events if each.address.fact == fact and (each.epoch or 0) in (0, latest)
            ]
            if of_kind:
                return max(of_kind, key=lambda event: event.time)
        return max(events, key=lambda event: event.time, default=None)


def _about(asked: str) -> str:
    """`node/key` of a device's uid; anything else as it is."""
    try:
        node, key = parse_uid(asked)
    except BadInput:
        return asked
    return f"{node}/{key}"
