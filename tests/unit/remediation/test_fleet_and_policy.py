"""What is known besides the cases, which case an event concerns, and the policy file."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from services.remediation.fleet import Fleet, physical
from services.remediation.policy import Policy
from shared.errors import BadInput
from shared.events import Cause, Entity, Payload, event, world
from shared.events import device as device_facts
from shared.events.parts import Compatibility
from shared.host.policy import PolicyFile
from shared.kube.models import MediaResource, Node, Taint
from tests.unit.remediation.device_stage import DEVICE, KEY, NODE, START, unified

DOMAIN = "media.example.com"


def hear(fleet: Fleet, data: Payload, entity: str = KEY) -> None:
    made = event(data, (NODE, entity), cause=Cause.source("b", repr(data)), source="/t", at=START)
    fleet.hear(made, START)


def registered(
    serial: str = "S1", generation: int = 1, *, parent: str | None = None
) -> device_facts.Registered:
    return device_facts.Registered(
        device=unified(serial=serial).model_copy(update={"parent": parent}),
        generation=generation,
        compatibility=Compatibility(verdict="compatible"),
    )


def node(**labels: str) -> Node:
    return Node(NODE, "u", "1", ready=True, unschedulable=False, labels=labels)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (KEY, KEY),
        (f"{KEY}-mig-3-0", KEY),
        (f"{KEY}-enc-1", KEY),
        ("agent", None),
        ("job-abc1", None),
        ("deployment-edge", None),
    ],
)
def test_a_part_belongs_to_its_physical_device(text: str, found: str | None) -> None:
    of = physical(NODE, text)
    assert (None if of is None else of.entity) == found


def test_devices_are_counted_in_the_scopes_that_they_pay_in() -> None:
    fleet = Fleet(DOMAIN)
    hear(fleet, registered())
    hear(fleet, registered("S1", 2))
    hear(fleet, registered(parent=KEY))
    assert fleet.totals() == {"cluster": 1, f"node:{NODE}": 1, "model:L4": 1}
    fleet.remember([], [node(**{"topology.kubernetes.io/zone": "z1"})])
    assert fleet.totals()["rack:z1"] == 1
    assert fleet.scopes(NODE, KEY) == ("cluster", f"node:{NODE}", "rack:z1", "model:L4")
    hear(fleet, device_facts.Lost(generation=2, reason="silent", last_seen=None))
    assert fleet.totals()["cluster"] == 1
    hear(fleet, device_facts.Lost(generation=2, reason="removed", last_seen=None))
    assert fleet.totals() == {}


def test_an_older_registration_heard_again_does_not_bring_an_old_serial_back() -> None:
    fleet = Fleet(DOMAIN)
    assert fleet.serial(NODE, KEY) is None
    hear(fleet, registered("S1", 1))
    hear(fleet, registered("S2", 2))
    hear(fleet, registered("S1", 1))
    assert fleet.serial(NODE, KEY) == "S2"


def test_a_node_has_said_all_only_with_an_empty_journal() -> None:
    fleet = Fleet(DOMAIN)
    beat = world.Heartbeat(boot_id="b", n=1, device_keys=(), journal_depth=3, journal_lost=0)
    hear(fleet, beat, "agent")
    assert fleet.node_word(NODE, START).said_all_at is None
    hear(fleet, beat.model_copy(update={"journal_depth": 0}), "agent")
    assert fleet.node_word(NODE, START).said_all_at == START


@pytest.mark.parametrize(
    ("phase", "stands"), [("Quarantined", True), ("Held", True), ("Healthy", False), ("Suspect", False)]
)
def test_a_phase_of_ours_stands_while_it_keeps_the_device_out(phase: str, stands: bool) -> None:  # noqa: FBT001 - a parameter
    fleet = Fleet(DOMAIN)
    resource = MediaResource(
        f"{NODE}-{KEY}",
        "u",
        "1",
        1,
        spec={"topology": {"node": NODE}},
        status={"phase": phase, "epoch": 4},
    )
    odd = MediaResource("something", "u", "1", 1, spec={}, status={"epoch": "x"})
    other = MediaResource(
        f"{NODE}-nvidia-0000-5e-00-0", "u", "1", 1, spec={"topology": {"node": NODE}}, status={"epoch": "x"}
    )
    fleet.remember([resource, odd, other], [])
    memory = fleet.memory(DEVICE, known_on_node=False)
    assert (memory.epoch, bool(memory.stands)) == (4, stands)
    assert fleet.memory(Entity("remediation", NODE, "nvidia-0000-5e-00-0"), known_on_node=False).epoch == 0


def test_our_taint_stands_unless_another_case_of_the_node_explains_it() -> None:
    fleet = Fleet(DOMAIN)
    tainted = Node(
        NODE, "u", "1", ready=True, unschedulable=False, taints=(Taint(fleet.taint_key), Taint("other"))
    )
    fleet.remember([], [tainted])
    assert "our taint" in fleet.memory(DEVICE, known_on_node=False).stands
    assert fleet.memory(DEVICE, known_on_node=True).stands == ""


# ---------------------------------------------------------------------- the policy file


def write(path: Path, text: str, *, tick: int) -> None:
    path.write_text(text, encoding="utf-8")
    os.utime(path, ns=(tick, tick))


def test_without_a_file_the_defaults_hold() -> None:
    policy = PolicyFile(None, "remediation", Policy)
    assert policy.current() == Policy()
    assert not policy.refresh()


def test_a_changed_file_is_taken_and_a_bad_one_is_not(tmp_path: Path) -> None:
    path = tmp_path / "policy.yaml"
    write(path, "remediation: {strikes: {count: 5}}\nguardian: {dry_run: true}\n", tick=1)
    policy = PolicyFile(path, "remediation", Policy)
    assert policy.current().strikes.count == 5
    assert not policy.refresh()
    write(path, "remediation: {strikes: {count: 4}}\n", tick=2)
    assert policy.refresh()
    for tick, bad in enumerate(
        ["remediation: {strikes: {count: none}}", "remediation: [", "- a", "remediation: {strike: 3}"], 3
    ):
        write(path, bad, tick=tick)
        assert not policy.refresh()
        assert policy.current().strikes.count == 4
    path.unlink()
    assert not policy.refresh()
    assert policy.current().strikes.count == 4


def test_a_file_that_is_bad_at_the_start_names_its_field(tmp_path: Path) -> None:
    path = tmp_path / "policy.yaml"
    write(path, "remediation: {deadlines: {drain_s: -1}}\n", tick=1)
    with pytest.raises(BadInput, match=r"remediation\.deadlines\.drain_s"):
        PolicyFile(path, "remediation", Policy)
