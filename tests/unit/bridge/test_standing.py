from __future__ import annotations

from datetime import timedelta

import pytest

from services.bridge.standing import Standing, after
from shared.events import Payload, device, remediation, world
from shared.events.parts import Compatibility
from tests.unit.bridge.devices import AT, GPU, NVDEC, NVENC, gpu, made, offered, vcn

UNTIL = AT + timedelta(minutes=5)
KNOWN = offered(gpu(enc=2), slots=1)
FIRST, SECOND = KNOWN[NVENC].values()
(WHOLE,) = KNOWN[GPU].values()


def quarantined(epoch: int, *engines: str, scope: str = "engines") -> remediation.Quarantined:
    scope = scope if engines else "device"
    return remediation.Quarantined(epoch=epoch, scope=scope, engines=engines, reason="xid 79", deadline=UNTIL)


def fold(*facts: Payload, start: Standing | None = None) -> Standing:
    standing = start or Standing()
    for fact in facts:
        standing = after(standing, fact)
    return standing


def probation(epoch: int) -> remediation.ProbationStarted:
    return remediation.ProbationStarted(epoch=epoch, until=UNTIL)


def closed(epoch: int, *, reopens: str = "") -> remediation.Closed:
    return remediation.Closed(epoch=epoch, reason="well", reopens=reopens)


def opened(epoch: int, state: str) -> remediation.Opened:
    return remediation.Opened(epoch=epoch, state=state, reason="evidence")


def test_a_quarantine_takes_the_device_out_until_probation() -> None:
    out = fold(quarantined(1))
    assert out.refusal(FIRST) == "the device is quarantined (epoch 1)"
    assert not out.usable
    assert fold(probation(1), start=out).refusal(FIRST) == ""
    assert fold(remediation.Readmitted(epoch=1, after_s=9), start=out).usable
    assert fold(closed(1), start=out).usable


def test_a_quarantine_of_one_engine_leaves_the_others_and_takes_the_whole_device() -> None:
    assert FIRST.engine is not None
    out = fold(quarantined(1, FIRST.engine))
    assert out.refusal(FIRST)
    assert out.refusal(WHOLE)
    assert out.refusal(SECOND) == ""
    assert out.usable


def test_within_an_epoch_a_quarantine_only_widens() -> None:
    assert FIRST.engine is not None
    assert SECOND.engine is not None
    both = fold(quarantined(1, FIRST.engine), quarantined(1, SECOND.engine))
    assert both.parts == (FIRST.engine, SECOND.engine)
    whole = fold(quarantined(1, FIRST.engine), quarantined(1))
    assert whole.refusal(SECOND)
    assert fold(quarantined(1, FIRST.engine), start=whole) == whole
    assert fold(quarantined(2, FIRST.engine), start=whole).parts == (FIRST.engine,)


def test_a_device_that_was_replaced_is_given_in_no_moment_between_two_cases() -> None:
    for before in (fold(quarantined(1)), fold(opened(1, "suspect"))):
        between = fold(closed(1, reopens="validating"), start=before)
        assert between.refusal(FIRST)
        assert fold(opened(2, "validating"), start=between).refusal(FIRST)
    again = fold(quarantined(1), probation(1), closed(1, reopens="quarantined"))
    assert again.refusal(FIRST)


def test_a_probation_that_does_not_end_healthy_takes_the_device_out_again() -> None:
    passed = remediation.DeadlinePassed(epoch=1, timer="probation", deadline=AT, state="probation")
    other = remediation.DeadlinePassed(epoch=1, timer="suspect", deadline=AT, state="suspect")
    assert fold(quarantined(1), probation(1), passed).refusal(FIRST)
    assert fold(quarantined(1), probation(1), other).usable


def test_a_snapshot_says_that_the_case_ended_while_nobody_listened() -> None:
    snapshot = remediation.RemediationSnapshotted(epoch=2, state={})
    assert fold(quarantined(2), remediation.Retired(epoch=2, reason="x"), snapshot).usable
    assert not fold(quarantined(3), snapshot).usable


def test_a_quarantine_of_one_ability_takes_the_unit() -> None:
    known = offered(vcn())
    (encoder,), (decoder,) = known[NVENC].values(), known[NVDEC].values()
    assert decoder.engine is not None
    assert fold(quarantined(1, decoder.engine)).refusal(encoder)


def test_a_quarantine_of_one_partition_leaves_the_others() -> None:
    one, two = made("3b", partition="mig-3-0"), made("3b", partition="mig-4-0")
    known = offered(one, two)["media.example.com/gpu-partition"]
    out = fold(quarantined(1, one.key, scope="partition"))
    assert out.refusal(known[one.key])
    assert not out.refusal(known[two.key])


def test_a_fact_of_an_older_case_changes_nothing() -> None:
    out = fold(quarantined(3))
    assert fold(probation(2), closed(2), start=out) == out
    assert fold(quarantined(2), start=fold(probation(3))).usable


def test_a_case_that_opens_out_of_use_takes_the_device_at_once() -> None:
    for state in ("quarantined", "validating"):
        assert not fold(opened(1, state)).usable
    assert fold(opened(1, "suspect")).usable


def test_a_hold_keeps_the_device_as_it_is() -> None:
    held = remediation.Held(epoch=1, command_id="c", owner="me", reason="looking")
    assert fold(held).usable
    assert not fold(quarantined(1), held).usable
    assert fold(opened(1, "held")).held
    for state, usable in (("healthy", True), ("validating", False)):
        released = remediation.HoldReleased(epoch=1, command_id="c", owner="me", reason="ok", to_state=state)
        assert fold(held, released).usable is usable
        assert not fold(held, released).held


def test_a_retired_device_stays_out_until_another_one_is_in_its_slot() -> None:
    retired = fold(quarantined(1), remediation.Retired(epoch=1, reason="worn out"), closed(1))
    assert retired.refusal(FIRST) == "the device is retired (epoch 1)"
    renewed = fold(opened(2, "validating"), start=retired)
    assert (renewed.retired, renewed.usable) == (False, False)
    assert fold(probation(2), start=renewed).usable


def test_a_withdrawal_holds_until_an_epoch_answers() -> None:
    fact = world.Withdrawn(boot_id="b", n=1, evidence=())
    alone = fold(fact)
    assert alone.refusal(FIRST) == "the device was withdrawn after a fatal fault"
    assert not fold(opened(1, "suspect"), start=alone).usable
    answered = fold(opened(1, "quarantined"), start=alone)
    assert (answered.withdrawn, answered.quarantined) == (False, True)


def test_removed_hardware_is_gone_until_it_is_registered_again() -> None:
    gone = fold(world.Removed(boot_id="b", n=1, reason="fell off the bus"))
    assert gone.refusal(FIRST) == "the device is gone (fell off the bus)"
    back = device.Registered(device=gpu(), generation=2, compatibility=Compatibility(verdict="compatible"))
    assert fold(back, start=gone).usable
    assert not fold(device.Lost(generation=2, reason="removed")).usable


@pytest.mark.parametrize(
    "fact",
    [
        device.Lost(generation=1, reason="silent"),
        remediation.Cleared(epoch=1, streak=9),
        world.HealthReported(boot_id="b", window_id=1, verdict="unhealthy", streak=1),
    ],
)
def test_silence_suspicion_and_a_bad_report_take_nothing(fact: Payload) -> None:
    assert fold(fact).usable
