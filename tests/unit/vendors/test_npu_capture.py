import pytest

from shared.errors import BadInput
from shared.vendors.captures.npu_smi_text import parse
from tests.unit.vendors.captures import parse as read
from tests.unit.vendors.captures import text

TWO, DUO, PAGES = "npu_smi_info_910bx2.txt", "npu_smi_info_310p_duo.txt", "npu_smi_pages_910a.txt"
EMPTY = "\n".join(line for line in text(TWO).splitlines() if "910B3" not in line and "0000:" not in line
                  and "NPU 0" not in line and "5150" not in line)  # fmt: skip


def test_a_table_gives_each_chip_with_its_facts_and_readings() -> None:
    first, second = read(TWO)
    assert (first.key, second.key) == ("huawei-0000-c1-00-0", "huawei-0000-02-00-0")
    facts = second.raw["npu-smi"]
    assert (facts["npu_id"], facts["name"], facts["memory_total_bytes"]) == (4, "910B3", 65536 * 2**20)
    seen = second.readings
    assert (seen.health_word, seen.power_w, seen.temperature_c, seen.busy) == ("alarm", 240.1, 71.0, 0.87)
    assert seen.memory_used_bytes == 61022 * 2**20
    assert (first.serial, first.parent) == (None, None)


def test_chips_that_share_a_bus_address_are_children_of_their_card() -> None:
    card, first, second = read(DUO)
    assert (card.key, first.key, second.key) == (
        "huawei-0000-81-00-0",
        "huawei-0000-81-00-0-chip-0",
        "huawei-0000-81-00-0-chip-1",
    )
    assert {first.parent, second.parent} == {card.key}
    assert card.raw["npu-smi"]["memory_total_bytes"] == (44280 + 43693) * 2**20
    assert (first.raw["npu-smi"]["device_id"], second.raw["npu-smi"]["device_id"]) == (2, 3)
    assert (first.readings.power_w, second.readings.health_word) == (None, "warning")


def test_a_transcript_of_pages_is_one_device_and_the_chips_without_address_are_said() -> None:
    (npu,) = read(PAGES)
    assert (npu.key, npu.serial) == ("huawei-0000-61-00-0", "11AA22BB 33CC44DD 55EE66FF 00112233 44556677")
    facts = npu.raw["npu-smi"]
    assert (facts["name"], facts["pci_id"], facts["software_version"]) == ("910A", "19e5:d801", "23.0.6")
    assert facts["memory_total_bytes"] == 32768 * 2**20
    seen = npu.readings
    assert (seen.ecc_uncorrected, seen.ecc_corrected, seen.health_word, seen.busy) == (1, 2, "alarm", 0.05)
    assert seen.error_codes == ("80E18402", "80E01801")
    assert npu.warnings == ("npu-smi.NPU 1: no bus address is given; the device is not seen",)


def test_a_serial_number_is_preferred_to_the_die_s() -> None:
    page = text(PAGES).replace("PCB ID", "PCB ID").replace("Firmware Version ", "Serial Number    ")
    assert parse(page)[0].serial == "7.1.0.9.220"


def test_a_card_whose_chips_do_not_all_state_a_size_has_none() -> None:
    card = parse(text(DUO).replace("1404 / 43693", "NA   / NA   "))[0]
    assert "memory_total_bytes" not in card.raw["npu-smi"]


def test_a_board_without_memory_pages_states_no_size() -> None:
    page = text(PAGES).replace("HBM Capacity(MB)               : 32768", "HBM Capacity(MB)               : 0")
    assert parse(page)[0].raw["npu-smi"]["memory_total_bytes"] == 13553 * 2**20
    assert "memory_total_bytes" not in parse(page.replace("DDR Capacity", "XDR Capacity"))[0].raw["npu-smi"]


def test_a_figure_that_cannot_be_is_unknown_and_said() -> None:
    first = parse(text(TWO).replace("93.5 ", "-3.5 ").replace("43   ", "inf  "))[0]
    assert (first.readings.power_w, first.readings.temperature_c) == (None, None)
    assert len(first.warnings) == 2


def test_a_host_without_chips_is_no_error() -> None:
    assert parse(EMPTY) == []


@pytest.mark.parametrize("cut", range(200, len(text(TWO)) - 1, 97))
def test_a_table_cut_anywhere_is_refused(cut: int) -> None:
    with pytest.raises(BadInput):
        parse(text(TWO)[:cut])


@pytest.mark.parametrize(
    ("capture", "field"),
    [
        ("bash: npu-smi: command not found", "npu-smi"),
        (text(TWO).split("\n| Chip")[0], "npu-smi.heading"),
        (text(TWO).replace("| 0     910B3 ", "| O     910B3 "), "npu-smi.line 7.NPU"),
        (text(TWO).replace("| 4     910B3 ", "| 0     910B3 "), "npu-smi.line 10.NPU"),
        (text(TWO).replace("0000:02:00.0  | 87", "0000:C1:00.0  | 87"), "npu-smi.Bus-Id"),
        (text(TWO).replace("0000:C1:00.0", "somewhere   "), "npu-smi.NPU 0.Bus-Id"),
        (text(TWO).replace("| OK            | 93.5", "| OK            . 93.5"), "npu-smi.line 7"),
        (text(TWO).replace("found in NPU 0 ", "found in NPU 9 "), "npu-smi.process table"),
        (text(TWO).split("+---------------------------+---------------+---")[2], "npu-smi"),
        (text(PAGES).replace("PCIe Bus Info", "PCIe Bus Inf0"), "npu-smi.Bus-Id"),
    ],
)
def test_a_capture_that_cannot_be_trusted_is_refused_by_field(capture: str, field: str) -> None:
    with pytest.raises(BadInput) as caught:
        parse(capture)
    assert caught.value.field == field


def test_two_devices_with_one_die_are_refused() -> None:
    other = text(PAGES).replace("NPU ID                         : 0", "NPU ID                         : 7")
    other = other.replace("0000:61:00.0", "0000:62:00.0").replace("-i 0", "-i 7")
    with pytest.raises(BadInput, match="VDie ID"):
        parse(text(PAGES) + "\n" + other)
