from __future__ import annotations

import json
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from services.simulator.control import DeviceFault, strike
from services.simulator.hardware import MODELS, NodeSpec, demo_nodes, device_in, fleet_nodes
from services.simulator.trees import HostTree, demo_root
from shared.errors import BadInput
from shared.vendors import kernel_lines
from shared.vendors.captures import npu_smi_text, nvidia_smi_xml, rocm_smi_json

READ = {
    "nvidia": ("nvidia-smi", ("-q", "-x"), nvidia_smi_xml.parse),
    "amd": ("rocm-smi", ("--showallinfo", "--json"), rocm_smi_json.parse),
    "huawei": ("npu-smi", ("info",), npu_smi_text.parse),
}


@pytest.fixture
def base() -> Iterator[Path]:
    directory = Path(tempfile.mkdtemp(prefix="mf-"))
    yield directory
    shutil.rmtree(directory)


def grown(base: Path, model: str, count: int = 2) -> HostTree:
    tree = HostTree(base / "w", NodeSpec("w", (model,) * count))
    tree.build()
    return tree


def ask(tree: HostTree, *arguments: str, tool: str = "nvidia-smi") -> subprocess.CompletedProcess[str]:
    program = tree.root / "usr/bin" / tool
    return subprocess.run([program, *arguments], capture_output=True, text=True, check=False, timeout=10)


@pytest.mark.parametrize("model", sorted(MODELS))
def test_the_tools_of_every_model_are_read_back_as_the_devices_that_are_there(base: Path, model: str) -> None:
    tree = grown(base, model)
    tool, arguments, parse = READ[MODELS[model].vendor]
    text = ask(tree, *arguments, tool=tool).stdout
    if tool == "npu-smi":
        pages = (
            ask(tree, "info", "-t", page, "-i", n, tool=tool).stdout
            for n in "01"
            for page in ("board", "ecc")
        )
        text = "\n".join((text, *pages))
    read = parse(text)
    assert [device.bus_address for device in read] == [device.bus_address for device in tree.devices]
    assert [device.serial for device in read] == [device.serial for device in tree.devices]
    assert not [warning for device in read for warning in device.warnings]


@pytest.mark.parametrize("model", sorted(MODELS))
def test_sysfs_shows_each_device_with_its_driver(base: Path, model: str) -> None:
    tree = grown(base, model)
    for device in tree.devices:
        folder = tree.root / "sys/bus/pci/devices" / device.bus_address
        assert (folder / "device").read_text() == f"0x{MODELS[model].device_id}\n"
        assert (folder / "numa_node").read_text() == f"{device.numa_node}\n"
        assert (folder / "driver").readlink().name in {"nvidia", "amdgpu", "devdrv_device_driver"}
        assert (folder / "driver").resolve().is_dir()
    assert {device.numa_node for device in tree.devices} == {0, 1}


def test_one_seed_makes_one_cluster_and_another_seed_another() -> None:
    one, same, other = (tuple(s.devices() for s in demo_nodes(seed)) for seed in (4, 4, 5))
    assert one == same
    assert {d.serial for node in one for d in node}.isdisjoint(d.serial for node in other for d in node)
    assert [node[0].model.vendor for node in other] == ["nvidia", "amd", "huawei"]
    assert len({spec.name for spec in fleet_nodes(200)}) == 200


def test_errors_are_counted_in_the_capture_and_in_sysfs(base: Path) -> None:
    tree = grown(base, "NVIDIA L4")
    tree.count_errors("1", uncorrectable=3, correctable=5)
    first, second = nvidia_smi_xml.parse(ask(tree, "-q", "-x").stdout)
    assert (first.readings.ecc_uncorrected, second.readings.ecc_uncorrected) == (0, 3)
    other = HostTree(base / "a", NodeSpec("a", ("Instinct MI210",)))
    other.build()
    other.count_errors("0")
    counts = other.root / "sys/bus/pci/devices" / other.devices[0].bus_address / "ras/umc_err_count"
    assert counts.read_text() == "ue: 1\nce: 0\n"


def test_a_tool_that_fails_for_one_device_still_answers_for_the_others(base: Path) -> None:
    tree = grown(base, "NVIDIA L4")
    tree.fail("nvidia-0000-3b-00-0")
    assert ask(tree, "-q", "-x").returncode != 0
    assert ask(tree, "-q", "-x", "-i", "0000:3b:00.0").returncode != 0
    assert ask(tree, "-q", "-x", "-i", "0000:5e:00.0").returncode == 0
    tree.heal("0")
    assert len(nvidia_smi_xml.parse(ask(tree, "-q", "-x").stdout)) == 2


def test_a_tool_that_hangs_for_one_device_still_answers_for_the_others(base: Path) -> None:
    tree = grown(base, "310P3")
    tree.hang("0")
    answers = tree.root / "usr/bin/npu-smi.d"
    assert {path.name for path in answers.glob("*.hang")} == {"0.hang", "all.hang"}
    assert ask(tree, "info", "-t", "board", "-i", "1", tool="npu-smi").returncode == 0


