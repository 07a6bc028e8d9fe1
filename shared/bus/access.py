"""How a client shows who it is: what its settings name, read from files at every connection.

Files, because secrets in the environment end up in crash reports and `kubectl describe`; at every
connection, because the kubelet rotates a projected token in place and an operator a key.
"""

from __future__ import annotations

import importlib.util
import re
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shared.errors import BadInput, Refused

_SEED = re.compile(r"SU[A-Z2-7]{56}")
_CREDENTIALS = re.compile(r"//[^/@\s]*@")


@dataclass(frozen=True, slots=True)
class Access:
    """Credentials and trust of one client; the default is none, as for a server of one's own machine.

    Attributes:
        user: with `password_file`.
        password_file: holds the user's password.
        token_file: holds a service account token; the server asks the auth callout about it.
        nkey_file: holds the seed of a user nkey (`SU...`); the key itself never leaves the process.
        ca_file: certificates that the server's must be signed by; given, the connection is TLS or none.
        place: the node of an agent; its inboxes are its own.
    """

    user: str = ""
    password_file: Path | None = None
    token_file: Path | None = None
    nkey_file: Path | None = None
    ca_file: Path | None = None
    place: str = ""

    def check(self) -> None:
        """Whether what is named can be read and fits together.

        Raises:
            BadInput: names the setting and what to do.
        """
        ways = [path for path in (self.password_file, self.token_file, self.nkey_file) if path is not None]
        if len(ways) > 1:
            raise BadInput(
                "MEDIAFLEET_NATS_*_FILE",
                "several ways to show who we are are given",
                "give one of MEDIAFLEET_NATS_PASSWORD_FILE, _TOKEN_FILE and _NKEY_FILE",
            )
        if bool(self.user) != (self.password_file is not None):
            raise BadInput(
                "MEDIAFLEET_NATS_USER", "a user and a password belong together", "give both or neither"
            )
        for field, path in (
            ("PASSWORD_FILE", self.password_file),
            ("TOKEN_FILE", self.token_file),
            ("NKEY_FILE", self.nkey_file),
            ("CA_FILE", self.ca_file),
        ):
            text = _read(f"MEDIAFLEET_NATS_{field}", path) if path is not None else ""
            if path == self.nkey_file and text and not _SEED.fullmatch(text):
                raise BadInput(
                    f"MEDIAFLEET_NATS_{field}",
                    f"{path} holds no user seed",
                    "give a user nkey's seed (SU...)",
                )

    def options(self) -> dict[str, Any]:
        """What nats-py's `connect` takes; it calls the functions at every connection.

        Raises:
            BadInput: as `check`, or the certificates are none.
            Refused: a library is missing.
        """
        self.check()
        given: dict[str, Any] = {}
        if self.password_file is not None:
            given |= {"user": self.user, "password": _again("PASSWORD_FILE", self.password_file)}
        if self.token_file is not None:
            given["token"] = _again("TOKEN_FILE", self.token_file)
        if self.nkey_file is not None:
            if importlib.util.find_spec("nkeys") is None:
                raise Refused("MEDIAFLEET_NATS_NKEY_FILE needs nkeys: install mediafleet[callout]")
            given["nkeys_seed"] = str(self.nkey_file)
        if self.ca_file is not None:
            try:
                given["tls"] = ssl.create_default_context(cafile=str(self.ca_file))
            except ssl.SSLError as error:
                raise BadInput(
                    "MEDIAFLEET_NATS_CA_FILE",
                    f"{self.ca_file} holds no certificate: {error}",
                    "give PEM certificates",
                ) from error
        return given


def _again(field: str, path: Path) -> Callable[[], str]:
    def read() -> str:
        try:
            return _read(f"MEDIAFLEET_NATS_{field}", path)
        except BadInput as error:
            # The kind of error after which nats-py tries again: a file that is being replaced comes back.
            raise OSError(str(error)) from error

    return read


def _read(field: str, path: Path) -> str:
    try:
        text = path.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no text"
        raise BadInput(
            field, f"{path} cannot be read: {reason}", "mount the file for this process"
        ) from error
    if not text:
        raise BadInput(field, f"{path} is empty", "write the secret into it")
    return text


def shown(url: str) -> str:
    """A server's URL without what is secret in it."""
    return _CREDENTIALS.sub("//", url)
