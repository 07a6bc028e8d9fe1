from __future__ import annotations

from collections.abc import Sequence

import pytest
from pydantic import ValidationError

from services.bridge.ledger import DoubleUse, Ledger, State
from services.bridge.share import Share, from_id
from shared.devices.model import Engines
from tests.unit.bridge.devices import AT, GPU, NVDEC, NVENC, gpu, made, offered, pod, vcn

EMPTY = Ledger(ledger_id="test")


def shares(resource: str, *ids: str, slots: int = 1) -> list[Share]:
    known = offered(gpu("3b"), gpu("5e"), vcn(), slots=slots)[resource]
    return [known[id_] for id_ in ids]


def granted(ledger: Ledger, resource: str, wanted: Sequence[Share]) -> Ledger:
    ledger, made_ = ledger.reserve(resource, wanted, AT)
    return ledger.grant([each.allocation_id for each in made_], AT)


ENC = "nvidia-0000-3b-00-0-enc-0-s0"
DEC = "nvidia-0000-3b-00-0-dec-0-s0"
WHOLE = "nvidia-0000-3b-00-0"


def test_one_allocation_per_device_is_made_of_one_request() -> None:
    ledger, made_ = EMPTY.reserve(NVENC, shares(NVENC, ENC, "nvidia-0000-5e-00-0-enc-0-s0"), AT)
    assert [each.device for each in made_] == ["nvidia-0000-3b-00-0", "nvidia-0000-5e-00-0"]
    assert [each.allocation_id for each in ledger.live] == ["test-1", "test-2"]


def test_a_slot_is_refused_to_a_second_owner() -> None:
    ledger = granted(EMPTY, NVENC, shares(NVENC, ENC))
    with pytest.raises(DoubleUse, match=f"in use: {ENC} of {NVENC} by an allocation granted"):
        ledger.reserve(NVENC, shares(NVENC, ENC), AT)


def test_a_whole_device_and_its_engines_exclude_each_other() -> None:
    with pytest.raises(DoubleUse):
        granted(EMPTY, NVENC, shares(NVENC, ENC)).reserve(GPU, shares(GPU, WHOLE), AT)
    with pytest.raises(DoubleUse):
        granted(EMPTY, GPU, shares(GPU, WHOLE)).reserve(NVENC, shares(NVENC, ENC), AT)
    granted(EMPTY, GPU, shares(GPU, WHOLE)).reserve(NVENC, shares(NVENC, "nvidia-0000-5e-00-0-enc-0-s0"), AT)


def test_a_physical_device_and_its_partitions_exclude_each_other() -> None:
    child = made("3b", partition="mig-3-0", engines=Engines(enc=0, dec=1, jpeg=0))
    partition = offered(child)["media.example.com/gpu-partition"][child.key]
    decoder = offered(child)[NVDEC][f"{child.key}-dec-0-s0"]
    with pytest.raises(DoubleUse):
        granted(EMPTY, GPU, shares(GPU, WHOLE)).reserve("media.example.com/gpu-partition", [partition], AT)
    with pytest.raises(DoubleUse):
        granted(EMPTY, GPU, shares(GPU, WHOLE)).reserve(NVDEC, [decoder], AT)
    with pytest.raises(DoubleUse):
        granted(EMPTY, NVDEC, [decoder]).reserve(GPU, shares(GPU, WHOLE), AT)


def test_the_two_names_of_one_unit_exclude_each_other() -> None:
    ledger = granted(EMPTY, NVENC, shares(NVENC, "amd-0000-c3-00-0-enc-0-s0"))
    with pytest.raises(DoubleUse):
        ledger.reserve(NVDEC, shares(NVDEC, "amd-0000-c3-00-0-dec-0-s0"), AT)


def test_a_unit_is_never_more_than_full_when_the_slots_setting_changes() -> None:
    ledger = granted(EMPTY, NVENC, shares(NVENC, "nvidia-0000-3b-00-0-enc-0-s3", slots=4))
    with pytest.raises(DoubleUse):
        ledger.reserve(NVENC, shares(NVENC, ENC, slots=1), AT)
    ledger.reserve(NVENC, shares(NVENC, "nvidia-0000-3b-00-0-enc-0-s0", slots=4), AT)


def test_a_reservation_is_in_memory_only_and_leaves_no_trace() -> None:
    ledger, made_ = EMPTY.reserve(NVENC, shares(NVENC, ENC), AT)
    assert ledger.durable().allocations == ()
    assert ledger.release(made_[0].allocation_id, "the answer failed", AT).allocations == ()


def test_what_was_not_said_yet_is_known_after_a_crash() -> None:
    ledger = granted(EMPTY, NVENC, shares(NVENC, ENC))
    assert ledger.durable() is ledger
    again = Ledger.model_validate_json(ledger.model_dump_json())
    again = again.bind("test-1", pod("a"), "main", AT)
    (only,) = again.allocations
    assert only.unsaid == (State.GRANTED, State.BOUND)
    again = again.said("test-1", State.GRANTED).said("test-1", State.BOUND).release("test-1", "gone", AT)
    assert again.allocations[0].unsaid == (State.RELEASED,)
    assert again.said("test-1", State.RELEASED).allocations == ()


def test_a_grant_that_no_pod_took_is_said_as_granted_and_released() -> None:
    ledger = granted(EMPTY, NVENC, shares(NVENC, ENC)).release("test-1", "no pod took it", AT)
    assert ledger.allocations[0].unsaid == (State.GRANTED, State.RELEASED)


def test_steps_on_allocations_in_another_state_change_nothing() -> None:
    ledger = granted(EMPTY, NVENC, shares(NVENC, ENC)).release("test-1", "gone", AT)
    assert ledger.release("test-1", "again", AT) == ledger
    assert ledger.bind("test-1", pod("a"), "main", AT) == ledger
    assert ledger.grant(["test-1"], AT) == ledger
    assert ledger.get("test-1") is not None
    assert ledger.get("test-9") is None


def test_what_was_guessed_from_an_id_is_learned_once_its_device_is_registered() -> None:
    ledger, _ = EMPTY.adopt(NVENC, [from_id("amd-0000-c3-00-0-enc-0-s0")], AT, pod("a"), "main")
    known = offered(vcn(), slots=2)
    learned = ledger.learn(known)
    assert learned.allocations[0].shares == (known[NVENC]["amd-0000-c3-00-0-enc-0-s0"],)
    assert learned.learn(known) == learned
    with pytest.raises(DoubleUse):
        learned.reserve(NVDEC, [known[NVDEC]["amd-0000-c3-00-0-dec-0-s0"]], AT)
    assert learned.reserve(NVDEC, [known[NVDEC]["amd-0000-c3-00-0-dec-0-s1"]], AT)


def test_a_ledger_that_names_an_allocation_twice_is_no_ledger() -> None:
    ledger = granted(EMPTY, NVENC, shares(NVENC, ENC))
    with pytest.raises(ValidationError, match="twice"):
        Ledger(ledger_id="test", allocations=ledger.allocations * 2)


def test_the_index_says_how_full_units_and_devices_are() -> None:
    occupied = granted(EMPTY, NVENC, shares(NVENC, ENC, slots=4)).occupancy()
    assert occupied.taken("nvidia-0000-3b-00-0-enc-0") * 4 == 1
    assert (occupied.uses("nvidia-0000-3b-00-0"), occupied.uses("nvidia-0000-5e-00-0")) == (1, 0)
