from datetime import UTC, datetime

from services.manager.fleet import Fleet, Known, node_labels, spec, status
from shared.devices.model import UnifiedDevice
from shared.events import AnyEvent, Payload, event
from shared.events import remediation as said
from shared.events.device import DeviceRejected, Lost, Registered
from shared.events.envelope import Cause
from shared.events.parts import Compatibility, PodRef, Slot
from shared.events.world import AllocationsStated, Bound, Granted, HealthReported, Holding, Released

NOW = datetime(2026, 1, 1, tzinfo=UTC)
KEY = "nvidia-0000-3b-00-0"
ABOUT = f"worker-1/{KEY}"
POD = PodRef(namespace="live", name="edge-0", uid="u1")
DEVICE = UnifiedDevice.model_validate(
    {
        "uid": "nvidia-worker-1-0000:3b:00.0",
        "key": KEY,
        "node": "worker-1",
        "vendor": "nvidia",
        "type": "GPU",
        "model": "Tesla T4",
        "memory": {"totalBytes": 16 << 30},
        "codecEngine": {"engines": {"enc": 1, "dec": 2, "jpeg": None}},
    }
)


def fact(payload: Payload, entity: str = KEY, node: str = "worker-1") -> AnyEvent:
    return event(payload, (node, entity), cause=Cause.source("b", 1), source="/test", at=NOW)


def fleet(*payloads: Payload) -> tuple[Fleet, Known]:
    made = Fleet()
    for payload in payloads:
        made.hear(fact(payload))
    known = made.get(ABOUT)
    assert known is not None
    return made, known


REGISTERED = Registered(device=DEVICE, generation=1, compatibility=Compatibility(verdict="unknown"))
BOUND = Bound(
    allocation_id="a1",
    pod=POD,
    container="c",
    resource="media.example.com/nvenc",
    slots=(Slot(engine=f"{KEY}-enc-0", slot=0),),
)


def test_the_case_moves_the_phase_and_a_closed_retirement_stays_retired() -> None:
    deadline = NOW
    steps: list[tuple[Payload, str]] = [
        (said.Opened(epoch=2, state="suspect", reason="r"), "Suspect"),
        (said.Quarantined(epoch=2, reason="r", deadline=deadline), "Quarantined"),
        (said.StepProposed(epoch=2, step="evict", scopes=("cluster",), deadline=deadline), "Quarantined"),
        (said.Drained(epoch=2, evicted=()), "Drained"),
        (said.Readmitted(epoch=2, after_s=1), "Healthy"),
        (said.Held(epoch=3, command_id="c", owner="ann", reason="test"), "Held"),
        (
            said.HoldReleased(epoch=3, command_id="d", owner="ann", reason="ok", to_state="validating"),
            "Validating",
        ),
        (said.Retired(epoch=3, reason="worn"), "Retired"),
        (said.Closed(epoch=3, reason="retired"), "Retired"),
    ]
    made = Fleet()
    made.hear(fact(REGISTERED))
    for payload, phase in steps:
        made.hear(fact(payload))
        known = made.get(ABOUT)
        assert known is not None
        assert known.phase == phase


def test_health_moves_only_the_verdict_and_a_repeat_changes_nothing() -> None:
    made, known = fleet(REGISTERED, HealthReported(boot_id="b", window_id=1, verdict="unhealthy", streak=1))
    assert (known.verdict, known.phase) == ("unhealthy", "Healthy")
    assert made.hear(fact(HealthReported(boot_id="b", window_id=2, verdict="unhealthy", streak=2))) == ()


def test_allocations_come_and_go() -> None:
    made, known = fleet(REGISTERED, BOUND)
    assert known.row.pods == ("live/edge-0",)
    assert status(known)["allocations"] == [
        {"pod": "live/edge-0", "resource": "media.example.com/nvenc", "engines": [f"{KEY}-enc-0"]}
    ]
    made.hear(fact(Released(allocation_id="a1", reason="pod ended")))
    after = made.get(ABOUT)
    assert after is not None
    assert after.allocations.holdings == ()


def test_what_a_node_does_not_state_is_gone() -> None:
    made, _ = fleet(REGISTERED, BOUND)
    other = Holding(allocation_id="a2", device="nvidia-0000-5e-00-0", resource="r", pod=POD)
    changed = made.hear(fact(AllocationsStated(boot_id="b", n=1, holdings=(other,)), "bridge"))
    assert changed == ("worker-1/nvidia-0000-3b-00-0", "worker-1/nvidia-0000-5e-00-0")
    assert made.hear(fact(AllocationsStated(boot_id="b", n=2, holdings=(other,)), "bridge")) == ()


def test_a_lost_device_has_an_unknown_verdict_and_a_rejected_one_its_reasons() -> None:
    _, lost = fleet(REGISTERED, Lost(generation=1, reason="silent"))
    assert (lost.state, lost.verdict, status(lost)["phase"]) == ("lost", "unknown", "Lost")
    _, rejected = fleet(DeviceRejected(generation=1, reasons=("no",)))
    assert (rejected.state, rejected.reasons, rejected.row.model) == ("rejected", ("no",), None)


def test_what_is_not_known_is_left_out_of_the_spec() -> None:
    made = spec(DEVICE)
    assert made["capacity"] == {"memory": str(16 << 30), "nvenc": 1, "nvdec": 2}
    assert "numaNode" not in made["topology"]


def test_a_node_of_one_vendor_is_labelled_by_it_and_a_mixed_one_by_booleans() -> None:
    _, known = fleet(REGISTERED)
    labels = node_labels("media.example.com", [known])
    assert labels["media.example.com/gpu-vendor"] == "nvidia"
    assert labels["media.example.com/gpu-model"] == "Tesla-T4"
    amd = Known("worker-1", "amd-x", unified=DEVICE.model_copy(update={"vendor": "amd"}), state="registered")
    mixed = node_labels("media.example.com", [known, amd])
    assert mixed["media.example.com/gpu-vendor"] is None
    assert (mixed["media.example.com/vendor-amd"], mixed["media.example.com/vendor-intel"]) == ("true", None)


def test_a_hold_names_who_and_why() -> None:
    _, known = fleet(REGISTERED, said.Held(epoch=1, command_id="c", owner="ann", reason="looking"))
    assert status(known)["holds"] == ["ann: looking"]


def test_a_probation_that_passed_ill_is_validating_again_and_a_budget_is_no_device() -> None:
    passed = said.DeadlinePassed(epoch=2, timer="probation", deadline=NOW, state="probation")
    _, known = fleet(REGISTERED, said.ProbationStarted(epoch=2, until=NOW), passed)
    assert known.phase == "Validating"
    frozen = said.Frozen(freeze_id="f", code="79", scope="cluster", cases=())
    assert Fleet().hear(fact(frozen, "budget", "fleet")) == ()


def test_what_the_projection_does_not_know_changes_nothing() -> None:
    made, _ = fleet(REGISTERED)
    assert made.hear(fact(Granted(allocation_id="a", resource="r"))) == ()
