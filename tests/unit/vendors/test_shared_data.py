"""Captures of real machines, where the folder that holds them is beside the checkout."""

from pathlib import Path

import pytest

from shared.errors import BadInput
from shared.vendors import kernel_lines, table
from shared.vendors.adapter import translate
from shared.vendors.captures import npu_smi_text, nvidia_smi_xml, rocm_smi_json
from tests.unit.vendors.captures import Parse

DATA = Path(__file__).parents[4] / "shared/data"

pytestmark = pytest.mark.skipif(
    not DATA.is_dir(), reason="the folder with real captures is not beside this checkout"
)


@pytest.mark.parametrize(
    ("parse", "path", "devices", "model"),
    [
        (nvidia_smi_xml.parse, "nvidia/nvidia_smi_q_x_a100-sxm4.xml", 5, "NVIDIA A100-SXM4-80GB"),
        (nvidia_smi_xml.parse, "nvidia/nvidia_smi_q_x_tesla-t4.xml", 1, "Tesla T4"),
        (rocm_smi_json.parse, "amd/amd_rocm_smi_mi100_rocm602.json", 4, "Instinct MI100"),
        (npu_smi_text.parse, "own/npu_smi_info_910b3x8.txt", 8, "Ascend 910B3"),
        (npu_smi_text.parse, "own/npu_smi_info_310p_dual.txt", 6, "Ascend 310P3 card"),
        (npu_smi_text.parse, "own/npu_smi_info_910a_warning.txt", 8, "Ascend 910A"),
        (npu_smi_text.parse, "ascend/ascend_npu_info_before.txt", 1, "Ascend 910A"),
    ],
)
def test_a_real_capture_becomes_unified_devices(parse: Parse, path: str, devices: int, model: str) -> None:
    raw = parse((DATA / path).read_bytes())
    unified = [translate(device, "worker-1") for device in raw]
    assert len(unified) == devices
    assert unified[0].model == model
    assert all(device.memory.total_bytes for device in unified)
    assert len({device.uid for device in unified}) == devices


def test_the_a100_has_no_encoder_five_decoders_and_one_jpeg_unit() -> None:
    raw = nvidia_smi_xml.parse((DATA / "nvidia/nvidia_smi_q_x_a100-sxm4.xml").read_bytes())
    engines = [translate(device, "w").codec_engine.engines for device in raw]
    assert (engines[0].enc, engines[0].dec, engines[0].jpeg) == (0, 5, 1)
    assert {(each.enc, each.dec, each.jpeg) for each in engines[1:]} == {(0, 1, 0)}


def test_a_page_that_is_no_device_table_is_refused() -> None:
    with pytest.raises(BadInput):
        npu_smi_text.parse((DATA / "own/npu_smi_info_vnpu_310p.txt").read_bytes())


def test_every_xid_of_the_real_lines_is_heard_and_the_bad_ones_are_not() -> None:
    lines = [
        line
        for line in (DATA / "nvidia/xid_sxid_kernel_lines.log").read_text().splitlines()
        if "# source" not in line
    ]
    for line in lines:
        found = kernel_lines.parse(line)
        bad = (
            "INVALID" in line
            or "invalid-bdf" in line
            or "GPU at PCI" in line
            or line.endswith("0000:b3:00.0")
        )
        assert (found is None) == bad, line


def test_our_engine_counts_agree_with_what_is_known() -> None:
    import csv  # noqa: PLC0415 - only here

    with (DATA / "engines.csv").open(encoding="utf-8") as file:
        known = {id_: row for row in csv.DictReader(file) for id_ in row["pci_ids"].split("|") if id_}
    for model in table.models():
        for id_ in model.pci_ids:
            row = known.get(id_)
            for column, ours in (("encoders", model.enc), ("decoders", model.dec)):
                if row is not None and ours is not None:
                    assert row[column] in ("", str(ours)), (model.model, column)
