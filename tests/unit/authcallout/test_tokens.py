"""Keys are fetched when they are needed, not when a stranger wishes it."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa

from services.authcallout.tokens import Tokens, over_https
from shared.errors import Permanent, Temporary

EC = ec.generate_private_key(ec.SECP256R1())
RSA = rsa.generate_private_key(public_exponent=65537, key_size=2048)
SHARED = "0123456789abcdef0123456789abcdef"


class Hand:
    """A clock turned by hand."""

    def __init__(self) -> None:
        self.s = 100.0

    def now(self) -> datetime:
        return datetime.now(UTC)

    def monotonic(self) -> float:
        return self.s


class Api:
    def __init__(self) -> None:
        self.keys: list[dict[str, Any]] = [
            {**jwt.algorithms.ECAlgorithm.to_jwk(EC.public_key(), as_dict=True), "kid": "ec"},
            {**jwt.algorithms.RSAAlgorithm.to_jwk(RSA.public_key(), as_dict=True), "kid": "rsa"},
        ]
        self.asked: list[str] = []
        self.away = False

    async def fetch(self, path: str) -> Mapping[str, Any]:
        self.asked.append(path)
        if self.away:
            raise Temporary("away")
        return {"issuer": "https://api"} if path.startswith("/.well-known") else {"keys": self.keys}


@pytest.fixture
def api() -> Api:
    return Api()


@pytest.fixture
def clock() -> Hand:
    return Hand()


@pytest.fixture
def tokens(api: Api, clock: Hand) -> Tokens:
    return Tokens(api.fetch, clock, audience="nats", keys_max_age_s=600, fetch_again_s=5)


def made(kid: str = "ec", algorithm: str = "ES256", key: Any = EC, **other: Any) -> str:
    now = int(datetime.now(UTC).timestamp())
    claims = {"iss": "https://api", "aud": ["nats"], "sub": "s", "iat": now, "exp": now + 3600, **other}
    return jwt.encode(
        {name: value for name, value in claims.items() if value is not None},
        key,
        algorithm=algorithm,
        headers={"kid": kid},
    )


async def test_tokens_of_both_sorts_of_keys_are_believed(tokens: Tokens, api: Api) -> None:
    ready = [tokens.ready]
    assert (await tokens.claims(made()))["sub"] == "s"
    assert (await tokens.claims(made("rsa", "RS256", RSA)))["sub"] == "s"
    ready.append(tokens.ready)
    assert ready == [False, True]
    assert api.asked == ["/.well-known/openid-configuration", "/openid/v1/jwks"]


@pytest.mark.parametrize(
    ("token", "why"),
    [
        (made(exp=1), "expired"),
        (made(aud=["other"]), "audience 'nats'"),
        (made(iss="https://other"), "issuer 'https://api'"),
        (made(key=ec.generate_private_key(ec.SECP256R1())), "signature is wrong"),
        (made(sub=None), "sub"),
        (made(nbf=4102444800), "not yet valid"),
        (made(algorithm="HS256", key=SHARED), "not right"),
        ("x.y", "this is no token"),
        ("", "this is no token"),
        ("x" * 20_000, "too long"),
    ],
)
async def test_a_token_that_is_not_right_says_why(tokens: Tokens, token: str, why: str) -> None:
    with pytest.raises(Permanent, match=why):
        await tokens.claims(token)


async def test_a_token_without_signature_is_refused(tokens: Tokens) -> None:
    head, body, _ = made().split(".")
    unsigned = base64.urlsafe_b64encode(b'{"alg":"none","kid":"ec"}').decode().rstrip("=")
    for token in (f"{head}.{body}.", f"{unsigned}.{body}."):
        with pytest.raises(Permanent):
            await tokens.claims(token)


async def test_unknown_key_ids_cost_the_api_server_one_request_in_a_while(
    tokens: Tokens, api: Api, clock: Hand
) -> None:
    await tokens.refresh()
    before = len(api.asked)
    for _ in range(20):
        with pytest.raises(Permanent, match="no key 'forged'"):
            await tokens.claims(made("forged"))
    assert len(api.asked) == before
    clock.s += 6
    with pytest.raises(Permanent):
        await tokens.claims(made("forged"))
    assert len(api.asked) == before + 1


async def test_a_new_key_is_fetched_and_a_withdrawn_one_forgotten(
    tokens: Tokens, api: Api, clock: Hand
) -> None:
    await tokens.claims(made())
    clock.s += 6
    api.keys = [{**api.keys[0], "kid": "new"}]
    assert (await tokens.claims(made("new")))["sub"] == "s"
    with pytest.raises(Permanent, match="no key 'ec'"):
        await tokens.claims(made("ec"))


async def test_old_keys_are_fetched_anew_and_stay_while_the_api_server_is_away(
    tokens: Tokens, api: Api, clock: Hand
) -> None:
    await tokens.claims(made())
    clock.s += 601
    api.away = True
    assert (await tokens.claims(made()))["sub"] == "s"
    assert len(api.asked) == 3


async def test_without_any_key_a_token_cannot_be_judged(tokens: Tokens, api: Api) -> None:
    api.away = True
    with pytest.raises(Temporary, match="gives no keys"):
        await tokens.claims(made())


async def test_a_key_of_an_unknown_sort_is_left_out(tokens: Tokens, api: Api) -> None:
    api.keys.append({"kty": "XYZ", "kid": "odd"})
    assert (await tokens.claims(made()))["sub"] == "s"


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (b'HTTP/1.1 200 OK\r\nContent-Length: 12\r\n\r\n{"keys": []}', ""),
        (
            b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n",
            "bind system:service-account-issuer-discovery",
        ),
        (b"HTTP/1.1 500 Oops\r\nContent-Length: 0\r\n\r\n", "500 Oops"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nhuh", "jwks"),
        (b"", "jwks"),
    ],
)
async def test_the_api_server_is_asked_with_our_token(answer: bytes, why: str, tmp_path: Path) -> None:
    asked: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(answer)
        writer.close()

    (tmp_path / "token").write_text("mine\n")
    (tmp_path / "ca.crt").write_text(_certificate())
    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        fetch = over_https(
            f"http://127.0.0.1:{port}/", ca_file=tmp_path / "ca.crt", token_file=tmp_path / "token"
        )
        if why:
            with pytest.raises(Temporary, match=why):
                await fetch("/openid/v1/jwks")
        else:
            assert await fetch("/openid/v1/jwks") == {"keys": []}
    assert asked[0].startswith(b"GET /openid/v1/jwks ")
    assert b"Authorization: Bearer mine\r\n" in asked[0]


async def test_a_missing_own_token_is_said(tmp_path: Path) -> None:
    (tmp_path / "ca.crt").write_text(_certificate())
    fetch = over_https("https://127.0.0.1:1", ca_file=tmp_path / "ca.crt", token_file=tmp_path / "token")
    with pytest.raises(Temporary, match="No such file"):
        await fetch("/openid/v1/jwks")


def _certificate() -> str:
    name = x509.Name([x509.NameAttribute(x509.oid.NameOID.COMMON_NAME, "test")])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(EC.public_key())
        .serial_number(1)
        .not_valid_before(now)
        .not_valid_after(now + timedelta(days=1))
        .sign(EC, hashes.SHA256())
    )
    return made.public_bytes(serialization.Encoding.PEM).decode()
