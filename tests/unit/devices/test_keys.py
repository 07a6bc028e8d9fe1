from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.devices import keys
from shared.errors import BadInput

T4 = "nvidia-0000-3b-00-0"
hexes = st.text("0123456789abcdefABCDEF", min_size=2, max_size=2)


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("0000:3b:00.0", "0000:3b:00.0"),
        ("00000000:3B:00.0", "0000:3b:00.0"),
        ("0000:3b:00", "0000:3b:00.0"),
        ("3B:1f.7", "0000:3b:1f.7"),
        ("00010000:3B:00.0", "10000:3b:00.0"),
        ("npu0", "npu0"),
    ],
)
def test_every_source_s_spelling_of_an_address_becomes_one(text: str, address: str) -> None:
    assert keys.normalise_bus_address(text) == address


@pytest.mark.parametrize(
    "text", ["", "*", "0000:3b:00.0 ", "0000:3b:00.8", "0000:3b:20.0", "NPU0", "npu.0", "3b"]
)
def test_what_is_no_address_is_refused_by_the_field_s_name(text: str) -> None:
    with pytest.raises(BadInput) as caught:
        keys.normalise_bus_address(text, "gpu.pci_bus_id")
    assert caught.value.field == "gpu.pci_bus_id"


def test_a_key_says_vendor_address_partition_engine_and_slot() -> None:
    partition = keys.device_key("nvidia", "0000:3B:00.0", "mig-3-0")
    engine = keys.engine_id(partition, "dec", 1)
    slot = keys.slot_id(engine, 2)
    assert (partition, engine, slot) == (f"{T4}-mig-3-0", f"{T4}-mig-3-0-dec-1", f"{T4}-mig-3-0-dec-1-s2")
    parsed = keys.parse(slot)
    assert parsed == keys.Key("nvidia", "0000:3b:00.0", "mig-3-0", "dec", 1, 2)
    assert (parsed.physical, parsed.device, parsed.engine) == (T4, partition, engine)
    assert keys.parse(T4).engine is None


def test_a_device_without_a_bus_is_named_as_the_kernel_names_it() -> None:
    assert keys.device_key("generic", "npu0") == "generic-npu0"
    assert keys.parse("generic-npu0-enc-0").bus_address == "npu0"


@pytest.mark.parametrize(
    ("make", "field"),
    [
        (lambda: keys.device_key("Nvidia", "0000:3b:00.0"), "vendor"),
        (lambda: keys.device_key("nv*", "0000:3b:00.0"), "vendor"),
        (lambda: keys.device_key("nvidia", "0000.3b"), "bus_address"),
        (lambda: keys.device_key("nvidia", "0000:3b:00.0", "mig 3"), "partition"),
        (lambda: keys.engine_id(f"{T4}-enc-0", "enc", 0), "device"),
        (lambda: keys.engine_id(T4, "ofa", 0), "kind"),  # type: ignore[arg-type]
        (lambda: keys.engine_id(T4, "enc", -1), "index"),
        (lambda: keys.slot_id(T4, 0), "engine"),
        (lambda: keys.slot_id(f"{T4}-enc-0", 10_000), "slot"),
        (lambda: keys.twin(f"{T4}-jpeg-0"), "engine"),
        (lambda: keys.parse("nvidia-0000-3b-00-0-enc", "ids"), "ids"),
        (lambda: keys.parse("nvidia-00000000-3b-00-0"), "key"),
        (lambda: keys.parse(f"{T4}{'-' * 60}"), "key"),
        (lambda: keys.device_uid("worker 3", T4), "node"),
        (lambda: keys.device_uid("worker-3", f"{T4}-enc-0"), "key"),
        (lambda: keys.parse_uid("worker-3"), "uid"),
        (lambda: keys.parse_uid("nvidia-Worker-0000:3b:00.0"), "uid"),
        (lambda: keys.check_node("n" * 254), "node"),
        (lambda: keys.check_node("*"), "node"),
    ],
)
def test_what_cannot_be_a_label_is_refused_by_the_field_s_name(
    make: Callable[[], object], field: str
) -> None:
    with pytest.raises(BadInput) as caught:
        make()
    assert caught.value.field == field
    assert caught.value.fix


def test_the_two_names_of_a_shared_unit_lead_to_each_other() -> None:
    assert keys.twin(f"{T4}-enc-1") == f"{T4}-dec-1"
    assert keys.twin(keys.twin(f"{T4}-enc-1")) == f"{T4}-enc-1"


@pytest.mark.parametrize("node", ["worker-3", "ip-10-0-0-1.ec2.internal", "npu1", "a-npu1"])
@pytest.mark.parametrize("key", [T4, f"{T4}-mig-3-0", "huawei-0000-81-00-0-chip-1", "generic-npu0"])
def test_an_uid_gives_back_node_and_key(node: str, key: str) -> None:
    assert keys.parse_uid(keys.device_uid(node, key)) == (node, key)


def test_an_uid_is_written_as_agreed() -> None:
    assert keys.device_uid("worker-3", T4) == "nvidia-worker-3-0000:3b:00.0"


@given(domain=st.integers(0, 0xFFFFFFFF), bus=hexes, slot=st.integers(0, 0x1F), function=st.integers(0, 7))
def test_every_address_makes_a_dns_label_that_gives_it_back(
    domain: int, bus: str, slot: int, function: int
) -> None:
    address = keys.normalise_bus_address(f"{domain:08x}:{bus}:{slot:02X}.{function}")
    label = keys.slot_id(keys.engine_id(keys.device_key("cambricon", address), "jpeg", 7), 9)
    assert len(label) <= 63
    assert keys.parse(label).bus_address == address


@given(st.text(max_size=80))
def test_any_text_is_a_key_or_refused(text: str) -> None:
    try:
        parsed = keys.parse(text)
    except BadInput:
        return
    assert text.startswith(parsed.device)