def test_a_device_that_is_removed_leaves_nothing_and_comes_back_when_healed(base: Path) -> None:
    tree = grown(base, "Instinct MI100")
    before = {path.relative_to(tree.root) for path in tree.root.rglob("*")}
    tree.remove("0")
    assert not (tree.root / "sys/bus/pci/devices/0000:3b:00.0").exists()
    assert not (tree.root / "sys/class/drm/card0").exists()
    assert not (tree.root / "dev/dri/renderD128").exists()
    (left,) = rocm_smi_json.parse(ask(tree, "--showallinfo", "--json", tool="rocm-smi").stdout)
    assert left.bus_address == "0000:5e:00.0"
    tree.remove("0")
    tree.heal("0")
    assert {path.relative_to(tree.root) for path in tree.root.rglob("*")} == before


def test_a_board_that_is_replaced_has_another_serial_in_the_same_slot(base: Path) -> None:
    tree = grown(base, "Tesla T4")
    old = tree.devices[0]
    tree.count_errors("0")
    new = tree.replace("0")
    assert new.bus_address == old.bus_address
    assert new.serial != old.serial
    assert new.uncorrectable == 0
    assert tree.replace("0", serial="1399999999999").serial == "1399999999999"
    assert tree.devices[1] == device_in(tree.spec, 1)


def test_a_reboot_makes_another_boot_with_an_empty_log(base: Path) -> None:
    tree = grown(base, "NVIDIA L4")
    tree.fault_line("0", 79)
    tree.count_errors("0")
    first, log = tree.boot_id, tree.root / "dev/kmsg"
    (tree.root / "var/run/cdi/x.json").write_text("{}")
    tree.reboot()
    assert tree.boot_id != first
    assert (tree.root / "proc/sys/kernel/random/boot_id").read_text() == f"{tree.boot_id}\n"
    assert "Xid" not in log.read_text()
    assert tree.devices[0].uncorrectable == 0
    assert tree.devices[0].lifetime_uncorrectable == 1
    assert not list((tree.root / "var/run/cdi").iterdir())


@pytest.mark.parametrize(
    ("model", "code", "read", "condition"),
    [
        ("NVIDIA L4", 79, "79", "dead"),
        ("NVIDIA L4", 31, "31", "ok"),
        ("Instinct MI210", "umc", "ras-umc-ue", "degraded"),
        ("910B3", "80E18402", "80E18402", "dead"),
    ],
)
def test_a_kernel_line_is_read_as_evidence_and_does_what_its_class_means(
    base: Path, model: str, code: int | str, read: str, condition: str
) -> None:
    tree = grown(base, model)
    strike(tree, DeviceFault(node="w", device="1", kind="line", code=code))
    records = (tree.root / "dev/kmsg").read_text().splitlines()
    (evidence,) = filter(None, map(kernel_lines.parse, records))
    assert evidence.bus_address == tree.devices[1].bus_address
    assert evidence.code == read
    assert evidence.sequence == len(records)
    assert [device.condition for device in tree.devices] == ["ok", condition]


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("ecc", {"uncorrectable": 1}),
        ("remove", {"present": False, "condition": "dead"}),
        ("hang", {"condition": "degraded"}),
        ("condition", {"condition": "dead"}),
    ],
)
def test_faults_do_what_their_name_says_and_healing_undoes_it(
    base: Path, kind: str, expected: dict[str, object]
) -> None:
    tree = grown(base, "NVIDIA L4")
    well = tree.devices[0]
    extra = {"condition": "dead"} if kind == "condition" else {}
    body = json.dumps({"node": "w", "device": "0", "kind": kind} | extra)
    strike(tree, DeviceFault.model_validate_json(body))
    assert {name: getattr(tree.devices[0], name) for name in expected} == expected
    strike(tree, DeviceFault(node="w", device="0", kind="heal"))
    assert (tree.devices[0].condition, tree.devices[0].present, tree.devices[0].uncorrectable) == (
        "ok",
        True,
        0,
    )
    assert tree.devices[0].temperature_c == well.temperature_c


@pytest.mark.parametrize("model", ["NVIDIA L4", "Instinct MI210", "910B3"])
def test_a_device_that_is_lost_is_silent_and_its_driver_says_why(base: Path, model: str) -> None:
    tree = grown(base, model)
    strike(tree, DeviceFault(node="w", device="0", kind="lost"))
    tool, arguments, _ = READ[MODELS[model].vendor]
    assert ask(tree, *arguments, tool=tool).returncode != 0
    (evidence,) = filter(None, map(kernel_lines.parse, (tree.root / "dev/kmsg").read_text().splitlines()))
    assert evidence.fault.fault_class == "fatal"
    assert tree.devices[0].condition == "dead"
    strike(tree, DeviceFault(node="w", device="0", kind="heal"))
    assert ask(tree, *arguments, tool=tool).returncode == 0


def test_bad_names_say_what_to_write(base: Path) -> None:
    tree = grown(base, "NVIDIA L4")
    with pytest.raises(BadInput, match="write one of nvidia-0000-3b-00-0"):
        tree.heal("nvidia-0000-99-00-0")
    with pytest.raises(BadInput, match="is no Xid"):
        strike(tree, DeviceFault(node="w", device="0", kind="xid", code="umc"))
    with pytest.raises(BadInput, match="not simulated"):
        NodeSpec("w", ("Voodoo 2",)).devices()
    with pytest.raises(BadInput, match="choose a shorter directory"):
        demo_root(base / ("x" * 80), "worker-1")
