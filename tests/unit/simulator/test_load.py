from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.simulator.load import TIMEOUT_MS, Work, felt, share_of, stretch, unit_of, utilisation

ENCODER = "nvidia-0000-3b-00-0-enc-0"
OTHER = "nvidia-0000-3b-00-0-enc-1"


def work(uid: str, *slots: str, offered: float = 0.4, base: float = 20.0) -> Work:
    return Work(uid, slots, offered, base, 30.0)


def test_a_pod_alone_feels_its_own_load_only() -> None:
    alone = felt([work("a", f"{ENCODER}-s0")], {})["a"]
    assert alone.latency_p99_ms == pytest.approx(20 / 0.6)
    assert alone.drop_ratio == 0
    assert alone.fps == 30


def test_a_neighbour_on_the_same_engine_makes_it_slower_and_its_eviction_makes_it_well_again() -> None:
    mine, neighbour = work("a", f"{ENCODER}-s0"), work("b", f"{ENCODER}-s1", offered=0.5)
    together, alone = felt([mine, neighbour], {})["a"], felt([mine], {})["a"]
    assert together.latency_p99_ms == pytest.approx(20 / 0.1)
    assert alone.latency_p99_ms < together.latency_p99_ms / 5


def test_a_neighbour_on_another_engine_of_the_same_device_is_not_felt() -> None:
    mine, neighbour = work("a", f"{ENCODER}-s0"), work("b", f"{OTHER}-s0", offered=0.9)
    assert felt([mine, neighbour], {})["a"] == felt([mine], {})["a"]


def test_more_replicas_lower_what_each_of_them_feels() -> None:
    one = felt([work("a", f"{ENCODER}-s0", offered=share_of(0.9, 1))], {})["a"]
    two = [
        work("a", f"{ENCODER}-s0", offered=share_of(0.9, 2)),
        work("b", f"{OTHER}-s0", offered=share_of(0.9, 2)),
    ]
    assert felt(two, {})["a"].latency_p99_ms < one.latency_p99_ms / 4


def test_overload_drops_frames_and_latency_still_grows() -> None:
    over = felt([work("a", f"{ENCODER}-s0", offered=2.0, base=1.0)], {})["a"]
    more = felt([work("a", f"{ENCODER}-s0", offered=3.0, base=1.0)], {})["a"]
    assert over.drop_ratio == 0.5
    assert over.fps == 15
    assert over.latency_p99_ms < more.latency_p99_ms < TIMEOUT_MS


def test_on_a_dead_device_nothing_comes_back() -> None:
    dead = felt([work("a", f"{ENCODER}-s0")], {"nvidia-0000-3b-00-0": "dead"})["a"]
    assert (dead.latency_p99_ms, dead.fps, dead.drop_ratio) == (TIMEOUT_MS, 0, 1)
    assert math.isfinite(dead.queue_length)


def test_a_degraded_device_has_less_to_give() -> None:
    sick = felt([work("a", f"{ENCODER}-s0", offered=0.3)], {"nvidia-0000-3b-00-0": "degraded"})["a"]
    assert sick.latency_p99_ms > 5 * 20


def test_units_that_encode_and_decode_are_one_engine() -> None:
    mine, neighbour = work("a", "amd-0000-3b-00-0-enc-1-s0"), work("b", "amd-0000-3b-00-0-dec-1-s0")
    assert utilisation([mine, neighbour], {}) == {"amd-0000-3b-00-0-enc-1": 0.8}
    apart = [work("a", "nvidia-0000-3b-00-0-enc-1-s0"), work("b", "nvidia-0000-3b-00-0-dec-1-s0")]
    assert set(utilisation(apart, {}).values()) == {0.4}


def test_a_stream_offers_its_whole_load_to_each_kind_and_splits_it_within_one() -> None:
    both = work("a", f"{ENCODER}-s0", f"{OTHER}-s0", "nvidia-0000-3b-00-0-dec-0-s0")
    assert utilisation([both], {}) == {ENCODER: 0.2, OTHER: 0.2, "nvidia-0000-3b-00-0-dec-0": 0.4}


def test_load_per_slot_is_carried_by_every_slot() -> None:
    both = Work("a", (f"{ENCODER}-s0", f"{ENCODER}-s1", f"{OTHER}-s0"), 0.3, 20.0, 30.0, per_slot=True)
    assert utilisation([both], {}) == {ENCODER: 0.6, OTHER: 0.3}


@pytest.mark.parametrize("slot", ["nvidia-0000-3b-00-0", "GPU-8feb774b", ""])
def test_ids_that_name_no_engine_carry_no_load(slot: str) -> None:
    assert unit_of(slot) is None
    assert felt([work("a", slot)], {})["a"].latency_p99_ms == 20


@settings(deadline=None)
@given(st.floats(0, 50), st.floats(0, 50))
def test_more_load_is_never_faster(one: float, other: float) -> None:
    less, more = sorted((one, other))
    assert stretch(less) <= stretch(more)
    quick = felt([work("a", f"{ENCODER}-s0", offered=less)], {})["a"]
    slow = felt([work("a", f"{ENCODER}-s0", offered=more)], {})["a"]
    assert quick.latency_p99_ms <= slow.latency_p99_ms <= TIMEOUT_MS
    assert 0 <= quick.drop_ratio <= slow.drop_ratio <= 1
