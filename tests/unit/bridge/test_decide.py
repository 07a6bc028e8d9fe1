from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.bridge.decide import (
    Offered,
    Refusal,
    Wanted,
    allocate,
    offer,
    prefer,
    refusal,
    struck_out,
    withdraw,
)
from services.bridge.ledger import Ledger
from services.bridge.share import Catalogue, Share
from services.bridge.standing import Standing
from shared.devices.model import Engines
from shared.events.parts import Evidence
from shared.events.world import HealthReported
from tests.unit.bridge.devices import AT, GPU, NVDEC, NVENC, gpu, made, offered, vcn

EMPTY = Ledger(ledger_id="test")
A, B = "nvidia-0000-3b-00-0", "nvidia-0000-5e-00-0"
OUT = Standing(epoch=1, quarantined=True)


def healthy(lists: dict[str, tuple[Offered, ...]], resource: str) -> list[str]:
    return [each.id for each in lists[resource] if each.healthy]


def holding(known: Catalogue, resource: str, *ids: str, ledger: Ledger = EMPTY) -> Ledger:
    ledger, new = ledger.reserve(resource, [known[resource][id_] for id_ in ids], AT)
    return ledger.grant([each.allocation_id for each in new], AT)


class TestOffer:
    def test_a_fresh_node_offers_everything_with_its_numa_node(self) -> None:
        lists = offer(offered(gpu(numa=1), vcn()), {}, EMPTY)
        assert lists[NVDEC] == (
            Offered("amd-0000-c3-00-0-dec-0-s0", healthy=True),
            Offered(f"{A}-dec-0-s0", healthy=True, numa=1),
        )

    def test_a_quarantined_device_keeps_its_ids_and_loses_its_health(self) -> None:
        lists = offer(offered(gpu("3b"), gpu("5e")), {A: OUT}, EMPTY)
        assert len(lists[NVENC]) == 4
        assert healthy(lists, NVENC) == [f"{B}-enc-0-s0", f"{B}-enc-1-s0"]
        assert healthy(lists, GPU) == [B]

    def test_a_fault_of_the_physical_device_reaches_its_partitions(self) -> None:
        child = made("3b", partition="mig-3-0", engines=Engines(enc=0, dec=1, jpeg=0))
        known = offered(child)
        assert healthy(offer(known, {A: OUT}, EMPTY), NVDEC) == []
        assert refusal(known[NVDEC][f"{child.key}-dec-0-s0"], {A: OUT})

    def test_a_given_engine_takes_the_whole_device_out_and_stays_healthy_itself(self) -> None:
        known = offered(gpu())
        lists = offer(known, {}, holding(known, NVENC, f"{A}-enc-0-s0"))
        assert healthy(lists, GPU) == []
        assert healthy(lists, NVENC) == [f"{A}-enc-0-s0", f"{A}-enc-1-s0"]

    def test_a_given_whole_device_takes_its_engines_out(self) -> None:
        known = offered(gpu("3b"), gpu("5e", enc=1))
        lists = offer(known, {}, holding(known, GPU, A))
        assert healthy(lists, NVENC) == [f"{B}-enc-0-s0"]
        assert healthy(lists, GPU) == [A, B]

    def test_a_unit_with_two_abilities_loses_the_slots_that_the_other_resource_took(self) -> None:
        known = offered(vcn(), slots=2)
        lists = offer(known, {}, holding(known, NVENC, "amd-0000-c3-00-0-enc-0-s1"))
        assert healthy(lists, NVDEC) == ["amd-0000-c3-00-0-dec-0-s0"]

    def test_ids_that_are_held_stay_in_the_list_when_their_device_is_no_longer_offered(self) -> None:
        known = offered(gpu(numa=1))
        ledger = holding(known, NVENC, f"{A}-enc-0-s0")
        assert offer({}, {}, ledger) == {NVENC: (Offered(f"{A}-enc-0-s0", healthy=False, numa=1),)}


class TestAllocate:
    known = offered(gpu("3b"), gpu("5e"))

    def ask(
        self, *ids: str, ledger: Ledger = EMPTY, standings: dict[str, Standing] | None = None
    ) -> Wanted | Refusal:
        return allocate(NVENC, ids, catalogue=self.known, standings=standings or {}, ledger=ledger)

    def test_free_ids_of_usable_devices_may_be_given(self) -> None:
        decision = self.ask(f"{A}-enc-0-s0", f"{B}-enc-0-s0")
        assert isinstance(decision, Wanted)
        assert [share.id for share in decision.shares] == [f"{A}-enc-0-s0", f"{B}-enc-0-s0"]
        assert decision.holders == ()

    def test_busy_ids_name_their_holders(self) -> None:
        ledger = holding(self.known, NVENC, f"{A}-enc-0-s0")
        decision = self.ask(f"{A}-enc-0-s0", ledger=ledger)
        assert isinstance(decision, Wanted)
        assert decision.holders == ledger.allocations

    @pytest.mark.parametrize(
        ("ids", "reason", "devices"),
        [
            ((), "no ids were asked for", ()),
            (("GPU-1",), "GPU-1: no such device here", ()),
            ((f"{A}-enc-9-s0",), f"{A}-enc-9-s0: no such device here", (A,)),
            ((f"{A}-enc-0-s0", f"{A}-enc-0-s0"), "an id was asked for twice", (A,)),
            ((f"{A}-dec-0-s0",), "no such device here", (A,)),
        ],
    )
    def test_ids_that_cannot_be_given_are_refused_with_the_reason(
        self, ids: Sequence[str], reason: str, devices: tuple[str, ...]
    ) -> None:
        decision = self.ask(*ids)
        assert isinstance(decision, Refusal)
        assert decision.reason.startswith(NVENC)
        assert reason in decision.reason
        assert decision.devices == devices

    def test_ids_of_a_quarantined_device_are_refused(self) -> None:
        decision = self.ask(f"{B}-enc-0-s0", f"{A}-enc-0-s0", standings={A: OUT})
        assert isinstance(decision, Refusal)
        assert decision.reason == f"{NVENC}: {A}-enc-0-s0: the device is quarantined (epoch 1)"


