"""Whatever allocations, crashes, faults and pod ends interleave, each slot is with one live pod."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Generic, TypeVar

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from pydantic import BaseModel

from services.bridge.allocator import AllocationRefused, Allocator, Policy
from services.bridge.board import Board
from services.bridge.identity import Checkpointed, Listed, Sighting
from services.bridge.ledger import Ledger, Occupancy, State
from services.bridge.record import Heard, NodeRecord
from services.bridge.share import Share
from services.bridge.store import DiskRecord
from shared.clock import ManualClock
from shared.errors import Refused
from shared.events import AnyEvent, Cause, Payload, device, event, remediation, world
from shared.events.parts import Compatibility, PodRef
from tests.unit.bridge.devices import AT, DOMAIN, gpu, offered, pod, vcn

DEVICES = (gpu("3b", enc=1, dec=1, numa=0), gpu("5e", enc=1, dec=0, numa=1), vcn("c3"))
KEYS = [each.key for each in DEVICES]
CATALOGUE = offered(*DEVICES, slots=2)
RESOURCES = sorted(CATALOGUE)
GRACE = timedelta(seconds=10)


M = TypeVar("M", bound=BaseModel)


class PowerFailed(Exception):  # noqa: N818 - what happened
    """The process ends here."""


@dataclass(slots=True)
class Books:
    """A kubelet's books: what it believes each live pod holds, by resource and id."""

    held: dict[PodRef, dict[str, tuple[str, ...]]] = field(default_factory=dict)
    finished: list[Checkpointed] = field(default_factory=list)
    reachable: bool = True

    async def look(self) -> Sighting:
        if not self.reachable:
            return Sighting()
        rows = [
            (pod_, resource, id_)
            for pod_, held in self.held.items()
            for resource, ids in held.items()
            for id_ in ids
        ]
        listed = tuple(Listed(p.namespace, p.name, "main", r, i) for p, r, i in rows)
        entered = tuple(Checkpointed(p.uid, "main", r, i) for p, r, i in rows)
        # Entries of finished pods stay until their ids are given again.
        taken = {(each.resource, each.id) for each in entered}
        old = tuple(each for each in self.finished if (each.resource, each.id) not in taken)
        return Sighting(listed, (*entered, *old))

    def shares(self, of: PodRef) -> list[Share]:
        return [CATALOGUE[resource][id_] for resource, ids in self.held[of].items() for id_ in ids]

    def free(self, resource: str) -> list[str]:
        """What the kubelet may give: it keeps books per resource and knows not what is behind an id."""
        taken = {id_ for held in self.held.values() for id_ in held.get(resource, ())}
        return [id_ for id_ in CATALOGUE[resource] if id_ not in taken]


