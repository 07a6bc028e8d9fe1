import json
from pathlib import Path

import pytest

from services.discovery.offline import discover, main
from shared.errors import BadInput
from tests.unit.discovery.trees import T4, pci
from tests.unit.vendors.captures import FOLDER


def test_a_tree_and_captures_become_unified_devices(tmp_path: Path) -> None:
    pci(tmp_path, "0000:3b:00.0", T4, driver="nvidia")
    captures = [
        ("nvidia-smi-xml", FOLDER / "nvidia_smi_t4x2_v11.xml"),
        ("rocm-smi-json", FOLDER / "rocm_smi_mi210x2.json"),
        ("npu-smi-text", FOLDER / "npu_smi_info_310p_duo.txt"),
    ]
    found = discover(tmp_path, "worker-3", captures)
    assert [device.key for device in found.devices] == [
        "amd-0000-83-00-0",
        "amd-0000-a3-00-0",
        "huawei-0000-81-00-0",
        "huawei-0000-81-00-0-chip-0",
        "huawei-0000-81-00-0-chip-1",
        "nvidia-0000-3b-00-0",
        "nvidia-0000-af-00-0",
    ]
    t4 = found.devices[5]
    assert (t4.topology.numa_node, t4.serial) == (1, "0329001000011")
    assert found.problems == ()


def test_a_tree_alone_is_enough_and_what_is_wrong_is_listed(tmp_path: Path) -> None:
    pci(tmp_path, "0000:3b:00.0", {**T4, "numa_node": "x"})
    found = discover(tmp_path, "w")
    assert len(found.devices) == 1
    assert str(found.problems[0]).startswith("sys/bus/pci/devices/0000:3b:00.0/numa_node: ")


def test_doubts_about_a_capture_are_problems(tmp_path: Path) -> None:
    capture = tmp_path / "c.xml"
    capture.write_text((FOLDER / "nvidia_smi_l4_v13.xml").read_text().replace("<gpu_temp>41", "<gpu_temp>-1"))
    assert "gpu_temp" in str(discover(tmp_path, "w", [("nvidia-smi-xml", capture)]).problems[0])


def test_a_device_that_cannot_be_named_is_a_problem_and_the_others_are_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pci(tmp_path, "0000:3b:00.0", T4)

    def refuse(*_: object) -> None:
        raise BadInput("vendor", "odd", "mend it")

    monkeypatch.setattr("services.discovery.offline.translate", refuse)
    found = discover(tmp_path, "w")
    assert (found.devices, len(found.problems)) == ((), 1)


@pytest.mark.parametrize(
    ("node", "kind", "name", "field"),
    [
        ("a b", "npu-smi-text", "npu_smi_info_310p_duo.txt", "node"),
        ("w", "lspci", "npu_smi_info_310p_duo.txt", "capture"),
        ("w", "npu-smi-text", "nowhere.txt", "capture"),
        ("w", "npu-smi-text", "rocm_smi_mi210x2.json", "npu-smi"),
    ],
)
def test_what_cannot_be_used_is_refused_by_field(
    tmp_path: Path, node: str, kind: str, name: str, field: str
) -> None:
    with pytest.raises(BadInput) as caught:
        discover(tmp_path, node, [(kind, FOLDER / name)])
    assert caught.value.field == field


def test_a_root_that_is_no_directory_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="root"):
        discover(tmp_path / "nowhere", "w")


def test_the_program_prints_an_array_and_what_is_wrong_beside_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pci(tmp_path, "0000:3b:00.0", {**T4, "numa_node": "x"})
    capture = f"nvidia-smi-xml={FOLDER / 'nvidia_smi_t4x2_v11.xml'}"
    assert main(["--root", str(tmp_path), "--node", "w", "--capture", capture]) == 0
    printed = capsys.readouterr()
    assert [device["uid"] for device in json.loads(printed.out)] == [
        "nvidia-w-0000:3b:00.0",
        "nvidia-w-0000:af:00.0",
    ]
    assert "numa_node" in printed.err


@pytest.mark.parametrize("capture", ["nvidia-smi-xml", "=x", "lspci=x"])
def test_the_program_ends_with_2_on_bad_input(
    tmp_path: Path, capture: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--root", str(tmp_path), "--capture", capture]) == 2
    assert "capture" in capsys.readouterr().err
