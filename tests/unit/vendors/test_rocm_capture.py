import json
from typing import Any

import pytest

from shared.errors import BadInput
from shared.vendors.captures.rocm_smi_json import parse
from tests.unit.vendors.captures import parse as read
from tests.unit.vendors.captures import text

TWO = "rocm_smi_mi210x2.json"


def edited(**fields: Any) -> str:
    log = json.loads(text(TWO))
    log["card0"].update(fields)
    return json.dumps(log)


def test_cards_are_read_with_addresses_in_sysfs_spelling() -> None:
    first, second = read(TWO)
    assert (first.key, second.key) == ("amd-0000-83-00-0", "amd-0000-a3-00-0")
    assert first.serial == "1111aaaa2222bbbb"  # as sysfs' unique_id spells it
    assert second.serial == "PCB000111-0002"
    facts = first.raw["rocm-smi"]
    assert (facts["pci_id"], facts["numa_node"], facts["card"]) == ("1002:740f", 1, 0)
    assert facts["VRAM Total Memory (B)"] == 68702699520
    assert "numa_node" not in second.raw["rocm-smi"]  # -1 is not known
    assert (first.readings.busy, first.readings.temperature_c, first.readings.power_w) == (0.25, 44.0, 42.0)
    assert not first.warnings


def test_a_figure_that_cannot_be_is_unknown_and_said() -> None:
    first = parse(
        edited(
            **{
                "GPU use (%)": "101",
                "PCIe Replay Count": -4,
                "Device ID": "0x",
                "VRAM Total Memory (B)": "NaN",
            }
        )
    )[0]
    assert (first.readings.busy, first.readings.pcie_replays) == (None, None)
    assert not {"pci_id", "VRAM Total Memory (B)"} & first.raw["rocm-smi"].keys()
    assert len(first.warnings) == 4


def test_numbers_in_place_of_strings_and_odd_values_are_taken_or_ignored() -> None:
    first = parse(
        edited(**{"GPU use (%)": 50, "Card series": True, "Temperature (Sensor junction) (C)": None})
    )[0]
    assert first.readings.busy == 0.5
    assert first.readings.temperature_c is None
    assert "Card series" not in first.raw["rocm-smi"]


def test_a_card_without_a_device_id_has_no_pci_id() -> None:
    assert "pci_id" not in parse(edited(**{"Device ID": "N/A"}))[0].raw["rocm-smi"]


def test_json_s_nan_is_unknown() -> None:
    log = text(TWO).replace(
        '"Average Graphics Package Power (W)": "42.0"', '"Average Graphics Package Power (W)": NaN'
    )
    assert parse(log)[0].readings.power_w is None


def test_a_host_without_cards_is_no_error() -> None:
    assert parse('{"system": {"Driver version": "6.3.6"}}') == []


@pytest.mark.parametrize(
    ("capture", "field"),
    [
        (text(TWO)[:1500], "rocm-smi"),
        ("[" * 100_000, "rocm-smi"),
        ("[]", "rocm-smi"),
        ("{}", "rocm-smi"),
        ('{"card0": 3}', "rocm-smi.card0"),
        (edited(**{"PCI Bus": "N/A"}), "rocm-smi.card0.PCI Bus"),
        (edited(**{"PCI Bus": "0000:*"}), "rocm-smi.card0.PCI Bus"),
        (edited(**{"PCI Bus": "0000:A3:00.0"}), "rocm-smi.PCI Bus"),
        (edited(**{"Unique ID": "0x3333CCCC4444dddd"}), "rocm-smi.Unique ID"),
        ('{"card0": {}, "card0": {}}', "rocm-smi"),
    ],
)
def test_a_capture_that_cannot_be_trusted_is_refused_by_field(capture: str, field: str) -> None:
    with pytest.raises(BadInput) as caught:
        parse(capture)
    assert caught.value.field == field
