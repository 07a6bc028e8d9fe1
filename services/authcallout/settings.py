"""Whose tokens are believed, and where the keys are."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field
from pydantic_settings import SettingsConfigDict

from shared.host import ServiceSettings

_POD = Path("/var/run/secrets/kubernetes.io/serviceaccount")


class AuthcalloutSettings(ServiceSettings):
    """The auth callout's own settings."""

    model_config = SettingsConfigDict(env_prefix="MEDIAFLEET_AUTHCALLOUT__")

    issuer_seed_file: Path = Field(
        default=Path("/var/run/secrets/mediafleet/issuer/issuer.nk"),
        description="Seed of the account nkey that signs answers; its public key stands in the servers' "
        "configuration.",
    )
    api_url: str = Field(
        default="https://kubernetes.default.svc",
        description="Where the API server serves the keys that service account tokens are signed with.",
    )
    api_ca_file: Path = Field(default=_POD / "ca.crt", description="Certificates of that server.")
    api_token_file: Path = Field(default=_POD / "token", description="Our own token for that server.")
    token_issuer: str = Field(
        default="", description="Issuer that tokens must name; empty: the one that the API server names."
    )
    audience: str = Field(default="nats", description="Audience that tokens must be bound to.")
    namespace: str = Field(default="mediafleet", description="Namespace of the node agents.")
    keys_max_age_s: float = Field(
        default=600.0,
        gt=0,
        description="Keys are fetched anew after this long: a key that was withdrawn is believed no longer.",
    )
    fetch_again_s: float = Field(
        default=5.0,
        gt=0,
        description="A token with an unknown key has them fetched at most this often.",
    )
