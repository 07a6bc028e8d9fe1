import pytest

from shared.errors import BadInput
from shared.vendors.captures.figures import Distinct, Figures, identity, known, read


@pytest.mark.parametrize(
    "text", [None, "", " N/A ", "[N/A]", "None", "ERR!", "[Not Supported]", "Unknown  Error", "-"]
)
def test_placeholders_are_not_known(text: str | None) -> None:
    assert known(text) is None
    assert Figures("x").number("f", text) is None


@pytest.mark.parametrize("text", ["0000000000000", "0x0", "0x0000", "00-00", "N/A"])
def test_a_placeholder_identity_is_none(text: str) -> None:
    assert identity(text) is None


@pytest.mark.parametrize(
    ("text", "unit", "size"),
    [
        ("15360 MiB", "", 15360 << 20),
        ("1.5GiB", "", 3 << 29),
        ("512", "mb", 512 << 20),
        ("7", "b", 7),
        ("8", "", 8),
    ],
)
def test_sizes_are_read_with_their_unit(text: str, unit: str, size: int) -> None:
    assert Figures("x").amount_bytes("f", text, unit=unit) == size


@pytest.mark.parametrize("text", ["many", "-1", "nan", "inf", "1e400", "12 furlongs", "9e15 TiB"])
def test_a_size_that_cannot_be_is_none_and_said(text: str) -> None:
    figures = Figures("tool.gpu[0]")
    assert figures.amount_bytes("f", text) is None
    assert figures.warnings[0].startswith("tool.gpu[0].f: ")


def test_a_device_may_not_claim_what_another_has() -> None:
    distinct = Distinct("tool")
    distinct.claim("uuid", None)
    distinct.claim("uuid", None)
    distinct.claim("uuid", "GPU-a")
    distinct.claim("serial", "GPU-a")
    with pytest.raises(BadInput, match=r"tool\.uuid"):
        distinct.claim("uuid", "gpu-A")


def test_a_mark_of_byte_order_is_no_part_of_the_text() -> None:
    assert read(b"\xef\xbb\xbfok", "tool") == "ok"


def test_flags_are_yes_no_or_said() -> None:
    figures = Figures("x")
    assert [figures.flag("f", word) for word in ("Yes", "no", "N/A", "maybe")] == [True, False, None, None]
    assert len(figures.warnings) == 1
