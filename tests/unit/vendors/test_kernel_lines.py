import pytest

from shared.vendors.kernel_lines import LONGEST_RAW, parse, sequence_of
from tests.unit.vendors.captures import text

LINES = text("kernel_lines.tsv").splitlines()[1:]
GONE = "NVRM: Xid (PCI:0000:3b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."


def test_a_kmsg_record_gives_address_code_number_and_time() -> None:
    found = parse(f"3,1234,5678901234,-;{GONE}\n")
    assert found is not None
    assert (found.vendor, found.bus_address, found.code, found.detail) == (
        "nvidia",
        "0000:3b:00.0",
        "79",
        None,
    )
    assert (found.sequence, found.since_boot_s, found.raw) == (1234, 5678.901234, GONE)
    assert found.fault.fault_class == "fatal"


@pytest.mark.parametrize(
    ("line", "seconds"),
    [(GONE, None), (f"[ 1843.308145] {GONE}", 1843.308145), (f"[Sun Feb 23 16:24:18 2025] {GONE}", None)],
)
def test_plain_text_is_taken_with_or_without_a_time(line: str, seconds: float | None) -> None:
    found = parse(line.encode())
    assert found is not None
    assert (found.sequence, found.since_boot_s) == (None, seconds)


@pytest.mark.parametrize("row", LINES, ids=lambda row: row.split("\t")[2])
def test_what_drivers_say_is_understood(row: str) -> None:
    vendor, address, code, detail, line = row.split("\t")
    found = parse(line)
    assert found is not None
    assert (found.vendor, found.bus_address, found.code, found.detail or "") == (
        vendor,
        address,
        code,
        detail,
    )


@pytest.mark.parametrize(
    ("line", "kind", "index"),
    [
        ("NVRM: Xid (PCI:0000:3b:00): 84, pid=1", "dec", 2),
        ("amdgpu 0000:45:00.0: amdgpu: ring vcn_unified_1 timeout, signaled", "dec", 1),
        ("amdgpu 0000:45:00.0: amdgpu: ring jpeg_dec_3 timeout, signaled", "jpeg", 3),
        ("amdgpu 0000:45:00.0: amdgpu: 1 uncorrectable hardware errors detected in vcn block", "dec", None),
    ],
)
def test_an_engine_is_named_where_the_line_or_the_code_names_it(
    line: str, kind: str, index: int | None
) -> None:
    found = parse(line)
    assert found is not None
    assert (found.fault.scope, found.fault.engine_kind, found.engine_index) == ("engine", kind, index)


@pytest.mark.parametrize(
    "line",
    [
        "",
        " SUBSYSTEM=pci",
        "usb 1-1: new high-speed USB device",
        "NVRM: Xid (PCI:0000:b3:00.0): INVALID, pid=1234",
        "NVRM: The NVIDIA GPU invalid-bdf.0NVRM: fallen off the bus",
        "NVRM: GPU at PCI:0000:9b:00: GPU-509665ad",
        f"14,1234,5678901234,-;{GONE}",  # a program wrote it
        "NVRM: Xid (PCI:0000:3b:3f): 79, no such device number",
        "amdgpu 0000:0b:00.0: amdgpu: no uncorrectable hardware errors detected in umc block",
        "amdgpu 0000:0b:00.0: amdgpu: 0 uncorrectable hardware errors detected in umc block",
        "amdgpu 0000:0b:00.0: amdgpu: 9 uncorrectable hardware errors detected in total in umc block",
        "amdgpu 0000:0b:00.0: amdgpu: GPU reset succeeded, trying to resume",
        "i915 0000:4d:00.0: [drm] HuC firmware loaded",
    ],
)
def test_what_is_no_evidence_is_none(line: str) -> None:
    assert parse(line) is None


def test_an_unknown_code_is_evidence_of_an_unknown_class() -> None:
    found = parse("NVRM: Xid (PCI:0000:05:00): 99999, unknown error")
    assert found is not None
    assert found.fault.fault_class == "unknown"


def test_the_text_is_cut_to_what_evidence_may_carry() -> None:
    found = parse(GONE + "x" * 9000)
    assert found is not None
    assert len(found.raw) == LONGEST_RAW


def test_only_records_have_a_number() -> None:
    assert (sequence_of(b"6,17,1,-;x"), sequence_of("plain"), sequence_of(" KEY=value")) == (17, None, None)
