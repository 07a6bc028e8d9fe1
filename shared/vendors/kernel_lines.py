"""Kernel log lines that say something about a device.

A record of /dev/kmsg is ``priority,sequence,microseconds since boot,flags;text``; a continuation line begins
with a blank. Plain dmesg text, with or without its ``[seconds]``, is taken too. A line that says nothing
about a device is None, and so is garbage: this never raises. Records that programs wrote themselves (facility
above 0) are no evidence: anybody with access to the device file could write one.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from shared.devices.keys import normalise_bus_address
from shared.errors import BadInput
from shared.vendors.faults import Fault, lookup

LONGEST_RAW = 2048
"""Longest text that evidence carries."""

_RECORD = re.compile(r"(\d{1,5}),(\d{1,19}),(\d{1,19}),([^;]{0,40});(.*)", re.DOTALL)
_PLAIN = re.compile(
    r"\s*(?:\[\s*(?P<seconds>\d{1,12}\.\d{1,9})\]|\[[^\]]{0,40}\d{4}\])?\s*(?P<text>.*)", re.DOTALL
)
_BUS = r"(?P<bus>(?:[0-9a-fA-F]{4,8}:)?[0-9a-fA-F]{2}:[0-9a-fA-F]{2}(?:\.[0-7])?)"
_SEVERITY = r"(?:Unc|C)orrect(?:ed|able)(?: \((?:Non-)?[Ff]atal\))?"


@dataclass(frozen=True, slots=True)
class KernelEvidence:
    """One line that concerns a device.

    Attributes:
        vendor: whose driver spoke; ``generic`` for the PCI core.
        bus_address: of the device, in sysfs' form.
        code: the vendor's code (an XID's number), or the project's name for what the line says in words.
        detail: severity or advice that the line gives besides.
        fault: the catalogue's entry.
        engine_index: which engine of the fault's kind, by the line or else by the catalogue; None: not said.
        raw: the line's text, cut to what evidence may carry.
        sequence: number of the record since boot; None for plain text.
        since_boot_s: when, by the kernel's clock; None where the line does not say.
    """

    vendor: str
    bus_address: str
    code: str
    detail: str | None
    fault: Fault
    engine_index: int | None
    raw: str
    sequence: int | None
    since_boot_s: float | None


def parse(line: str | bytes) -> KernelEvidence | None:
    """The evidence in one line; None when there is none. Never raises."""
    if isinstance(line, bytes):
        line = line.decode("utf-8", "replace")
    text, sequence, since_boot_s = line.rstrip("\n"), None, None
    record = _RECORD.match(text)
    if record is not None:
        if int(record[1]) >> 3:
            return None
        sequence, since_boot_s, text = int(record[2]), int(record[3]) / 1e6, record[5]
    elif (plain := _PLAIN.fullmatch(text)) is not None:
        text = plain["text"]
        since_boot_s = float(plain["seconds"]) if plain["seconds"] else None
    for pattern, read in _FORMS:
        match = pattern.search(text)
        said = None if match is None else read(match)
        if match is None or said is None:
            continue
        try:
            address = normalise_bus_address(match["bus"])
        except BadInput:
            return None
        vendor, code, detail = said
        fault = lookup(vendor, code, detail)
        unit = match.groupdict().get("unit")
        return KernelEvidence(
            vendor=vendor,
            bus_address=address,
            code=code,
            detail=detail,
            fault=fault,
            engine_index=int(unit) if unit and fault.engine_kind else fault.engine_index,
            raw=text[:LONGEST_RAW],
            sequence=sequence,
            since_boot_s=since_boot_s,
        )
    return None


def sequence_of(record: str | bytes) -> int | None:
    """Number of a kmsg record since boot; None for plain text and continuation lines."""
    if isinstance(record, bytes):
        record = record.decode("utf-8", "replace")
    match = _RECORD.match(record)
    return int(match[2]) if match else None


_Said = tuple[str, str, str | None]


def _xid(match: re.Match[str]) -> _Said:
    rest = match["rest"]
    if match["code"] == "154":
        advice = re.search(r"changed from [^()]*\([^()]*\) to [^()]*\(([^()]{1,60})\)", rest)
        return "nvidia", "154", re.sub(r"[^a-z0-9]+", "-", advice[1].lower()).strip("-") if advice else None
    severity = re.search(r"\b(Fatal|Nonfatal)\b", rest)
    return "nvidia", match["code"], severity[1].lower() if severity else None


def _sxid(match: re.Match[str]) -> _Said:
    word = match["rest"].lower().replace("-", "")
    detail = "nonfatal" if "nonfatal" in word else "fatal" if "fatal" in word else None
    return "nvidia", f"sxid-{match['code']}", detail


def _nvidia_lost(match: re.Match[str]) -> _Said:
    del match
    return "nvidia", "off-the-bus", None


def _amd_ras(match: re.Match[str]) -> _Said | None:
    """Newly counted errors; a total that is only repeated, or a count of 0, is none."""
    if not int(match["count"]) or match["total"]:
        return None
    kind = {"uncorrectable": "ue", "correctable": "ce", "deferred": "de"}[match["kind"]]
    if kind != "ue":
        return "amd", f"ras-{kind}", None
    code = f"ras-{match['block'].lower()}-ue"
    return "amd", code if lookup("amd", code).fault_class != "unknown" else "ras-ue", None


def _amd_ring(match: re.Match[str]) -> _Said:
    ring = re.match(r"vcn|jpeg|sdma", match["ring"])
    return "amd", f"ring-timeout-{ring[0]}" if ring else "ring-timeout", None


_AMD_WORDS = (
    ("device lost from bus", "off-the-bus"),
    ("GPU reset begin", "gpu-reset"),
    ("GPU reset end with ret", "gpu-reset-failed"),
    ("GPU Recovery Failed", "gpu-reset-failed"),
    ("Fatal error during GPU init", "init-failed"),
    ("exceed threshold", "ras-bad-pages"),
)


def _amd_words(match: re.Match[str]) -> _Said | None:
    rest = match["rest"]
    if re.match(r"(?:\[drm\] )?GPU reset\(\d+\) failed", rest):
        return "amd", "gpu-reset-failed", None
    return next((("amd", code, None) for words, code in _AMD_WORDS if words in rest), None)


def _ascend(match: re.Match[str]) -> _Said:
    return "huawei", match["code"].upper(), None


def _intel(match: re.Match[str]) -> _Said | None:
    rest = match["rest"]
    if re.search(r"wedged", rest, re.IGNORECASE):
        return "intel", "wedged", None
    if "GPU HANG" in rest:
        return "intel", "gpu-hang", None
    reset = re.search(r"Engine reset: engine_class=(\w+)|Resetting ([a-z]{3,4})\d* for", rest)
    if reset is None:
        return None
    video = (reset[1] or reset[2]).startswith(("vcs", "vecs"))
    return "intel", "engine-reset-video" if video else "engine-reset", None


def _aer(match: re.Match[str]) -> _Said:
    word = match["severity"].lower()
    code = "corrected" if word.startswith("correct") else "nonfatal" if "non" in word else "fatal"
    return "generic", f"aer-{code}", None


_FORMS = (
    (
        re.compile(
            rf"NVRM: Xid \(PCI:{_BUS}(?: GPU-I:[0-9]+)?\): (?P<code>\d{{1,5}})\b(?P<rest>.*)", re.DOTALL
        ),
        _xid,
    ),
    (re.compile(rf"SXid \(PCI:{_BUS}\): (?P<code>\d{{1,6}})\b(?P<rest>.*)", re.DOTALL), _sxid),
    (re.compile(rf"NVRM: (?:The NVIDIA )?GPU {_BUS}:? (?:GPU has )?fallen off the bus"), _nvidia_lost),
    (
        re.compile(
            rf"amdgpu {_BUS}: .*?(?P<count>\d{{1,18}}) (?:new )?(?P<kind>uncorrectable|correctable|deferred)"
            r" hardware errors detected (?P<total>in total )?in (?P<block>\w+) block"
        ),
        _amd_ras,
    ),
    (
        re.compile(rf"amdgpu {_BUS}: .*?\bring (?P<ring>[a-z]\w*?)_?(?P<unit>\d{{1,2}})?[\d.]* timeout"),
        _amd_ring,
    ),
    (re.compile(rf"amdgpu {_BUS}: (?:amdgpu: )?(?P<rest>.*)", re.DOTALL), _amd_words),
    (re.compile(rf"{_BUS}: .*\[ascend\].*\bevent code 0x(?P<code>[0-9A-Fa-f]{{8,9}})\b"), _ascend),
    (re.compile(rf"\b(?:i915|xe) {_BUS}: (?P<rest>.*)", re.DOTALL), _intel),
    (
        re.compile(rf"AER: (?P<severity>{_SEVERITY}) error (?:message )?received(?:: | from ){_BUS}"),
        _aer,
    ),
    (re.compile(rf"\S+ {_BUS}: (?:AER: )?PCIe Bus Error: severity=(?P<severity>{_SEVERITY})"), _aer),
)
"""Each form of a line, and what it says; the first that says something counts."""
