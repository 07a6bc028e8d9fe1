"""`npu-smi info`: a table of two rows a chip, and the key-value pages of `-t board`, `usages` and `health`.

Widths and headings differ between releases and between training and inference cards (the second row has a
Device column on cards of two chips), so cells are found by their heading. NPU ids are sparse (0, 32768). Two
chips of a card print one Bus-Id: the card is then a device, its chips are children.

A complete table is followed by a process table that names every NPU, with or without processes; that is how a
table cut between two NPUs is noticed. A transcript of several commands, one after another, is read as well.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from shared.devices.keys import device_key, normalise_bus_address
from shared.devices.model import RawDevice
from shared.devices.readings import Readings
from shared.errors import BadInput
from shared.vendors.captures.figures import Distinct, Figures, identity, known, read

TOOL = "npu-smi"
ARGUMENTS = ("info",)
_BORDER = re.compile(r"\+[-=+]+\+")
_HOTTEST_C = 200.0
_AGAIN = "capture `npu-smi info` again, to the end of its process table"
_ERROR_CODE = re.compile(r"(?<![0-9A-Z])(?:0X)?([0-9A-F]{8,9})(?![0-9A-Z])")
_LISTED = re.compile(r"\s*([0-9]{1,6})\s+([0-9]{1,3})\s+[0-9]{1,6}\s+(Ascend \S+)\s*")
"""A line of `npu-smi info -m`; it lists chips and says no bus address."""
_SINGLE_BIT, _DOUBLE_BIT = "HBM Single Bit Error Count", "HBM Double Bit Error Count"
_PAIR = re.compile(r"\s*([A-Za-z][A-Za-z0-9 ()%]*?)\s*:\s?(.*)")


@dataclass
class _Chip:
    """What was gathered about one chip, from whichever page had it."""

    npu: int
    chip: int
    facts: dict[str, object] = field(default_factory=dict)
    cells: dict[str, str] = field(default_factory=dict)


def parse(capture: str | bytes) -> list[RawDevice]:
    """Chips with a bus address; cards of several chips with their chips as children.

    Raises:
        BadInput: no table and no board page, cut in the middle, or an identity that is missing, impossible or
            given twice; names the column.
    """
    lines = read(capture, TOOL).splitlines()
    chips = _table(lines)
    pages = _pages(lines)
    for line in lines:
        if listed := _LISTED.fullmatch(line):
            pages.setdefault((int(listed[1]), int(listed[2])), {}).setdefault("Chip Name", listed[3])
    if chips is None and not pages:
        raise BadInput(
            TOOL, "there is no device table and no board page", "give the output of `npu-smi info`"
        )
    chips = chips or {}
    for (npu, chip), cells in pages.items():
        chips.setdefault((npu, chip), _Chip(npu, chip)).cells.update(cells)
    return _devices(chips) if chips else []


def _table(lines: list[str]) -> dict[tuple[int, int], _Chip] | None:
    """Chips of the device table, by NPU id and chip number; None when there is no table."""
    start = next((index for index, line in enumerate(lines) if re.match(r"\|\s*NPU\s+Name\s*\|", line)), None)
    if start is None:
        return None
    if start + 1 >= len(lines):
        raise BadInput(f"{TOOL}.heading", "the table ends in its heading", _AGAIN)
    width = len(lines[start].rstrip())
    first, second = _headings(lines[start]), _headings(lines[start + 1])
    version = next(
        (match[1] for line in lines[:start] if (match := re.match(r"\|\s*npu-smi\s+(\S+)", line))), None
    )
    chips: dict[tuple[int, int], _Chip] = {}
    rows = _rows(lines, start + 2, width)
    for number, upper in rows:
        where = f"{TOOL}.line {number + 1}"
        lower = next(rows, None)
        if lower is None:
            raise BadInput(where, "the second row of a chip is missing", _AGAIN)
        cells = {**_cells(first, upper, where), **_cells(second, lower[1], where)}
        npu, chip = _whole(cells, "NPU", where), _whole(cells, "Chip", where)
        if (npu, chip) in chips:
            raise BadInput(
                f"{where}.NPU", f"NPU {npu} chip {chip} is given twice", "capture `npu-smi info` again"
            )
        chips[npu, chip] = _Chip(npu, chip, {"tool_version": version}, cells)
    named = _process_table(lines, start, width)
    if named is None:
        raise BadInput(f"{TOOL}.process table", "it is missing: the capture was cut", _AGAIN)
    missing = sorted({npu for npu, _ in chips} - named)
    if missing:
        raise BadInput(
            f"{TOOL}.process table", f"it does not name NPU {missing}: the capture was cut", _AGAIN
        )
    return chips


def _rows(lines: list[str], start: int, width: int) -> Iterator[tuple[int, str]]:
    """Rows of the device table; it ends where a border is followed by another border or by nothing."""
    borders = 0
    for number in range(start, len(lines)):
        line = lines[number].rstrip()
        if _BORDER.fullmatch(line):
            borders += 1
            if borders > 1:
                return
            continue
        borders = 0
        if not line.startswith("|") or not line.endswith("|") or len(line) != width:
            raise BadInput(f"{TOOL}.line {number + 1}", "this is no whole row of the table", _AGAIN)
        yield number, line


def _process_table(lines: list[str], start: int, width: int) -> set[int] | None:
    """NPU ids that a finished process table names; None when there is none."""
    named: set[int] = set()
    waiting: set[int] = set()
    inside = False
    for line in lines[start + 1 :]:
        text = line.rstrip()
        if re.match(r"\|\s*NPU\s+Chip\s*\|\s*Process id", text):
            inside = True
        elif inside and _BORDER.fullmatch(text) and len(text) == width:
            named |= waiting
            waiting = set()
        elif inside and (match := re.match(r"\|.*found in NPU (\d+)\s*\|$|\|\s*(\d+)\s+\d+\s*\|.*\|$", text)):
            waiting.add(int((match[1] or match[2])[:9]))
    return named if inside else None


def _headings(line: str) -> list[list[tuple[str, int]]]:
    """Per column of a heading row: its words (separated by two blanks or more) and where each begins."""
    return [
        [(match[0], match.start()) for match in re.finditer(r"\S+(?: \S+)*", part)]
        for part in line.strip().strip("|").split("|")
    ]


def _cells(headings: list[list[tuple[str, int]]], line: str, where: str) -> dict[str, str]:
    """A row's values by heading. Within a column values are taken in order; ``used / total`` is one value."""
    parts = line.strip().strip("|").split("|")
    if len(parts) != len(headings):
        raise BadInput(where, f"has {len(parts)} columns, its heading {len(headings)}", _AGAIN)
    cells: dict[str, str] = {}
    for words, part in zip(headings, parts, strict=True):
        values = re.findall(r"\S+\s*/\s*\S+|\S+", part)
        for (word, _), value in zip(words, values, strict=False):
            cells[word] = value
    return cells


