"""Where the fixtures lie, and the parsers that read them."""

from collections.abc import Callable
from pathlib import Path

from shared.devices.model import RawDevice
from shared.vendors.captures import npu_smi_text, nvidia_smi_xml, rocm_smi_json

FOLDER = Path(__file__).parents[2] / "fixtures/captures"

Parse = Callable[[str | bytes], list[RawDevice]]
PARSERS: dict[str, Parse] = {
    "nvidia_smi_t4x2_v11.xml": nvidia_smi_xml.parse,
    "nvidia_smi_a100_mig_v12.xml": nvidia_smi_xml.parse,
    "nvidia_smi_l4_v13.xml": nvidia_smi_xml.parse,
    "rocm_smi_mi210x2.json": rocm_smi_json.parse,
    "npu_smi_info_910bx2.txt": npu_smi_text.parse,
    "npu_smi_info_310p_duo.txt": npu_smi_text.parse,
    "npu_smi_pages_910a.txt": npu_smi_text.parse,
}


def text(name: str) -> str:
    return (FOLDER / name).read_text("utf-8")


def parse(name: str) -> list[RawDevice]:
    return PARSERS[name]((FOLDER / name).read_bytes())
