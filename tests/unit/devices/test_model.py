import json

import pytest
from pydantic import ValidationError

from shared.devices.model import CodecEngine, Engines, Memory, RawDevice, UnifiedDevice
from shared.devices.readings import Readings
from shared.errors import BadInput

T4 = "nvidia-0000-3b-00-0"


def device(**fields: object) -> UnifiedDevice:
    base = {
        "uid": f"nvidia-w1-{T4}",
        "key": T4,
        "node": "w1",
        "vendor": "nvidia",
        "type": "GPU",
        "model": "T4",
    }
    return UnifiedDevice.model_validate({**base, **fields})


def test_json_has_the_agreed_keys_and_unknown_is_null() -> None:
    given = json.loads(device().model_dump_json())
    assert set(given) == {
        "uid", "key", "node", "serial", "parent", "vendor", "type", "model", "computePower", "memory",
        "codecEngine", "topology", "firmware", "capabilities", "vendorExtensions",
    }  # fmt: skip
    assert given["computePower"] == {"tflopsFp16": None, "topsInt8": None}
    assert given["memory"] == {"totalBytes": None, "allocatableBytes": None, "bandwidthBytesPerS": None}
    assert given["codecEngine"]["engines"] == {"enc": None, "dec": None, "jpeg": None, "shared": False}


def test_json_comes_back_as_the_same_device_and_unknown_keys_are_ignored() -> None:
    first = device(codec_engine=CodecEngine(engines=Engines(enc=1, dec=2, jpeg=0)))
    text = json.dumps({**json.loads(first.model_dump_json()), "somethingNew": 1})
    assert UnifiedDevice.model_validate_json(text) == first


def test_engine_ids_follow_the_counts_and_unknown_gives_none() -> None:
    known = device(codec_engine=CodecEngine(engines=Engines(enc=0, dec=2)))
    assert known.engine_ids("enc") == ()
    assert known.engine_ids("dec") == (f"{T4}-dec-0", f"{T4}-dec-1")
    assert known.engine_ids("jpeg") == ()


@pytest.mark.parametrize("total", [-1, 1.5, float("nan"), True])
def test_an_impossible_size_is_refused(total: object) -> None:
    with pytest.raises(ValidationError, match="totalBytes"):
        Memory.model_validate({"totalBytes": total})


def test_a_raw_device_keeps_readings_and_doubts_to_its_node() -> None:
    raw = RawDevice(
        vendor="nvidia", bus_address="0000:3b:00.0", readings=Readings(power_w=1.0), warnings=("x",)
    )
    assert not {"readings", "warnings"} & raw.model_dump().keys()


def test_a_raw_device_comes_back_from_an_event_by_its_key() -> None:
    raw = RawDevice.observed(f"{T4}-mig-1-0", serial="7", parent=T4, raw={"a": {"b": 1}}, sources=("a",))
    assert (raw.key, raw.partition, raw.bus_address) == (f"{T4}-mig-1-0", "mig-1-0", "0000:3b:00.0")
    with pytest.raises(BadInput, match="key"):
        RawDevice.observed("nvidia", serial=None, parent=None, raw={}, sources=())
