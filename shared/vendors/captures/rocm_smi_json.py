"""`rocm-smi --json`: one object per card, every value a string, with flattened level lists under "0" to "15".

The address is printed in upper case (``0000:A3:00.0``), sysfs has lower case; `keys` makes them one.
"""

from __future__ import annotations

import json
from typing import Any

from shared.devices.keys import normalise_bus_address
from shared.devices.model import RawDevice
from shared.devices.readings import Readings
from shared.errors import BadInput
from shared.vendors.captures.figures import Distinct, Figures, identity, known, read

TOOL = "rocm-smi"
ARGUMENTS = ("-a", "--showmeminfo", "all", "--showtopo", "--json")
_TEXTS = (
    "Card series",
    "Card model",
    "Card vendor",
    "Card SKU",
    "VBIOS version",
    "SMC firmware version",
    "VCN firmware version",
)
_HOTTEST_C = 200.0


def parse(capture: str | bytes) -> list[RawDevice]:
    """Cards, in the order printed.

    Raises:
        BadInput: no JSON, cut in the middle, not this tool's output, or an identity that is missing,
        impossible or
            given twice; names the key.
    """
    text = read(capture, TOOL)
    try:
        log = json.loads(text, object_pairs_hook=_pairs, parse_constant=str)
    except (ValueError, RecursionError) as error:
        raise BadInput(
            TOOL,
            f"this is no complete JSON ({error})",
            "capture `rocm-smi -a --json` again, to its last line",
        ) from error
    if not isinstance(log, dict):
        raise BadInput(TOOL, "the capture is no JSON object", "give the output of `rocm-smi -a --json`")
    system = log.get("system")
    shared = system if isinstance(system, dict) else {}
    distinct = Distinct(TOOL)
    devices = [
        _card(card, int(name[4:8]), shared, distinct)
        for name, card in log.items()
        if name.startswith("card") and name[4:].isdecimal()
    ]
    if not devices and "system" not in log:
        raise BadInput(TOOL, "no cardN and no system object", "give the output of `rocm-smi -a --json`")
    return devices


def _card(card: Any, number: int, system: dict[str, Any], distinct: Distinct) -> RawDevice:
    where = f"{TOOL}.card{number}"
    if not isinstance(card, dict):
        raise BadInput(where, "is no object", "give the output of `rocm-smi -a --json`")
    printed = known(_text(card, "PCI Bus"))
    if printed is None:
        raise BadInput(
            f"{where}.PCI Bus", "is missing", "capture with `rocm-smi -a --json` (it needs --showbus)"
        )
    address = normalise_bus_address(printed, f"{where}.PCI Bus")
    distinct.claim("PCI Bus", address)
    unique = identity(_text(card, "Unique ID"))
    distinct.claim("Unique ID", unique)
    serial = identity(_text(card, "Serial Number"))
    figures = Figures(where)
    facts: dict[str, object] = {
        **{name: value for name in _TEXTS if (value := known(_text(card, name))) is not None},
        "Unique ID": unique,
        "card": number,
        "Driver version": known(_text(system, "Driver version")),
        "ROCm version": known(_text(system, "ROCm version")),
        "pci_id": _pci_id(_text(card, "Device ID") or _text(card, "GPU ID"), figures),
        "numa_node": None
        if _text(card, "(Topology) Numa Node") == "-1"
        else figures.count("(Topology) Numa Node", _text(card, "(Topology) Numa Node"), highest=4096),
        "VRAM Total Memory (B)": figures.amount_bytes(
            "VRAM Total Memory (B)", _text(card, "VRAM Total Memory (B)"), unit="b"
        ),
    }
    busy = figures.number("GPU use (%)", _text(card, "GPU use (%)"), highest=100)
    readings = Readings(
        pcie_replays=figures.count("PCIe Replay Count", _text(card, "PCIe Replay Count")),
        temperature_c=figures.number(
            "Temperature (Sensor junction) (C)",
            _text(card, "Temperature (Sensor junction) (C)"),
            highest=_HOTTEST_C,
        ),
        power_w=figures.number(
            "Average Graphics Package Power (W)",
            _text(card, "Average Graphics Package Power (W)"),
            highest=10_000.0,
        ),
        memory_used_bytes=figures.amount_bytes(
            "VRAM Total Used Memory (B)", _text(card, "VRAM Total Used Memory (B)"), unit="b"
        ),
        busy=None if busy is None else busy / 100.0,
    )
    return RawDevice(
        vendor="amd",
        bus_address=address,
        serial=serial or (unique.lower().removeprefix("0x") if unique else None),
        raw={TOOL: {name: value for name, value in facts.items() if value is not None}},
        sources=(TOOL,),
        readings=readings,
        warnings=figures.warnings,
    )


def _pci_id(printed: str | None, figures: Figures) -> str | None:
    stripped = known(printed)
    if stripped is None:
        return None
    bare = stripped.lower().removeprefix("0x")
    if len(bare) != len("738c") or not bare.isalnum():
        figures.doubt("Device ID", f"{stripped[:40]!r} is no PCI id")
        return None
    return f"1002:{bare}"


def _text(card: dict[str, Any], name: str) -> str | None:
    """A value as text: old tools print strings, some new ones numbers."""
    value = card.get(name)
    if isinstance(value, bool) or not isinstance(value, (str, int, float)):
        return None
    return str(value)


def _pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object whose cards are all different; rocm-smi itself repeats other keys."""
    cards = [name for name, _ in pairs if name.startswith("card")]
    if len(cards) != len(set(cards)):
        raise BadInput(TOOL, "a card is given twice", "capture `rocm-smi -a --json` again")
    return dict(pairs)
