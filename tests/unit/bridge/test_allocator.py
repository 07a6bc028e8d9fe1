from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

import pytest

from services.bridge.allocator import AllocationRefused, Allocator, Policy
from services.bridge.board import Board
from services.bridge.identity import Sighting
from services.bridge.ledger import Ledger
from services.bridge.record import Heard, NodeRecord
from services.bridge.store import DiskRecord
from shared.clock import ManualClock
from shared.devices.model import UnifiedDevice
from shared.errors import Refused
from shared.events import Cause, Payload, device, event, remediation, world
from shared.events.parts import Compatibility, Evidence
from tests.unit.bridge.devices import AT, DOMAIN, GPU, NVDEC, NVENC, gpu, pod, sighting

FIRST, SECOND = gpu("3b"), gpu("5e")
A, B = FIRST.key, SECOND.key


@dataclass(slots=True)
class Node:
    folder: Path
    clock: ManualClock = field(default_factory=lambda: ManualClock(AT))
    board: Board = field(default_factory=Board)
    seen: Sighting = field(default_factory=lambda: Sighting((), ()))
    said: list[tuple[str, Payload]] = field(default_factory=list)
    heard: int = 0
    starts: int = 0
    meanwhile: Callable[[], None] | None = None
    """What happens once, while the kubelet is asked who holds what."""

    def start(self) -> Allocator:
        self.starts += 1
        self.board = Board()

        async def look() -> Sighting:
            happens, self.meanwhile = self.meanwhile, None
            if happens is not None:
                happens()
            return self.seen

        return Allocator(
            policy=Policy(DOMAIN, tell=timedelta(seconds=0.05)),
            root=self.folder,
            clock=self.clock,
            board=self.board,
            ledgers=DiskRecord(self.folder / "ledger.json", Ledger),
            nodes=DiskRecord(self.folder / "node.json", NodeRecord),
            look=look,
            say=lambda fact, entity, cause: self.said.append((entity, fact)),  # noqa: ARG005 - the cause is not looked at
            boot_id="boot-1",
            fresh_id=f"l{self.starts}",
        )

    def tell(self, allocator: Allocator, key: str, fact: Payload) -> None:
        self.heard += 1
        made = event(fact, ("w", key), cause=Cause.source("t", self.heard), source="/t", at=AT)
        allocator.apply(made, Heard(created=AT, sequence=self.heard))

    def with_devices(self, *devices: UnifiedDevice) -> Allocator:
        allocator = self.start()
        for each in devices:
            known = Compatibility(verdict="compatible")
            self.tell(allocator, each.key, device.Registered(device=each, generation=1, compatibility=known))
        allocator.open()
        return allocator

    def of(self, kind: type[Payload]) -> list[tuple[str, Payload]]:
        return [(key, fact) for key, fact in self.said if isinstance(fact, kind)]


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def fatal(window: int = 4) -> world.HealthReported:
    evidence = Evidence(id="e", kind="kernel-line", code="79", class_="fatal", at=AT)
    return world.HealthReported(
        boot_id="boot-1", window_id=window, verdict="unhealthy", streak=1, evidence=(evidence,), serial="s1"
    )


def quarantined(epoch: int = 1, engines: tuple[str, ...] = ()) -> remediation.Quarantined:
    scope = "engines" if engines else "device"
    return remediation.Quarantined(epoch=epoch, scope=scope, engines=engines, reason="xid 79", deadline=AT)


def healthy(node: Node, resource: str) -> list[str]:
    return [each.id for each in node.board.list_of(resource) if each.healthy]


def test_nothing_is_offered_before_the_bus_was_heard_once(node: Node) -> None:
    allocator = node.start()
    known = Compatibility(verdict="compatible")
    node.tell(allocator, A, device.Registered(device=FIRST, generation=1, compatibility=known))
    assert node.board.resources == ()
    allocator.open()
    assert healthy(node, GPU) == [A]
    node.start()
    assert healthy(node, GPU) == [A], "a restart offers at once"


def test_a_rejected_device_is_no_longer_offered(node: Node) -> None:
    allocator = node.with_devices(FIRST, SECOND)
    node.tell(allocator, A, device.DeviceRejected(generation=2, reasons=("driver too old",)))
    assert healthy(node, GPU) == [B]
    assert list(allocator.devices) == [B]


