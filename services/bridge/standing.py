"""Whether a device may be given to a new container, as remediation, the manager and the node itself say.

`after` folds one fact into the standing. Epochs only grow: a fact of an older case changes nothing. A
person's hold keeps the device as it is, in use or out of use; it only stops the bridge from acting by
itself.
"""

from __future__ import annotations

from typing import Final

from pydantic import BaseModel, ConfigDict, Field

from services.bridge.share import Share
from shared.events import device, remediation, world
from shared.events.envelope import Payload

OUT_OF_USE: Final = frozenset(
    {"quarantined", "draining", "stuck", "drained", "diagnosing", "repairing", "validating", "retired"}
)
"""States of a case in which no new pod may have the device; a case may open in one, or a hold end in one."""


class Standing(BaseModel):
    """What keeps a device from new containers. Kept on disk: a restart without the bus must not forget it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    epoch: int = Field(default=0, ge=0, description="of the last case heard of")
    quarantined: bool = False
    parts: tuple[str, ...] = Field(default=(), description="engines or partitions; empty: the whole device")
    held: bool = False
    retired: bool = False
    withdrawn: bool = Field(default=False, description="the bridge acted alone; no epoch answered yet")
    removed: str = Field(default="", description="why the hardware is gone")

    @property
    def usable(self) -> bool:
        """Some of it may be given."""
        return not (self.retired or self.withdrawn or self.removed or (self.quarantined and not self.parts))

    def refusal(self, share: Share) -> str:
        """Why a share may not be given; empty when it may."""
        if self.removed:
            return f"the device is gone ({self.removed})"
        if self.retired:
            return f"the device is retired (epoch {self.epoch})"
        if self.withdrawn:
            return "the device was withdrawn after a fatal fault"
        if self.quarantined and self.covers(share):
            return f"the device is quarantined (epoch {self.epoch})"
        return ""

    def covers(self, share: Share) -> bool:
        """The share lies within the part of the device that the case is about."""
        if not self.parts or share.whole:
            # A whole device contains every part of it; a whole partition is named by its own key.
            return not self.parts or share.device == share.physical or share.device in self.parts
        return bool({share.engine, share.twin, share.device} & set(self.parts))


def after(standing: Standing, fact: Payload) -> Standing:
    """The standing once a fact about the device is known; facts that do not concern it change nothing."""
    match fact:
        case world.Removed():
            return standing.model_copy(update={"removed": fact.reason})
        case device.Lost() if fact.reason == "removed":
            # A silent agent makes its devices unknown, and what is unknown stays as it is.
            return standing.model_copy(update={"removed": fact.reason})
        case device.Registered():
            return standing.model_copy(update={"removed": ""})
        case world.Withdrawn():
            return standing.model_copy(update={"withdrawn": True})
        case remediation.CasePayload() if fact.epoch >= standing.epoch:
            return standing.model_copy(update={"epoch": fact.epoch, **_step(standing, fact)})
        case _:
            return standing


def _step(  # noqa: C901, PLR0912 - one answer per kind of fact
    standing: Standing, fact: remediation.CasePayload
) -> dict[str, object]:
    """What a fact of the current or a newer case changes."""
    change: dict[str, object] = {}
    match fact:
        case remediation.Quarantined():
            parts = fact.engines if fact.scope != "device" else ()
            if standing.quarantined and fact.epoch == standing.epoch:
                # Within an epoch the scope only widens, in whatever order its facts are heard again.
                parts = tuple(sorted({*standing.parts, *parts})) if standing.parts and parts else ()
            change = {"quarantined": True, "parts": parts, "withdrawn": False}
        case remediation.Opened() if fact.state in OUT_OF_USE:
            # A new case on a retired device is a new device in its slot.
            retired = standing.retired and fact.epoch == standing.epoch
            change = {"quarantined": True, "parts": (), "withdrawn": False, "retired": retired}
        case remediation.ProbationStarted() | remediation.Readmitted():
            change = {"quarantined": False, "parts": (), "withdrawn": False, "retired": False}
        case remediation.DeadlinePassed() if fact.timer == "probation":
            # It did not end healthy: validated again, as before it.
            change = {"quarantined": True, "parts": ()}
        case remediation.Closed() if fact.reopens in OUT_OF_USE:
            # The next case follows: in no moment between the two is the device given.
            change = {"quarantined": True, "parts": (), "held": False}
        case remediation.Closed():
            change = {"quarantined": False, "parts": (), "held": False}
        case remediation.RemediationSnapshotted():
            # All that is left of a closed case, for a bridge that was away while it ended.
            change = {"quarantined": False, "parts": (), "held": False, "retired": False}
        case remediation.Retired():
            change = {"retired": True, "withdrawn": False}
        case remediation.Held():
            change = {"held": True}
        case remediation.Opened() if fact.state == "held":
            change = {"held": True}
        case remediation.HoldReleased():
            out = fact.to_state in OUT_OF_USE
            change = {"held": False, "quarantined": out, "parts": standing.parts if out else ()}
        case _:
            pass
    return change
