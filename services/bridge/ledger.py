"""Who holds which share of which device on this node.

    reserved ──> granted ──> bound ──> released
    in memory    answered    pod known  gone from the kubelet's books

A reservation closes the gap while an Allocate is being answered and lives in memory only: a crash before the
answer means that the kubelet never got one. Everything else is on disk before anybody is told. Each
allocation remembers which of its states has been *said* on the bus, so a crash between disk and journal
loses no fact.

A share is refused to a second owner; a whole device and its engines exclude each other, and so do the two
names of a unit that encodes and decodes. Nothing here knows of asyncio, the kubelet or the clock.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from fractions import Fraction
from typing import Any, Literal, Self

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, model_validator

from services.bridge.share import Catalogue, Share
from shared.errors import FleetError
from shared.events.parts import PodRef


class DoubleUse(FleetError):  # noqa: N818 - the field's term for what is refused
    """Somebody else holds what was asked for.

    Attributes:
        holders: the allocations in the way.
    """

    def __init__(self, holders: Sequence[Allocation]) -> None:
        super().__init__("in use: " + "; ".join(sorted({str(holder) for holder in holders})))
        self.holders = tuple(holders)


class State(StrEnum):
    """How far an allocation has come."""

    RESERVED = "reserved"
    GRANTED = "granted"
    BOUND = "bound"
    RELEASED = "released"


_ORDER = (State.RESERVED, State.GRANTED, State.BOUND, State.RELEASED)


class Allocation(BaseModel):
    """Shares of one device that were given together under one resource name."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    allocation_id: str
    resource: str
    shares: tuple[Share, ...] = Field(min_length=1)
    state: State
    since: AwareDatetime = Field(description="when it came into this state")
    pod: PodRef | None = None
    container: str | None = None
    reason: str = Field(default="", description="why it was released")
    said: State | None = Field(default=None, description="the last state that the journal has")

    @property
    def device(self) -> str:
        """Key of the device that the shares are of."""
        return self.shares[0].device

    @property
    def ids(self) -> tuple[str, ...]:
        """Its device-plugin ids."""
        return tuple(share.id for share in self.shares)

    @property
    def live(self) -> bool:
        """It holds its shares."""
        return self.state is not State.RELEASED

    @property
    def unsaid(self) -> tuple[State, ...]:
        """The states that it went through and that the journal lacks, in order."""
        passed = _ORDER[1 : _ORDER.index(self.state) + 1]
        if self.pod is None:
            passed = tuple(state for state in passed if state is not State.BOUND)
        done = 0 if self.said is None else _ORDER.index(self.said)
        return tuple(state for state in passed if _ORDER.index(state) > done)

    def __str__(self) -> str:
        owner = f"pod {self.pod}" if self.pod else f"an allocation {self.state.value}"
        return f"{', '.join(self.ids)} of {self.resource} by {owner}"


@dataclass(slots=True)
class Occupancy:
    """An index over live allocations: is this share free? Built once, asked for every id of the node."""

    _by_slot: dict[tuple[str, int], Allocation] = field(default_factory=dict)
    _taken: dict[str, dict[int, int]] = field(default_factory=dict)
    _on_unit: dict[str, list[Allocation]] = field(default_factory=dict)
    _whole: dict[str, Allocation] = field(default_factory=dict)
    _inside: dict[str, list[Allocation]] = field(default_factory=dict)

    @classmethod
    def of(cls, allocations: Iterable[Allocation]) -> Self:
        """The occupancy that these allocations make."""
        made = cls()
        for allocation in allocations:
            if allocation.live:
                for share in allocation.shares:
                    made._add(share, allocation)
        return made

    def _add(self, share: Share, allocation: Allocation) -> None:
        if share.unit is None or share.slot is None:
            self._whole[share.device] = allocation
        else:
            self._by_slot[share.unit, share.slot] = allocation
            by_slots = self._taken.setdefault(share.unit, {})
            by_slots[share.slots] = by_slots.get(share.slots, 0) + 1
            self._on_unit.setdefault(share.unit, []).append(allocation)
        for key in {share.device, share.physical}:
            self._inside.setdefault(key, []).append(allocation)

    def taken(self, unit: str) -> Fraction:
        """How much of a physical unit is given."""
        counts = self._taken.get(unit, {})
        return sum((Fraction(count, slots) for slots, count in counts.items()), Fraction(0))

    def uses(self, device: str) -> int:
        """How many shares of a device, or of its partitions, are given."""
        return len(self._inside.get(device, ()))

    def in_the_way(self, share: Share) -> tuple[Allocation, ...]:
        """The allocations that keep a share from being given; empty when it is free."""
        if share.unit is None or share.slot is None:
            around = self._whole.get(share.physical)
            inside = self._inside.get(share.device, [])
            return tuple(inside if around is None or around in inside else [*inside, around])
        for key in (share.device, share.physical):
            if key in self._whole:
                return (self._whole[key],)
        if (share.unit, share.slot) in self._by_slot:
            return (self._by_slot[share.unit, share.slot],)
        # The slots setting may have changed since: four quarters given leave no room for a whole.
        changed = self._taken.get(share.unit, {}).keys() - {share.slots}
        if changed and self.taken(share.unit) + Fraction(1, share.slots) > 1:
            return tuple(self._on_unit[share.unit])
        return ()


