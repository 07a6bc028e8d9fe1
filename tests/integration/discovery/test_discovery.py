from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path

import pytest

from services.discovery.service import Discovery
from services.discovery.settings import DiscoverySettings
from shared.clock import ManualClock
from shared.devices.model import RawDevice
from shared.errors import BadInput
from shared.events import Unknown
from shared.events.remediation import RepairRequested
from shared.events.world import (
    Changed,
    Diagnosed,
    Discovered,
    Environment,
    HealthReported,
    Heartbeat,
    InventoryStated,
    Removed,
    RepairDone,
)
from shared.journal import read
from shared.vendors.adapter import translate
from tests.integration.discovery.node import L4, MI210, NAME, NPU, QUICK, T4, Node


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    made = Node(tmp_path)
    yield made
    await made.stop()


def codes(report: HealthReported) -> list[str]:
    return [each.code for each in report.evidence]


def journal(node: Node) -> list[str]:
    waiting = (entry.event for entry in read(node.state / "journal"))
    return [made.data.model_dump_json() for made in waiting if not isinstance(made, Unknown)]


async def test_a_node_says_what_it_has_and_that_all_is_well(node: Node) -> None:
    await node.start()
    stated = await node.until(InventoryStated, "agent", lambda fact: len(fact.devices) == 4)
    assert {device.key for device in stated.devices} == {T4, L4, MI210, NPU}
    for found in stated.devices:
        raw = RawDevice.observed(
            found.key, serial=found.serial, parent=found.parent, raw=found.raw, sources=found.sources
        )
        unified = translate(raw, NAME)
        assert unified.serial
        assert unified.memory.total_bytes
        assert unified.codec_engine.engines.dec
    for key in (T4, L4, MI210, NPU):
        assert (await node.until(HealthReported, key, lambda _: True)).verdict == "healthy"
    beat = await node.until(Heartbeat, "agent", lambda fact: fact.journal_depth <= 1)
    assert (set(beat.device_keys), beat.journal_lost) == ({T4, L4, MI210, NPU}, 0)
    environment = await node.until(Environment, "agent", lambda _: True)
    assert environment.kernel == "6.8.0-48-generic"
    assert environment.distribution == "Ubuntu 24.04.1 LTS"
    assert environment.drivers.keys() == {"nvidia", "amd", "huawei"}
    numbers = [fact.n for fact in await node.said(Discovered)]
    assert len(set(numbers)) == 4


async def test_a_fatal_line_is_on_the_bus_at_once_and_recovery_follows(node: Node) -> None:
    await node.start()
    node.tree.fault_line(T4, 79)
    report = await node.until(HealthReported, T4, lambda fact: fact.verdict == "unhealthy")
    assert [(each.kind, each.code, each.class_) for each in report.evidence] == [
        ("kernel-line", "79", "fatal")
    ]
    await node.until(HealthReported, T4, lambda fact: fact.verdict == "healthy" and fact.streak >= 2)
    others = [fact.verdict for key in (L4, MI210, NPU) for fact in await node.said(HealthReported, key)]
    assert set(others) == {"healthy"}


async def test_counters_that_rise_and_codes_of_every_vendor_are_evidence(node: Node) -> None:
    await node.start()
    node.tree.count_errors(MI210)
    node.tree.fault_line(NPU, "80E18402")
    node.tree.kernel_line("NVRM: Xid (PCI:0000:5e:00): 68, pid=1, name=ffmpeg, NVDEC0 exception")
    node.tree.kernel_line("NVRM: Xid (PCI:0000:ff:00): 79, of a device that is not here")
    counted = await node.until(HealthReported, MI210, lambda fact: fact.verdict == "unhealthy")
    assert codes(counted) == ["ecc-uncorrected"]
    ascend = await node.until(HealthReported, NPU, lambda fact: fact.verdict == "unhealthy")
    assert codes(ascend) == ["80E18402"]
    video = await node.until(HealthReported, L4, lambda fact: fact.verdict == "unhealthy")
    assert (video.evidence[0].scope, video.evidence[0].engine) == ("engine", f"{L4}-dec-0")


async def test_a_hung_tool_is_evidence_on_its_device_only(node: Node) -> None:
    await node.start(DiscoverySettings(**{**QUICK.model_dump(), "tool_deadline_s": 0.8}))
    node.tree.hang(L4)
    report = await node.until(
        HealthReported, L4, lambda fact: fact.streak >= 2 and fact.verdict == "unhealthy"
    )
    assert codes(report) == ["tool-hang"]
    node.tree.heal(L4)
    await node.until(
        HealthReported, L4, lambda fact: fact.window_id > report.window_id and fact.verdict == "healthy"
    )
    assert {fact.verdict for fact in await node.said(HealthReported, T4)} == {"healthy"}
    changed = await node.said(Changed)
    assert all("nvidia-smi" in fact.device.raw for fact in changed)  # a hang takes no fact away