class Node(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="ledger-"))
        self.runner = asyncio.Runner()
        self.clock = ManualClock(AT)
        self.books = Books()
        self.said: list[tuple[str, Payload]] = []
        self.pods = 0
        self.starts = 0
        self.history: list[AnyEvent] = []
        self.epochs = dict.fromkeys(KEYS, 0)
        self.out: set[str] = set()
        self.power_fails_after = ""
        self.disk_full = False

    def teardown(self) -> None:
        self.runner.close()
        shutil.rmtree(self.folder)

    @initialize()
    def start(self) -> None:
        for each in DEVICES:
            known = Compatibility(verdict="compatible")
            self.record(each.key, device.Registered(device=each, generation=1, compatibility=known))
        self.boot()

    def boot(self) -> None:
        """Start from the disk, and hear what the bus keeps, from its oldest event on."""
        self.starts += 1
        self.disk_full = False
        self.allocator = Allocator(
            policy=Policy(DOMAIN, slots=2, grace=GRACE),
            root=self.folder,
            clock=self.clock,
            board=Board(),
            ledgers=_Record(self, self.folder / "ledger.json", Ledger),
            nodes=_Record(self, self.folder / "node.json", NodeRecord),
            look=self.books.look,
            say=self.say,
            boot_id="boot",
            fresh_id=f"ledger{self.starts}",
        )
        for sequence in range(len(self.history)):
            self.deliver(sequence)
        self.allocator.open()

    def record(self, key: str, fact: Payload) -> None:
        cause = Cause.source("test", len(self.history))
        self.history.append(event(fact, ("worker-1", key), cause=cause, source="/test", at=AT))

    def deliver(self, index: int) -> None:
        sequence = sum(
            1 for each in self.history[: index + 1] if each.of.domain == self.history[index].of.domain
        )
        self.allocator.apply(self.history[index], Heard(created=AT, sequence=sequence))

    def hear(self, key: str, fact: Payload) -> None:
        self.record(key, fact)
        self.deliver(len(self.history) - 1)

    def say(self, fact: Payload, entity: str, cause: Cause) -> None:
        del cause
        self.said.append((entity, fact))

    def allocate(self, resource: str, ids: Sequence[str]) -> bool:
        try:
            self.runner.run(self.allocator.allocate(resource, ids))
        except (AllocationRefused, Refused):
            return False
        return True

    @rule(
        resource=st.sampled_from(RESOURCES), count=st.integers(1, 2), pick=st.randoms(use_true_random=False)
    )
    def a_pod_comes(self, resource: str, count: int, pick: object) -> None:
        ids = self.books.free(resource)
        pick.shuffle(ids)  # type: ignore[attr-defined]
        ids = ids[:count]
        quarantined = {CATALOGUE[resource][id_].device for id_ in ids} & self.out
        if len(ids) < count or not self.allocate(resource, ids):
            return
        assert not quarantined, "given although it is in quarantine"
        self.pods += 1
        self.books.held[pod(f"p{self.pods}")] = {resource: tuple(ids)}

    @rule(resource=st.sampled_from(RESOURCES), after_disk=st.booleans())
    def the_bridge_dies_while_it_answers(self, resource: str, *, after_disk: bool) -> None:
        ids = self.books.free(resource)[:1]
        self.power_fails_after = "save" if after_disk else "nothing"
        with suppress(PowerFailed):
            self.allocate(resource, ids)
        self.power_fails_after = ""
        self.boot()

    @precondition(lambda self: self.books.held)
    @rule(pick=st.integers(0))
    def the_kubelet_gives_an_id_to_a_second_pod(self, pick: int) -> None:
        victim = list(self.books.held)[pick % len(self.books.held)]
        ((resource, ids),) = self.books.held[victim].items()
        assert not self.allocate(resource, ids)

    @precondition(lambda self: self.books.held)
    @rule(pick=st.integers(0))
    def a_pod_ends(self, pick: int) -> None:
        gone = list(self.books.held)[pick % len(self.books.held)]
        for resource, ids in self.books.held.pop(gone).items():
            self.books.finished.extend(Checkpointed(gone.uid, "main", resource, id_) for id_ in ids)

    @rule(lose=st.sampled_from(["nothing", "ledger", "half of the ledger", "node"]))
    def the_bridge_restarts(self, lose: str) -> None:
        ledger = self.folder / "ledger.json"
        if lose == "ledger":
            ledger.unlink(missing_ok=True)
        elif lose == "half of the ledger" and ledger.exists():
            ledger.write_bytes(ledger.read_bytes()[: ledger.stat().st_size // 2])
        elif lose == "node":
            (self.folder / "node.json").unlink(missing_ok=True)
        self.boot()

    @rule(seconds=st.sampled_from([1, 3, 11]))
    def time_passes_and_the_books_are_compared(self, seconds: int) -> None:
        self.clock.advance(seconds)
        with suppress(Refused):
            self.runner.run(self.allocator.agree())

    @rule()
    def the_kubelet_hangs_or_comes_back(self) -> None:
        self.books.reachable = not self.books.reachable

    @rule()
    def the_disk_fills_or_is_cleared(self) -> None:
        self.disk_full = not self.disk_full

    @rule(key=st.sampled_from(KEYS))
    def a_device_fails(self, key: str) -> None:
        if key not in self.out:
            self.epochs[key] += 1
            self.out.add(key)
            fact = remediation.Quarantined(epoch=self.epochs[key], reason="xid 79", deadline=AT)
            self.hear(key, fact)

    @precondition(lambda self: self.out)
    @rule(pick=st.integers(0))
    def a_device_is_readmitted(self, pick: int) -> None:
        key = sorted(self.out)[pick % len(self.out)]
        self.out.discard(key)
        self.hear(key, remediation.Readmitted(epoch=self.epochs[key], after_s=1))

    @rule()
    def everything_calms_down(self) -> None:
        """Nothing is lost: what pods hold is in the ledger under their names, and all else is free."""
        self.books.reachable, self.disk_full = True, False
        for _ in range(3):
            self.clock.advance(11)
            self.runner.run(self.allocator.agree())
        ledger = {(each.resource, id_): each.pod for each in self.allocator.ledger.live for id_ in each.ids}
        assert ledger == {
            (resource, id_): pod_
            for pod_, held in self.books.held.items()
            for resource, ids in held.items()
            for id_ in ids
        }
        for key in self.out:
            holders = {p for p in self.books.held if any(s.device == key for s in self.books.shares(p))}
            fences = [f for k, f in self.said if k == key and isinstance(f, world.Fenced)]
            assert fences[-1].epoch == self.epochs[key]
            assert holders <= set(fences[-1].holders)

    @invariant()
    def no_two_live_pods_share_a_slot(self) -> None:
        seen = Occupancy.of(())
        for of in self.books.held:
            for share in self.books.shares(of):
                assert not seen.in_the_way(share), f"{share.id} is given twice"
            for resource, ids in self.books.held[of].items():
                _, made = Ledger(ledger_id="check").adopt(
                    resource, [CATALOGUE[resource][id_] for id_ in ids], AT, of, "main"
                )
                for each in made:
                    for share in each.shares:
                        seen._add(share, each)

    @invariant()
    def no_reservation_outlives_its_answer(self) -> None:
        if self.starts:
            assert all(each.state is not State.RESERVED for each in self.allocator.ledger.allocations)


class _Record(DiskRecord[M], Generic[M]):
    """A disk that can be full, and a machine whose power can fail around a write."""

    def __init__(self, node: Node, path: Path, model: type[M]) -> None:
        super().__init__(path, model)
        self._node = node

    def save(self, record: M) -> None:
        if self._node.power_fails_after == "nothing":
            raise PowerFailed
        if self._node.disk_full and self._node.starts:
            raise Refused("no space left on device")
        super().save(record)
        if self._node.power_fails_after == "save":
            raise PowerFailed


TestNode = Node.TestCase
TestNode.settings = settings(
    max_examples=40,
    stateful_step_count=25,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
