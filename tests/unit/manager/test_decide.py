from datetime import UTC, datetime

import pytest

from services.manager.decide import DeviceCase, Policy, Registrar, Seen
from shared.events import Entity, Payload, event
from shared.events.device import DeviceRejected, DeviceSnapshotted, Lost, Registered
from shared.events.envelope import Cause
from shared.events.world import Discovered, FoundDevice

NOW = datetime(2026, 1, 1, tzinfo=UTC)
OF = Entity("device", "worker-1", "nvidia-0000-3b-00-0")
POLICY = Policy(silent_after_s=300)
REGISTRAR = Registrar()


def found(**raw: object) -> FoundDevice:
    return FoundDevice(
        key=OF.entity,
        vendor="nvidia",
        bus_address="0000:3b:00.0",
        serial="S1",
        raw={"pci": {"pci_id": "10de:1eb8"}, "nvidia-smi": {"name": "Tesla T4", **raw}},
        sources=("pci", "nvidia-smi"),
    )


def fold(*facts: Payload) -> DeviceCase:
    case = REGISTRAR.initial(OF)
    for sequence, fact in enumerate(facts, 1):
        said = event(fact, OF, cause=Cause.source("boot", sequence), source="/test", at=NOW)
        case = REGISTRAR.evolve(case, said, sequence)
    return case


def judge(case: DeviceCase, seen: Seen) -> Payload | None:
    heard = event(
        Discovered(boot_id="b", n=1, device=found()),
        ("worker-1", OF.entity),
        cause=Cause.source("b", 1),
        source="/test",
        at=NOW,
    )
    decided = REGISTRAR.decide(case, heard, seen, NOW, POLICY)
    assert REGISTRAR.next(case, seen, NOW, POLICY) == decided
    return decided


def registered() -> Registered:
    fact = judge(fold(), Seen(listed=False, found=found()))
    assert isinstance(fact, Registered)
    return fact


def test_a_found_device_is_registered_once() -> None:
    fact = registered()
    assert (fact.generation, fact.device.vendor, fact.device.serial) == (1, "nvidia", "S1")
    assert judge(fold(fact), Seen(listed=True, found=found())) is None


def test_a_device_that_differs_is_registered_anew_with_the_next_generation() -> None:
    changed = found().model_copy(update={"serial": "S2"})
    fact = judge(fold(registered()), Seen(listed=False, found=changed))
    assert isinstance(fact, Registered)
    assert fact.generation == 2


def test_a_device_that_its_node_no_longer_lists_is_lost() -> None:
    fact = judge(fold(registered()), Seen(listed=True, last_seen=NOW))
    assert fact == Lost(generation=1, reason="removed", last_seen=NOW)


def test_a_device_is_not_lost_before_its_node_has_told_its_list() -> None:
    assert judge(fold(registered()), Seen(listed=False)) is None


def test_silence_loses_a_device_only_after_minutes() -> None:
    case = fold(registered())
    assert judge(case, Seen(listed=True, found=found(), silent_s=299)) is None
    assert isinstance(judge(case, Seen(listed=True, found=found(), silent_s=300)), Lost)


def test_a_lost_device_stays_lost_while_its_node_is_silent_and_returns_with_it() -> None:
    case = fold(registered(), Lost(generation=1, reason="silent"))
    assert judge(case, Seen(listed=True, found=found(), silent_s=400)) is None
    back = judge(case, Seen(listed=True, found=found()))
    assert isinstance(back, Registered)
    assert back.generation == 2


def test_a_device_that_cannot_be_translated_is_rejected_once_with_the_reason() -> None:
    unreadable = REGISTRAR.initial(Entity("device", "Not_A_Node", OF.entity))
    fact = REGISTRAR.next(unreadable, Seen(listed=False, found=found()), NOW, POLICY)
    assert isinstance(fact, DeviceRejected)
    assert "node" in fact.reasons[0]
    said = event(fact, OF, cause=Cause.source("b", 1), source="/test", at=NOW)
    again = REGISTRAR.evolve(unreadable, said, 1)
    assert REGISTRAR.next(again, Seen(listed=False, found=found()), NOW, POLICY) is None


def test_a_snapshot_keeps_the_generation() -> None:
    case = fold(registered(), Lost(generation=1, reason="removed"))
    assert REGISTRAR.closed(case)
    snapshot = REGISTRAR.snapshot(case)
    assert isinstance(snapshot, DeviceSnapshotted)
    assert fold(snapshot).generation == 1
    assert REGISTRAR.snapshot(fold()) is None


def test_without_anything_gathered_nothing_is_decided() -> None:
    assert REGISTRAR.next(fold(), None, NOW, POLICY) is None
    assert (tuple(REGISTRAR.effects(fold())), REGISTRAR.due(fold(), POLICY)) == ((), None)


@pytest.mark.parametrize("fact", [Discovered(boot_id="b", n=1, device=found())])
def test_a_foreign_fact_changes_nothing(fact: Payload) -> None:
    assert fold(fact) == fold()


def test_a_snapshot_is_made_once_for_a_lost_device() -> None:
    lost = fold(registered(), Lost(generation=1, reason="silent"))
    assert REGISTRAR.snapshot(fold(registered())) is None
    snapshot = REGISTRAR.snapshot(lost)
    assert isinstance(snapshot, DeviceSnapshotted)
    again = fold(snapshot)
    assert (again.state, again.generation) == (lost.state, lost.generation)
    assert REGISTRAR.snapshot(again) is None