async def test_a_device_that_vanishes_and_its_successor_are_told_apart(node: Node) -> None:
    await node.start()
    old = next(fact.device for fact in await node.said(Discovered) if fact.device.key == T4)
    node.tree.remove(T4)
    assert (await node.until(Removed, T4, lambda _: True)).reason == "unplugged"
    missing = await node.until(HealthReported, T4, lambda fact: fact.verdict == "unhealthy")
    assert codes(missing) == ["missing"]
    node.tree.replace(T4)
    new = await node.until(Discovered, T4, lambda fact: fact.device.serial != old.serial)
    report = await node.until(HealthReported, T4, lambda fact: fact.serial == new.device.serial)
    assert (report.verdict, report.streak) == ("healthy", 1)


async def test_a_device_that_stays_away_is_reported_as_missing_for_a_while_and_then_silent(
    node: Node,
) -> None:
    await node.start()
    node.tree.fault_line(NPU, "80E18402")
    await node.until(HealthReported, NPU, lambda fact: fact.verdict == "unhealthy")
    node.tree.remove(NPU)
    assert (await node.until(Removed, NPU, lambda _: True)).reason == "fell off the bus"
    assert node.discovery is not None
    inventory = node.discovery._inventory
    await node.holds(lambda: not inventory.missing)
    assert NPU not in node.discovery.health.restless()
    assert all(NPU not in beat.device_keys for beat in (await node.said(Heartbeat))[-1:])


async def test_a_passed_diagnosis_is_said_once_however_often_it_is_asked_for(node: Node) -> None:
    await node.start()
    await node.ask(T4)
    answer = await node.until(Diagnosed, T4, lambda _: True)
    assert (answer.outcome, answer.epoch, answer.attempt) == ("passed", 1, 1)
    assert {check.outcome for check in answer.checks} == {"passed"}
    assert answer.serial
    await node.stop()
    await node.start()  # hears the same request again from history
    await node.ask(T4, attempt=2)
    await node.until(Diagnosed, T4, lambda fact: fact.attempt == 2)
    assert [fact.attempt for fact in await node.said(Diagnosed)] == [1, 2]
    after = await node.until(HealthReported, T4, lambda fact: fact.streak >= 2)
    assert after.verdict == "healthy"  # somebody waits for windows: they are reported one by one


async def test_a_failed_diagnosis_says_why_and_a_late_request_is_left_alone(node: Node) -> None:
    await node.start()
    node.tree.fail(L4)
    await node.ask(T4, deadline_s=-1)
    await node.ask(L4)
    await node.ask("nvidia-0000-99-00-0")
    answer = await node.until(Diagnosed, L4, lambda _: True)
    assert answer.outcome == "failed"
    assert {check.name for check in answer.checks if check.outcome == "failed"} == {"tool-answers"}
    stranger = await node.until(Diagnosed, "nvidia-0000-99-00-0", lambda _: True)
    assert stranger.outcome == "failed"
    assert await node.said(Diagnosed, T4) == []


async def test_a_repair_step_runs_its_program_and_a_step_without_one_is_left_to_others(node: Node) -> None:
    commands = {
        "nvidia/reset": ("/usr/bin/reset-gpu", "{bus_address}"),
        "amd/reset": ("/usr/bin/reset-gpu", "{colour}"),
    }
    program = node.tree.root / "usr/bin/reset-gpu"
    program.write_text("#!/bin/sh\necho reset $1\n")
    program.chmod(0o755)
    await node.start(DiscoverySettings(**{**QUICK.model_dump(), "repair_commands": commands}))
    deadline = node.clock.now() + timedelta(seconds=60)
    for key in (NPU, MI210, T4):
        await node.publish(RepairRequested(epoch=1, step="reset", attempt=1, deadline=deadline), key)
    done = await node.until(RepairDone, T4, lambda _: True)
    assert (done.outcome, done.detail, done.step) == ("succeeded", "reset 0000:3b:00.0", "reset")
    assert {fact.step for fact in await node.said(RepairDone)} == {"reset"}
    assert await node.said(RepairDone, NPU) == []
    assert await node.said(RepairDone, MI210) == []


async def test_with_the_bus_gone_everything_waits_in_the_journal_in_order(node: Node) -> None:
    await node.start()
    await node.until(Heartbeat, "agent", lambda _: True)
    node.bus.partition()
    node.tree.fault_line(T4, 79)
    await node.holds(lambda: any('"unhealthy"' in entry for entry in journal(node)))
    assert all(fact.verdict == "healthy" for fact in await node.said(HealthReported, T4))
    node.bus.heal()
    await node.until(HealthReported, T4, lambda fact: fact.verdict == "unhealthy")
    windows = [fact.window_id for fact in await node.said(HealthReported, T4)]
    assert windows == sorted(set(windows))


