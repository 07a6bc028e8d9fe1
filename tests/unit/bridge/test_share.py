from __future__ import annotations

import pytest

from services.bridge.share import catalogue, from_id
from shared.devices.model import Engines
from shared.errors import BadInput
from tests.unit.bridge.devices import DOMAIN, GPU, JPEG, NVDEC, NVENC, gpu, made, offered, vcn


def test_every_engine_is_offered_in_as_many_slots_as_are_set() -> None:
    found = offered(gpu(enc=2, dec=1), slots=2)
    assert list(found[NVENC]) == [f"nvidia-0000-3b-00-0-enc-{e}-s{s}" for e in (0, 1) for s in (0, 1)]
    assert list(found[NVDEC]) == ["nvidia-0000-3b-00-0-dec-0-s0", "nvidia-0000-3b-00-0-dec-0-s1"]
    assert list(found[GPU]) == ["nvidia-0000-3b-00-0"]
    assert JPEG not in found


def test_a_device_whose_engine_counts_are_not_known_offers_no_engines() -> None:
    assert list(offered(made("3b"))) == [GPU]


def test_beside_an_official_plugin_only_engines_are_offered() -> None:
    assert set(catalogue([gpu()], domain=DOMAIN, slots=1, whole_devices=False)) == {NVENC, NVDEC}


def test_a_processor_without_a_device_is_no_whole_device() -> None:
    assert offered(made("00", kind="CPU")) == {}


def test_a_divided_device_offers_only_its_partitions() -> None:
    parent = gpu()
    child = made("3b", partition="mig-3-0", engines=Engines(enc=0, dec=1, jpeg=0))
    found = offered(parent, child)
    assert list(found[f"{DOMAIN}/gpu-partition"]) == [child.key]
    assert list(found[NVDEC]) == [f"{child.key}-dec-0-s0"]
    assert GPU not in found
    assert found[NVDEC][f"{child.key}-dec-0-s0"].physical == parent.key


def test_a_unit_that_encodes_and_decodes_goes_by_one_name() -> None:
    found = offered(vcn())
    (encoder,), (decoder,) = found[NVENC].values(), found[NVDEC].values()
    assert encoder.unit == decoder.unit
    assert (encoder.twin, decoder.twin) == (decoder.engine, encoder.engine)


def test_an_id_alone_says_what_was_given() -> None:
    share = from_id("nvidia-0000-3b-00-0-mig-3-0-dec-1-s2")
    assert (share.device, share.physical) == ("nvidia-0000-3b-00-0-mig-3-0", "nvidia-0000-3b-00-0")
    assert (share.engine, share.slot, share.guessed) == ("nvidia-0000-3b-00-0-mig-3-0-dec-1", 2, True)
    assert from_id("nvidia-0000-3b-00-0").whole


def test_an_id_of_somebody_else_is_refused() -> None:
    with pytest.raises(BadInput, match="no device key"):
        from_id("GPU-1a2b")


def test_a_whole_device_is_no_slot() -> None:
    assert offered(gpu())[GPU]["nvidia-0000-3b-00-0"].as_slot() is None
