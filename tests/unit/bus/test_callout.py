"""Questions and answers of the auth callout, as JWTs."""

from __future__ import annotations

import base64
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import nkeys
import orjson
import pytest

from shared.bus.callout import Grant, Question, Signer, answer, read
from shared.bus.permissions import agent
from shared.errors import BadInput

NOW = datetime(2026, 3, 1, tzinfo=UTC)
QUESTION = Question("UABC", "NXYZ", "secret", "bridge at 1.2.3.4")
SEED = nkeys.encode_seed(bytes(range(32)), nkeys.PREFIX_BYTE_ACCOUNT)


def jwt(claims: dict[str, Any]) -> bytes:
    text = base64.urlsafe_b64encode(orjson.dumps(claims)).rstrip(b"=")
    return b"e30." + text + b".c2ln"


def claims(text: str | bytes) -> dict[str, Any]:
    body = (text if isinstance(text, str) else text.decode()).split(".")[1]
    found: dict[str, Any] = orjson.loads(base64.urlsafe_b64decode(body + "=" * (-len(body) % 4)))
    return found


def asked(**nats: Any) -> dict[str, Any]:
    return {
        "aud": "nats-authorization-request",
        "nats": {
            "user_nkey": "UABC",
            "server_id": {"id": "NXYZ"},
            "connect_opts": {"auth_token": "secret", "name": "bridge"},
            "client_info": {"host": "1.2.3.4"},
            **nats,
        },
    }


def test_a_question_is_read() -> None:
    assert read(jwt(asked())) == QUESTION
    assert read(jwt(asked(connect_opts={}))).token == ""


def test_a_question_shows_no_token() -> None:
    assert "secret" not in repr(QUESTION)


@pytest.mark.parametrize(
    "body", [b"", b"a.b", b"a.b.c", jwt({"aud": "x"}), jwt({"aud": "nats-authorization-request"}), jwt({})]
)
def test_what_is_no_question_is_refused(body: bytes) -> None:
    with pytest.raises(BadInput):
        read(body)


def test_a_grant_is_a_user_signed_by_the_issuer() -> None:
    signer = Signer(SEED)
    grant = Grant("bridge@a", agent("bridge", "a"), datetime(2026, 3, 2, tzinfo=UTC))
    body = answer(QUESTION, grant, signer, NOW)
    said = claims(body)
    assert (said["sub"], said["aud"], said["iss"]) == ("UABC", "NXYZ", signer.public)
    user = claims(said["nats"]["jwt"])
    assert (user["sub"], user["aud"]) == ("UABC", "NODES")
    assert user["exp"] == int(datetime(2026, 3, 2, tzinfo=UTC).timestamp())
    assert user["nats"]["pub"]["allow"] == list(agent("bridge", "a").publish)
    head, payload, signature = body.split(b".")
    key = nkeys.from_seed(bytearray(SEED))
    assert key.verify(head + b"." + payload, base64.urlsafe_b64decode(signature + b"=="))


def test_a_refusal_carries_its_reason_and_no_user() -> None:
    said = claims(answer(QUESTION, "no", Signer(SEED), NOW))["nats"]
    assert said == {"type": "authorization_response", "version": 2, "error": "no"}


@pytest.mark.parametrize(
    "seed", [b"", b"SA", b"nonsense!", nkeys.encode_seed(bytes(32), nkeys.PREFIX_BYTE_USER)]
)
def test_only_an_accounts_seed_signs(seed: bytes) -> None:
    with pytest.raises(BadInput, match="issuer seed"):
        Signer(seed)


def test_a_missing_seed_is_said(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="cannot be read"):
        Signer.read(tmp_path / "absent")
