from pathlib import Path

from services.discovery.memory import Known, Memory, load, save
from shared.devices.model import RawDevice
from shared.devices.readings import Readings


def test_what_is_kept_comes_back(tmp_path: Path) -> None:
    device = RawDevice(
        vendor="nvidia", bus_address="0000:3b:00.0", raw={"pci": {"path": ["a"]}}, sources=("pci",)
    )
    kept = Memory(
        boot_id="b",
        sequence=7,
        devices={
            device.key: Known(device=device, baseline={device.key: Readings(ecc_uncorrected=3)}, driver=True)
        },
        answered={"k/diagnosis": (2, 1)},
    )
    save(tmp_path / "discovery.json", kept)
    assert load(tmp_path / "discovery.json") == kept


def test_nothing_kept_is_a_new_node(tmp_path: Path) -> None:
    assert load(tmp_path / "discovery.json") == Memory()


def test_a_broken_file_is_set_aside(tmp_path: Path) -> None:
    path = tmp_path / "discovery.json"
    path.write_text('{"boot_id": ')
    assert load(path) == Memory()
    assert (tmp_path / "discovery.broken").read_text() == '{"boot_id": '


def test_a_place_that_cannot_be_written_or_read_is_survived(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    assert load(tmp_path / "d") == Memory()
    save(tmp_path / "nowhere/discovery.json", Memory())


def test_a_broken_file_that_cannot_be_moved_either_is_survived(tmp_path: Path) -> None:
    path = tmp_path / "discovery.json"
    path.write_text("{")
    (tmp_path / "discovery.broken/full").mkdir(parents=True)
    assert load(path) == Memory()
