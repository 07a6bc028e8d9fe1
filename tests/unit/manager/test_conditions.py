"""Conditions of a device, and how conditions are written."""

from datetime import UTC, datetime

import pytest

from services.manager.conditions import conditions
from services.manager.fleet import Known
from shared.kube.conditions import Condition, written

AT = datetime(2026, 11, 30, 8, 0, tzinfo=UTC)


def said(known: Known) -> dict[str, tuple[str, str]]:
    return {each.type: (each.status, each.reason) for each in conditions(known)}


def device(
    phase: str = "Healthy", verdict: str = "healthy", state: str = "registered", why: str = ""
) -> Known:
    return Known("worker-1", "nvidia-0000-3b-00-0", state=state, phase=phase, verdict=verdict, why=why)


def test_a_healthy_device_is_ready_and_nothing_else() -> None:
    assert said(device()) == {
        "Ready": ("True", "Usable"),
        "Degraded": ("False", "Healthy"),
        "Quarantined": ("False", "Healthy"),
    }


@pytest.mark.parametrize("phase", ["Quarantined", "Draining", "Diagnosing", "Validating", "Retired", "Held"])
def test_a_device_out_of_use_is_quarantined_and_not_ready_with_its_phase_as_reason(phase: str) -> None:
    found = said(device(phase))
    assert (found["Ready"], found["Quarantined"]) == (("False", phase), ("True", phase))


def test_a_suspect_is_still_in_use_and_one_in_probation_takes_best_effort_pods_only() -> None:
    assert said(device("Suspect", "unhealthy"))["Ready"] == ("True", "Usable")
    assert said(device("Suspect", "unhealthy"))["Degraded"] == ("True", "Suspect")
    assert said(device("Probation"))["Ready"] == ("False", "Probation")
    assert said(device("Probation"))["Quarantined"] == ("False", "Probation")
    assert said(device(verdict="unhealthy"))["Degraded"] == ("True", "Unhealthy")


def test_a_silent_agent_makes_a_device_unknown_and_never_unhealthy() -> None:
    found = said(device(verdict="unknown"))
    assert (found["Ready"], found["Degraded"]) == (("Unknown", "NotReported"), ("Unknown", "NotReported"))


def test_a_lost_or_rejected_device_is_not_ready() -> None:
    assert said(device(state="lost", verdict="unknown"))["Ready"] == ("False", "Lost")
    assert said(device(state="rejected"))["Ready"] == ("False", "Rejected")


def test_the_message_says_what_led_to_it() -> None:
    (_, _, quarantined) = conditions(device("Quarantined", why="3 strikes: XID 79"))
    assert quarantined.message == "No new pod may use it. 3 strikes: XID 79"


def test_the_time_of_a_condition_moves_only_with_its_status() -> None:
    stands = {
        "conditions": [
            {"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"},
            {"type": "Degraded", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"},
        ]
    }
    wanted = (Condition("Ready", "True", "Usable", "."), Condition("Degraded", "False", "Healthy", "."))
    lines = written(wanted, stands, generation=3, now=AT)
    assert [(each["type"], each["lastTransitionTime"], each["observedGeneration"]) for each in lines] == [
        ("Ready", "2026-01-01T00:00:00Z", 3),
        ("Degraded", "2026-11-30T08:00:00Z", 3),
    ]
    (new,) = written(wanted[:1], {}, generation=1, now=AT)
    assert new["lastTransitionTime"] == "2026-11-30T08:00:00Z"
