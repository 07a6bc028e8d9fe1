"""SLA annotations and samples: what is believed, what is missing, what is a breach."""

from __future__ import annotations

import csv
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.guardian.annotation import Target, parse
from services.guardian.policy import GuardianPolicy
from services.guardian.readings import Sample, Series, admit, read
from shared.errors import BadInput

AT = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
POLICY = GuardianPolicy(min_requests=0)
CASES = Path(__file__).parents[4] / "shared" / "data" / "cases" / "sla_annotations.csv"


def series(*values: float | None, every_s: float = 10.0, end: datetime = AT, **more: float) -> Series:
    made = Series()
    for back, value in zip(range(len(values) - 1, -1, -1), values, strict=True):
        at = end - timedelta(seconds=back * every_s)
        made = made.add(Sample(at, value, **more), keep=60)  # type: ignore[arg-type] # queue or requests
    return made


@pytest.mark.parametrize(
    ("text", "ms"), [("200", 200.0), (" 200\t", 200.0), ("0.5", 0.5), ("99.75", 99.75), ("90", 90.0)]
)
def test_a_plain_decimal_is_a_target(text: str, ms: float) -> None:
    assert parse(text).latency_p99_ms == ms


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "0",
        "0.0",
        "-5",
        "+5",
        "1e3",
        "1_000",
        "\uff12\uff10\uff10",
        "0.2s",
        "200ms",
        "Infinity",
        "nan",
        "0x10",
        "1,5",
        "1.",
        ".5",
        "200\u00a0",
        "9" * 13,
    ],
)
def test_anything_else_is_refused_with_the_fix(text: str) -> None:
    with pytest.raises(BadInput, match="sla/latency-p99-ms"):
        parse(text)


def test_a_target_out_of_all_proportion_is_observed_only() -> None:
    assert "seconds" in parse("0.2").doubt
    assert "microseconds" in parse("200000").doubt
    assert parse("60000").doubt == parse("1").doubt == ""


@pytest.mark.skipif(not CASES.exists(), reason="the collected cases are not here")
def test_the_collected_annotations_are_judged_as_expected() -> None:
    with CASES.open(encoding="utf-8", newline="") as lines:
        for row in csv.DictReader(lines):
            if row["expected_ms"]:
                assert parse(row["value"]).latency_p99_ms == float(row["expected_ms"])
            else:
                with pytest.raises(BadInput):
                    parse(row["value"])


@given(st.text(max_size=30))
def test_no_text_is_read_as_anything_but_a_positive_number_or_refused(text: str) -> None:
    try:
        target = parse(text)
    except BadInput:
        return
    assert isinstance(target, Target)
    assert target.latency_p99_ms > 0
    assert text.strip().isascii()


@pytest.mark.parametrize(
    "value",
    [
        None,
        float("nan"),
        float("inf"),
        -1.0,
        2147483634.0,
        2147483632.0,
        9223372036854775794.0,
        140737488355328.0,
    ],
)
def test_blanks_and_impossible_values_are_missing(value: float | None) -> None:
    assert admit(value) is None


def test_zero_and_ordinary_values_are_values() -> None:
    assert admit(0.0) == 0.0
    assert admit(2147483634.5) == 2147483634.5
    assert admit(12.0) == 12.0


def test_three_of_four_above_the_target_are_a_breach_and_two_are_not() -> None:
    assert read(series(50, 150, 150, 150), 100, AT, POLICY).breached
    assert read(series(150, 50, 150, 150), 100, AT, POLICY).breached
    assert not read(series(50, 50, 150, 150), 100, AT, POLICY).breached
    assert not read(series(100, 100, 100, 100), 100, AT, POLICY).breached


def test_missing_values_count_for_neither_side() -> None:
    assert not read(series(150, None, None, 150), 100, AT, POLICY).breached
    assert not read(series(10, 10, None, 10), 100, AT, POLICY).recovered


def test_recovered_means_clearly_below_three_times() -> None:
    assert read(series(150, 89, 89, 89), 100, AT, POLICY).recovered
    assert not read(series(150, 91, 89, 89), 100, AT, POLICY).recovered


def test_an_old_or_future_or_absent_sample_is_missing() -> None:
    late = AT + timedelta(seconds=21)
    assert read(series(150, 150, 150, 150), 100, late, POLICY).latest_ms is None
    early = AT - timedelta(seconds=60)
    assert read(series(150, end=AT), 100, early, POLICY).latest_ms is None
    assert read(Series(), 100, AT, POLICY).latest_ms is None


def test_samples_far_apart_are_not_judged_together() -> None:
    assert not read(series(150, 150, 150, 150, every_s=90), 100, AT, POLICY).breached


def test_a_repeated_or_older_sample_changes_nothing() -> None:
    one = series(150, 150)
    assert one.add(one.samples[-1], 60) is one
    assert one.add(one.samples[0], 60) is one


def test_too_few_requests_say_nothing_until_a_minute_has_enough() -> None:
    policy = GuardianPolicy(min_requests=100)
    few = series(150, 150, 150, 150, requests=20)
    assert not read(few, 100, AT, policy).breached
    enough = series(*[150] * 8, requests=20)
    assert read(enough, 100, AT, policy).breached
    uncounted = series(150, 150, 150, 150)
    assert read(uncounted, 100, AT, policy).breached


def test_growth_is_measured_against_the_pods_own_good_times() -> None:
    calm = series(50, 50, 50, 50, end=AT - timedelta(seconds=40), requests=100, queue=0)
    made = calm
    for back in (30, 20, 10, 0):
        made = made.add(Sample(AT - timedelta(seconds=back), 150, queue=3, requests=200), 60)
    reading = read(made, 100, AT, POLICY)
    assert reading.rate_growth == 2.0
    assert reading.queue_growth == 3.0
    assert read(series(150, 150, 150, 150), 100, AT, POLICY).rate_growth is None


@given(st.lists(st.one_of(st.none(), st.floats(0, 1e6)), min_size=1, max_size=20))
def test_a_pod_is_never_breached_and_recovered_at_once(values: list[float | None]) -> None:
    reading = read(series(*values), 100, AT, POLICY)
    assert not (reading.breached and reading.recovered)
    if reading.breached:
        assert sum(v > 100 for v in reading.window_ms) >= 3
