"""The servers' configuration: accounts, users, exports and imports, made from `shared.bus.permissions`.

    python -m shared.bus.server_config keys DIRECTORY     make seeds, one file a user, and their public.json
    python -m shared.bus.server_config conf PUBLIC.JSON   configuration for a nats-server of one's own
    python -m shared.bus.server_config values             values for the official NATS Helm chart
    python -m shared.bus.server_config env PUBLIC.JSON    what those values refer to, for a ConfigMap

A configuration holds public keys only. Seeds go into Secrets, one a service, and nowhere else.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import yaml

from shared.bus.permissions import (
    AUDIT,
    AUTH,
    CLUSTER,
    NODES,
    SAMPLES,
    SYSTEM,
    Permissions,
    exports,
    users,
)
from shared.errors import BadInput, FleetError, Refused

ISSUER = "issuer"
"""Name of the account key that signs the callout's answers."""
OPERATOR = "system"
"""The user of the system account: for whoever runs the servers."""
_AUTH_WITHIN_S = 5
"""For a connection to show who it is; the callout may have to fetch the API server's keys for it."""

Key = Callable[[str], str]
"""The public key of a user, or what stands for it."""


def accounts(key: Key) -> dict[str, Any]:
    """The part of a configuration that says who may do what."""
    who: dict[str, list[dict[str, Any]]] = {name: [] for name in (CLUSTER, NODES, SAMPLES, AUDIT, AUTH)}
    for name, may in users().items():
        who[may.account].append({"nkey": key(name), "permissions": _permissions(may)})
    made: dict[str, dict[str, Any]] = {name: {"users": listed} for name, listed in who.items()}
    made[SYSTEM] = {"users": [{"nkey": key(OPERATOR)}]}
    made[CLUSTER]["jetstream"] = "enabled"
    made[CLUSTER]["exports"] = [
        {
            "service": export.subject,
            "accounts": list(export.to),
            **({"response_type": "stream"} if export.several else {}),
        }
        for export in exports()
    ]
    for importer in (NODES, SAMPLES, AUDIT):
        made[importer]["imports"] = [
            {"service": {"account": CLUSTER, "subject": export.subject}}
            for export in exports()
            if importer in export.to
        ]
    return {
        "accounts": made,
        "system_account": SYSTEM,
        "authorization": {
            "timeout": _AUTH_WITHIN_S,
            "auth_callout": {
                "issuer": key(ISSUER),
                # Whoever is not named here is asked about at the callout, static users too.
                "auth_users": [key(name) for name in (*users(), OPERATOR)],
                "account": AUTH,
            },
        },
        # nats-py cannot read the second form of acknowledgement subjects in ordered consumers.
        "feature_flags": {"js_ack_fc_v2": False},
        "max_payload": 2 << 20,
    }


def values() -> dict[str, Any]:
    """What the official chart (1.x) is given beside `values.yaml`; it reads `<< $NAME >>` as a variable."""
    return {"config": {"merge": accounts(lambda name: f"<< ${variable(name)} >>")}}


def variable(name: str) -> str:
    """The environment variable that holds a public key."""
    return f"MEDIAFLEET_NKEY_{name.upper()}"


def environment(public: Mapping[str, str]) -> dict[str, str]:
    """The variables that the chart's values name."""
    return {variable(name): _known(public)(name) for name in (*users(), OPERATOR, ISSUER)}


def new_keys(directory: Path) -> dict[str, str]:
    """Make a seed for every user, and for the callout's answers, unless it is there already.

    Returns:
        Public key by name; also in `public.json`.

    Raises:
        Refused: the library for nkeys is missing.
    """
    try:
        import nkeys  # noqa: PLC0415 - only who makes keys needs it
    except ImportError:
        raise Refused("keys need nkeys: install mediafleet[callout]") from None
    directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    public: dict[str, str] = {}
    for name in (*users(), OPERATOR, ISSUER):
        path = directory / f"{name}.nk"
        if not path.exists():
            prefix = nkeys.PREFIX_BYTE_ACCOUNT if name == ISSUER else nkeys.PREFIX_BYTE_USER
            with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
                file.write(nkeys.encode_seed(os.urandom(32), prefix))
        public[name] = nkeys.from_seed(bytearray(path.read_bytes().strip())).public_key.decode().rstrip("=")
    (directory / "public.json").write_text(json.dumps(public, indent=2) + "\n", encoding="ascii")
    return public


def main(arguments: list[str]) -> int:
    """Write what is asked for to standard output."""
    try:
        match arguments:
            case ["keys", directory]:
                new_keys(Path(directory))
                sys.stderr.write(f"seeds and public.json are in {directory}: put each seed into its Secret\n")
            case ["conf", path]:
                sys.stdout.write(json.dumps(accounts(_known(_public(path))), indent=2) + "\n")
            case ["env", path]:
                sys.stdout.write("".join(f"{k}={v}\n" for k, v in environment(_public(path)).items()))
            case ["values"]:
                sys.stdout.write(values_file())
            case _:
                sys.stderr.write(__doc__ or "")
                return 2
    except FleetError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


def values_file() -> str:
    """The chart's values as they are kept in `deploy/base/nats/accounts.yaml`."""
    head = (
        "# Accounts, users and what each may do, for the official NATS chart. Written by\n"
        "# `python -m shared.bus.server_config values`: change the code, not this file.\n"
    )
    return head + yaml.dump(values(), Dumper=_Compact, sort_keys=False, width=200)


class _Compact(yaml.SafeDumper):
    """Every user on lines of its own, without the references that YAML makes of equal lists."""

    def ignore_aliases(self, data: Any) -> bool:
        """Always."""
        del data
        return True


def _permissions(may: Permissions) -> dict[str, Any]:
    said: dict[str, Any] = {"subscribe": {"allow": list(may.subscribe)}}
    # An empty list of what is allowed allows everything.
    said["publish"] = {"allow": list(may.publish)} if may.publish else {"deny": [">"]}
    if may.responses:
        said["allow_responses"] = {"max": 1, "expires": "10s"}
    return said


def _known(public: Mapping[str, str]) -> Key:
    def key(name: str) -> str:
        try:
            return public[name]
        except KeyError:
            raise BadInput(
                name, "has no public key", "run `python -m shared.bus.server_config keys`"
            ) from None

    return key


def _public(path: str) -> dict[str, str]:
    try:
        found = json.loads(Path(path).read_text(encoding="ascii"))
    except (OSError, ValueError) as error:
        raise BadInput(path, f"cannot be read: {error}", "give the public.json that `keys` wrote") from error
    return dict(found)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
