"""The policy in force of a deciding service: its custom resource before the policy file before the defaults.

    policy = ClusterPolicy(PolicyFile(...), "GuardianPolicy", clock)
    policy.watch(lambda: kube.watch_policies(...))       every replica, for ever
    await policy.known()                                 before anything is decided
    policy.answer(patch_status, record_event)            the active replica

One that is not valid never replaces a good one. The last good one is kept in the resource's own status, so it
outlives this process too. The resource says how it fared: condition `Accepted`, and a Kubernetes Event.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Generic, Literal, Protocol, TypeVar

import structlog
from prometheus_client import Counter
from pydantic import BaseModel, ValidationError

from shared.clock import Clock
from shared.errors import FleetError, Permanent, Temporary
from shared.host.policy import PolicyFile
from shared.kube.conditions import Condition, written
from shared.kube.models import Change, ChangeKind, ObjectRef, PolicyKind, PolicyResource

PolicyT = TypeVar("PolicyT", bound=BaseModel)

ACCEPTED: Final = "Accepted"
"""The condition's type."""
_LOOK_AGAIN_S: Final = 60.0
"""Until a server that does not know the kind, or does not let us look, is asked again."""
_MOST_PROBLEMS: Final = 5

_REFUSED = Counter(
    "mediafleet_policy_resources_refused", "Policies in the cluster that were not valid.", ["kind"]
)

log = structlog.get_logger(__name__)


class PatchStatus(Protocol):
    """The port's `patch_policy_status`."""

    def __call__(
        self, kind: PolicyKind, name: str, status: Mapping[str, Any]
    ) -> Awaitable[PolicyResource | None]:
        """Put a status in the place of a policy's status."""
        ...


class RecordEvent(Protocol):
    """The port's `record_event`."""

    def __call__(
        self,
        regarding: ObjectRef,
        reason: str,
        note: str,
        type: Literal["Normal", "Warning"],  # noqa: A002 - the API's own name
        action: str,
    ) -> Awaitable[None]:
        """Record an Event."""
        ...


@dataclass(frozen=True, slots=True)
class _Judged:
    """What became of one generation of the resource; `good` is what its status remembers."""

    resource: PolicyResource
    accepted: bool
    message: str
    good: Mapping[str, Any] | None


