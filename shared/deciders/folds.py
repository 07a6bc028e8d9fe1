"""The folded cases of one holder, kept so that a step costs one round trip.

After `recover` has read the domain's history once, a log that was not in it is known to be empty, and the
cache is right for as long as nobody else appends: an append carries the sequence that the fold stands at, so
a wrong fold can only end in `Conflict`, and then the log is read again.

A fact of a type that this version does not know makes a fold *outdated*: nothing may be decided on it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

from shared.bus.past import SNAPSHOT
from shared.bus.port import Bus, Recorded
from shared.deciders.protocol import Decider
from shared.errors import Yields
from shared.events import AnyEvent, Entity, Unknown

CaseT = TypeVar("CaseT")
ContextT = TypeVar("ContextT")
PolicyT = TypeVar("PolicyT")


class Outdated(Yields):
    """A log holds a fact of a newer version: this replica must yield to one that knows it."""

    def __init__(self, of: Entity, kind: str) -> None:
        super().__init__(
            f"{of}: the log holds {kind!r}, which this version does not know; "
            "run the newer version, nothing is appended to this case"
        )
        self.of = of
        self.kind = kind


@dataclass(frozen=True, slots=True)
class Fold(Generic[CaseT]):
    """A case as its log stood at `sequence`.

    Attributes:
        case: the folded case.
        sequence: of the log's last fact; 0 for an empty log.
        last: that fact.
        first: sequence of the log's first fact; below `sequence` when more than one is kept.
        unknown: the first fact type that this version does not know; "" when all are known.
    """

    case: CaseT
    sequence: int = 0
    last: AnyEvent | None = None
    first: int = 0
    unknown: str = ""

    @property
    def half_compacted(self) -> bool:
        """A snapshot stands for the log, and what it stands for was not purged yet."""
        return (
            self.last is not None and self.last.data.kind.fact == SNAPSHOT and 0 < self.first < self.sequence
        )


class Folds(Generic[CaseT, ContextT, PolicyT]):
    """The cache: every open case, and the most recently used of the closed ones."""

    def __init__(
        self, bus: Bus, decider: Decider[CaseT, ContextT, PolicyT], *, closed_kept: int = 20_000
    ) -> None:
        """Args: closed_kept: closed cases kept folded; older ones are read again when something is heard."""
        self._bus = bus
        self._decider = decider
        self._open: dict[Entity, Fold[CaseT]] = {}
        self._closed: OrderedDict[Entity, Fold[CaseT]] = OrderedDict()
        self._closed_kept = closed_kept
        self._cold: set[Entity] = set()
        self._complete = False

    async def recover(self) -> dict[Entity, Fold[CaseT]]:
        """Fold the whole domain, in the order of its stream; every log's fold."""
        folds: dict[Entity, Fold[CaseT]] = {}
        async for recorded in self._bus.history(self._decider.domain):
            of = recorded.event.of
            folds[of] = self._on(folds.get(of) or self._empty(of), recorded)
        self._open.clear()
        self._closed.clear()
        self._cold.clear()
        for of, fold in folds.items():
            self.keep(of, fold)
        self._complete = True
        return folds

    async def get(self, of: Entity) -> Fold[CaseT]:
        """The case of a log, read when it is not known."""
        fold = self.peek(of)
        if fold is not None:
            return fold
        if self._complete and of not in self._cold:
            return self._empty(of)
        return await self.reload(of)

    def peek(self, of: Entity) -> Fold[CaseT] | None:
        """The cached fold; None when there is none."""
        return self._open.get(of) or self._closed.get(of)

    async def reload(self, of: Entity) -> Fold[CaseT]:
        """Read and fold the log from its beginning."""
        fold = self._empty(of)
        async for recorded in self._bus.read(of):
            fold = self._on(fold, recorded)
        self.keep(of, fold)
        return fold

    def advance(self, of: Entity, fold: Fold[CaseT], fact: AnyEvent, sequence: int) -> Fold[CaseT]:
        """The fold after an own append."""
        after = Fold(self._decider.evolve(fold.case, fact, sequence), sequence, fact, fold.first or sequence)
        self.keep(of, after)
        return after

    def keep(self, of: Entity, fold: Fold[CaseT]) -> None:
        """Put a fold into the cache."""
        self._cold.discard(of)
        if fold.unknown or not self._decider.closed(fold.case):
            self._closed.pop(of, None)
            self._open[of] = fold
            return
        self._open.pop(of, None)
        if fold.sequence == 0:
            return
        self._closed[of] = fold
        self._closed.move_to_end(of)
        if len(self._closed) > self._closed_kept:
            oldest, _ = self._closed.popitem(last=False)
            self._cold.add(oldest)

    def open(self) -> Iterator[tuple[Entity, Fold[CaseT]]]:
        """Every case that is not closed."""
        return iter(list(self._open.items()))

    @property
    def open_count(self) -> int:
        """How many cases are open."""
        return len(self._open)

    def _empty(self, of: Entity) -> Fold[CaseT]:
        return Fold(self._decider.initial(of))

    def _on(self, fold: Fold[CaseT], recorded: Recorded) -> Fold[CaseT]:
        fact, sequence = recorded.event, recorded.sequence
        first = fold.first or sequence
        if isinstance(fact, Unknown):
            kind = f"{fact.address.domain}.{fact.address.fact}"
            return Fold(fold.case, sequence, fold.last, first, fold.unknown or kind)
        if fold.unknown:
            return Fold(fold.case, sequence, fold.last, first, fold.unknown)
        return Fold(self._decider.evolve(fold.case, fact, sequence), sequence, fact, first)
