"""The budget: how many steps may be in force at once, in which scope, how fast. Pure, one log for the fleet.

A device's case proposes a step and names the scopes that pay; the budget grants it, or queues it until there
is room. What closes, holds or retires a case returns its grants; recoveries ask for nothing. A step that only
a rate limits (an eviction) is not held once granted.

Many devices with one code within seconds are one cause: the budget freezes, grants nothing, and once thawed
gives every waiting proposal back, so that each case is judged by its current health.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, Final

from services.remediation.case import State
from services.remediation.context import Context, Given
from services.remediation.policy import Limits, Policy, ScopeKind
from shared.events import FLEET, AnyEvent, Entity, Payload
from shared.events import remediation as say

BUDGET: Final = Entity("remediation", FLEET, "budget")
"""Whose log it is."""

_QUARANTINE: Final = "quarantine"
_MINUTE: Final = timedelta(seconds=60)
_FACTS_BETWEEN_SNAPSHOTS: Final = 2000
_APPLIED_KEPT: Final = 512


@dataclass(frozen=True, slots=True, order=True)
class Key:
    """What a grant is for."""

    case: str
    epoch: int
    step: str
    pod_uid: str = ""


@dataclass(frozen=True, slots=True)
class Charge:
    """A grant in force."""

    attempt: int
    scopes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Waiting:
    """A proposal without a grant."""

    attempt: int
    scopes: tuple[str, ...]
    code: str
    until: datetime
    limited_by: str
    evidence_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class Recent:
    """A proposal to quarantine, for common cause."""

    case: str
    code: str
    scopes: tuple[str, ...]
    at: datetime


@dataclass(frozen=True, slots=True)
class Freeze:
    """A common cause in force."""

    freeze_id: str
    since: datetime


@dataclass(frozen=True, slots=True)
class BudgetCase:
    """The budget as its log tells it."""

    charges: dict[Key, Charge]
    waiting: dict[Key, Waiting]
    spent: tuple[tuple[datetime, str, tuple[str, ...]], ...] = ()
    recent: tuple[Recent, ...] = ()
    freeze: Freeze | None = None
    thawed: tuple[str, ...] = ()
    compared: bool = False
    facts: int = 0
    epoch: int = 0
    applied: tuple[str, ...] = ()

    @classmethod
    def empty(cls) -> BudgetCase:
        """Nothing granted."""
        return cls({}, {})

    @property
    def frozen(self) -> bool:
        """A common cause is in force: nothing is granted, and orders not yet called stop."""
        return self.freeze is not None


# ---------------------------------------------------------------------- fold


def evolve(case: BudgetCase, fact: AnyEvent) -> BudgetCase:
    """The budget after one more fact of its log."""
    data = fact.data
    after = replace(case, facts=case.facts + 1)
    if fact.causationid and fact.causationid not in case.applied[-1:]:
        after = replace(after, applied=(*case.applied, fact.causationid)[-_APPLIED_KEPT:])
    match data:
        case say.BudgetGranted():
            return _granted(after, data, fact)
        case say.Queued():
            key = _key(data)
            waits = Waiting(
                data.attempt, data.scopes, data.code, data.until, data.limited_by, data.evidence_at
            )
            queued = replace(after, waiting={**after.waiting, key: waits})
            return _remember(queued, key, data.code, data.scopes, data.evidence_at or fact.time)
        case say.BudgetReturned():
            key = _key(data)
            return replace(after, charges=_without(after.charges, key), waiting=_without(after.waiting, key))
        case say.Frozen():
            return replace(after, freeze=Freeze(data.freeze_id, fact.time))
        case say.Thawed():
            return replace(after, freeze=None, recent=(), thawed=(*after.thawed, data.freeze_id)[-8:])
        case say.RemediationSnapshotted():
            return _restored(data.state, data.epoch)
        case _:
            return after


def _granted(case: BudgetCase, data: say.BudgetGranted, fact: AnyEvent) -> BudgetCase:
    key = _key(data)
    since = fact.time - _MINUTE
    spent = tuple(one for one in case.spent if one[0] > since)
    if key not in case.charges:
        spent = (*spent, (fact.time, data.step, data.scopes))
    charges = case.charges
    if not data.pod_uid:
        charges = {**charges, key: Charge(data.attempt, data.scopes)}
    granted = replace(case, charges=charges, waiting=_without(case.waiting, key), spent=spent)
    return _remember(granted, key, data.code, data.scopes, data.evidence_at or fact.time)


def _remember(case: BudgetCase, key: Key, code: str, scopes: tuple[str, ...], at: datetime) -> BudgetCase:
    if key.step != _QUARANTINE or not code:
        return case
    since = at - timedelta(hours=1)
    kept = tuple([one for one in case.recent if one.case != key.case and one.at > since])
    return replace(case, recent=(*kept, Recent(key.case, code, scopes, at))[-4096:])


def _key(data: say.BudgetPayload) -> Key:
    return Key(data.case, data.epoch, data.step, data.pod_uid)


def _without(known: dict[Key, Any], key: Key) -> dict[Key, Any]:
    return {one: value for one, value in known.items() if one != key} if key in known else known


# ---------------------------------------------------------------------- what is heard


def decide(case: BudgetCase, cause: AnyEvent, given: Given) -> Payload | None:
    """The fact that a heard event leads to."""
    data = cause.data
    match data:
        case say.StepProposed():
            return _proposed(case, data, cause, given)
        case say.Quarantined():
            return _quarantined(case, data, cause, given.context)
        case say.Closed() | say.Held() | say.Retired() | say.HoldReleased():
            return _ended(case, data.epoch, cause)
        case say.ApproveRequested() if case.freeze is not None:
            reason = f"approved by {data.owner}: {data.reason}"
            return say.Thawed(freeze_id=case.freeze.freeze_id, reason=reason)
        case _:
            return None


def _proposed(case: BudgetCase, data: say.StepProposed, cause: AnyEvent, given: Given) -> Payload | None:
    key = Key(cause.subject, data.epoch, data.step, data.pod_uid)
    waiting, charge = case.waiting.get(key), case.charges.get(key)
    known = (charge is not None and charge.attempt >= data.attempt) or (
        waiting is not None and waiting.attempt >= data.attempt
    )
    if known or _answered(case, cause):
        return None
    common = _common_cause(case, key, data, cause, given.policy)
    if common is not None:
        return common
    limit = "" if charge is not None else _limited(case, data.step, data.scopes, given)
    if limit:
        return say.Queued(
            case=key.case,
            epoch=key.epoch,
            step=key.step,
            pod_uid=key.pod_uid,
            attempt=data.attempt,
            limited_by=limit,
            scopes=data.scopes,
            code=data.code,
            evidence_at=data.evidence_at,
            until=data.deadline,
        )
    return _grant(key, data.attempt, data.scopes, data.code, data.evidence_at)


def _answered(case: BudgetCase, cause: AnyEvent) -> bool:
    """A redelivered proposal. A freeze alone is no answer: its proposal must still be queued."""
    if cause.id not in case.applied:
        return False
    return case.freeze is None or not case.freeze.freeze_id.endswith(cause.id)


def _grant(
    key: Key, attempt: int, scopes: tuple[str, ...], code: str, evidence_at: datetime | None
) -> say.BudgetGranted:
    return say.BudgetGranted(
        case=key.case,
        epoch=key.epoch,
        step=key.step,
        pod_uid=key.pod_uid,
        attempt=attempt,
        scopes=scopes,
        code=code,
        evidence_at=evidence_at,
    )


def _common_cause(
    case: BudgetCase, key: Key, data: say.StepProposed, cause: AnyEvent, policy: Policy
) -> say.Frozen | None:
    if case.frozen or data.step != _QUARANTINE or not data.code:
        return None
    at = data.evidence_at or cause.time
    near = timedelta(seconds=policy.common_cause.within_s)
    alike = [
        one
        for one in case.recent
        if one.code == data.code and one.case != key.case and abs(one.at - at) <= near
    ]
    for scope in data.scopes:
        enough = policy.common_cause.count.get(_kind(scope))
        cases = [one.case for one in alike if scope in one.scopes]
        if enough is not None and len(cases) + 1 >= enough:
            return say.Frozen(
                freeze_id=f"{scope}/{data.code}/{cause.id}",
                code=data.code,
                scope=scope,
                cases=(*cases, key.case),
            )
    return None


def _quarantined(
    case: BudgetCase, data: say.Quarantined, cause: AnyEvent, context: Context
) -> Payload | None:
    """A quarantine that asked for no grant (the bridge acted alone, a strike in probation) is charged too."""
    key = Key(cause.subject, data.epoch, _QUARANTINE)
    if key in case.charges or cause.id in case.applied:
        return None
    return _grant(key, 1, context.scopes, "", None)


def _ended(case: BudgetCase, epoch: int, cause: AnyEvent) -> Payload | None:
    for key in _keys(case):
        if key.case == cause.subject and key.epoch <= epoch:
            return _give_back(case, key, f"the case was {cause.data.kind.fact}")
    return None


def _give_back(case: BudgetCase, key: Key, reason: str) -> say.BudgetReturned:
    known = case.charges.get(key) or case.waiting.get(key)
    return say.BudgetReturned(
        case=key.case,
        epoch=key.epoch,
        step=key.step,
        pod_uid=key.pod_uid,
        attempt=1 if known is None else known.attempt,
        reason=reason,
    )


def _keys(case: BudgetCase) -> Iterator[Key]:
    yield from case.charges
    yield from (key for key in case.waiting if key not in case.charges)


# ---------------------------------------------------------------------- what follows by itself


def follow(case: BudgetCase, given: Given) -> Payload | None:
    """A thaw, a grant for one that waited, or what is given back."""
    if given.context.open_cases is not None:
        gone = _gone(case, given.context)
        if gone is not None:
            return gone
    freeze = case.freeze
    if freeze is not None:
        if given.now >= freeze.since + timedelta(seconds=given.policy.common_cause.freeze_s):
            return say.Thawed(freeze_id=freeze.freeze_id, reason="its time is over")
        return _too_late(case, given.now)
    for key, waits in case.waiting.items():
        if waits.limited_by.startswith("frozen"):
            return _give_back(case, key, "thawed: the case is judged again")
    for key, waits in case.waiting.items():
        if waits.until > given.now and not _limited(case, key.step, waits.scopes, given):
            return _grant(key, waits.attempt, waits.scopes, waits.code, waits.evidence_at)
    return _too_late(case, given.now)


def _too_late(case: BudgetCase, now: datetime) -> Payload | None:
    for key, waits in case.waiting.items():
        if waits.until <= now:
            return _give_back(case, key, f"no room until its deadline: {waits.limited_by}")
    return None


def _gone(case: BudgetCase, context: Context) -> Payload | None:
    """The comparison with the open cases: a grant whose case is no longer in need of it."""
    assert context.open_cases is not None  # noqa: S101 - asked by the caller
    for key in _keys(case):
        device = context.open_cases.get(key.case)
        if device is None or device.epoch != key.epoch or device.state in {State.HELD, State.RETIRED}:
            return _give_back(case, key, "its case is over")
    return None


def due(case: BudgetCase, policy: Policy) -> datetime | None:
    """When a freeze ends, a proposal gives up, or the minute's rate has room again."""
    times = [one.until for one in case.waiting.values()]
    if case.freeze is not None:
        times.append(case.freeze.since + timedelta(seconds=policy.common_cause.freeze_s))
    elif case.waiting and case.spent:
        times.append(case.spent[0][0] + _MINUTE)
    return min(times, default=None)


