from pathlib import Path

from services.discovery.scan import (
    carry_over,
    compare,
    driver_of,
    is_present,
    merge,
    read_pci,
    scan,
    signature,
)
from shared.devices.model import RawDevice
from shared.devices.readings import Readings
from tests.unit.discovery.trees import MI210, NPU, T4, pci, write


def test_accelerators_are_found_by_class_and_vendor_and_the_rest_is_left_alone(tmp_path: Path) -> None:
    pci(tmp_path, "0000:3b:00.0", T4, driver="nvidia")
    pci(tmp_path, "0000:83:00.0", MI210)
    pci(tmp_path, "0000:c1:00.0", NPU)
    pci(tmp_path, "0000:d1:00.0", {"vendor": "0xbeef", "device": "0x0001", "class": "0x120000"})
    pci(
        tmp_path, "0000:01:00.0", {"vendor": "0x1a03", "device": "0x2000", "class": "0x030000"}
    )  # console chip
    pci(
        tmp_path, "0000:02:00.0", {"vendor": "0x19e5", "device": "0x1711", "class": "0x030000"}
    )  # console chip
    pci(tmp_path, "0000:3b:00.1", {"vendor": "0x10de", "device": "0x10f8", "class": "0x040300"})  # sound
    write(tmp_path, "sys/module/nvidia/version", "535.1")
    found = scan(tmp_path)
    assert not found.problems
    assert [device.key for device in found.devices] == [
        "nvidia-0000-3b-00-0",
        "amd-0000-83-00-0",
        "huawei-0000-c1-00-0",
        "generic-0000-d1-00-0",
    ]
    facts = found.devices[0].raw["pci"]
    assert (facts["pci_id"], facts["class"], facts["numa_node"]) == ("10de:1eb8", "030200", 1)
    assert (facts["driver"], facts["driver_version"]) == ("nvidia", "535.1")
    assert (facts["link_generation_max"], facts["link_width_max"]) == (3, 16)
    assert found.devices[0].readings.link_generation == 1
    assert found.devices[1].serial == "PCB7"
    assert "numa_node" not in found.devices[2].raw["pci"]


def test_missing_and_unreadable_files_are_problems_and_the_others_are_still_found(tmp_path: Path) -> None:
    pci(tmp_path, "0000:3b:00.0", {**T4, "numa_node": "many", "class": "?"})  # the table knows the id
    pci(tmp_path, "0000:3c:00.0", {"vendor": "0x10de", "class": "0x030200"})
    pci(tmp_path, "0000:3d:00.0", {"vendor": "rubbish", "device": "0x1", "class": "0x030200"})
    pci(tmp_path, "a.b*", T4)
    broken = pci(tmp_path, "0000:3e:00.0", T4)
    (broken / "serial_number").mkdir()
    (tmp_path / "sys/class").mkdir(parents=True)
    (tmp_path / "sys/class/npu").write_text("no directory")
    found = scan(tmp_path)
    assert [device.key for device in found.devices] == ["nvidia-0000-3b-00-0", "nvidia-0000-3e-00-0"]
    where = {problem.where for problem in found.problems}
    assert where == {
        "sys/bus/pci/devices/0000:3b:00.0/class",
        "sys/bus/pci/devices/0000:3b:00.0/numa_node",
        "sys/bus/pci/devices/0000:3c:00.0/device",
        "sys/bus/pci/devices/0000:3d:00.0/vendor",
        "sys/bus/pci/devices/0000:3d:00.0/device",
        "sys/bus/pci/devices/0000:3e:00.0/serial_number",
        "sys/bus/pci/devices/a.b*",
        "sys/class/npu",
    }
    assert all(str(problem).startswith(problem.where) for problem in found.problems)


def test_an_empty_root_has_no_devices_and_no_problems(tmp_path: Path) -> None:
    assert scan(tmp_path).devices == ()
    assert scan(tmp_path).problems == ()


def test_class_entries_add_to_their_pci_device_or_stand_alone(tmp_path: Path) -> None:
    pci(tmp_path, "0000:c1:00.0", NPU)
    for name, model, memory in (
        ("npu0", "910B3", "65536"),
        ("npu1", "X1", str(2**33)),
        ("npu2", "gone", "1"),
    ):
        write(tmp_path, f"sys/class/npu/{name}/model", model)
        write(tmp_path, f"sys/class/npu/{name}/memory_total", memory)
    write(tmp_path, "sys/class/npu/npu0/serial", "S0")
    write(tmp_path, "sys/class/npu/npu1/numa_node", "1")
    write(tmp_path, "sys/class/accel/bad.name/model", "x")
    (tmp_path / "sys/class/npu/npu0/device").symlink_to("../../../bus/pci/devices/0000:c1:00.0")
    (tmp_path / "sys/class/npu/npu2/device").symlink_to("../../../bus/pci/devices/0000:ee:00.0")
    first, second = scan(tmp_path).devices
    assert (first.key, first.serial, first.sources) == ("huawei-0000-c1-00-0", "S0", ("pci", "sysfs"))
    assert first.raw["sysfs"]["memory_total_bytes"] == 2**36  # MB there, bytes below
    assert (second.key, second.raw["sysfs"]["memory_total_bytes"]) == ("generic-npu1", 2**33)
    assert second.raw["pci"] == {"numa_node": 1}
    assert is_present(tmp_path, second)
    assert not is_present(tmp_path, RawDevice(vendor="generic", bus_address="npu9"))


