from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.discovery.decide import HealthVerdict, Limits, Look, Probe, Sighting, Standing, examine, judge
from shared.devices.readings import Readings
from shared.vendors.faults import lookup

T4 = "nvidia-0000-3b-00-0"
START = datetime(2026, 1, 1, tzinfo=UTC)
FINE = Readings(
    ecc_uncorrected=0, row_remap_pending=False, page_retire_pending=False, pcie_replays=0, link_width=16
)


def line(code: str, detail: str | None = None, *, number: int = 1, unit: int | None = None) -> Sighting:
    fault = lookup("nvidia", code, detail)
    return Sighting(
        f"b/kmsg/{number}", code, fault, unit if unit is not None else fault.engine_index, START, "words"
    )


def answered(readings: Readings = FINE, **fields: Any) -> Probe:
    return Probe(present=True, answer="answered", readings={T4: readings}, driver=True, **fields)


class Device:
    """Feeds one device with looks."""

    def __init__(self, limits: Limits | None = None) -> None:
        self.standing = Standing()
        self.limits = limits or Limits(settle_windows=2)

    def look(self, at_s: float, *sightings: Sighting, probe: Probe | None = None) -> HealthVerdict | None:
        seen = Look("b", int(at_s), at_s, START + timedelta(seconds=at_s), sightings, probe)
        self.standing, said = judge(
            T4, "nvidia", self.standing, seen, engines={"enc": 1, "dec": 2, "jpeg": None}, limits=self.limits
        )
        return said


def codes(said: HealthVerdict | None) -> list[str]:
    return [] if said is None else [each.code for each in said.evidence]


def verdicts(said: Iterable[HealthVerdict | None]) -> list[str | None]:
    return [None if each is None else f"{each.verdict} {each.streak}" for each in said]


def test_a_quiet_device_is_reported_once() -> None:
    device = Device()
    assert verdicts(device.look(at, probe=answered()) for at in (10, 20, 30)) == ["healthy 1", None, None]
    assert device.standing.streak == 3
    assert not device.standing.restless


def test_a_fatal_line_is_reported_at_once_and_recovery_is_reported_window_by_window() -> None:
    device = Device()
    device.look(10, probe=answered())
    said = device.look(12.3, line("79"))
    assert said is not None
    assert (said.verdict, said.window_id, codes(said)) == ("unhealthy", 12, ["79"])
    assert said.evidence[0].class_ == "fatal"
    assert device.standing.restless
    after = [device.look(at, probe=answered()) for at in (13.4, 14.4, 15.4, 16.4)]
    assert verdicts(after) == ["healthy 1", "healthy 2", None, None]


def test_one_burst_is_one_report() -> None:
    device = Device()
    assert device.look(10.1, line("48", number=1), line("48", number=2)) is not None
    assert device.look(10.4, line("48", number=3)) is None
    assert device.look(11.0, line("48", number=4)) is None  # another second of the clock, the same burst
    again = device.look(11.2, line("48", number=5))
    assert again is not None
    assert (again.window_id, again.streak) == (11, 2)


def test_what_is_worse_breaks_out_of_a_burst_into_the_next_window() -> None:
    device = Device()
    device.look(10.1, line("13"))
    said = device.look(10.2, line("79"))
    assert said is not None
    assert (said.window_id, said.verdict) == (11, "unhealthy")
    assert device.look(11.3, probe=answered()) is None  # window 11 was reported
    assert verdicts([device.look(12.0, probe=answered())]) == ["healthy 1"]


@pytest.mark.parametrize(
    ("code", "detail", "reported"),
    [
        ("13", None, True),
        ("45", None, True),
        ("94", None, True),
        ("99999", None, True),
        ("154", "none", False),
    ],
)
def test_what_does_not_count_changes_no_verdict(code: str, detail: str | None, reported: bool) -> None:  # noqa: FBT001 - a case
    device = Device()
    device.look(10, probe=answered())
    said = device.look(12, line(code, detail))
    assert (said is not None) == reported
    assert device.standing.verdict == "healthy"
    if said is not None:
        assert said.verdict == "healthy"


def test_before_the_first_probe_a_line_that_does_not_count_leaves_the_verdict_unknown() -> None:
    said = Device().look(1, line("13"))
    assert said is not None
    assert said.verdict == "unknown"


