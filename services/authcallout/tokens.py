"""Service account tokens, checked against the API server's own keys.

The keys are fetched from `/openid/v1/jwks` and kept. A token that names an unknown key has them fetched again
(keys rotate), though not more often than `fetch_again_s`, so that forged key ids cost the API server nothing;
keys older than `keys_max_age_s` are fetched again too, and when that fails the old ones go on for as long:
agents must come in while the API server is away.
"""

from __future__ import annotations

import asyncio
import ssl
import urllib.error
import urllib.request
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import jwt
import orjson
import structlog

from shared.clock import Clock
from shared.errors import Permanent, Temporary

_ALGORITHMS = ("RS256", "ES256", "ES384", "ES512")
"""What API servers sign with; never one whose key is a shared secret."""
_LEEWAY_S = 10
"""Between the API server's clock and ours."""
_FETCH_WITHIN_S = 3.0
_MAX_BYTES = 1 << 20
_LONGEST = 16 << 10
"""Of a token: a real one has about a thousand bytes."""

Fetch = Callable[[str], Awaitable[Mapping[str, Any]]]
"""A document of the API server by path; raises `Temporary`."""

log = structlog.get_logger(__name__)


class Tokens:
    """The judge of tokens."""

    def __init__(
        self,
        fetch: Fetch,
        clock: Clock,
        *,
        audience: str,
        issuer: str = "",
        keys_max_age_s: float,
        fetch_again_s: float,
    ) -> None:
        """Args: as in `AuthcalloutSettings`; fetch: asks the API server."""
        self._fetch = fetch
        self._clock = clock
        self._audience = audience
        self._issuer = issuer
        self._keys_max_age_s = keys_max_age_s
        self._fetch_again_s = fetch_again_s
        self._keys: dict[str, jwt.PyJWK] = {}
        self._tried_s: float | None = None
        self._fetched_s: float | None = None
        self._fetching = asyncio.Lock()

    @property
    def ready(self) -> bool:
        """Whether there are keys to check with."""
        return bool(self._keys)

    async def refresh(self) -> None:
        """Fetch the keys, if they were not just fetched.

        Raises:
            Temporary: the API server gives none, and there are none of before.
        """
        async with self._fetching:
            now_s = self._clock.monotonic()
            if self._tried_s is not None and now_s - self._tried_s < self._fetch_again_s:
                return
            self._tried_s = now_s
            try:
                if not self._issuer:
                    found = await self._fetch("/.well-known/openid-configuration")
                    self._issuer = str(found["issuer"])
                document = await self._fetch("/openid/v1/jwks")
                self._keys = _keys(document)
                self._fetched_s = now_s
                log.info("keys", ids=sorted(self._keys))
            except (Temporary, KeyError) as error:
                if not self._keys:
                    raise Temporary(f"the API server gives no keys: {error}", delay_s=1.0) from error
                log.warning("going on with the keys of before", reason=str(error))

    async def claims(self, token: str) -> Mapping[str, Any]:
        """The claims of a token that is right in every respect.

        Raises:
            Permanent: says what is wrong with it.
            Temporary: it cannot be checked now.
        """
        if len(token) > _LONGEST:
            raise Permanent("the token is too long to be one", field="token")
        key = await self._key(token)
        try:
            return dict(
                jwt.decode(
                    token,
                    key,
                    algorithms=list(_ALGORITHMS),
                    audience=self._audience,
                    issuer=self._issuer,
                    leeway=_LEEWAY_S,
                    options={"require": ["exp", "iat", "iss", "aud", "sub"]},
                )
            )
        except jwt.InvalidTokenError as error:
            raise Permanent(_said(error, self._audience, self._issuer), field="token") from error

    async def _key(self, token: str) -> jwt.PyJWK:
        try:
            key_id = str(jwt.get_unverified_header(token).get("kid", ""))
        except jwt.InvalidTokenError as error:
            raise Permanent(f"this is no token: {error}", field="token") from error
        stale = self._fetched_s is None or self._clock.monotonic() - self._fetched_s > self._keys_max_age_s
        if stale or key_id not in self._keys:
            await self.refresh()
        key = self._keys.get(key_id)
        if key is None:
            raise Permanent(
                f"the API server has no key {key_id!r}: the token is another cluster's", field="kid"
            )
        return key


def _keys(document: Mapping[str, Any]) -> dict[str, jwt.PyJWK]:
    found = {}
    for each in document["keys"]:
        try:
            key = jwt.PyJWK(each)
        except jwt.PyJWTError as error:
            log.warning("a key is left out", key=each.get("kid"), reason=str(error))
            continue
        if key.key_id:
            found[key.key_id] = key
    return found


def _said(error: jwt.InvalidTokenError, audience: str, issuer: str) -> str:
    match error:
        case jwt.ExpiredSignatureError():
            return "the token has expired: does the client read the file again?"
        case jwt.InvalidAudienceError():
            return f"the token is not for the audience {audience!r}"
        case jwt.InvalidIssuerError():
            return f"the token is not of the issuer {issuer!r}"
        case jwt.InvalidSignatureError():
            return "the token's signature is wrong"
        case _:
            return f"the token is not right: {error}"


def over_https(url: str, *, ca_file: Path, token_file: Path) -> Fetch:
    """Ask the API server, with our own token, read anew each time.

    Args:
        url: of the API server.
        ca_file: its certificates.
        token_file: holds our token.
    """

    def get(path: str) -> Mapping[str, Any]:
        try:
            trust = ssl.create_default_context(cafile=str(ca_file))
            token = token_file.read_text(encoding="ascii").strip()
            request = urllib.request.Request(  # noqa: S310 - the address is a setting, https by default
                url.rstrip("/") + path, headers={"Authorization": f"Bearer {token}"}
            )
            with urllib.request.urlopen(request, timeout=_FETCH_WITHIN_S, context=trust) as answer:  # noqa: S310 - as above
                found: dict[str, Any] = orjson.loads(answer.read(_MAX_BYTES))
                return found
        except urllib.error.HTTPError as error:
            error.close()
            hint = ": bind system:service-account-issuer-discovery" if error.code == 403 else ""  # noqa: PLR2004 - as in HTTP
            raise Temporary(f"{path}: {error.code} {error.reason}{hint}") from error
        except (OSError, ValueError) as error:
            raise Temporary(f"{path}: {error}") from error

    async def fetch(path: str) -> Mapping[str, Any]:
        return await asyncio.to_thread(get, path)

    return fetch
