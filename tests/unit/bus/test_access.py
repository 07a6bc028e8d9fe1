"""Credentials come from files, at every connection, and are shown nowhere."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from shared.bus.access import Access, shown
from shared.bus.nats import connect
from shared.errors import BadInput, Refused
from shared.host.settings import SharedSettings, load

SEED = "SUAGC3DXOPDVFZTTDW5BXWVYHIQ2ZYFJ7GBKMWPBQSAJ6ZB3GRQ6BPUBQU"


def test_nothing_named_is_nothing_shown() -> None:
    assert Access().options() == {}


def test_a_token_is_read_whenever_it_is_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text("one\n")
    token = Access(token_file=path).options()["token"]
    assert token() == "one"
    path.write_text("two\n")
    assert token() == "two"
    path.unlink()
    with pytest.raises(OSError, match=r"MEDIAFLEET_NATS_TOKEN_FILE: .*cannot be read"):
        token()


def test_a_user_has_a_password(tmp_path: Path) -> None:
    path = tmp_path / "password"
    path.write_text("secret\n")
    given = Access(user="manager", password_file=path).options()
    assert given["user"] == "manager"
    assert given["password"]() == "secret"


def test_a_key_stays_in_its_file(tmp_path: Path) -> None:
    path = tmp_path / "manager.nk"
    path.write_text(f"{SEED[:58]}\n")
    assert Access(nkey_file=path).options() == {"nkeys_seed": str(path)}


def test_a_key_without_its_library_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = tmp_path / "manager.nk"
    path.write_text(SEED[:58])
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(Refused, match=r"install mediafleet\[callout\]"):
        Access(nkey_file=path).options()


@pytest.mark.parametrize(
    ("files", "user", "why"),
    [
        ({"token_file": "t", "nkey_file": SEED[:58]}, "", "several ways"),
        ({"password_file": "p"}, "", "belong together"),
        ({}, "manager", "belong together"),
        ({"nkey_file": "SAAGC3DX"}, "", "MEDIAFLEET_NATS_NKEY_FILE: .*holds no user seed"),
        ({"token_file": " \n"}, "", "is empty"),
        ({"ca_file": "none"}, "", "MEDIAFLEET_NATS_CA_FILE: .*holds no certificate"),
        ({"token_file": b"\xff"}, "", "it is no text"),
    ],
)
def test_what_does_not_fit_names_its_setting(
    files: dict[str, str | bytes], user: str, why: str, tmp_path: Path
) -> None:
    named: dict[str, Any] = {}
    for name, content in files.items():
        named[name] = tmp_path / name
        named[name].write_bytes(content.encode() if isinstance(content, str) else content)
    with pytest.raises(BadInput, match=why) as refused:
        Access(user=user, **named).options()
    assert SEED[:58] not in str(refused.value)


async def test_a_missing_file_stops_the_start_with_its_name(tmp_path: Path) -> None:
    access = Access(token_file=tmp_path / "absent")
    with pytest.raises(BadInput, match="absent cannot be read: No such file"):
        await connect("nats://127.0.0.1:1", service="x", instance="0", access=access).__aenter__()


def test_a_urls_password_is_not_shown() -> None:
    assert shown("nats://user:secret@a:4222,tls://token@b:4222") == "nats://a:4222,tls://b:4222"
    assert shown("nats://a:4222") == "nats://a:4222"


def test_settings_name_what_a_client_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MEDIAFLEET_NODE_NAME", "worker-3")
    assert load(SharedSettings).access == Access()
    monkeypatch.setenv("MEDIAFLEET_NATS_TOKEN_FILE", "/t")
    monkeypatch.setenv("MEDIAFLEET_NATS_CA_FILE", "/ca")
    assert load(SharedSettings).access == Access(token_file=Path("/t"), ca_file=Path("/ca"), place="worker-3")
