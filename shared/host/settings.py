"""Settings from the environment and a file, every field documented and checked at start.

    MEDIAFLEET_<FIELD>                 shared by all services (`SharedSettings`)
    MEDIAFLEET_<SERVICE>__<FIELD>      one service's own (a subclass of `ServiceSettings`)
    MEDIAFLEET_SETTINGS_FILE           a YAML file with a section `shared` and one per service

The environment wins over the file. A wrong value stops the start with one line that names it.
"""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import Field, ValidationError
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from shared.bus.access import Access
from shared.errors import BadInput

FILE_VARIABLE = "MEDIAFLEET_SETTINGS_FILE"

SettingsT = TypeVar("SettingsT", bound="_FromFile")


class _FromFile(BaseSettings):
    """Environment first, then the file's section."""

    model_config = SettingsConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003 - the base class names it
        file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003 - the base class names it
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Arguments of a test, then the environment, then the file."""
        return init_settings, env_settings, _FileSection(settings_cls)


class _FileSection(PydanticBaseSettingsSource):
    """The section of the settings file that belongs to a settings class."""

    def get_field_value(self, field: Any, field_name: str) -> tuple[Any, str, bool]:
        """One field of the section."""
        del field
        return self._section().get(field_name), field_name, False

    def __call__(self) -> dict[str, Any]:
        """The whole section, so that an unknown field in it is refused."""
        return self._section()

    def _section(self) -> dict[str, Any]:
        path = os.environ.get(FILE_VARIABLE)
        if not path:
            return {}
        prefix = str(self.config.get("env_prefix", ""))
        name = prefix.removeprefix("MEDIAFLEET_").removesuffix("__").lower() or "shared"
        return read_section(Path(path), name)


def read_section(path: Path, name: str, *, known: tuple[str, ...] = ()) -> dict[str, Any]:
    """One section of a YAML file; empty when it is absent.

    Args:
        path: the file.
        name: of the section.
        known: names that sections may have; any when empty.

    Raises:
        BadInput: the file cannot be read, is no YAML mapping, has another section, or its section is none.
    """
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(str(path), f"cannot be read: {error}", "give a readable UTF-8 YAML file") from error
    except yaml.YAMLError as error:
        where = " ".join(str(error).split())
        raise BadInput(str(path), f"is no YAML: {where}", "mend the file at that line") from error
    strange = sorted(set(map(str, content)) - set(known)) if known and isinstance(content, dict) else []
    if strange:
        raise BadInput(f"{path}:{strange[0]}", "is no section", f"use one of {', '.join(known)}")
    section = content.get(name, {}) if isinstance(content, dict) else None
    if not isinstance(section, dict):
        raise BadInput(f"{path}:{name}", "is no mapping", "write `name: value` lines under it")
    return section


class SharedSettings(_FromFile):
    """What every service is told."""

    model_config = SettingsConfigDict(env_prefix="MEDIAFLEET_", extra="ignore")

    nats_url: str = Field(default="nats://127.0.0.1:4222", description="Where the bus is.")
    nats_user: str = Field(default="", description="User on the bus, with NATS_PASSWORD_FILE.")
    nats_password_file: Path | None = Field(default=None, description="Holds that user's password.")
    nats_token_file: Path | None = Field(
        default=None,
        description="Holds a projected service account token, by which the bus knows a node's agents; "
        "read again at every connection.",
    )
    nats_nkey_file: Path | None = Field(
        default=None, description="Holds the seed of this service's nkey; needs mediafleet[callout]."
    )
    nats_ca_file: Path | None = Field(
        default=None,
        description="Certificates that the bus's must be signed by; given, nothing is said without TLS.",
    )
    node_name: str = Field(default="", description="The Kubernetes node; needed by node services only.")
    instance: str = Field(
        default_factory=socket.gethostname,
        description="This process among its replicas; the pod's name in Kubernetes.",
    )
    state_dir: Path = Field(
        default=Path("/var/lib/mediafleet"), description="Node services keep journal and ledger here."
    )
    host_root: Path = Field(
        default=Path("/"), description="Root of the host's files (sysfs, procfs, dev, kubelet)."
    )
    kube_url: str = Field(
        default="", description="API server by plain URL; empty: in-cluster credentials, else kubeconfig."
    )
    resource_domain: str = Field(
        default="media.example.com", description="Domain of resources, labels, taints and custom resources."
    )
    policy_file: Path | None = Field(
        default=None,
        description="YAML with a section per deciding service; defaults hold where it is silent.",
    )
    policy_resource: str = Field(
        default="default",
        description="Name of the policy custom resources, which win over the file; empty: only the file.",
    )
    health_host: str = Field(default="0.0.0.0", description="Address of /healthz, /readyz and /metrics.")  # noqa: S104 - the kubelet probes the pod's address
    health_port: int = Field(
        default=9090, ge=0, le=65535, description="Port of the same; 0 takes a free one."
    )
    log_level: str = Field(default="info", description="debug, info, warning or error.")
    stop_within_s: float = Field(
        default=4.0,
        gt=0,
        description="Lanes may take this long to finish after SIGTERM; then they are cut off.",
    )

    @property
    def access(self) -> Access:
        """How this process shows the bus who it is."""
        return Access(
            user=self.nats_user,
            password_file=self.nats_password_file,
            token_file=self.nats_token_file,
            nkey_file=self.nats_nkey_file,
            ca_file=self.nats_ca_file,
            # Agents of all nodes share an account; each has inboxes of its own.
            place=self.node_name if self.nats_token_file is not None else "",
        )


class ServiceSettings(_FromFile):
    """Base of one service's own settings; the subclass sets its `env_prefix`."""


class DecidingSettings(ServiceSettings):
    """Base of the settings of a service that keeps case logs."""

    compact_after_s: float = Field(
        default=3600.0,
        ge=0,
        description="A closed case rests this long before its log is compacted behind a snapshot: who hears "
        "it later hears the snapshot only, and the rest is read from the audit.",
    )


def load(settings: type[SettingsT]) -> SettingsT:
    """Read settings from environment and file.

    Raises:
        BadInput: a value is wrong; names the variable.
    """
    try:
        return settings()
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        prefix = str(settings.model_config.get("env_prefix", ""))
        field = "__".join(str(part) for part in first["loc"])
        raise BadInput(
            f"{prefix}{field.upper()}", first["msg"], "correct it in the environment or the settings file"
        ) from error


def describe(settings: type[_FromFile]) -> list[tuple[str, str, str]]:
    """(variable, default, description) of every field, for the documentation."""
    prefix = str(settings.model_config.get("env_prefix", ""))
    rows = []
    for name, field in settings.model_fields.items():
        default = "" if field.is_required() or field.default_factory else str(field.default)
        rows.append((f"{prefix}{name.upper()}", default, field.description or ""))
    return rows
