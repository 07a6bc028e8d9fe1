import pytest

from shared.errors import BadInput
from shared.vendors import faults
from shared.vendors.faults import catalogue, lookup, read


@pytest.mark.parametrize("vendor", ["nvidia", "amd", "huawei", "generic", "intel"])
def test_every_catalogue_can_be_read_and_says_its_sources(vendor: str) -> None:
    entries = catalogue(vendor)
    assert all(fault.source and fault.meaning for fault in entries.values())
    assert {"missing", "tool-hang", "aer-fatal"} <= entries.keys()


XIDS = """
8 13 31 32 38 43 45 48 56 57 62 63 64 68 69 74 79 92 94 95 109 119 120 121 140 143 145 146 147 148 149 150 154
"""


@pytest.mark.parametrize("code", XIDS.split())
def test_the_xids_that_matter_are_known(code: str) -> None:
    assert lookup("nvidia", code).fault_class != "unknown"


@pytest.mark.parametrize(
    ("vendor", "code", "detail", "fault_class"),
    [
        ("nvidia", "79", None, "fatal"),
        ("nvidia", "95", None, "fatal"),
        ("nvidia", "94", None, "sympathetic"),
        ("nvidia", "45", None, "sympathetic"),
        ("nvidia", "63", None, "sympathetic"),
        ("nvidia", "13", None, "application"),
        ("nvidia", "149", "fatal", "fatal"),
        ("nvidia", "149", "nonfatal", "sympathetic"),
        ("nvidia", "149", None, "transient"),
        ("nvidia", "154", "none", "ignore"),
        ("nvidia", "154", "drain-and-reset", "fatal"),
        ("nvidia", "154", "something-new", "transient"),
        ("nvidia", "sxid-12345", "fatal", "fatal"),
        ("nvidia", "sxid-12345", None, "unknown"),
        ("nvidia", "99999", None, "unknown"),
        ("amd", "ras-umc-ue", None, "transient"),
        ("amd", "79", None, "unknown"),
        ("huawei", "80E18402", None, "fatal"),
        ("intel", "wedged", None, "fatal"),
    ],
)
def test_a_code_means_what_its_catalogue_says(
    vendor: str, code: str, detail: str | None, fault_class: str
) -> None:
    assert lookup(vendor, code, detail).fault_class == fault_class


def test_a_video_processor_fault_concerns_its_engine_only() -> None:
    fault = lookup("nvidia", "68")
    assert (fault.scope, fault.engine_kind, fault.engine_index) == ("engine", "dec", 0)
    assert lookup("amd", "ring-timeout-vcn").engine_index is None


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ("[", "f"),
        ("a: 1", "f"),
        ("- 3", "f[0]"),
        ("- {code: '1', class: fatal, colour: red}", "f[0]"),
        ("- {code: 1, class: fatal}", "f[0].code"),
        ("- {code: '1', class: terrible}", "f[0].class"),
        ("- {code: '1', class: fatal, scope: world}", "f[0].scope"),
        ("- {code: '1', class: fatal, scope: engine}", "f[0].engine"),
        ("- {code: '1', class: fatal, engine: enc}", "f[0].engine"),
        ("- {code: '1', class: fatal, scope: engine, engine: enc-x}", "f[0].engine"),
        ("- {code: '1', class: fatal}\n- {code: '1', class: fatal}", "f[1].code"),
    ],
)
def test_a_broken_catalogue_is_refused_by_entry_and_field(text: str, field: str) -> None:
    with pytest.raises(BadInput) as caught:
        read(text, "f")
    assert caught.value.field == field


def test_classes_are_ordered_from_the_worst() -> None:
    assert faults.CLASSES[0] == "fatal"
    assert faults.CLASSES[-1] == "unknown"
