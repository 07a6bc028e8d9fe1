"""What the bridge remembers of its node between two starts, with the bus or without it.

A kubelet refuses a restarted pod whose device is not offered yet, and a quarantine that was forgotten would
be a healing by accident; so devices, standings and fences are on the node's own disk.
"""

from __future__ import annotations

from typing import Literal, Self

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field

from services.bridge.standing import Standing
from shared.devices.model import UnifiedDevice
from shared.events import AnyEvent, Cause
from shared.events.parts import Window
from shared.events.world import Withdrawn

_NUMBERS_PER_START = 1_000_000
"""Numbers that one process may use without writing them down."""


class Heard(BaseModel):
    """How far a domain's stream is known. A stream made anew counts from 1 again, but is younger."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    created: AwareDatetime = Field(description="when the stream was made")
    sequence: int = Field(ge=0)

    def covers(self, other: Self) -> bool:
        """The other one was heard before."""
        return (other.created, other.sequence) <= (self.created, self.sequence)


class Question(BaseModel):
    """A quarantine that asks who holds the device, kept until it is answered: the event that asked."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    event_id: str
    epoch: int = Field(default=0, ge=0, description="of the quarantine; 0: kept by an earlier version")
    correlationid: str | None = None
    traceparent: str | None = None

    @property
    def cause(self) -> Cause:
        """The answer's cause."""
        return Cause(self.event_id, self.event_id, self.correlationid, self.traceparent)


class NodeRecord(BaseModel):
    """The node's books besides the ledger. Immutable: each step returns the next one."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    version: Literal[1] = 1
    counter: int = Field(default=0, ge=0, description="numbers of facts up to here may have been used")
    devices: dict[str, UnifiedDevice] = Field(default_factory=dict)
    standings: dict[str, Standing] = Field(default_factory=dict)
    windows: dict[str, Window] = Field(default_factory=dict, description="last health window by device")
    fenced: dict[str, int] = Field(default_factory=dict, description="last epoch answered by device")
    answered: dict[str, tuple[str, ...]] = Field(
        default_factory=dict,
        description="ids of that epoch's quarantines that were answered; a wider one is another",
    )
    questions: dict[str, Question] = Field(default_factory=dict, description="quarantines to answer")
    withdrawals: dict[str, Withdrawn] = Field(default_factory=dict, description="not answered by an epoch")
    heard: dict[str, Heard] = Field(default_factory=dict, description="by domain")

    def next_start(self) -> Self:
        """The record of a process that starts: its numbers begin above all that were ever used."""
        return self.model_copy(update={"counter": self.counter + _NUMBERS_PER_START})

    def hearing(self, domain: str, at: Heard) -> Self:
        """A domain is known up to there."""
        return self.model_copy(update={"heard": {**self.heard, domain: at}})

    def with_device(self, key: str, device: UnifiedDevice | None) -> Self:
        """A device is registered, or (None) no longer."""
        rest = {each: known for each, known in self.devices.items() if each != key}
        return self.model_copy(update={"devices": rest if device is None else {**rest, key: device}})

    def with_standing(self, key: str, standing: Standing) -> Self:
        """A device's standing changed; a withdrawal that an epoch answered is forgotten."""
        withdrawals = self.withdrawals
        if not standing.withdrawn:
            withdrawals = {each: fact for each, fact in withdrawals.items() if each != key}
        standings = {**self.standings, key: standing}
        return self.model_copy(update={"standings": standings, "withdrawals": withdrawals})

    def with_withdrawal(self, key: str, fact: Withdrawn) -> Self:
        """The bridge took a device from the kubelet by itself."""
        standing = self.standings.get(key, Standing()).model_copy(update={"withdrawn": True})
        withdrawals = {**self.withdrawals, key: fact}
        standings = {**self.standings, key: standing}
        return self.model_copy(update={"standings": standings, "withdrawals": withdrawals})

    def with_window(self, key: str, window: Window) -> Self:
        """The last health window of a device."""
        return self.model_copy(update={"windows": {**self.windows, key: window}})

    def with_question(self, key: str, event: AnyEvent) -> Self:
        """A quarantine asks who holds the device."""
        asked = Question(
            event_id=event.id,
            epoch=event.epoch or 0,
            correlationid=event.correlationid,
            traceparent=event.traceparent,
        )
        return self.model_copy(update={"questions": {**self.questions, key: asked}})

    def has_answered(self, key: str, epoch: int, event_id: str) -> bool:
        """The quarantine, or one of a later case, was answered."""
        fenced = self.fenced.get(key, 0)
        return epoch < fenced or (epoch == fenced and event_id in self.answered.get(key, ()))

    def without_question(self, key: str, *, fenced: int | None = None) -> Self:
        """The quarantine of this epoch was answered; without one, the question is moot."""
        rest = {each: asked for each, asked in self.questions.items() if each != key}
        if fenced is None:
            return self.model_copy(update={"questions": rest})
        before = self.answered.get(key, ()) if self.fenced.get(key, 0) == fenced else ()
        answered = {**self.answered, key: (*before, self.questions[key].event_id)}
        told = {**self.fenced, key: fenced}
        return self.model_copy(update={"questions": rest, "fenced": told, "answered": answered})