def test_a_fault_of_an_engine_names_it_and_one_without_a_name_is_the_device_s() -> None:
    named = Device().look(1, line("68"))
    assert named is not None
    assert (named.evidence[0].scope, named.evidence[0].engine) == ("engine", f"{T4}-dec-0")
    beyond = Device().look(1, line("88"))  # decoder 3 of a device with two
    assert beyond is not None
    assert (beyond.evidence[0].scope, beyond.evidence[0].engine) == ("device", None)
    only = Sighting("i", "65", lookup("amd", "ring-timeout-vcn"), None, START, "")
    seen = Look("b", 1, 1.0, START, (only,))
    for engines, scope in (({"dec": 1}, "engine"), ({"dec": 2}, "device"), ({}, "device")):
        _, said = judge(T4, "amd", Standing(), seen, engines=engines)  # type: ignore[arg-type]
        assert said is not None
        assert said.evidence[0].scope == scope
    _, said = judge(T4, "nvidia", Standing(), Look("b", 1, 1.0, START, (line("82"),)))
    assert said is not None
    assert said.evidence[0].engine == f"{T4}-jpeg-0"


@pytest.mark.parametrize(
    ("later", "code", "verdict"),
    [
        (Readings(ecc_uncorrected=2), "ecc-uncorrected", "unhealthy"),
        (Readings(row_remap_failed=True), "row-remap-failed", "unhealthy"),
        (Readings(row_remap_pending=True), "row-remap-pending", "healthy"),
        (Readings(page_retire_pending=True), "page-retire-pending", "healthy"),
        (Readings(pcie_replays=5000), "pcie-replays", "healthy"),
        (Readings(link_width=8), "link-width", "healthy"),
        (Readings(temperature_c=95, temperature_limit_c=93), "temperature", "healthy"),
        (Readings(recovery_action="drain and reset"), "recovery-drain-and-reset", "unhealthy"),
    ],
)
def test_counters_and_states_are_evidence(later: Readings, code: str, verdict: str) -> None:
    device = Device()
    device.look(10, probe=answered())
    said = device.look(20, probe=answered(later))
    assert said is not None
    assert (codes(said), said.verdict) == ([code], verdict)


def test_a_counter_counts_once_and_a_reset_counter_begins_again() -> None:
    device = Device()
    counts = (7, 9, 9, 0, 0, 1)
    looks = [device.look(at * 10, probe=answered(Readings(ecc_uncorrected=n))) for at, n in enumerate(counts)]
    assert [codes(each) for each in looks] == [[], ["ecc-uncorrected"], [], [], [], ["ecc-uncorrected"]]


def test_counters_that_a_kernel_line_explains_are_no_second_strike() -> None:
    device = Device()
    device.look(10, probe=answered())
    device.look(12, line("48"))
    assert codes(device.look(13.1, probe=answered(Readings(ecc_uncorrected=1)))) == []
    assert codes(device.look(14.1, probe=answered(Readings(ecc_uncorrected=2)))) == ["ecc-uncorrected"]


def test_a_hanging_tool_is_evidence_in_every_window_and_recovery_follows() -> None:
    device = Device()
    device.look(10, probe=answered())
    hung = Probe(present=True, answer="hung", driver=True, detail="no answer")
    looks = [device.look(at, probe=hung) for at in (20, 21.5, 23)]
    assert verdicts(looks) == ["unhealthy 1", "unhealthy 2", "unhealthy 3"]
    assert len({each.evidence[0].id for each in looks if each}) == 3
    assert verdicts([device.look(25, probe=answered())]) == ["healthy 1"]


def test_a_missing_device_is_fatal_and_a_tool_that_cannot_reach_it_is_not() -> None:
    device = Device()
    said = device.look(5, probe=Probe(present=False, answer="none"))
    assert said is not None
    assert (codes(said), said.evidence[0].class_) == (["missing"], "fatal")
    failed = Device().look(5, probe=Probe(present=True, answer="failed", detail="not listed"))
    assert failed is not None
    assert (codes(failed), failed.evidence[0].class_) == (["tool-failed"], "transient")


@pytest.mark.parametrize("answer", ["dark", "waiting"])
def test_no_data_is_unknown_and_neither_healthy_nor_unhealthy(answer: Any) -> None:
    device = Device()
    device.look(10, probe=answered())
    said = [device.look(at, probe=Probe(present=True, answer=answer, driver=True)) for at in (20, 30)]
    assert verdicts(said) == ["unknown 1", "unknown 2"]
    assert not device.standing.restless
    assert verdicts([device.look(40, probe=answered())]) == ["healthy 1"]