# ---------------------------------------------------------------------- arithmetic


def _limited(case: BudgetCase, step: str, scopes: tuple[str, ...], given: Given) -> str:
    """The scope that has no room, as `node:worker-3 absolute`; "" when all have."""
    if case.freeze is not None:
        return f"frozen {case.freeze.freeze_id}"
    limits: Limits = given.policy.budgets.get(step, {})
    if not limits:
        return ""
    since = given.now - _MINUTE
    for scope in scopes:
        limit = limits.get(_kind(scope))
        if limit is None:
            continue
        in_force = sum(1 for key, one in case.charges.items() if key.step == step and scope in one.scopes)
        if limit.absolute is not None and in_force >= limit.absolute:
            return f"{scope} absolute"
        total = given.context.totals.get(scope)
        if limit.percent is not None and total and in_force >= max(1, int(total * limit.percent / 100)):
            return f"{scope} percent"
        if limit.per_minute is not None:
            rate = sum(1 for at, what, paid in case.spent if at > since and what == step and scope in paid)
            if rate >= limit.per_minute:
                return f"{scope} per minute"
    return ""


def _kind(scope: str) -> ScopeKind:
    kind = scope.partition(":")[0]
    return kind if kind in ("node", "rack", "model") else "cluster"  # type: ignore[return-value] # narrowed


