"""What can happen: one envelope, one catalogue, one subject grammar.

Importing this package fills the catalogue. `world` holds what nodes observe, `device` what the manager makes
of it, `remediation` the three-strikes case and people's commands, `workload` SLA, scaling, alerts and dead
letters.
"""

from shared.events import device, remediation, workload, world
from shared.events.address import FLEET, Address, Entity, escape, unescape
from shared.events.catalogue import DOMAINS, Domain, Keeps
from shared.events.envelope import (
    CATALOGUE,
    AnyEvent,
    Cause,
    Event,
    FactType,
    Payload,
    Unknown,
    decode,
    event,
    fact_id,
)

__all__ = [
    "CATALOGUE",
    "DOMAINS",
    "FLEET",
    "Address",
    "AnyEvent",
    "Cause",
    "Domain",
    "Entity",
    "Event",
    "FactType",
    "Keeps",
    "Payload",
    "Unknown",
    "decode",
    "device",
    "escape",
    "event",
    "fact_id",
    "remediation",
    "unescape",
    "workload",
    "world",
]