class Ledger(BaseModel):
    """Every allocation of the node. Immutable: each step returns the next ledger."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    version: Literal[1] = 1
    ledger_id: str = Field(min_length=1, description="made once; sets apart the ids of a lost ledger")
    next_number: int = Field(default=1, ge=1)
    allocations: tuple[Allocation, ...] = ()

    @model_validator(mode="after")
    def _ids_are_unique(self) -> Self:
        if len({each.allocation_id for each in self.allocations}) < len(self.allocations):
            raise ValueError("an allocation stands in it twice")
        return self

    @property
    def live(self) -> Iterator[Allocation]:
        """The allocations that hold something."""
        return (each for each in self.allocations if each.live)

    def durable(self) -> Ledger:
        """What belongs on disk: everything but reservations."""
        kept = tuple(each for each in self.allocations if each.state is not State.RESERVED)
        return self if len(kept) == len(self.allocations) else self._with(kept)

    def occupancy(self) -> Occupancy:
        """The index that answers what is free."""
        return Occupancy.of(self.allocations)

    def get(self, allocation_id: str) -> Allocation | None:
        """An allocation by its id."""
        return next((each for each in self.allocations if each.allocation_id == allocation_id), None)

    def reserve(
        self, resource: str, shares: Sequence[Share], now: datetime
    ) -> tuple[Ledger, tuple[Allocation, ...]]:
        """Set shares aside for an Allocate in flight: all or nothing, one allocation per device.

        Raises:
            DoubleUse: somebody holds one of them.
        """
        occupied = self.occupancy()
        in_the_way = [holder for share in shares for holder in occupied.in_the_way(share)]
        if in_the_way:
            raise DoubleUse(in_the_way)
        return self._added(resource, shares, {"state": State.RESERVED, "since": now})

    def adopt(
        self, resource: str, shares: Sequence[Share], now: datetime, pod: PodRef | None, container: str
    ) -> tuple[Ledger, tuple[Allocation, ...]]:
        """Enter what the kubelet says a pod holds and the ledger does not know: the kubelet is right."""
        state: dict[str, Any] = {"state": State.GRANTED, "since": now}
        if pod is not None:
            state = {"state": State.BOUND, "since": now, "pod": pod, "container": container}
        return self._added(resource, shares, state)

    def grant(self, allocation_ids: Iterable[str], now: datetime) -> Ledger:
        """The answer to the kubelet is ready: from here on they are on disk."""
        wanted = set(allocation_ids)
        return self._changed(
            lambda each: (
                each.model_copy(update={"state": State.GRANTED, "since": now})
                if each.allocation_id in wanted and each.state is State.RESERVED
                else each
            )
        )

    def bind(self, allocation_id: str, pod: PodRef, container: str, now: datetime) -> Ledger:
        """The pod is known."""
        update = {"state": State.BOUND, "since": now, "pod": pod, "container": container}
        return self._changed(
            lambda each: (
                each.model_copy(update=update)
                if each.allocation_id == allocation_id and each.state is State.GRANTED
                else each
            )
        )

    def release(self, allocation_id: str, reason: str, now: datetime) -> Ledger:
        """It holds nothing any more; a reservation that never became an answer leaves no trace."""

        def released(each: Allocation) -> Allocation | None:
            if each.allocation_id != allocation_id or not each.live:
                return each
            if each.state is State.RESERVED:
                return None
            return each.model_copy(update={"state": State.RELEASED, "since": now, "reason": reason})

        return self._changed(released)

    def said(self, allocation_id: str, state: State) -> Ledger:
        """The journal has this state; a release that was said is forgotten."""

        def marked(each: Allocation) -> Allocation | None:
            if each.allocation_id != allocation_id:
                return each
            return None if state is State.RELEASED else each.model_copy(update={"said": state})

        return self._changed(marked)

    def learn(self, catalogue: Catalogue) -> Ledger:
        """Replace shares that were guessed from their ids by what their device turned out to be."""

        def learned(each: Allocation) -> Allocation:
            known = catalogue.get(each.resource, {})
            if not any(share.guessed and share.id in known for share in each.shares):
                return each
            shares = tuple(known.get(share.id, share) if share.guessed else share for share in each.shares)
            return each.model_copy(update={"shares": shares})

        return self._changed(learned)

    def _added(
        self, resource: str, shares: Sequence[Share], state: dict[str, Any]
    ) -> tuple[Ledger, tuple[Allocation, ...]]:
        by_device: dict[str, list[Share]] = {}
        for share in shares:
            by_device.setdefault(share.device, []).append(share)
        made = tuple(
            Allocation(
                allocation_id=f"{self.ledger_id}-{self.next_number + index}",
                resource=resource,
                shares=tuple(group),
                **state,
            )
            for index, group in enumerate(by_device.values())
        )
        after = self.model_copy(
            update={
                "allocations": (*self.allocations, *made),
                "next_number": self.next_number + len(made),
            }
        )
        return after, made

    def _changed(self, change: Callable[[Allocation], Allocation | None]) -> Ledger:
        kept = (change(each) for each in self.allocations)
        return self._with(tuple(each for each in kept if each is not None))

    def _with(self, allocations: tuple[Allocation, ...]) -> Ledger:
        return self.model_copy(update={"allocations": allocations})
