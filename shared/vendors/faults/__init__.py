"""Fault catalogues: what a code means, as data. One YAML file per vendor, and `generic.yaml` for all.

Class says how a fault counts: *fatal* makes a case by itself, *transient* counts as a strike, *sympathetic*
never counts alone, *application* is a program's own fault, *ignore* is a notice. A code without an entry is
*unknown*: people are told, nothing is done. Scope says what the fault touches.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any, Final, Literal

import yaml

from shared.devices.keys import ENGINE_KINDS, EngineKind
from shared.errors import BadInput

FaultClass = Literal["fatal", "transient", "sympathetic", "application", "ignore", "unknown"]
Scope = Literal["device", "partition", "engine", "node"]

CLASSES: Final[tuple[FaultClass, ...]] = (
    "fatal",
    "transient",
    "sympathetic",
    "application",
    "ignore",
    "unknown",
)
"""Worst first, but for unknown."""
SCOPES: Final[tuple[Scope, ...]] = ("device", "partition", "engine", "node")
_VENDORS = ("nvidia", "amd", "huawei")
_COMMON = "generic"
_FIELDS = frozenset({"code", "class", "scope", "engine", "meaning", "source"})


@dataclass(frozen=True, slots=True)
class Fault:
    """One entry.

    Attributes:
        code: as the source prints it, or the project's name for what it prints in words.
        fault_class: how it counts.
        scope: what it touches.
        engine_kind: where the scope is an engine.
        engine_index: None where the source does not say which unit.
        meaning: for people.
        source: where the knowledge comes from; empty for unknown.
    """

    code: str
    fault_class: FaultClass
    scope: Scope = "device"
    engine_kind: EngineKind | None = None
    engine_index: int | None = None
    meaning: str = ""
    source: str = ""


def read(text: str, name: str) -> dict[str, Fault]:
    """A catalogue's entries by code.

    Raises:
        BadInput: no YAML list, an unknown field, class, scope or engine, a code given twice; names entry and
        field.
    """
    try:
        entries: Any = yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))  # noqa: S506 - both are safe loaders
    except yaml.YAMLError as error:
        raise BadInput(name, f"is no YAML ({error})", "write a list of entries") from error
    if not isinstance(entries, list):
        raise BadInput(name, "is no list", "write a list of entries")
    faults: dict[str, Fault] = {}
    for position, entry in enumerate(entries):
        where = f"{name}[{position}]"
        if not isinstance(entry, dict) or not entry.keys() <= _FIELDS:
            raise BadInput(where, "is no entry", f"use the fields {', '.join(sorted(_FIELDS))}")
        fault = _entry(entry, where)
        if fault.code in faults:
            raise BadInput(f"{where}.code", f"{fault.code!r} is given twice", "keep one of them")
        faults[fault.code] = fault
    return faults


def _entry(entry: dict[str, Any], where: str) -> Fault:
    code = entry.get("code")
    if not isinstance(code, str) or not code:
        raise BadInput(f"{where}.code", f"{code!r} is no code", "write it in quotes")
    fault_class = next((each for each in CLASSES if each == entry.get("class")), None)
    if fault_class is None:
        raise BadInput(
            f"{where}.class", f"{entry.get('class')!r} is no class", f"use one of {', '.join(CLASSES)}"
        )
    scope = next((each for each in SCOPES if each == entry.get("scope", "device")), None)
    if scope is None:
        raise BadInput(
            f"{where}.scope", f"{entry.get('scope')!r} is no scope", f"use one of {', '.join(SCOPES)}"
        )
    named, _, index = str(entry.get("engine", "")).partition("-")
    kind = next((each for each in ENGINE_KINDS if each == named), None)
    if (scope == "engine") != (kind is not None) or not (index.isdecimal() or not index):
        raise BadInput(
            f"{where}.engine",
            f"{entry.get('engine')!r} does not fit scope {scope}",
            "write enc, dec-0, jpeg or no engine",
        )
    return Fault(
        code=code,
        fault_class=fault_class,
        scope=scope,
        engine_kind=kind,
        engine_index=int(index) if index else None,
        meaning=str(entry.get("meaning", "")),
        source=str(entry.get("source", "")),
    )


@cache
def catalogue(vendor: str) -> dict[str, Fault]:
    """The entries that hold for a vendor: its own, and those that hold for all."""
    own = _load(vendor) if vendor in _VENDORS else {}
    return {**_load(_COMMON), **own}


def _load(name: str) -> dict[str, Fault]:
    return read(
        (resources.files("shared.vendors.faults") / f"{name}.yaml").read_text("utf-8"), f"{name}.yaml"
    )


def lookup(vendor: str, code: str, detail: str | None = None) -> Fault:
    """What a code means for a vendor.

    Args:
        vendor: whose catalogue.
        code: the code.
        detail: what the line says besides (``fatal``, ``nonfatal``, an advice), which may change the meaning.

    Returns:
        The entry of code and detail, else of the code, else of the code's family and detail, else an unknown
        fault.
    """
    entries = catalogue(vendor)
    family = code.partition("-")[0]
    tries = [code] if detail is None else [f"{code}-{detail}", code, f"{family}-{detail}"]
    for name in tries:
        if name in entries:
            return entries[name]
    return Fault(code=code, fault_class="unknown", meaning="no catalogue has this code")
