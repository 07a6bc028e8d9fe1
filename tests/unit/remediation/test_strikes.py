"""The order of windows, what a window counts for, and what flapping costs."""

from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.remediation import follow, strikes
from services.remediation.case import DeviceCase, evolve
from services.remediation.context import Context, Given
from services.remediation.policy import Damping, Policy
from services.remediation.strikes import Mark
from shared.events import Cause, Payload, event
from shared.events import remediation as say
from shared.events.parts import Evidence
from tests.unit.remediation.device_stage import DEVICE, START, evidence


def test_an_empty_mark_is_before_every_window() -> None:
    mark = Mark()
    assert mark.window() is None
    assert mark.newer("b1", 0)


def test_a_mark_never_goes_back() -> None:
    mark = Mark().moved_to("b1", 5)
    assert mark.moved_to("b1", 4) is mark
    later = mark.moved_to("b2", 0)
    assert later.moved_to("b1", 99) is later


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 5)), max_size=30))
def test_a_window_that_was_taken_is_never_newer_again(windows: list[tuple[str, int]]) -> None:
    mark = Mark()
    taken: set[tuple[str, int]] = set()
    for boot, number in windows:
        if mark.newer(boot, number):
            assert (boot, number) not in taken
            taken.add((boot, number))
            mark = mark.moved_to(boot, number)


@pytest.mark.parametrize(
    ("found", "scope", "engines"),
    [
        ((evidence(scope="engine", engine="e1"),), "engines", ("e1",)),
        ((evidence(scope="engine"),), "device", ()),
        ((evidence(scope="engine", engine="e1"), evidence(n=1)), "device", ()),
        ((evidence(scope="partition"),), "partition", ()),
        ((), "device", ()),
    ],
)
def test_the_scope_is_what_all_counting_evidence_names(
    found: tuple[Evidence, ...], scope: str, engines: tuple[str, ...]
) -> None:
    assert strikes.scope(found) == (scope, engines)


def test_fatal_codes_come_first_and_a_kind_stands_in_for_a_missing_code() -> None:
    found = (
        evidence("48"),
        evidence("", "transient"),
        evidence("79", "fatal"),
        evidence("45", "sympathetic"),
    )
    assert strikes.codes(found) == ("79", "48", "kernel-line")


def test_a_penalty_halves_and_never_grows() -> None:
    policy = Damping(half_life_s=100)
    assert strikes.decayed(800, START, START + timedelta(seconds=200), policy) == pytest.approx(200)
    assert strikes.decayed(800, START, START - timedelta(seconds=200), policy) == 800
    assert strikes.decayed(800, None, START, policy) == 0
    assert strikes.decayed(0, START, START, policy) == 0


def test_lesser_evidence_that_is_heard_before_the_next_step_takes_no_fatal_strike_back() -> None:
    case = DeviceCase(DEVICE)
    for number, (strike, of) in enumerate(((1, 1), (2, 3)), start=1):
        struck = say.Struck(
            epoch=1,
            strike=strike,
            of=of,
            boot_id="b1",
            window_id=number,
            evidence_ids=(f"e{number}",),
            at=START,
        )
        cause = Cause.source("b1", number)
        case = evolve(case, event(struck, DEVICE, cause=cause, source="/t", at=START))
    assert case.struck_out


@pytest.mark.parametrize(("of", "follows"), [(1, say.StepProposed), (3, say.Cleared)])
def test_healthy_windows_that_a_new_holder_finds_clear_all_but_a_fatal_strike(
    of: int, follows: type[Payload]
) -> None:
    numbers = range(1, of + 1)
    case = _told(
        say.Opened(epoch=1, serial="S1", state="suspect", reason="79"),
        *(
            say.Struck(epoch=1, strike=n, of=of, boot_id="b1", window_id=n, evidence_ids=(f"e{n}",), at=START)
            for n in numbers
        ),
        say.HealthNoted(epoch=1, boot_id="b1", window_id=20, verdict="healthy", streak=10, codes=()),
    )
    assert case.struck_out
    given_ = Given(Context(), START, Policy())
    fact = follow.follow(case, given_)
    assert isinstance(fact, follows)
    if isinstance(fact, say.StepProposed):
        assert follow.follow(_told(fact, case=case), given_) is None, "it waits for the budget"


def _told(*facts: Payload, case: DeviceCase | None = None) -> DeviceCase:
    case = case or DeviceCase(DEVICE)
    for number, fact in enumerate(facts):
        cause = Cause.source("b1", number)
        case = evolve(case, event(fact, DEVICE, cause=cause, source="/t", at=START))
    return case