def _whole(cells: dict[str, str], name: str, where: str) -> int:
    text = cells.get(name, "")
    if not re.fullmatch(r"[0-9]{1,6}", text):
        raise BadInput(f"{where}.{name}", f"{text[:40]!r} is no number", "capture `npu-smi info` again")
    return int(text)


def _pages(lines: list[str]) -> dict[tuple[int, int], dict[str, str]]:
    """Key-value pages, by NPU id and chip number (0 where a page names no chip).

    A page begins with its ``NPU ID`` line; a page of `-t health` has none and belongs to the ``-i`` and
    ``-c`` of the command line above it, where a transcript has one.
    """
    pages: dict[tuple[int, int], dict[str, str]] = {}
    current: tuple[int, int] | None = None
    for line in lines:
        command = re.match(r"\S*npu-smi info\b(.*)", line)
        if command or (not line.strip().startswith("|") and re.match(r"\S*/\S+ ", line)):
            asked = dict(re.findall(r"-([ic])\s+([0-9]{1,6})\b", command[1])) if command else {}
            current = (int(asked["i"]), int(asked.get("c", "0"))) if "i" in asked else None
            continue
        pair = _PAIR.fullmatch(line)
        if pair is None or line.lstrip().startswith("|"):
            continue
        name, value = pair[1], pair[2].strip()
        if name == "NPU ID" and re.fullmatch(r"[0-9]{1,6}", value):
            chip = current[1] if current is not None and current[0] == int(value) else 0
            current = (int(value), chip)
            pages.setdefault(current, {})
        elif current is not None:
            pages.setdefault(current, {})[name] = value
    return {place: page for place, page in pages.items() if page}


def _devices(chips: dict[tuple[int, int], _Chip]) -> list[RawDevice]:
    """Raw devices of the chips whose bus address is known; the others are a warning on the first."""
    found: dict[str, list[tuple[_Chip, Figures]]] = {}
    homeless: list[str] = []
    for chip in chips.values():
        where = f"{TOOL}.NPU {chip.npu}"
        printed = known(chip.cells.get("Bus-Id")) or known(chip.cells.get("PCIe Bus Info"))
        if printed is None:
            homeless.append(f"{where}: no bus address is given; the device is not seen")
            continue
        address = normalise_bus_address(printed, f"{where}.Bus-Id")
        found.setdefault(address, []).append((chip, Figures(f"{where}.Chip {chip.chip}")))
    if not found:
        raise BadInput(f"{TOOL}.Bus-Id", "no NPU has a bus address", "add the output of `npu-smi info`")
    distinct = Distinct(TOOL)
    devices: list[RawDevice] = []
    for address, members in found.items():
        if len({chip.npu for chip, _ in members}) > 1:
            raise BadInput(f"{TOOL}.Bus-Id", f"{address} stands for two NPUs", "capture `npu-smi info` again")
        devices.extend(_card(address, members, distinct))
    first = devices[0]
    devices[0] = first.model_copy(update={"warnings": (*first.warnings, *homeless)})
    return devices


