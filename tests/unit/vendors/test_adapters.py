from pathlib import Path
from typing import Any

import pytest

from shared.devices.model import RawDevice, UnifiedDevice
from shared.errors import BadInput
from shared.vendors.adapter import adapter_for, runtime_spec, translate
from shared.vendors.runtime import DeviceNode, Mount, RuntimeSpec, merge
from tests.unit.vendors.captures import parse


def unified(name: str) -> list[UnifiedDevice]:
    return [translate(raw, "worker-3") for raw in parse(name)]


def raw(vendor: str, address: str = "0000:4d:00.0", **facts: dict[str, Any]) -> RawDevice:
    return RawDevice(vendor=vendor, bus_address=address, raw=facts, sources=tuple(facts))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for path in (
        "dev/nvidia0", "dev/nvidiactl", "dev/kfd", "dev/dri/renderD128", "dev/dri/renderD129",
        "dev/dri/card0", "dev/davinci4", "dev/davinci_manager", "dev/npu0", "usr/local/dcmi/lib",
    ):  # fmt: skip
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).touch()
    for name, address in (
        ("card0", "0000:83:00.0"),
        ("renderD128", "0000:83:00.0"),
        ("renderD129", "0000:4d:00.0"),
    ):
        (tmp_path / "sys/class/drm" / name).mkdir(parents=True)
        (tmp_path / "sys/class/drm" / name / "device").symlink_to(f"../../../bus/pci/devices/{address}")
    (tmp_path / "sys/class/drm/version").touch()
    return tmp_path


def test_a_t4_is_translated_with_what_tool_and_table_know() -> None:
    first, _ = unified("nvidia_smi_t4x2_v11.xml")
    assert (first.uid, first.key) == ("nvidia-worker-3-0000:3b:00.0", "nvidia-0000-3b-00-0")
    assert (first.type, first.model, first.serial) == ("GPU", "Tesla T4", "0329001000011")
    assert (first.compute_power.tflops_fp16, first.compute_power.tops_int8) == (65.0, 130.0)
    assert first.memory.allocatable_bytes == (15360 - 388) * 2**20
    assert first.codec_engine.encoders == {"h264": 1, "hevc": 1}
    assert first.engine_ids("dec") == ("nvidia-0000-3b-00-0-dec-0", "nvidia-0000-3b-00-0-dec-1")
    assert first.capabilities == ("cuda-11.7", "nvenc-1", "nvdec-2")
    assert (first.firmware.driver, first.topology.link_generation_max) == ("515.86.01", 4)


def test_mig_devices_have_their_own_engines_and_no_whole_device_s_rates() -> None:
    gpu, large, small = unified("nvidia_smi_a100_mig_v12.xml")
    assert gpu.codec_engine.engines.enc == 0
    assert gpu.codec_engine.encoders == {}
    assert "mig" in gpu.capabilities
    assert (large.parent, large.codec_engine.engines.dec, small.codec_engine.engines.dec) == (gpu.key, 2, 1)
    assert large.compute_power.tflops_fp16 is None
    assert large.memory.bandwidth_bytes_per_s is None
    assert large.uid == "nvidia-worker-3-0000:01:00.0-mig-1-0"


def test_an_amd_unit_that_does_both_is_shared() -> None:
    first, _ = unified("rocm_smi_mi210x2.json")
    engines = first.codec_engine.engines
    assert (engines.enc, engines.dec, engines.shared) == (2, 2, True)
    assert (first.topology.numa_node, first.vendor_extensions["amd.sku"]) == (1, "D67301")


def test_a_card_of_two_chips_leaves_engines_to_its_chips() -> None:
    card, first, _ = unified("npu_smi_info_310p_duo.txt")
    assert (card.model, card.codec_engine.engines.enc) == ("Ascend 310P3 card", None)
    assert (first.model, first.codec_engine.engines.enc, first.codec_engine.engines.jpeg) == (
        "Ascend 310P3",
        3,
        16,
    )
    assert first.parent == card.key


