"""A bus with everything on: accounts, keys, TLS, the auth callout, and an API server's keys of our own."""

from __future__ import annotations

import asyncio
import ipaddress
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import jwt
import orjson
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from services.authcallout.service import Doorkeeper
from services.authcallout.tokens import Tokens
from shared.bus.access import Access
from shared.bus.callout import Callout, Signer, over
from shared.bus.nats import NatsBus, connect
from shared.bus.permissions import CLUSTER
from shared.bus.provision import provision
from shared.bus.server import EmbeddedServer
from shared.bus.server_config import ISSUER, accounts, new_keys
from shared.clock import SystemClock

NAMESPACE = "mediafleet"
TOKEN_ISSUER = "https://api.test"
AUDIENCE = "nats"
WITHIN_S = 30.0
EVERYTHING = "root"
"""A user that may do all in the cluster's account, for the tests only."""


class Authority:
    """Signs the certificates of one test run."""

    def __init__(self, directory: Path) -> None:
        self.ca_file, self.cert, self.key = (directory / name for name in ("ca.crt", "tls.crt", "tls.key"))
        root, leaf = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "a test's own")])
        addresses = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
        top = _certificate(name, name, root, root, x509.BasicConstraints(ca=True, path_length=0))
        bottom = _certificate(
            x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "nats")]), name, leaf, root, addresses
        )
        self.ca_file.write_bytes(top.public_bytes(serialization.Encoding.PEM))
        self.cert.write_bytes(bottom.public_bytes(serialization.Encoding.PEM))
        self.key.write_bytes(
            leaf.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            )
        )


def _certificate(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePrivateKey,
    by: ec.EllipticCurvePrivateKey,
    extension: x509.ExtensionType,
) -> x509.Certificate:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(minutes=5))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(extension, critical=False)
        .sign(by, hashes.SHA256())
    )


class ApiServer:
    """What the callout sees of an API server: signing keys by id; and what a kubelet gets from it: tokens."""

    def __init__(self) -> None:
        self._keys = {"k1": ec.generate_private_key(ec.SECP256R1())}
        self.asked = 0

    def rotate(self, key_id: str) -> None:
        """Sign with another key from now on; the ones before are withdrawn."""
        self._keys = {key_id: ec.generate_private_key(ec.SECP256R1())}

    async def fetch(self, path: str) -> Mapping[str, Any]:
        """The documents."""
        if path == "/.well-known/openid-configuration":
            return {"issuer": TOKEN_ISSUER}
        self.asked += 1
        return {
            "keys": [
                {**jwt.algorithms.ECAlgorithm.to_jwk(key.public_key(), as_dict=True), "kid": key_id}
                for key_id, key in self._keys.items()
            ]
        }

    def token(
        self,
        service: str,
        node: str = "",
        *,
        namespace: str = NAMESPACE,
        lasts_s: float = 600,
        key: ec.EllipticCurvePrivateKey | None = None,
        **other: Any,
    ) -> str:
        """A token as the kubelet projects it."""
        key_id, own = next(iter(self._keys.items()))
        now = int(datetime.now(UTC).timestamp())
        bound: dict[str, Any] = {
            "namespace": namespace,
            "serviceaccount": {"name": service, "uid": "s"},
            "pod": {"name": f"{service}-x", "uid": "p"},
        }
        if node:
            bound["node"] = {"name": node, "uid": "n"}
        claims = {
            "iss": TOKEN_ISSUER,
            "aud": [AUDIENCE],
            "sub": f"system:serviceaccount:{namespace}:{service}",
            "iat": now,
            "nbf": now,
            "exp": int(now + lasts_s),
            "kubernetes.io": bound,
            **other,
        }
        return jwt.encode(claims, key or own, algorithm="ES256", headers={"kid": key_id})


