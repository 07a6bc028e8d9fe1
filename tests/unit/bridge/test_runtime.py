from __future__ import annotations

from pathlib import Path

import pytest

from services.bridge.runtime import container_spec, response
from shared.devices.model import Engines, UnifiedDevice
from shared.vendors.runtime import DeviceNode, Mount, RuntimeSpec
from tests.unit.bridge.devices import GPU, NVDEC, NVENC, made, offered


def nvidia(bus: str, number: int) -> UnifiedDevice:
    return made(
        bus,
        engines=Engines(enc=2, dec=2, jpeg=0),
        extensions={"nvidia.uuid": f"GPU-{number}", "nvidia.minor": str(number)},
    )


FIRST, SECOND = nvidia("3b", 0), nvidia("5e", 1)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "dev").mkdir()
    for name in ("nvidia0", "nvidia1", "nvidiactl"):
        (tmp_path / "dev" / name).touch()
    return tmp_path


def spec(root: Path, resource: str, *ids: str, devices: tuple[UnifiedDevice, ...]) -> RuntimeSpec:
    known = offered(*devices)[resource]
    return container_spec(
        resource, [known[id_] for id_ in ids], devices={each.key: each for each in devices}, root=root
    )


def test_an_engine_comes_with_its_number_and_its_devices_nodes(root: Path) -> None:
    given = spec(root, NVENC, f"{FIRST.key}-enc-1-s0", devices=(FIRST, SECOND))
    assert given.env["NVENC_INSTANCE_IDS"] == "1"
    assert given.device_nodes == (
        DeviceNode("/dev/nvidia0", "/dev/nvidia0"),
        DeviceNode("/dev/nvidiactl", "/dev/nvidiactl"),
    )


def test_no_two_engine_resources_give_one_key_two_values(root: Path) -> None:
    devices = (FIRST, SECOND)
    encoder = spec(root, NVENC, f"{FIRST.key}-enc-0-s0", devices=devices).env
    decoder = spec(root, NVDEC, f"{SECOND.key}-dec-0-s0", devices=devices).env
    assert all(encoder[key] == decoder[key] for key in encoder.keys() & decoder.keys())
    assert "NVIDIA_DRIVER_CAPABILITIES" in encoder
    assert (encoder["NVENC_VISIBLE_DEVICES"], decoder["NVDEC_VISIBLE_DEVICES"]) == ("GPU-0", "GPU-1")


def test_where_there_is_one_device_the_vendors_key_is_certain(root: Path) -> None:
    given = spec(root, NVENC, f"{FIRST.key}-enc-0-s0", devices=(FIRST,))
    assert given.env["NVIDIA_VISIBLE_DEVICES"] == "GPU-0"


def test_whole_devices_are_named_in_the_vendors_key_together(root: Path) -> None:
    given = spec(root, GPU, FIRST.key, SECOND.key, devices=(FIRST, SECOND))
    assert given.env["NVIDIA_VISIBLE_DEVICES"] == "GPU-0,GPU-1"
    assert "NVENC_INSTANCE_IDS" not in given.env


def test_engines_of_two_devices_are_merged_without_repeating(root: Path) -> None:
    given = spec(root, NVENC, f"{FIRST.key}-enc-0-s0", f"{SECOND.key}-enc-0-s0", devices=(FIRST, SECOND))
    assert given.env["NVENC_VISIBLE_DEVICES"] == "GPU-0,GPU-1"
    assert [node.host_path for node in given.device_nodes].count("/dev/nvidiactl") == 1


def test_a_mount_that_the_host_lacks_is_left_out(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here, gone = Mount("/dev/nvidiactl", "/lib/here"), Mount("/usr/lib/gone", "/usr/lib/gone")
    monkeypatch.setattr("services.bridge.runtime.runtime_spec", lambda *_: RuntimeSpec(mounts=(here, gone)))
    assert spec(root, GPU, FIRST.key, devices=(FIRST,)).mounts == (here,)


def test_the_kubelet_gets_nodes_as_devices_with_their_permissions() -> None:
    given = response(
        RuntimeSpec(
            env={"A": "1"},
            device_nodes=(DeviceNode("/dev/a", "/dev/b", "rwm"),),
            mounts=(Mount("/h", "/c"),),
            annotations={"x/y": "z"},
        )
    )
    assert dict(given.envs) == {"A": "1"}
    assert [(d.host_path, d.container_path, d.permissions) for d in given.devices] == [
        ("/dev/a", "/dev/b", "rwm")
    ]
    assert [(m.host_path, m.container_path, m.read_only) for m in given.mounts] == [("/h", "/c", True)]
    assert dict(given.annotations) == {"x/y": "z"}
