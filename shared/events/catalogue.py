"""How a payload enters the catalogue, and the streams that carry each domain."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from typing import TypeVar

from shared.events.envelope import CATALOGUE, Event, FactType, Payload

P = TypeVar("P", bound=type[Payload])


class Keeps(StrEnum):
    """What a domain's stream keeps."""

    FACTS = "facts"
    """Facts of the world: kept for `max_age`; the owner restates what holds, so views can be rebuilt."""
    MEMORY = "memory"
    """Measurements: minutes, in memory, not audited."""
    LOG = "log"
    """Case logs: no age; closed cases are compacted behind a snapshot."""


@dataclass(frozen=True, slots=True)
class Domain:
    """One domain: one stream, one writer."""

    name: str
    keeps: Keeps
    writers: tuple[str, ...]
    """Services with the credentials to publish in it."""
    max_age: timedelta | None = None
    max_bytes: int = 1 << 30

    @property
    def stream(self) -> str:
        """The JetStream stream."""
        return f"FLEET_{self.name.upper()}"


_DAY = timedelta(days=1)

DOMAINS: dict[str, Domain] = {
    domain.name: domain
    for domain in (
        Domain("node", Keeps.FACTS, ("discovery",), 3 * _DAY),
        Domain("inventory", Keeps.FACTS, ("discovery",), 30 * _DAY),
        Domain("health", Keeps.FACTS, ("discovery",), 30 * _DAY),
        Domain("allocation", Keeps.FACTS, ("bridge",), 30 * _DAY),
        Domain("repair", Keeps.FACTS, ("discovery",), 30 * _DAY),
        Domain("command", Keeps.FACTS, ("console",), 90 * _DAY),
        Domain("sample", Keeps.MEMORY, ("simulator", "workload"), timedelta(minutes=15), 256 << 20),
        Domain("device", Keeps.LOG, ("manager",)),
        Domain("remediation", Keeps.LOG, ("remediation",)),
        Domain("sla", Keeps.LOG, ("guardian",)),
        Domain("scale", Keeps.LOG, ("autoscaler",)),
        Domain("alert", Keeps.LOG, ("alerting",)),
        Domain("deadletter", Keeps.FACTS, ("any",), 30 * _DAY),
    )
}
"""Every domain and how its stream keeps events."""


def fact(name: str, *, by: str, to: str, discriminator: tuple[str, ...] = ()) -> Callable[[P], P]:
    """Enter a payload class into the catalogue.

    Args:
        name: `domain.fact`.
        by: the service that says it; several are separated by a space.
        to: the services that hear it, separated by spaces.
        discriminator: dotted paths that tell apart two facts of one cause.
    """
    domain, _, fact_name = name.partition(".")
    if domain not in DOMAINS:
        raise ValueError(f"{name}: there is no domain {domain!r}; add it to DOMAINS")

    def enter(payload: P) -> P:
        payload.kind = FactType(domain, fact_name, discriminator, tuple(by.split()), tuple(to.split()))
        if (domain, fact_name) in CATALOGUE:
            raise ValueError(f"{name} is in the catalogue already")
        CATALOGUE[(domain, fact_name)] = (payload, Event[payload])  # type: ignore[valid-type] # made at run time
        return payload

    return enter