class TestAlone:
    def test_a_fatal_fault_takes_the_device_from_the_kubelet_and_is_said_until_answered(
        self, node: Node
    ) -> None:
        allocator = node.with_devices(FIRST, SECOND)
        assert allocator.consider(A, fatal())
        assert healthy(node, GPU) == [B]
        ((key, fact),) = node.of(world.Withdrawn)
        assert isinstance(fact, world.Withdrawn)
        assert (key, fact.serial, fact.evidence[0].code) == (A, "s1", "79")
        assert fact.window is not None
        assert fact.window.window_id == 4
        assert not allocator.consider(A, fatal()), "once"
        allocator = node.start()
        assert healthy(node, GPU) == [B], "a restart does not heal it"
        allocator.restate_withdrawals()
        first, again = (fact for _, fact in node.of(world.Withdrawn))
        assert isinstance(first, world.Withdrawn)
        assert isinstance(again, world.Withdrawn)
        assert again.n > first.n
        assert again.evidence == first.evidence
        node.tell(allocator, A, quarantined())
        allocator.restate_withdrawals()
        assert len(node.of(world.Withdrawn)) == 2

    def test_the_last_device_of_a_node_stays(self, node: Node) -> None:
        allocator = node.with_devices(FIRST)
        assert not allocator.consider(A, fatal())
        assert healthy(node, GPU) == [A]


class TestFence:
    async def test_a_kubelet_that_does_not_take_its_list_gets_no_fence(self, node: Node) -> None:
        allocator = node.with_devices(FIRST)
        with node.board.stream(GPU) as stream:
            node.tell(allocator, A, quarantined())
            await allocator.agree()
            assert node.of(world.Fenced) == []
            revision, _ = await node.board.next(stream)
            node.board.delivered(stream, revision)
            await allocator.agree()
        assert len(node.of(world.Fenced)) == 1

    async def test_a_kubelet_that_cannot_be_asked_gets_no_fence(self, node: Node) -> None:
        allocator = node.with_devices(FIRST)
        node.tell(allocator, A, quarantined())
        node.seen = Sighting()
        await allocator.agree()
        assert node.of(world.Fenced) == []
        assert allocator.busy

    async def test_the_window_of_the_last_report_says_as_of_when(self, node: Node) -> None:
        allocator = node.with_devices(FIRST)
        node.tell(allocator, A, fatal(window=7))
        node.tell(allocator, A, quarantined())
        await allocator.agree()
        ((_, fact),) = node.of(world.Fenced)
        assert isinstance(fact, world.Fenced)
        assert (fact.as_of.boot_id, fact.as_of.window_id) == ("boot-1", 7)

    async def test_a_quarantine_is_answered_once_and_a_moot_question_never(self, node: Node) -> None:
        allocator = node.with_devices(FIRST)
        asked = event(quarantined(), ("w", A), cause=Cause("struck out"), source="/t", at=AT)
        for sequence in (11, 12):
            allocator.apply(asked, Heard(created=AT, sequence=sequence))
            await allocator.agree()
        assert len(node.of(world.Fenced)) == 1
        node.heard = 12
        node.tell(allocator, A, quarantined(2))
        node.tell(allocator, A, remediation.Readmitted(epoch=2, after_s=1))
        await allocator.agree()
        assert len(node.of(world.Fenced)) == 1
        assert not allocator.busy

    async def test_an_epoch_whose_scope_widens_is_answered_again_with_everybody_who_holds_it(
        self, node: Node
    ) -> None:
        allocator = await held_by(node, "p1", (NVENC, f"{A}-enc-1-s0"))
        first, last = f"{A}-enc-0", f"{A}-enc-1"
        assert last in {each.engine for each in allocator._catalogue[NVENC].values()}
        node.tell(allocator, A, quarantined(engines=(first,)))
        await allocator.agree()
        node.tell(allocator, A, quarantined())
        await allocator.agree()
        answers = [fact for _, fact in node.of(world.Fenced) if isinstance(fact, world.Fenced)]
        assert [(each.epoch, [pod.name for pod in each.holders]) for each in answers] == [
            (1, []),
            (1, ["p1"]),
        ]
        assert not allocator.busy
        restarted = node.start()
        node.heard -= 2
        node.tell(restarted, A, quarantined(engines=(first,)))
        node.tell(restarted, A, quarantined())
        await restarted.agree()
        assert len(node.of(world.Fenced)) == 2, "heard again after a restart, neither is answered again"

    async def test_a_wider_quarantine_that_comes_while_the_kubelet_is_told_is_told_first(
        self, node: Node
    ) -> None:
        allocator = node.with_devices(FIRST)
        node.tell(allocator, A, quarantined(engines=(f"{A}-enc-0",)))
        node.meanwhile = lambda: node.tell(allocator, A, quarantined())
        await allocator.agree()
        assert node.of(world.Fenced) == []
        await allocator.agree()
        assert len(node.of(world.Fenced)) == 1


