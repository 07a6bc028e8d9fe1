"""How the streams of the domains are made; used by provisioning, and by consumers of measurements.

A stream in memory is gone when its server restarts; those who consume it make it again.
"""

from __future__ import annotations

from typing import Any

from shared.bus.nats.link import ApiError, Link
from shared.events import DOMAINS, Domain, Keeps
from shared.events.address import PREFIX

AUDIT = "FLEET_AUDIT"
DEAD_LETTERS = DOMAINS["deadletter"].stream
DEDUP_WINDOW_S = 120
"""How long a stream knows an id: longer than any publish is repeated."""
ADVISORIES = "$JS.EVENT.ADVISORY.CONSUMER"
_GAVE_UP = ("MAX_DELIVERIES", "MSG_TERMINATED")
"""The advisories that say that a consumer is done with a message it never took."""
_MAX_MSG_BYTES = 1 << 20
_NAME_IN_USE = 10058
_NANOSECONDS = 1_000_000_000


def configuration(domain: Domain) -> dict[str, Any]:
    """How a domain's stream is made."""
    log = domain.keeps is Keeps.LOG
    config: dict[str, Any] = {
        "name": domain.stream,
        "description": f"{domain.name}, said by {', '.join(domain.writers)}",
        "subjects": [f"{PREFIX}.{domain.name}.>"],
        "retention": "limits",
        "storage": "memory" if domain.keeps is Keeps.MEMORY else "file",
        "max_age": int(domain.max_age.total_seconds()) * _NANOSECONDS if domain.max_age else 0,
        "max_bytes": domain.max_bytes,
        "max_msg_size": _MAX_MSG_BYTES,
        # A case log that is full refuses, and is an alarm; facts of the world make room.
        "discard": "new" if log else "old",
        "duplicate_window": DEDUP_WINDOW_S * _NANOSECONDS,
        "compression": "none" if domain.keeps is Keeps.MEMORY else "s2",
        "allow_direct": True,
        "deny_delete": True,
        # Closed cases are purged up to their snapshot.
        "deny_purge": not log,
    }
    if domain.stream == DEAD_LETTERS:
        streams = [other.stream for other in DOMAINS.values()] + [AUDIT]
        config["subjects"] = [*config["subjects"], *captured(streams)]
    return config


def captured(streams: list[str]) -> list[str]:
    """The subjects of the advisories about consumers of these streams; never about dead letters' readers."""
    return [
        f"{ADVISORIES}.{kind}.{stream}.>" for kind in _GAVE_UP for stream in streams if stream != DEAD_LETTERS
    ]


async def make_again(link: Link, stream: str) -> bool:
    """Make a stream that its server's restart took with it; False for one that should be on disk."""
    domain = next((domain for domain in DOMAINS.values() if domain.stream == stream), None)
    if domain is None or domain.keeps is not Keeps.MEMORY:
        return False
    try:
        await link.api(f"STREAM.CREATE.{stream}", configuration(domain))
    except ApiError as error:
        # Another consumer of it was first.
        if error.err_code != _NAME_IN_USE:
            raise
    return True
