from __future__ import annotations

import os
from pathlib import Path

import pytest

from services.bridge.ledger import Ledger
from services.bridge.store import DiskRecord
from shared.errors import Refused


def record(folder: Path) -> DiskRecord[Ledger]:
    return DiskRecord(folder / "bridge" / "ledger.json", Ledger)


def test_what_was_saved_is_loaded(tmp_path: Path) -> None:
    assert record(tmp_path).load().record is None
    record(tmp_path).save(Ledger(ledger_id="a", next_number=7))
    assert record(tmp_path).load().record == Ledger(ledger_id="a", next_number=7)
    assert [each.name for each in (tmp_path / "bridge").iterdir()] == ["ledger.json"]


@pytest.mark.parametrize("body", [b"", b"{", b"\xff\xfe", b'{"ledger_id": 7}', b"[]", b'{"version": 2}'])
def test_an_unreadable_file_is_set_aside_and_never_overwritten(tmp_path: Path, body: bytes) -> None:
    record(tmp_path).save(Ledger(ledger_id="a"))
    for number in (1, 2):
        (tmp_path / "bridge" / "ledger.json").write_bytes(body)
        loaded = record(tmp_path).load()
        assert loaded.record is None
        assert "ledger.json" in loaded.problem
        assert loaded.set_aside == tmp_path / "bridge" / f"ledger.json.corrupt-{number}"
        assert loaded.set_aside.read_bytes() == body
    assert record(tmp_path).load().problem == ""


def test_a_crash_in_the_middle_of_a_write_leaves_the_old_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record(tmp_path).save(Ledger(ledger_id="old"))

    def torn(_: int) -> None:
        raise OSError("power failed")

    monkeypatch.setattr(os, "fsync", torn)
    with pytest.raises(Refused, match="power failed"):
        record(tmp_path).save(Ledger(ledger_id="new"))
    assert record(tmp_path).load().record == Ledger(ledger_id="old")


def test_a_state_directory_that_cannot_be_used_is_refused_with_its_path(tmp_path: Path) -> None:
    (tmp_path / "bridge").write_text("in the way")
    with pytest.raises(Refused, match="check the state directory"):
        record(tmp_path).save(Ledger(ledger_id="a"))
    with pytest.raises(Refused, match="cannot be read"):
        record(tmp_path).load()


def test_a_file_that_cannot_be_set_aside_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record(tmp_path).save(Ledger(ledger_id="a"))
    (tmp_path / "bridge" / "ledger.json").write_bytes(b"{")

    def refuse(_: Path, __: Path) -> Path:
        raise OSError("read-only file system")

    monkeypatch.setattr(Path, "rename", refuse)
    with pytest.raises(Refused, match="move it away by hand"):
        record(tmp_path).load()