class TestPrefer:
    known = offered(gpu("3b", numa=0), gpu("5e", numa=0), gpu("af", numa=1), slots=2)[NVENC]

    def ask(
        self, size: int, *required: str, ledger: Ledger = EMPTY, anchors: Sequence[str] = ()
    ) -> list[str]:
        return prefer(
            sorted(self.known),
            required,
            size,
            known=self.known,
            occupied=ledger.occupancy(),
            anchors=anchors,
        )

    def test_ids_of_one_container_lie_on_one_device_and_engine(self) -> None:
        assert self.ask(2) == [f"{A}-enc-0-s0", f"{A}-enc-0-s1"]
        assert self.ask(2, f"{B}-enc-1-s0") == [f"{B}-enc-1-s0", f"{B}-enc-1-s1"]

    def test_more_than_one_device_can_give_are_taken_from_the_same_numa_node(self) -> None:
        chosen = self.ask(6, f"{B}-enc-0-s0")
        assert {self.known[id_].numa for id_ in chosen} == {0}

    def test_engines_in_use_are_filled_before_others_are_broken(self) -> None:
        ledger = holding({NVENC: self.known}, NVENC, f"{B}-enc-1-s0")
        assert self.ask(1, ledger=ledger) == [f"{B}-enc-1-s1"]

    def test_a_device_that_was_given_a_moment_ago_under_another_resource_comes_first(self) -> None:
        assert self.ask(1, anchors=["nvidia-0000-af-00-0"]) == ["nvidia-0000-af-00-0-enc-0-s0"]

    def test_an_impossible_size_gets_what_there_is(self) -> None:
        assert len(self.ask(99)) == 12
        assert self.ask(0) == []
        assert self.ask(1, f"{A}-enc-0-s0", f"{A}-enc-0-s1") == [f"{A}-enc-0-s0", f"{A}-enc-0-s1"]

    @given(
        available=st.lists(st.sampled_from([*sorted(known), "GPU-1", "junk", ""])),
        required=st.lists(st.sampled_from([*sorted(known), "junk"]), max_size=3),
        size=st.integers(-3, 20),
    )
    def test_it_never_fails_and_answers_a_valid_set(
        self, available: list[str], required: list[str], size: int
    ) -> None:
        chosen = prefer(available, required, size, known=self.known, occupied=EMPTY.occupancy())
        assert len(set(chosen)) == len(chosen)
        assert set(required) <= set(chosen) <= set(available) | set(required)
        assert len(chosen) == max(len(set(required)), min(size, len(set(available) | set(required))))


def evidence(class_: str, code: str = "79") -> Evidence:
    return Evidence(id=f"b-{code}", kind="kernel-line", code=code, class_=class_, at=AT)


def report(verdict: str, *found: Evidence, window: int = 1) -> HealthReported:
    return HealthReported(boot_id="b", window_id=window, verdict=verdict, streak=1, evidence=found)


class TestActingAlone:
    def ask(
        self, *found: Evidence, verdict: str = "unhealthy", **standings: Standing
    ) -> tuple[Evidence, ...]:
        known = {A: standings.get("a", Standing()), B: standings.get("b", Standing())}
        return withdraw(A, verdict, found, devices=[A, B], standings=known)

    def test_fatal_evidence_takes_a_device_and_only_fatal_evidence(self) -> None:
        fatal, other = evidence("fatal"), evidence("transient", "13")
        assert self.ask(other, fatal) == (fatal,)
        assert self.ask(other) == ()
        assert self.ask(fatal, verdict="unknown") == ()

    def test_never_the_last_usable_device(self) -> None:
        assert self.ask(evidence("fatal"), b=OUT) == ()
        assert withdraw(A, "unhealthy", [evidence("fatal")], devices=[A], standings={}) == ()

    def test_one_device_per_node_at_most(self) -> None:
        fatal = [evidence("fatal")]
        known = {B: Standing(withdrawn=True)}
        third = "nvidia-0000-af-00-0"
        assert withdraw(A, "unhealthy", fatal, devices=[A, B, third], standings=known) == ()

    def test_not_one_that_a_person_holds_or_that_is_out_already_or_unknown(self) -> None:
        assert self.ask(evidence("fatal"), a=Standing(held=True)) == ()
        assert self.ask(evidence("fatal"), a=OUT) == ()
        assert (
            withdraw("nvidia-0000-01-00-0", "unhealthy", [evidence("fatal")], devices=[A, B], standings={})
            == ()
        )

    def test_evidence_since_the_last_healthy_report_counts(self) -> None:
        fatal = evidence("fatal")
        found = struck_out(
            [
                (A, report("unhealthy", fatal)),
                (B, report("unhealthy", fatal)),
                (A, report("unhealthy", window=2)),
                (B, report("healthy", window=2)),
                ("c", report("unhealthy", evidence("transient"))),
            ]
        )
        assert list(found) == [A]
        assert (found[A].window_id, found[A].evidence) == (2, (fatal,))


def test_a_share_of_no_unit_counts_as_a_device_of_its_own() -> None:
    known = {"x": Share(id="x", device="x", physical="x")}
    assert prefer(["x", "y"], [], 2, known=known, occupied=EMPTY.occupancy()) == ["x", "y"]