class TestAllocate:
    async def test_a_full_disk_refuses_and_keeps_nothing(
        self, node: Node, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        allocator = node.with_devices(FIRST)
        await allocator.agree()

        def full(_: object, __: object) -> None:
            raise Refused("no space left on device")

        with monkeypatch.context() as patched:
            patched.setattr(DiskRecord, "save", full)
            with pytest.raises(Refused, match="no space left"):
                await allocator.allocate(GPU, [A])
            node.tell(allocator, A, quarantined())
            assert healthy(node, GPU) == [], "a quarantine holds all the same"
        assert list(allocator.ledger.live) == []
        node.tell(allocator, A, remediation.Readmitted(epoch=1, after_s=1))
        await allocator.allocate(GPU, [A])

    async def test_an_unknown_id_is_refused_and_said_of_the_bridge(self, node: Node) -> None:
        allocator = node.with_devices(FIRST)
        with pytest.raises(AllocationRefused, match="no such device here"):
            await allocator.allocate(GPU, ["GPU-1"])
        ((key, fact),) = node.of(world.AllocationRefused)
        assert isinstance(fact, world.AllocationRefused)
        assert (key, fact.ids) == ("bridge", ("GPU-1",))

    async def test_a_decoder_is_preferred_where_the_encoder_was_just_given(self, node: Node) -> None:
        allocator = node.with_devices(FIRST, SECOND)
        await allocator.allocate(NVENC, [f"{B}-enc-0-s0"])
        available = [f"{A}-dec-0-s0", f"{B}-dec-0-s0"]
        assert allocator.prefer(NVDEC, available, [], 1) == [f"{B}-dec-0-s0"]
        node.clock.advance(5)
        assert allocator.prefer(NVDEC, [*available, "junk"], [], 1)


async def held_by(node: Node, name: str, *given: tuple[str, str]) -> Allocator:
    allocator = node.with_devices(FIRST, SECOND)
    for resource, id_ in given:
        await allocator.allocate(resource, [id_])
    node.seen = sighting(*((pod(name), resource, id_) for resource, id_ in given))
    await allocator.agree()
    return allocator


async def test_engines_of_a_pod_on_two_devices_are_said_once(node: Node) -> None:
    allocator = await held_by(node, "a", (NVENC, f"{A}-enc-0-s0"), (NVDEC, f"{B}-dec-0-s0"))
    await allocator.agree()
    ((key, fact),) = node.of(world.Misaligned)
    assert isinstance(fact, world.Misaligned)
    assert (key, fact.pod, fact.devices) == (B, pod("a"), {NVDEC: (B,), NVENC: (A,)})


async def test_the_complete_list_names_who_holds_what(node: Node) -> None:
    allocator = await held_by(node, "a", (NVENC, f"{A}-enc-0-s0"), (GPU, B))
    allocator.state()
    ((key, fact),) = node.of(world.AllocationsStated)
    assert isinstance(fact, world.AllocationsStated)
    assert key == "bridge"
    held = {each.device: (each.whole_device, len(each.slots), each.pod) for each in fact.holdings}
    assert held == {A: (False, 1, pod("a")), B: (True, 0, pod("a"))}


async def test_what_was_said_before_a_crash_is_said_again_only_if_the_books_do_not_know(node: Node) -> None:
    await held_by(node, "a", (GPU, A))
    kinds: Sequence[type[Payload]] = (world.Granted, world.Bound)
    assert [len(node.of(kind)) for kind in kinds] == [1, 1]
    node.said.clear()
    allocator = node.start()
    await allocator.agree()
    assert {type(fact) for _, fact in node.said} <= set(kinds)


def test_a_new_stream_counts_from_one_and_is_heard_all_the_same(node: Node) -> None:
    allocator = node.with_devices(FIRST)
    for _ in range(3):
        node.tell(allocator, A, quarantined())
    made = event(
        remediation.Readmitted(epoch=1, after_s=1), ("w", A), cause=Cause.source("t", "x"), source="/t", at=AT
    )
    allocator.apply(made, Heard(created=AT, sequence=1))
    assert healthy(node, GPU) == []
    allocator.apply(made, Heard(created=AT + timedelta(days=1), sequence=1))
    assert healthy(node, GPU) == [A]
