"""When an alert is raised and resolved: one per cause, whatever comes twice, late or in the wrong order.

An alert's id is its rule and what it is about (a case, or a subject). A case ends once: its alert is never
raised again. A subject may fail again: then the times of the facts decide which came later. A resolve that
comes before its raise is kept and matched, where both come from different streams (in one, order is certain).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from services.alerting.rules import Rule, Rules
from shared.deciders.protocol import Effect
from shared.events import AnyEvent, Entity, Payload
from shared.events.workload import AlertRaised, AlertResolved

_REMEMBERED = 64
"""Ended alerts kept per entity: late repetitions come within days, not within so many cases of one device."""


@dataclass(frozen=True, slots=True)
class Alert:
    """One alert.

    Attributes:
        open: raised and not resolved.
        at: when the fact that raised or resolved it last happened.
        raised_at: when it was raised, by our clock; None when its resolve came first.
    """

    id: str
    rule: str
    open: bool
    at: datetime
    raised_at: datetime | None


@dataclass(frozen=True, slots=True)
class AlertCase:
    """All alerts about one entity, by id, oldest first."""

    of: Entity
    alerts: Mapping[str, Alert] = field(default_factory=dict)


class AlertDecider:
    """One case per entity, in the logs of domain `alert`."""

    domain = "alert"

    def initial(self, of: Entity) -> AlertCase:
        """The case of an empty log."""
        return AlertCase(of)

    def evolve(self, case: AlertCase, fact: AnyEvent, sequence: int) -> AlertCase:
        """The case after one more fact."""
        del sequence
        data = fact.data
        if not isinstance(data, AlertRaised | AlertResolved):
            return case
        alerts = {k: v for k, v in case.alerts.items() if k != data.alert_id}
        before = case.alerts.get(data.alert_id)
        if isinstance(data, AlertRaised):
            made = Alert(data.alert_id, data.rule, True, data.at or fact.time, fact.time)
        else:
            raised_at = before.raised_at if before else None
            made = Alert(data.alert_id, data.rule, False, data.at or fact.time, raised_at)
        alerts[data.alert_id] = made
        ended = [alert.id for alert in alerts.values() if not alert.open]
        for forgotten in ended[: max(0, len(ended) - _REMEMBERED)]:
            del alerts[forgotten]
        return replace(case, alerts=alerts)

    def decide(
        self, case: AlertCase, cause: AnyEvent, context: None, now: datetime, policy: Rules
    ) -> Payload | None:
        """The next alert that an event raises or resolves; asked again until there is none."""
        del context, now
        return next(_decided(case, cause, policy), None)

    def next(self, case: AlertCase, context: None, now: datetime, policy: Rules) -> Payload | None:
        """Resolve what ends by time, and what no rule knows any more."""
        del context
        for alert in case.alerts.values():
            rule = policy.get(alert.rule)
            if not alert.open:
                continue
            if rule is None:
                return AlertResolved(
                    alert_id=alert.id, rule=alert.rule, reason="there is no such rule any more"
                )
            ends_at = _ends_at(alert, rule)
            if ends_at is not None and now >= ends_at:
                quiet = f"{rule.resolve_after_s:g} s have passed"
                return AlertResolved(alert_id=alert.id, rule=alert.rule, reason=quiet, at=ends_at)
        return None

    def effects(self, case: AlertCase) -> Sequence[Effect]:
        """None: an alert is an event."""
        del case
        return ()

    def due(self, case: AlertCase, policy: Rules) -> datetime | None:
        """When the next alert ends by time."""
        rules = ((alert, policy.get(alert.rule)) for alert in case.alerts.values() if alert.open)
        ends = (_ends_at(alert, rule) for alert, rule in rules if rule is not None)
        return min((at for at in ends if at is not None), default=None)

    def closed(self, case: AlertCase) -> bool:
        """No alert is open."""
        return not any(alert.open for alert in case.alerts.values())

    def snapshot(self, case: AlertCase) -> Payload | None:
        """Never: alerts are few, and what was said to people stays."""
        del case
        return None


def _decided(case: AlertCase, cause: AnyEvent, rules: Rules) -> Iterator[Payload]:
    for rule in rules.resolved_by(cause):
        alert_id = rule.alert_id(cause)
        if _resolves(case.alerts.get(alert_id), rule, cause):
            early = alert_id not in case.alerts
            reason = str(getattr(cause.data, "reason", "")) or cause.data.kind.name
            yield AlertResolved(
                alert_id=alert_id, rule=rule.name, reason=reason, before_raise=early, at=cause.time
            )
    for rule in rules.raised_by(cause):
        alert_id = rule.alert_id(cause)
        if _raises(case.alerts.get(alert_id), rule, cause):
            yield AlertRaised(
                alert_id=alert_id,
                rule=rule.name,
                severity=rule.severity,
                summary=rule.summary_of(cause),
                runbook=rule.runbook,
                who=rule.who,
                evidence_ids=(cause.id, *getattr(cause.data, "evidence_ids", ())),
                affected=rule.affects(cause),
                at=cause.time,
            )


def _raises(alert: Alert | None, rule: Rule, cause: AnyEvent) -> bool:
    if alert is None:
        return True
    return rule.again and not alert.open and cause.time > alert.at


def _resolves(alert: Alert | None, rule: Rule, cause: AnyEvent) -> bool:
    if alert is None:
        # Of another stream: its raise may still be on the way.
        return cause.data.kind.domain != rule.domain
    return alert.open and (not rule.again or cause.time >= alert.at)


def _ends_at(alert: Alert, rule: Rule) -> datetime | None:
    if rule.resolve_after_s is None or alert.raised_at is None:
        return None
    return alert.raised_at + timedelta(seconds=rule.resolve_after_s)
