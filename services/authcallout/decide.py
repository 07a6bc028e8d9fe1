"""Who a client is, from the claims of its token. Pure: the signature was checked before.

A token bound to a pod names the pod's node, and the API server puts it there, not the pod. Every agent runs
under the service account of its name in our own namespace; any other account may at most send samples of its
own namespace.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from shared.errors import Permanent


@dataclass(frozen=True, slots=True)
class Agent:
    """A service on a node."""

    service: str
    node: str
    pod: str


@dataclass(frozen=True, slots=True)
class Tenant:
    """Somebody who measures the pods of one namespace."""

    namespace: str
    account: str


def identify(claims: Mapping[str, Any], *, namespace: str, agents: tuple[str, ...]) -> Agent | Tenant:
    """Who a token speaks for.

    Args:
        claims: of a token whose signature, issuer, audience and expiry are right.
        namespace: ours.
        agents: service accounts there that are node agents.

    Raises:
        Permanent: says what the token lacks.
    """
    bound = claims.get("kubernetes.io")
    if not isinstance(bound, Mapping):
        raise Permanent("the token is of no service account", field="kubernetes.io")
    place, account = _name(bound, "namespace"), _name(bound, "serviceaccount", "name")
    if claims.get("sub") != f"system:serviceaccount:{place}:{account}":
        raise Permanent("subject and service account differ", field="sub")
    pod = _name(bound, "pod", "name")
    if place != namespace:
        return Tenant(place, account)
    if account not in agents:
        raise Permanent(
            f"the service account {account} has a key of its own, or no business here", field="sub"
        )
    return Agent(account, _name(bound, "node", "name"), pod)


def _name(bound: Mapping[str, Any], *path: str) -> str:
    found: Any = bound
    for part in path:
        found = found.get(part) if isinstance(found, Mapping) else None
    if not isinstance(found, str) or not found:
        raise Permanent(
            f"the token names no {path[0]}: it must be projected into a pod, bound to it",
            field=f"kubernetes.io.{'.'.join(path)}",
        )
    return found