def test_the_way_to_a_device_is_read_from_its_link(tmp_path: Path) -> None:
    pci(tmp_path, "elsewhere", T4)
    devices = tmp_path / "sys/bus/pci/devices"
    (devices / "elsewhere").rename(tmp_path / "real")
    parent = tmp_path / "sys/devices/pci0000:3a/0000:3a:00.0"
    parent.mkdir(parents=True)
    (tmp_path / "real").rename(parent / "0000:3b:00.0")
    (devices / "0000:3b:00.0").symlink_to("../../../devices/pci0000:3a/0000:3a:00.0/0000:3b:00.0")
    (devices / "0000:3c:00.0").symlink_to("../../../devices/pci0000:3a/0000:3a:00.0/0000:3b:00.0")
    assert scan(tmp_path).devices[0].raw["pci"]["path"] == ["0000:3a:00.0"]


def test_counters_of_sysfs_are_read_anew(tmp_path: Path) -> None:
    pci(tmp_path, "0000:83:00.0", MI210, driver="amdgpu")
    write(tmp_path, "sys/bus/pci/devices/0000:83:00.0/ras/umc_err_count", "ue: 3\nce: 9")
    assert read_pci(tmp_path, "0000:83:00.0").ecc_uncorrected == 3
    assert driver_of(tmp_path, "0000:83:00.0") == "amdgpu"
    assert driver_of(tmp_path, "0000:84:00.0") is None


def test_a_change_of_devices_or_drivers_changes_the_signature(tmp_path: Path) -> None:
    before = signature(tmp_path)
    directory = pci(tmp_path, "0000:3b:00.0", T4, driver="nvidia")
    plugged = signature(tmp_path)
    (directory / "driver").unlink()
    unbound = signature(tmp_path)
    (tmp_path / "sys/class/npu/npu0").mkdir(parents=True)
    assert len({before, plugged, unbound, signature(tmp_path)}) == 4


def gpu(
    source: str, *, partition: str | None = None, serial: str | None = None, **facts: object
) -> RawDevice:
    return RawDevice(
        vendor="nvidia",
        bus_address="0000:3b:00.0",
        partition=partition,
        parent=None if partition is None else "nvidia-0000-3b-00-0",
        serial=serial,
        raw={source: dict(facts)},
        sources=(source,),
    )


def test_what_sysfs_and_a_tool_say_of_one_device_is_joined() -> None:
    found = gpu("pci", pci_id="10de:20b2", numa_node=1, link_width_max=16).model_copy(
        update={"readings": Readings(link_width=8, temperature_c=None)}
    )
    told = gpu("nvidia-smi", serial="S", name="A100").model_copy(
        update={"readings": Readings(temperature_c=40.0)}
    )
    device, child = merge([found], [told, gpu("nvidia-smi", partition="mig-1-0")])
    assert (device.serial, device.sources) == ("S", ("pci", "nvidia-smi"))
    assert device.readings == Readings(link_width=8, temperature_c=40.0)
    assert child.raw["pci"] == {"pci_id": "10de:20b2", "numa_node": 1}


def test_a_device_that_only_a_tool_saw_is_kept() -> None:
    assert merge([], [gpu("nvidia-smi")])[0].sources == ("nvidia-smi",)


def test_a_silent_tool_changes_nothing_about_a_device() -> None:
    told = [gpu("nvidia-smi", serial="S", name="A100"), gpu("nvidia-smi", partition="mig-1-0")]
    before = merge([gpu("pci", pci_id="10de:20b2")], told)
    fresh = [gpu("pci", pci_id="10de:20b2", driver="x")]
    device, child = carry_over(fresh, before, {"nvidia-0000-3b-00-0"})
    assert (device.serial, device.raw["pci"]["driver"]) == ("S", "x")
    assert device.raw["nvidia-smi"] == {"name": "A100"}
    assert child.partition == "mig-1-0"
    assert carry_over(fresh, before, set()) == tuple(fresh)
    assert carry_over([], before, {"nvidia-0000-3b-00-0"}) == ()
    other = [gpu("pci", pci_id="10de:1eb8")]
    assert carry_over(other, before, {"nvidia-0000-3b-00-0"}) == tuple(other)


def test_differences_are_about_facts_and_not_about_readings() -> None:
    old = gpu("pci", serial="S")
    warm = old.model_copy(update={"readings": Readings(temperature_c=70.0)})
    moved = old.model_copy(update={"serial": "T"})
    assert compare({"a": old}, {"a": warm}).changed == ()
    difference = compare({"a": old, "b": old}, {"a": moved, "c": old})
    assert (difference.changed, difference.removed, difference.discovered) == ((moved,), (old,), (old,))