# ---------------------------------------------------------------------- compaction


def closed(case: BudgetCase) -> bool:
    """Nothing is charged, waits or is frozen."""
    return not case.charges and not case.waiting and case.freeze is None


def snapshot(case: BudgetCase) -> say.RemediationSnapshotted | None:
    """The whole state."""
    if case.facts < _FACTS_BETWEEN_SNAPSHOTS:
        return None
    return say.RemediationSnapshotted(
        epoch=case.epoch + 1,
        state={
            "charges": [[*_flat(key), one.attempt, list(one.scopes)] for key, one in case.charges.items()],
            "waiting": [
                [
                    *_flat(key),
                    one.attempt,
                    list(one.scopes),
                    one.code,
                    one.until.isoformat(),
                    one.limited_by,
                    one.evidence_at.isoformat() if one.evidence_at else None,
                ]
                for key, one in case.waiting.items()
            ],
            "spent": [[at.isoformat(), step, list(scopes)] for at, step, scopes in case.spent],
            "recent": [[one.case, one.code, list(one.scopes), one.at.isoformat()] for one in case.recent],
            "freeze": [case.freeze.freeze_id, case.freeze.since.isoformat()] if case.freeze else None,
            "applied": list(case.applied),
        },
    )


def _flat(key: Key) -> list[Any]:
    return [key.case, key.epoch, key.step, key.pod_uid]


def _restored(state: dict[str, Any], epoch: int) -> BudgetCase:
    when = datetime.fromisoformat
    freeze = state.get("freeze")
    return BudgetCase(
        charges={Key(*row[:4]): Charge(row[4], tuple(row[5])) for row in state.get("charges", ())},
        waiting={
            Key(*row[:4]): Waiting(
                row[4], tuple(row[5]), row[6], when(row[7]), row[8], when(row[9]) if row[9] else None
            )
            for row in state.get("waiting", ())
        },
        spent=tuple((when(at), step, tuple(scopes)) for at, step, scopes in state.get("spent", ())),
        recent=tuple(
            Recent(of, code, tuple(scopes), when(at)) for of, code, scopes, at in state.get("recent", ())
        ),
        freeze=Freeze(freeze[0], when(freeze[1])) if freeze else None,
        epoch=epoch,
        applied=tuple(state.get("applied", ())),
    )
