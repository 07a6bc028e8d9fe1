"""What is gathered before a decision; copied into the fact that follows where it mattered."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from services.remediation.case import DeviceCase
from services.remediation.policy import Policy
from shared.events.parts import PodRef, WorkloadRef


@dataclass(frozen=True, slots=True)
class Look:
    """A live look at one pod.

    Attributes:
        pod: the pod asked for.
        there: it exists, with this uid, and has not ended; a terminating pod still is there.
        terminating: it has a deletionTimestamp.
        tier: online, batch or besteffort.
        workload: what owns it; None for a bare pod.
        opted_out: annotated never to be evicted.
    """

    pod: PodRef
    there: bool
    terminating: bool = False
    tier: str = ""
    workload: WorkloadRef | None = None
    opted_out: bool = False


@dataclass(frozen=True, slots=True)
class NodeWord:
    """How far the word of a node's agent can be relied on.

    Attributes:
        said_all_at: when its last heartbeat with an empty journal was heard: whatever it had to say before is
            here. None: none since we listen.
        listening_since: since when we hear without a break.
    """

    listening_since: datetime
    said_all_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class Memory:
    """What the cluster remembers of a device whose log is empty.

    Attributes:
        epoch: the last one, from MediaResource status; 0 when there is none.
        stands: a phase or taint of ours that still stands, as a sentence; "" for none.
    """

    epoch: int = 0
    stands: str = ""


@dataclass(frozen=True, slots=True)
class Context:
    """All of it; what was not needed is left at its default.

    Attributes:
        node: the word of the device's node; None: not known, no deadline that depends on the node passes.
        scopes: budget scopes in which the device pays.
        serial: of the device as it was last registered; None: not known.
        looks: live looks at pods by uid; None: not looked at, or the API server did not answer.
        memory: for an empty log.
        totals: devices by budget scope, for percentages; a scope that is missing is not known.
        tainted_by_other: another device's case has tainted the node.
        open_cases: every open device case by `place/entity`, for the budget's comparison; None: not now.
    """

    node: NodeWord | None = None
    scopes: tuple[str, ...] = ("cluster",)
    serial: str | None = None
    looks: Mapping[str, Look] | None = None
    memory: Memory = Memory()
    totals: Mapping[str, int] = field(default_factory=dict)
    open_cases: Mapping[str, DeviceCase] | None = None
    tainted_by_other: bool = False


@dataclass(frozen=True, slots=True)
class Given:
    """What every decision is given: what was gathered, the time, the policy in force."""

    context: Context
    now: datetime
    policy: Policy