async def test_a_restart_repeats_nothing_and_misses_nothing_that_happened_meanwhile(node: Node) -> None:
    await node.start()
    node.tree.fault_line(T4, 79)
    await node.until(HealthReported, T4, lambda fact: fact.verdict == "unhealthy")
    await node.until(HealthReported, T4, lambda fact: fact.verdict == "healthy" and fact.streak >= 2)
    await node.stop()
    node.tree.count_errors(L4)
    node.tree.fault_line(MI210)
    node.tree.remove(NPU)
    await node.start()
    assert codes(await node.until(HealthReported, L4, lambda f: f.verdict == "unhealthy")) == [
        "ecc-uncorrected"
    ]
    assert codes(await node.until(HealthReported, MI210, lambda f: f.verdict == "unhealthy")) == [
        "ras-umc-ue"
    ]
    await node.until(Removed, NPU, lambda _: True)
    assert len([fact for fact in await node.said(HealthReported, T4) if fact.evidence]) == 1
    assert len(await node.said(Discovered)) == 4  # they were known


async def test_a_window_that_was_said_just_before_a_crash_is_not_said_again_with_another_verdict(
    node: Node,
) -> None:
    await node.start()
    memory = node.state / "discovery.json"
    before = memory.read_bytes()
    for number, code in enumerate((48, 79), start=1):  # the second, worse, takes the next second's number
        node.tree.fault_line(T4, code)
        await node.holds_soon(HealthReported, T4, lambda fact: bool(fact.evidence), times=number)
    await node.stop()
    memory.write_bytes(before)  # a crash: the journal had it, the memory not yet
    await node.start()
    await node.until(HealthReported, T4, lambda fact: fact.verdict == "healthy" and fact.streak >= 2)
    windows = [fact.window_id for fact in await node.said(HealthReported, T4)]
    assert windows == sorted(set(windows))


async def test_a_reboot_begins_counters_and_kernel_log_anew(node: Node) -> None:
    await node.start()
    first = node.tree.boot_id
    node.tree.count_errors(T4, uncorrectable=5)
    await node.until(HealthReported, T4, lambda fact: "ecc-uncorrected" in codes(fact))
    node.tree.reboot()
    node.tree.fault_line(L4, 79)
    report = await node.until(HealthReported, L4, lambda fact: fact.verdict == "unhealthy")
    assert report.boot_id == node.tree.boot_id != first
    await node.until(HealthReported, T4, lambda fact: fact.boot_id != first and fact.verdict == "healthy")


async def test_a_tool_that_fails_for_all_devices_makes_them_unknown_and_never_unhealthy(node: Node) -> None:
    await node.start()
    node.tree.fail(T4)
    node.tree.fail(L4)
    await node.until(HealthReported, T4, lambda fact: fact.verdict == "unknown")
    await node.until(HealthReported, L4, lambda fact: fact.verdict == "unknown")
    assert "unhealthy" not in {fact.verdict for fact in await node.said(HealthReported, T4)}


async def test_old_kernel_lines_are_history_at_the_start(node: Node) -> None:
    (node.tree.root / "proc/uptime").write_text("100000.5 1.0\n")
    old = "3,50,5000000,-;NVRM: Xid (PCI:0000:3b:00): 79, long ago\n"
    young = "3,51,99990000000,-;NVRM: Xid (PCI:0000:5e:00): 79, just now\n"
    with (node.tree.root / "dev/kmsg").open("a") as log:
        log.write(old + young)
    await node.start()
    report = await node.until(HealthReported, L4, lambda fact: fact.verdict == "unhealthy")
    age = node.clock.now() - report.evidence[0].at
    assert timedelta(seconds=9) < age < timedelta(seconds=30)
    assert {fact.verdict for fact in await node.said(HealthReported, T4)} == {"healthy"}


async def test_a_node_without_devices_or_tools_still_beats(tmp_path: Path) -> None:
    node = Node(tmp_path, models=())
    (node.tree.root / "proc/sys/kernel/random/boot_id").unlink()
    await node.start()
    beat = await node.until(Heartbeat, "agent", lambda _: True)
    assert (beat.device_keys, beat.boot_id) == ((), "unknown")
    await node.stop()


async def test_a_device_of_a_vendor_that_was_not_there_is_found(tmp_path: Path) -> None:
    node = Node(tmp_path, models=("Tesla T4",))
    await node.start()
    (node.tree.root / "sys/class/npu/npu7").mkdir()
    found = await node.until(Discovered, "generic-npu7", lambda _: True)
    assert found.device.sources == ("sysfs",)
    assert (await node.until(HealthReported, "generic-npu7", lambda _: True)).verdict == "healthy"
    (node.tree.root / "sys/bus/pci/devices/0000:3b:00.0/driver").unlink()
    changed = await node.until(Changed, T4, lambda _: True)
    assert "driver" not in changed.device.raw["pci"]
    report = await node.until(HealthReported, T4, lambda fact: fact.verdict == "unhealthy")
    assert codes(report) == ["driver-gone"]
    await node.stop()


async def test_a_node_without_a_name_does_not_start(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="MEDIAFLEET_NODE_NAME"):
        Discovery(QUICK, node="", root=tmp_path, state_dir=tmp_path, source="/x", clock=ManualClock())