def test_a_codec_whose_units_nobody_counted_is_listed_without_a_number() -> None:
    (npu,) = unified("npu_smi_pages_910a.txt")
    assert npu.codec_engine.decoders == {"h264": None, "hevc": None}
    assert npu.codec_engine.engines.dec is None


@pytest.mark.parametrize(
    ("device", "kind", "model"),
    [
        (raw("intel", pci={"pci_id": "8086:56c0", "class": "038000"}), "GPU", "Data Center GPU Flex 170"),
        (raw("cambricon", pci={"pci_id": "cabc:0370", "class": "120000"}), "NPU", "MLU370"),
        (raw("hygon", pci={"pci_id": "1d94:6211", "class": "120000"}), "GPU", "K100_AI"),
        (raw("generic", pci={"pci_id": "beef:0001", "class": "120000"}), "NPU", "generic beef:0001"),
        (raw("generic", "npu0", sysfs={"class": "npu", "name": "npu0", "model": "X1"}), "NPU", "generic X1"),
        (raw("generic", "fpga0", sysfs={"class": "fpga_manager"}), "FPGA", "generic fpga0"),
        (raw("generic", "vpu0", sysfs={"class": "vpu"}), "VPU", "generic vpu0"),
        (raw("nvidia", pci={"pci_id": "10de:ffff"}), "GPU", "NVIDIA 10de:ffff"),
        (raw("amd", pci={"pci_id": "1002:ffff"}), "GPU", "AMD 1002:ffff"),
        (raw("huawei", pci={"pci_id": "19e5:ffff"}), "NPU", "Huawei 19e5:ffff"),
        (raw("huawei", pci={"pci_id": "19e5:d802"}), "NPU", "Ascend 910B"),
    ],
)
def test_devices_known_from_sysfs_only_are_translated_with_what_is_known(
    device: RawDevice, kind: str, model: str
) -> None:
    made = translate(device, "w")
    assert (made.type, made.model) == (kind, model)
    if "ffff" in model or "generic" in model:
        assert made.codec_engine.engines.enc is None
        assert made.codec_engine.encoders is None


def test_impossible_facts_from_elsewhere_are_not_known() -> None:
    odd = {"pci_id": 7, "numa_node": -1, "link_width_max": True, "path": "x", "driver_version": ""}
    made = translate(raw("generic", pci=odd), "w")
    assert (made.topology.numa_node, made.topology.link_width_max, made.topology.pci_path) == (
        None,
        None,
        None,
    )
    assert made.firmware.driver is None


def test_a_bad_node_name_is_refused() -> None:
    with pytest.raises(BadInput, match="node"):
        translate(raw("generic"), "*")


def test_nvidia_gets_one_visible_device_and_only_nodes_that_exist(root: Path) -> None:
    first, _ = unified("nvidia_smi_t4x2_v11.xml")
    spec = runtime_spec(first, [f"{first.key}-enc-0", f"{first.key}-dec-1"], root)
    assert spec.env == {
        "NVIDIA_VISIBLE_DEVICES": "GPU-0a0a0a0a-1111-2222-3333-000000000001",
        "NVIDIA_DRIVER_CAPABILITIES": "compute,video,utility",
        "NVENC_INSTANCE_IDS": "0",
        "NVDEC_INSTANCE_IDS": "1",
    }
    assert [node.host_path for node in spec.device_nodes] == ["/dev/nvidia0", "/dev/nvidiactl"]


def test_a_mig_device_is_visible_by_its_own_name_only(root: Path) -> None:
    _, large, small = unified("nvidia_smi_a100_mig_v12.xml")
    visible = [runtime_spec(each, [], root).env["NVIDIA_VISIBLE_DEVICES"] for each in (large, small)]
    assert visible == [
        "MIG-GPU-0b0b0b0b-1111-2222-3333-000000000003/1/0",
        "MIG-0c0c0c0c-1111-2222-3333-000000000004",
    ]


