"""The model table: what a model has that no tool prints (engines, compute rates, bandwidth).

`data/engines.csv` is this project's own compilation; its `source` column says where a row comes from. An
empty cell is "not known" and becomes None. A model is found by PCI id, else by a name that the vendor's tool
prints.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from importlib import resources

from shared.errors import BadInput


@dataclass(frozen=True, slots=True)
class Model:
    """One row. Counts are units of one PCI device, None where not known."""

    vendor: str
    model: str
    pci_ids: tuple[str, ...]
    names: tuple[str, ...]
    enc: int | None
    dec: int | None
    jpeg: int | None
    shared: bool
    encode: tuple[str, ...]
    decode: tuple[str, ...]
    tflops_fp16: float | None
    tops_int8: float | None
    memory_bytes: int | None
    bandwidth_bytes_per_s: int | None
    source: str


def rows(lines: Iterable[str]) -> tuple[Model, ...]:
    """Models of a table's lines; the first line is the header.

    Raises:
        BadInput: a cell is no number, or an id or name stands in two rows; names row and column.
    """
    models: list[Model] = []
    seen: set[str] = set()
    for number, row in enumerate(csv.DictReader(lines), start=2):
        where = f"engines.csv line {number}"
        ids, names = _list(row, "pci_ids"), _list(row, "names")
        for each in (*ids, *(f"{row['vendor']}/{name}" for name in names)):
            if each in seen:
                raise BadInput(f"{where} pci_ids/names", f"{each!r} stands in two rows", "keep one of them")
            seen.add(each)
        models.append(
            Model(
                vendor=row["vendor"],
                model=row["model"],
                pci_ids=ids,
                names=names,
                enc=_count(row, "enc", where),
                dec=_count(row, "dec", where),
                jpeg=_count(row, "jpeg", where),
                shared=row["shared"] == "yes",
                encode=_list(row, "encode"),
                decode=_list(row, "decode"),
                tflops_fp16=_rate(row, "tflops_fp16", where),
                tops_int8=_rate(row, "tops_int8", where),
                memory_bytes=_count(row, "memory_bytes", where),
                bandwidth_bytes_per_s=_count(row, "bandwidth_bytes_per_s", where),
                source=row["source"],
            )
        )
    return tuple(models)


@cache
def models() -> tuple[Model, ...]:
    """The table that ships with the project."""
    return rows((resources.files("shared.vendors") / "data/engines.csv").read_text("utf-8").splitlines())


def find(vendor: str, *, pci_id: str | None = None, name: str | None = None) -> Model | None:
    """The row of a model, by PCI id (``10de:1eb8``) or by a name its tool prints; None when unknown."""
    if pci_id is not None:
        for model in models():
            if pci_id.lower() in model.pci_ids:
                return model
    if name is not None:
        for model in models():
            if model.vendor == vendor and any(_mentions(name, known) for known in model.names):
                return model
    return None


def _mentions(text: str, name: str) -> bool:
    """True when ``name`` stands in ``text`` as a word of its own: L40 is no L40S."""
    return re.search(rf"(?<![A-Za-z0-9]){re.escape(name)}(?![A-Za-z0-9])", text, re.IGNORECASE) is not None


def _list(row: dict[str, str], column: str) -> tuple[str, ...]:
    return tuple(part for part in row[column].split("|") if part)


def _count(row: dict[str, str], column: str, where: str) -> int | None:
    text = row[column]
    if not text:
        return None
    if not text.isdecimal():
        raise BadInput(f"{where} {column}", f"{text!r} is no count", "write a whole number or leave it empty")
    return int(text)


def _rate(row: dict[str, str], column: str, where: str) -> float | None:
    text = row[column]
    if not text:
        return None
    if not re.fullmatch(r"\d+(?:\.\d+)?", text):
        raise BadInput(f"{where} {column}", f"{text!r} is no rate", "write a number or leave it empty")
    return float(text)