def test_a_device_without_a_tool_is_judged_by_sysfs() -> None:
    device = Device()
    device.look(10, probe=Probe(present=True, answer="none", driver=True))
    assert device.standing.verdict == "healthy"
    said = device.look(20, probe=Probe(present=True, answer="none", driver=False))
    assert codes(said) == ["driver-gone"]


def test_a_chip_s_trouble_is_told_of_its_card_with_the_chip_s_name() -> None:
    readings = {T4: FINE, f"{T4}-chip-1": Readings(health_word="alarm", error_codes=("80E18402",))}
    probe = Probe(present=True, answer="answered", readings=readings)
    _, said = judge(T4, "huawei", Standing(), Look("b", 1, 1.0, START, (), probe))
    assert said is not None
    assert [(each.code, each.class_, each.scope) for each in said.evidence] == [
        ("80E18402", "fatal", "partition"),
        ("health-alarm", "transient", "partition"),
    ]
    assert all(each.raw.startswith(f"{T4}-chip-1: ") for each in said.evidence)


def test_a_storm_of_different_codes_keeps_the_worst() -> None:
    storm = [line(str(90_000 + n), number=n) for n in range(40)]
    said = Device().look(1, *storm, line("79", number=99))
    assert said is not None
    assert len(said.evidence) == 16
    assert said.evidence[0].code == "79"


def test_a_line_of_kernel_evidence_in_a_reported_window_without_evidence_is_not_said_twice() -> None:
    device = Device()
    device.look(10.1, probe=answered())
    assert device.look(10.9, probe=answered()) is None
    assert device.look(10.95) is None


steps = st.lists(
    st.tuples(
        st.floats(0.01, 3),
        st.sampled_from([None, "13", "48", "79", "99999"]),
        st.sampled_from(
            [None, answered(), Probe(present=True, answer="hung"), Probe(present=True, answer="dark")]
        ),
    ),
    max_size=30,
)


@given(steps)
def test_windows_only_grow_and_stay_near_the_clock(given_steps: list[Any]) -> None:
    device, at, last = Device(), 100.0, -1
    for wait_s, code, probe in given_steps:
        at += wait_s
        said = device.look(at, *([line(code)] if code else []), probe=probe)
        if said is not None:
            assert last < said.window_id <= at + len(given_steps)
            assert (said.verdict == "unhealthy") or not any(
                e.class_ in ("fatal", "transient") for e in said.evidence
            )
            last = said.window_id


def checks(before: Probe, after: Probe, *, counted: bool = False) -> tuple[str, dict[str, str]]:
    outcome, made = examine(before, after, counted_since=counted, limits=Limits())
    return outcome, {check.name: check.outcome for check in made}


def test_a_deep_check_passes_when_everything_is_quiet() -> None:
    outcome, made = checks(answered(), answered())
    assert outcome == "passed"
    assert set(made.values()) == {"passed"}


@pytest.mark.parametrize(
    ("before", "after", "failed"),
    [
        (answered(), Probe(present=False, answer="none"), "present"),
        (answered(), Probe(present=True, answer="hung", driver=True), "tool-answers"),
        (answered(), Probe(present=True, answer="answered", driver=False, readings={T4: FINE}), "driver"),
        (answered(), answered(Readings(ecc_uncorrected=1)), "counters-quiet"),
        (answered(), answered(Readings(row_remap_failed=True)), "counters-quiet"),
    ],
)
def test_a_deep_check_fails_by_what_it_found(before: Probe, after: Probe, failed: str) -> None:
    outcome, made = checks(before, after)
    assert outcome == "failed"
    assert made[failed] == "failed"


def test_a_deep_check_fails_when_the_kernel_log_spoke_meanwhile() -> None:
    assert checks(answered(), answered(), counted=True)[0] == "failed"


def test_a_deep_check_without_a_tool_s_word_is_ambiguous_and_without_a_tool_goes_by_the_rest() -> None:
    dark = Probe(present=True, answer="dark", driver=True)
    assert checks(dark, dark)[0] == "ambiguous"
    outcome, made = checks(Probe(present=True, answer="none"), Probe(present=True, answer="none"))
    assert outcome == "passed"
    assert (made["driver"], made["counters-quiet"], made["tool-answers"]) == ("skipped", "skipped", "skipped")


def test_heat_and_a_narrow_link_do_not_fail_a_deep_check() -> None:
    hot = Readings(temperature_c=95, temperature_limit_c=93, link_width=8, health_word="warning")
    assert checks(answered(), answered(hot))[0] == "passed"
