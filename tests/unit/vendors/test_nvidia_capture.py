import pytest

from shared.errors import BadInput
from shared.vendors.captures.nvidia_smi_xml import parse
from tests.unit.vendors.captures import parse as read
from tests.unit.vendors.captures import text

T4S, A100, L4 = "nvidia_smi_t4x2_v11.xml", "nvidia_smi_a100_mig_v12.xml", "nvidia_smi_l4_v13.xml"
SECOND = "<gpu_instance_id>2<"


def test_an_old_schema_gives_every_gpu_with_its_facts_and_readings() -> None:
    first, second = read(T4S)
    assert (first.key, first.serial) == ("nvidia-0000-3b-00-0", "0329001000011")
    facts = first.raw["nvidia-smi"]
    assert facts["product_name"] == "Tesla T4"
    assert (facts["pci_id"], facts["fb_memory_total_bytes"]) == ("10de:1eb8", 15360 * 2**20)
    assert (facts["driver_version"], facts["cuda_version"], facts["link_width_max"]) == (
        "515.86.01",
        "11.7",
        16,
    )
    seen = first.readings
    assert (seen.ecc_uncorrected, seen.ecc_corrected, seen.pcie_replays) == (0, 2, 3)
    assert (seen.temperature_c, seen.temperature_limit_c, seen.power_w, seen.busy) == (41.0, 90.0, 31.5, 0.37)
    assert (seen.link_generation, seen.link_generation_max, seen.page_retire_pending) == (1, 4, False)
    assert seen.row_remap_failed is None
    assert second.serial == "GPU-0a0a0a0a-1111-2222-3333-000000000002"  # zeros are no serial
    assert not first.warnings


def test_mig_devices_are_children_with_the_driver_s_engine_counts() -> None:
    parent, large, small = read(A100)
    assert parent.readings.row_remap_pending is True
    assert parent.readings.row_remap_failed is False
    assert (large.key, large.parent, large.serial) == (f"{parent.key}-mig-1-0", parent.key, parent.serial)
    assert large.raw["nvidia-smi"]["decoder_count"] == 2
    assert large.raw["nvidia-smi"]["encoder_count"] == 0
    assert "mig_uuid" not in large.raw["nvidia-smi"]
    assert small.raw["nvidia-smi"]["mig_uuid"] == "MIG-0c0c0c0c-1111-2222-3333-000000000004"
    assert small.readings.ecc_uncorrected == 0


def test_a_new_schema_sums_its_counters_and_gives_the_driver_s_advice() -> None:
    (gpu,) = read(L4)
    assert gpu.readings.ecc_uncorrected == 7
    assert gpu.readings.recovery_action == "drain and reset"


def test_advice_comes_from_whichever_field_the_driver_prints() -> None:
    old = text(A100).replace("<reset_required>No<", "<reset_required>Yes<")
    assert parse(old)[0].readings.recovery_action == "reset"
    none = text(L4).replace("Drain and Reset", "None")
    assert parse(none)[0].readings.recovery_action == "none"
    assert read(T4S)[0].readings.recovery_action is None


def test_counters_of_the_oldest_schema_are_read_by_their_old_names() -> None:
    start = text(T4S).index("<volatile>")
    end = text(T4S).index("</volatile>")
    old = "<volatile><single_bit><total>5</total></single_bit><double_bit><total>2</total></double_bit>"
    seen = parse(text(T4S)[:start] + old + text(T4S)[end:])[0].readings
    assert (seen.ecc_corrected, seen.ecc_uncorrected) == (5, 2)


def test_a_gpu_without_counters_has_none() -> None:
    start, end = text(L4).index("<ecc_errors>"), text(L4).index("<retired_pages>")
    assert parse(text(L4)[:start] + text(L4)[end:])[0].readings.ecc_uncorrected is None


def test_a_figure_that_cannot_be_is_unknown_and_said() -> None:
    broken = text(L4)
    for good, bad in (
        ("<gpu_temp>41 C", "<gpu_temp>-7 C"),
        ("31.50 W", "NaN W"),
        ("<total>23034 MiB", "<total>23034 furlongs"),
        ("27B810DE", "?"),
        ("<replay_counter>3", "<replay_counter>3.5"),
        ("<pending_retirement>No", "<pending_retirement>perhaps"),
    ):
        assert good in broken
        broken = broken.replace(good, bad)
    (gpu,) = parse(broken)
    seen = gpu.readings
    assert (seen.temperature_c, seen.power_w, seen.pcie_replays, seen.page_retire_pending) == (
        None,
        None,
        None,
        None,
    )
    assert not {"fb_memory_total_bytes", "pci_id"} & gpu.raw["nvidia-smi"].keys()
    assert len(gpu.warnings) == 6
    assert all(warning.startswith("nvidia-smi.gpu[0].") for warning in gpu.warnings)


def test_gpus_that_are_counted_and_not_described_are_said() -> None:
    (gpu,) = parse(text(L4).replace("<attached_gpus>1<", "<attached_gpus>4<"))
    assert "attached_gpus" in gpu.warnings[0]


def test_a_host_without_gpus_is_no_error() -> None:
    assert parse("<nvidia_smi_log><attached_gpus>0</attached_gpus></nvidia_smi_log>") == []


@pytest.mark.parametrize(
    ("capture", "field"),
    [
        ("", "nvidia-smi"),
        (b"\xff\xfe", "nvidia-smi"),
        ("x" * (16 * 2**20 + 1), "nvidia-smi"),
        ("NVIDIA-SMI has failed", "nvidia-smi"),
        (text(L4)[:3000], "nvidia-smi"),
        ("<html></html>", "nvidia-smi"),
        ('<!DOCTYPE a [<!ENTITY b "c">]><nvidia_smi_log>&b;</nvidia_smi_log>', "nvidia-smi"),
        ("<nvidia_smi_log><gpu/></nvidia_smi_log>", "nvidia-smi.gpu[0].pci.pci_bus_id"),
        (text(L4).replace("00000000:5E:00.0", "over there"), "nvidia-smi.gpu[0].pci.pci_bus_id"),
        (text(T4S).replace("00000000:AF:00.0", "00000000:3B:00.0"), "nvidia-smi.gpu.pci.pci_bus_id"),
        (text(T4S).replace("000000000002", "000000000001"), "nvidia-smi.gpu.uuid"),
        (text(A100).replace(SECOND, "<gpu_instance_id>1<"), "nvidia-smi.0000:01:00.0.mig_device"),
        (text(A100).replace(SECOND, "<gpu_instance_id>?<"),
         "nvidia-smi.gpu[0].mig_device[1].gpu_instance_id"),
    ],
)  # fmt: skip
def test_a_capture_that_cannot_be_trusted_is_refused_by_field(capture: str | bytes, field: str) -> None:
    with pytest.raises(BadInput) as caught:
        parse(capture)
    assert caught.value.field == field
    assert caught.value.fix