def _card(address: str, members: list[tuple[_Chip, Figures]], distinct: Distinct) -> list[RawDevice]:
    parts = [_chip(chip, figures) for chip, figures in members]
    for facts, _, _ in parts:
        distinct.claim("VDie ID", identity(str(facts.get("vdie_id") or "")))
    if len(parts) == 1:
        facts, readings, warnings = parts[0]
        return [_raw(address, None, facts, readings, warnings)]
    totals = [facts.get("memory_total_bytes") for facts, _, _ in parts]
    sizes = [total for total in totals if isinstance(total, int)]
    card: dict[str, object] = {
        "npu_id": members[0][0].npu,
        "chip_count": len(parts),
        "name": parts[0][0].get("name"),
        "memory_total_bytes": sum(sizes) if len(sizes) == len(totals) else None,
        "tool_version": parts[0][0].get("tool_version"),
    }
    return [
        _raw(address, None, card, Readings(), ()),
        *(
            _raw(address, f"chip-{chip.chip}", facts, readings, warnings)
            for (chip, _), (facts, readings, warnings) in zip(members, parts, strict=True)
        ),
    ]


def _chip(chip: _Chip, figures: Figures) -> tuple[dict[str, object], Readings, tuple[str, ...]]:
    cells = chip.cells
    used, total = _memory(cells, figures)
    device = figures.count("Device", cells.get("Device"), highest=65535)
    name = known(cells.get("Name")) or known(cells.get("Chip Name"))
    facts = {
        **chip.facts,
        "npu_id": chip.npu,
        "chip_id": chip.chip,
        "device_id": chip.npu if device is None else device,
        "name": name.removeprefix("Ascend ") if name else None,
        "memory_total_bytes": total,
        "vdie_id": identity(cells.get("VDie ID")),
        "serial_number": identity(cells.get("Serial Number")),
        "software_version": known(cells.get("Software Version")),
        "firmware_version": known(cells.get("Firmware Version")),
        "pci_id": _pci_id(cells),
    }
    busy = figures.number(
        "AICore(%)", cells.get("AICore(%)") or cells.get("Aicore Usage Rate(%)"), highest=100
    )
    health = known(cells.get("Health")) or known(cells.get("Health Status"))
    readings = Readings(
        ecc_uncorrected=figures.count(_DOUBLE_BIT, cells.get(_DOUBLE_BIT)),
        ecc_corrected=figures.count(_SINGLE_BIT, cells.get(_SINGLE_BIT)),
        temperature_c=figures.number("Temp(C)", cells.get("Temp(C)"), highest=_HOTTEST_C),
        power_w=figures.number("Power(W)", cells.get("Power(W)"), highest=10_000.0),
        memory_used_bytes=used,
        busy=None if busy is None else busy / 100.0,
        health_word=None if health is None else health.lower(),
        error_codes=tuple(_ERROR_CODE.findall(cells.get("Error Code", "").upper())),
    )
    return facts, readings, figures.warnings


def _memory(cells: dict[str, str], figures: Figures) -> tuple[int | None, int | None]:
    """Used and total memory: HBM where the chip has it, else DDR."""
    for name in ("HBM-Usage(MB)", "Memory-Usage(MB)"):
        used, slash, total = cells.get(name, "").partition("/")
        if slash and total.strip() != "0":
            return figures.amount_bytes(name, used, unit="mb"), figures.amount_bytes(name, total, unit="mb")
    for name in ("HBM Capacity(MB)", "DDR Capacity(MB)"):
        if name in cells and cells[name] != "0":
            return None, figures.amount_bytes(name, cells[name], unit="mb")
    return None, None


def _pci_id(cells: dict[str, str]) -> str | None:
    vendor, device = cells.get("PCI Vendor ID", ""), cells.get("PCI Device ID", "")
    pair = re.fullmatch(r"0x([0-9A-Fa-f]{4}) 0x([0-9A-Fa-f]{4})", f"{vendor} {device}")
    return f"{pair[1]}:{pair[2]}".lower() if pair else None


def _raw(
    address: str,
    partition: str | None,
    facts: dict[str, object],
    readings: Readings,
    warnings: tuple[str, ...],
) -> RawDevice:
    return RawDevice(
        vendor="huawei",
        bus_address=address,
        partition=partition,
        serial=identity(str(facts.get("serial_number") or facts.get("vdie_id") or "")),
        parent=None if partition is None else device_key("huawei", address),
        raw={TOOL: {name: value for name, value in facts.items() if value is not None}},
        sources=(TOOL,),
        readings=readings,
        warnings=warnings,
    )