class ClusterPolicy(Generic[PolicyT]):
    """A policy that follows its custom resource, and its file where there is none."""

    def __init__(
        self,
        file: PolicyFile[PolicyT],
        kind: PolicyKind,
        clock: Clock,
        *,
        name: str = "default",
        domain: str = "media.example.com",
    ) -> None:
        """Wire it.

        Args:
            file: what holds without a resource.
            kind: of the resource.
            clock: for the times in conditions.
            name: of the resource; empty: only the file is followed.
            domain: of the resource.
        """
        self._file = file
        self._kind: PolicyKind = kind
        self._clock = clock
        self._name = name
        self._api_version = f"{domain}/v1alpha1"
        self._of_cluster: PolicyT | None = None
        self._judged: _Judged | None = None
        self._known = asyncio.Event()
        self._changed = asyncio.Event()

    def current(self) -> PolicyT:
        """The policy in force."""
        return self._file.current() if self._of_cluster is None else self._of_cluster

    async def known(self) -> None:
        """Wait until the API server has said whether there is a resource.

        To decide by the file meanwhile could do what the cluster's policy forbids.
        """
        if not self._name or self._known.is_set():
            return
        log.info("waiting for the API server to say which policy is in force", kind=self._kind)
        await self._known.wait()

    # ------------------------------------------------------------------ hearing

    async def watch(self, changes: Callable[[], AsyncGenerator[Change[PolicyResource], None]]) -> None:
        """Follow the resource, for ever; also where the server does not know its kind yet."""
        if not self._name:
            await asyncio.Event().wait()
        told = False
        while True:
            try:
                async with aclosing(changes()) as watched:
                    async for change in watched:
                        told = False
                        self.take(change)
            except Permanent as error:
                if not told:
                    log.warning("no policy from the cluster", kind=self._kind, reason=error.reason)
                told = True
            self._known.set()
            await asyncio.sleep(_LOOK_AGAIN_S)

    def take(self, change: Change[PolicyResource]) -> None:
        """One change of a resource of the kind."""
        resource = change.item
        if resource is None:
            self._known.set()
        elif resource.name == self._name and change.kind is ChangeKind.DELETED:
            self._of_cluster = self._judged = None
            log.info("the policy resource is gone: the policy file is in force", kind=self._kind)
        elif resource.name == self._name:
            self._judge(resource)

    def _judge(self, resource: PolicyResource) -> None:
        last = self._judged
        if last is not None and _text_of(last.resource) == _text_of(resource):
            self._judged = _Judged(resource, last.accepted, last.message, last.good)
            return
        same = last is not None and last.resource.uid == resource.uid
        model = self._file.model
        try:
            policy = model.model_validate(resource.spec)
        except ValidationError as error:
            good = last.good if last is not None and same else self._remembered(resource)
            stays = "the policy file" if good is None else f"generation {good.get('generation')}"
            message = f"{_problems(error)}. Correct it and apply it again; until then {stays} stays in force."
            self._judged = _Judged(resource, accepted=False, message=message, good=good)
            _REFUSED.labels(self._kind).inc()
            log.error("the policy resource is not valid", kind=self._kind, reason=message)
        else:
            self._of_cluster = policy
            good = {"generation": resource.generation, "spec": dict(resource.spec)}
            message = f"Generation {resource.generation} is in force."
            self._judged = _Judged(resource, accepted=True, message=message, good=good)
            log.info("policy from the cluster", kind=self._kind, generation=resource.generation)
        self._changed.set()

    def _remembered(self, resource: PolicyResource) -> Mapping[str, Any] | None:
        """The last good policy of before, put in force again; None where there is none, or it is bad now."""
        good = resource.status.get("lastGood")
        if not isinstance(good, Mapping):
            self._of_cluster = None
            return None
        try:
            self._of_cluster = self._file.model.model_validate(good.get("spec"))
        except ValidationError:
            self._of_cluster = None
            return None
        return good

    # ------------------------------------------------------------------ answering

    async def answer(self, patch_status: PatchStatus, record_event: RecordEvent) -> None:
        """Say on the resource how it fared, for ever; for one replica at a time."""
        self._changed.set()
        while True:
            await self._changed.wait()
            self._changed.clear()
            judged = self._judged
            if judged is None:
                continue
            try:
                await self._say(judged, patch_status, record_event)
            except Temporary as error:
                await asyncio.sleep(error.delay_s)
                self._changed.set()
            except FleetError as error:
                log.error("the policy's status was not written", kind=self._kind, reason=str(error))

    async def _say(self, judged: _Judged, patch_status: PatchStatus, record_event: RecordEvent) -> None:
        resource = judged.resource
        status = status_of(resource, accepted=judged.accepted, message=judged.message, now=self._clock.now())
        if judged.good is not None:
            status["lastGood"] = judged.good
        if status == resource.status:
            return
        await patch_status(self._kind, resource.name, status)
        about = ObjectRef(self._kind, resource.name, uid=resource.uid, api_version=self._api_version)
        if judged.accepted:
            await record_event(about, "PolicyAccepted", judged.message, "Normal", "Validate")
        else:
            await record_event(about, "PolicyRefused", judged.message, "Warning", "Validate")


def status_of(resource: PolicyResource, *, accepted: bool, message: str, now: datetime) -> dict[str, Any]:
    """A policy's status."""
    condition = Condition(
        ACCEPTED, "True" if accepted else "False", "Valid" if accepted else "Invalid", message
    )
    lines = written((condition,), resource.status, generation=resource.generation, now=now)
    return {"observedGeneration": resource.generation, "conditions": lines}


def _text_of(resource: PolicyResource) -> tuple[str, int]:
    return resource.uid, resource.generation


def _problems(error: ValidationError) -> str:
    """Field and problem of each mistake, the first few."""
    found = error.errors(include_url=False, include_input=False)
    said = [f"{'.'.join(['spec', *(str(part) for part in each['loc'])])}: {each['msg']}" for each in found]
    more = f"; and {len(said) - _MOST_PROBLEMS} more" if len(said) > _MOST_PROBLEMS else ""
    return "; ".join(said[:_MOST_PROBLEMS]) + more