def test_a_device_without_identity_makes_nothing_visible(root: Path) -> None:
    gpu = translate(raw("nvidia", pci={"pci_id": "10de:1eb8"}), "w")
    assert runtime_spec(gpu, [], root).env["NVIDIA_VISIBLE_DEVICES"] == "0000:4d:00.0"
    child = gpu.model_copy(update={"parent": gpu.key})
    assert runtime_spec(child, [], root).env["NVIDIA_VISIBLE_DEVICES"] == "void"


def test_amd_gets_its_own_nodes_and_no_other_card_s(root: Path) -> None:
    first, second = unified("rocm_smi_mi210x2.json")
    spec = runtime_spec(first, [f"{first.key}-enc-1"], root)
    assert [node.host_path for node in spec.device_nodes] == [
        "/dev/kfd",
        "/dev/dri/renderD128",
        "/dev/dri/card0",
    ]
    assert spec.annotations == {"media.example.com/amd-0000-83-00-0-numa": "1"}
    assert [node.host_path for node in runtime_spec(second, [], root).device_nodes] == ["/dev/kfd"]


def test_ascend_gets_its_davinci_node_and_the_driver_read_only(root: Path) -> None:
    _, second = unified("npu_smi_info_910bx2.txt")
    spec = runtime_spec(second, [], root)
    assert spec.env["ASCEND_VISIBLE_DEVICES"] == "4"
    assert spec.env["NPU_MEMORY_TOTAL"] == str(65536 << 20)
    assert [node.host_path for node in spec.device_nodes] == ["/dev/davinci4", "/dev/davinci_manager"]
    assert spec.mounts == (Mount("/usr/local/dcmi", "/usr/local/dcmi", read_only=True),)
    (old,) = unified("npu_smi_pages_910a.txt")
    assert runtime_spec(old, [], root).env["NPU_COMPUTE_TOPS"] == "512"
    bare = translate(raw("huawei", pci={"pci_id": "19e5:ffff"}), "w")
    assert set(runtime_spec(bare, [], root).env) == {"NPU_DEVICE_ID"}


def test_a_generic_device_gets_one_render_node_or_its_own_file(root: Path) -> None:
    intel = translate(raw("intel", pci={"pci_id": "8086:56c0", "class": "038000"}), "w")
    assert runtime_spec(intel, [], root).device_nodes == (
        DeviceNode("/dev/dri/renderD129", "/dev/dri/renderD129"),
    )
    sysfs = {"class": "npu", "name": "npu0", "memory_total_bytes": 2**33}
    npu = translate(raw("generic", "npu0", sysfs=sysfs), "w")
    spec = runtime_spec(npu, [], root)
    assert spec.env == {"NPU_DEVICE_ID": "generic-npu0", "NPU_MEMORY_TOTAL": str(2**33)}
    assert [node.host_path for node in spec.device_nodes] == ["/dev/npu0"]


def test_a_root_without_devices_lists_nothing(tmp_path: Path) -> None:
    first, _ = unified("rocm_smi_mi210x2.json")
    assert runtime_spec(first, [], tmp_path).device_nodes == ()


@pytest.mark.parametrize("engine", ["nvidia-0000-af-00-0-enc-0", "nvidia-0000-3b-00-0", "*"])
def test_engines_of_another_device_are_refused(engine: str, root: Path) -> None:
    first, _ = unified("nvidia_smi_t4x2_v11.xml")
    with pytest.raises(BadInput, match="engines"):
        runtime_spec(first, [engine], root)


def test_specs_of_several_devices_become_one_without_repeats() -> None:
    node = DeviceNode("/dev/kfd", "/dev/kfd")
    one = RuntimeSpec({"A": "1", "C": "x,y"}, (node,), (Mount("/a", "/a"),), {"n": "0"})
    two = RuntimeSpec({"A": "2", "C": "x,y"}, (node,), (Mount("/a", "/a"),), {"m": "1"})
    assert merge([one, two]) == RuntimeSpec(
        {"A": "1,2", "C": "x,y"}, (node,), (Mount("/a", "/a"),), {"n": "0", "m": "1"}
    )


def test_a_vendor_without_an_adapter_of_its_own_has_the_generic_one() -> None:
    assert adapter_for("hygon") is adapter_for("generic")