@dataclass
class Site:
    """The server with its callout, and credentials for everybody."""

    server: EmbeddedServer
    keys: Path
    authority: Authority
    api: ApiServer
    _tokens: int = field(default=0, repr=False)

    @property
    def log(self) -> str:
        """The server's."""
        return (self.server.directory / "nats-server.log").read_text()

    @property
    def violations(self) -> list[str]:
        """What it refused."""
        return [line for line in self.log.splitlines() if "Violation" in line]

    def access(self, name: str) -> Access:
        """By key."""
        return Access(nkey_file=self.keys / f"{name}.nk", ca_file=self.authority.ca_file)

    def token_file(self, token: str) -> Path:
        """A token where its process finds it."""
        self._tokens += 1
        path = self.server.directory / f"token-{self._tokens}"
        path.write_text(token)
        return path

    def by_token(self, token: str | Path, place: str) -> Access:
        """By token."""
        path = token if isinstance(token, Path) else self.token_file(token)
        return Access(token_file=path, ca_file=self.authority.ca_file, place=place)

    @asynccontextmanager
    async def bus(self, name: str, instance: str = "0") -> AsyncIterator[NatsBus]:
        """A client by its key."""
        access = self.access(name)
        async with connect(
            self.server.url, service=name, instance=instance, lease_ttl_s=1, access=access
        ) as bus:
            yield bus

    @asynccontextmanager
    async def agent(self, service: str, node: str, *, as_node: str = "") -> AsyncIterator[NatsBus]:
        """A node's service by its token; what it claims to be is another thing."""
        access = self.by_token(self.api.token(service, node), as_node or node)
        async with connect(
            self.server.url, service=service, instance="0", access=access, within_s=WITHIN_S
        ) as bus:
            yield bus

    @asynccontextmanager
    async def root(self) -> AsyncIterator[NatsBus]:
        """Everything allowed."""
        password = self.server.directory / "root"
        password.write_text("root\n")
        access = Access(user=EVERYTHING, password_file=password, ca_file=self.authority.ca_file)
        async with connect(self.server.url, service="root", instance="0", access=access) as bus:
            yield bus


def configuration(public: Mapping[str, str], authority: Authority) -> str:
    """The servers' configuration, with TLS and a user that may do all."""
    made = accounts(lambda name: public[name])
    made["accounts"][CLUSTER]["users"].append({"user": EVERYTHING, "password": "root"})
    made["authorization"]["auth_callout"]["auth_users"].append(EVERYTHING)
    made["tls"] = {"cert_file": str(authority.cert), "key_file": str(authority.key)}
    # The embedded server says these itself.
    own = {key: value for key, value in made.items() if key not in ("feature_flags", "max_payload")}
    return "\n".join(f"{key}: {orjson.dumps(value).decode()}" for key, value in own.items())


@asynccontextmanager
async def site(directory: Path, *, callout: bool = True) -> AsyncIterator[Site]:
    """A provisioned bus, with its callout or without."""
    public = new_keys(directory / "keys")
    authority = Authority(directory)
    server = EmbeddedServer(directory / "nats", extra=configuration(public, authority))
    async with server:
        here = Site(server, directory / "keys", authority, ApiServer())
        await provision(server.url, access=here.access("provision"))
        if not callout:
            yield here
            return
        async with answering(here):
            yield here


@asynccontextmanager
async def answering(here: Site, instance: str = "0") -> AsyncIterator[Callout]:
    """A callout for this site."""
    clock = SystemClock()
    tokens = Tokens(here.api.fetch, clock, audience=AUDIENCE, keys_max_age_s=600.0, fetch_again_s=0.0)
    doorkeeper = Doorkeeper(tokens, namespace=NAMESPACE)
    signer = Signer.read(here.keys / f"{ISSUER}.nk")
    link = over(here.access("authcallout"), instance=instance)
    callout = Callout(link, signer, clock, doorkeeper.decide)
    running = asyncio.create_task(callout.run(here.server.url), name="callout")
    try:
        async with asyncio.timeout(WITHIN_S):
            await link.until_connected()
        yield callout
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
