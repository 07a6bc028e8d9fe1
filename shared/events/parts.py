"""Pieces of several domains' payloads. Words are open: consumers treat an unknown one as unknown."""

from __future__ import annotations

from typing import Any

from pydantic import AwareDatetime, Field

from shared.events.envelope import Part

HEALTHY, UNHEALTHY, UNKNOWN = "healthy", "unhealthy", "unknown"
"""Verdicts; unknown never counts as unhealthy, and never as healthy."""

FATAL, TRANSIENT, SYMPATHETIC, APPLICATION, IGNORE = (
    "fatal",
    "transient",
    "sympathetic",
    "application",
    "ignore",
)
"""Classes of evidence, from the vendors' fault catalogues."""

ONLINE, BATCH, BESTEFFORT = "online", "batch", "besteffort"
"""Tiers of pods."""


class PodRef(Part):
    """One pod, by identity: a recreated pod of the same name is another one."""

    namespace: str = Field(min_length=1)
    name: str = Field(min_length=1)
    uid: str = Field(min_length=1)

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


class WorkloadRef(Part):
    """What owns a pod and can be scaled or recreated."""

    namespace: str = Field(min_length=1)
    kind: str = Field(min_length=1, description="Deployment, Job, StatefulSet, ...")
    name: str = Field(min_length=1)

    @property
    def entity(self) -> str:
        """`<kind>-<name>`, the entity token of the workload's events."""
        return f"{self.kind.lower()}-{self.name}"


class Evidence(Part):
    """One observed fact about a device's health."""

    id: str = Field(description="stable for this observation: boot id and counter")
    kind: str = Field(description="kernel-line, counter, temperature, link, tool, missing")
    code: str = Field(default="", description="the vendor's code, e.g. 79 for an XID")
    class_: str = Field(
        alias="class", description="fatal, transient, sympathetic, application, ignore or unknown"
    )
    scope: str = Field(default="device", description="device, partition, engine or node")
    engine: str | None = Field(default=None, description="engine key where the scope is an engine")
    at: AwareDatetime
    raw: str = Field(
        default="", max_length=2048, description="as the source printed it, cut to 2048 characters"
    )


class Window(Part):
    """An evidence window of one boot; later windows of a boot have larger numbers."""

    boot_id: str
    window_id: int = Field(ge=0)


class Slot(Part):
    """A share of one engine that an allocation holds."""

    engine: str = Field(description="engine key, e.g. nvidia-0000-3b-00-0-enc-1")
    slot: int = Field(ge=0)


class Compatibility(Part):
    """What the compatibility matrix says of a node's versions."""

    verdict: str = Field(description="compatible, unknown or incompatible")
    reason: str = ""
    nearest: dict[str, Any] | None = None
