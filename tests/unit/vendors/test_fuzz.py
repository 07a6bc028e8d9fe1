"""Whatever happens to a capture on its way, a parser answers with devices or with BadInput."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shared.errors import BadInput
from shared.vendors import kernel_lines
from tests.unit.vendors.captures import FOLDER, PARSERS

NAMES = sorted(PARSERS)
names = st.sampled_from(NAMES)
LINES = (
    b"3,9,8,-;NVRM: Xid (PCI:0000:3b:00): 149, NETIR_LINK_EVT Fatal XC0",
    b"6,9,8,-;NVRM: Xid (PCI:0000:3b:00): 154, GPU recovery action changed from 0x0 (None) to 0x2 (Reset)",
    b"amdgpu 0000:0b:00.0: amdgpu: die: 1, 4 new uncorrectable hardware errors detected in vcn block",
    b"amdgpu 0000:0b:00.0: amdgpu: ring vcn_unified_1 timeout, signaled seq=1",
    b"pcieport 0000:00:01.0: AER: Uncorrected (Fatal) error received: 0000:01:00.0",
)


def holds(name: str, capture: bytes) -> None:
    try:
        devices = PARSERS[name](capture)
    except BadInput:
        return
    keys = [device.key for device in devices]
    assert len(keys) == len(set(keys))
    assert {device.parent for device in devices if device.parent} <= set(keys)


@pytest.mark.parametrize("name", NAMES)
def test_a_whole_capture_is_read(name: str) -> None:
    assert PARSERS[name]((FOLDER / name).read_bytes())


@settings(deadline=None, max_examples=150)
@given(names, st.data())
def test_a_capture_cut_anywhere_is_read_or_refused(name: str, data: st.DataObject) -> None:
    whole = (FOLDER / name).read_bytes()
    holds(name, whole[: data.draw(st.integers(0, len(whole)))])


@settings(deadline=None, max_examples=200)
@given(names, st.data())
def test_a_capture_with_noise_in_it_is_read_or_refused(name: str, data: st.DataObject) -> None:
    capture = bytearray((FOLDER / name).read_bytes())
    for _ in range(data.draw(st.integers(1, 6))):
        at = data.draw(st.integers(0, len(capture)))
        gone = data.draw(st.integers(0, 8))
        capture[at : at + gone] = data.draw(
            st.binary(max_size=8) | st.sampled_from([b"|", b"/", b"\n", b"NaN", b"-1"])
        )
    holds(name, bytes(capture))


@settings(deadline=None, max_examples=100)
@given(names, st.lists(st.tuples(st.integers(0, 400), st.integers(0, 400)), max_size=4))
def test_a_capture_whose_lines_changed_places_is_read_or_refused(
    name: str, swaps: list[tuple[int, int]]
) -> None:
    lines = (FOLDER / name).read_bytes().splitlines(keepends=True)
    for one, other in swaps:
        i, j = one % len(lines), other % len(lines)
        lines[i], lines[j] = lines[j], lines[i]
    holds(name, b"".join(lines))


@settings(max_examples=100)
@given(names, st.binary(max_size=300))
def test_any_bytes_are_read_or_refused(name: str, capture: bytes) -> None:
    holds(name, capture)


@settings(max_examples=300)
@given(st.sampled_from(LINES), st.data())
def test_a_mangled_kernel_line_never_raises(line: bytes, data: st.DataObject) -> None:
    at, gone = data.draw(st.integers(0, len(line))), data.draw(st.integers(0, 12))
    mangled = line[:at] + data.draw(st.binary(max_size=12)) + line[at + gone :]
    found = kernel_lines.parse(mangled)
    assert found is None or found.bus_address
    assert (kernel_lines.sequence_of(mangled) or 0) >= 0


@given(st.text(max_size=200) | st.binary(max_size=200))
def test_any_text_is_a_kernel_line_or_none(line: str | bytes) -> None:
    assert kernel_lines.parse(line) is None
