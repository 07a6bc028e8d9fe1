"""Keys are made once, and the configuration holds their public halves only."""

from __future__ import annotations

import json
import stat
import subprocess
from pathlib import Path

import pytest

from shared.bus.permissions import users
from shared.bus.server import find_binary
from shared.bus.server_config import ISSUER, OPERATOR, main, new_keys, variable


def test_keys_are_made_once_and_are_their_owners(tmp_path: Path) -> None:
    public = new_keys(tmp_path / "keys")
    assert set(public) == {*users(), OPERATOR, ISSUER}
    for name in public:
        seed = tmp_path / "keys" / f"{name}.nk"
        assert stat.S_IMODE(seed.stat().st_mode) == 0o600
    assert public[ISSUER].startswith("A")
    assert public["manager"].startswith("U")
    assert new_keys(tmp_path / "keys") == public


def test_a_key_that_was_deleted_is_made_anew_and_the_others_stay(tmp_path: Path) -> None:
    before = new_keys(tmp_path)
    (tmp_path / "manager.nk").unlink()
    after = new_keys(tmp_path)
    assert {name for name in before if before[name] != after[name]} == {"manager"}


def test_nats_server_takes_the_configuration(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["keys", str(tmp_path)]) == 0
    capsys.readouterr()
    assert main(["conf", str(tmp_path / "public.json")]) == 0
    text = capsys.readouterr().out
    (tmp_path / "nats.conf").write_text(text)
    subprocess.run([find_binary(), "-t", "-c", tmp_path / "nats.conf"], check=True, capture_output=True)
    for seed in tmp_path.glob("*.nk"):
        assert seed.read_text().strip() not in text


def test_the_charts_variables_are_all_given(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["keys", str(tmp_path)])
    capsys.readouterr()
    assert main(["values"]) == 0
    values = capsys.readouterr().out
    assert main(["env", str(tmp_path / "public.json")]) == 0
    given = dict(line.split("=", 1) for line in capsys.readouterr().out.splitlines())
    for name in (*users(), OPERATOR, ISSUER):
        assert f"<< ${variable(name)} >>" in values
        assert given[variable(name)]
    assert json.loads((tmp_path / "public.json").read_text())["manager"] == given[variable("manager")]


@pytest.mark.parametrize(
    ("arguments", "code"), [([], 2), (["conf"], 2), (["conf", "absent.json"], 1), (["env", "absent.json"], 1)]
)
def test_a_wrong_call_says_what_to_do(
    arguments: list[str], code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == code
    assert "keys" in capsys.readouterr().err


def test_a_user_without_a_key_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "public.json").write_text("{}")
    assert main(["conf", str(tmp_path / "public.json")]) == 1
    assert "manager: has no public key" in capsys.readouterr().err
