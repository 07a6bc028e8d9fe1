from datetime import UTC, datetime, timedelta

import pytest

from services.console.show import causal_tree, console
from services.console.why import Causes
from shared.errors import BadInput
from shared.events import AnyEvent, Cause, Payload, event
from shared.events.parts import PodRef
from shared.events.remediation import EvictionOrdered, PodEvicted, Quarantined, Struck
from shared.events.world import HealthReported

NOW = datetime(2026, 1, 1, tzinfo=UTC)
DEVICE = ("worker-3", "nvidia-0000-3b-00-0")
POD = PodRef(namespace="live", name="edge-0", uid="u1")


def said(payload: Payload, cause: Cause, after_s: float) -> AnyEvent:
    return event(payload, DEVICE, cause=cause, source="/test", at=NOW + timedelta(seconds=after_s))


HEALTH = said(
    HealthReported(boot_id="b", window_id=1, verdict="unhealthy", streak=1), Cause.source("b", 1), 0
)
STRUCK = said(
    Struck(epoch=1, strike=1, of=1, boot_id="b", window_id=1, evidence_ids=("e",), at=NOW),
    Cause.of(HEALTH),
    1,
)
QUARANTINED = said(Quarantined(epoch=1, reason="fatal", deadline=NOW), Cause.of(STRUCK), 2)
ORDERED = said(EvictionOrdered(epoch=1, pod=POD, attempt=1, deadline=NOW), Cause.of(QUARANTINED), 3)
EVICTED = said(PodEvicted(epoch=1, pod=POD, attempt=1, outcome="evicted", status=201), Cause.of(ORDERED), 4)
ALL = [EVICTED, HEALTH, QUARANTINED, STRUCK, ORDERED, HEALTH]


def test_a_pod_is_explained_back_to_the_first_evidence() -> None:
    why = Causes(ALL).explain("live/edge-0")
    assert why.event == EVICTED
    assert why.causes == (HEALTH, STRUCK, QUARANTINED, ORDERED)
    assert why.lost is None


@pytest.mark.parametrize("asked", ["worker-3/nvidia-0000-3b-00-0", "nvidia-worker-3-0000:3b:00.0"])
def test_a_device_is_explained_by_its_turning_point_and_what_followed(asked: str) -> None:
    why = Causes(ALL).explain(asked)
    assert why.event == QUARANTINED
    assert why.effects == ((1, ORDERED), (2, EVICTED))


def test_an_event_is_found_by_its_id_and_a_pod_by_its_uid() -> None:
    causes = Causes(ALL)
    assert causes.explain(STRUCK.id).event == STRUCK
    assert causes.explain("u1").event == EVICTED


def test_a_cause_that_is_no_longer_kept_is_named() -> None:
    why = Causes([EVICTED, ORDERED]).explain("u1")
    assert why.lost == QUARANTINED.id
    assert why.causes == (ORDERED,)


def test_a_circle_of_causes_ends() -> None:
    looped = HEALTH.model_copy(update={"causationid": EVICTED.id})
    why = Causes([looped, STRUCK, QUARANTINED, ORDERED, EVICTED]).explain(EVICTED.id)
    assert len(why.causes) == 4


def test_what_nobody_knows_is_bad_input() -> None:
    with pytest.raises(BadInput, match="no event is known of 'worker-9/x'"):
        Causes(ALL).explain("worker-9/x")


def test_a_device_without_a_turning_point_shows_its_last_fact() -> None:
    assert Causes([HEALTH]).explain("worker-3/nvidia-0000-3b-00-0").event == HEALTH


@pytest.mark.parametrize("kept", [ALL, [EVICTED, ORDERED]])
def test_the_tree_shows_causes_above_effects(kept: list[AnyEvent]) -> None:
    with console.capture() as shown:
        console.print(causal_tree(Causes(kept).explain("u1"), omit={"diagnosed"}))
    facts = [line for line in shown.get().splitlines() if "remediation." in line or "health." in line]
    assert "pod-evicted" in facts[-1]
    assert "pod-evicted" not in facts[0]


def test_facts_that_crowd_the_picture_are_left_out_of_the_tree_but_not_what_followed_them() -> None:
    with console.capture() as shown:
        console.print(causal_tree(Causes(ALL).explain(QUARANTINED.id), omit={"eviction-ordered"}))
    assert "eviction-ordered" not in shown.get()
    assert "pod-evicted" in shown.get()
