"""What alerting hears and says, and how its parts are wired. It knows others' facts only by its rules."""

from __future__ import annotations

import asyncio
from pathlib import Path

import structlog
from prometheus_client import Gauge

from services.alerting.decide import AlertCase, AlertDecider
from services.alerting.rules import Rules, family, load
from services.alerting.settings import AlertingSettings
from shared.bus.port import Bus, Lease
from shared.clock import Clock
from shared.deciders.protocol import Effect
from shared.deciders.runner import Runner
from shared.errors import BadInput
from shared.events import CATALOGUE, AnyEvent, Entity, Payload
from shared.host import Host
from shared.host.tasks import together

log = structlog.get_logger(__name__)

_BROKEN = Gauge("mediafleet_alerting_rules_broken", "1 while the rules file cannot be used.")
_OPEN = Gauge("mediafleet_alerts", "Open alerts.", ["rule"])


class RulesFile:
    """The rules in force: the last ones that could be read."""

    def __init__(self, path: Path | None) -> None:
        """Read the rules; a broken file of one's own leaves the shipped ones. Args: path: that file."""
        self._path = path
        self._stamp: tuple[int, int] | None = None
        self.problem = ""
        self.rules = load()
        self.look()

    def look(self) -> bool:
        """Read the file again when it changed; whether the rules are other ones now."""
        if self._path is None:
            return False
        try:
            stat = self._path.stat()
            stamp = (stat.st_mtime_ns, stat.st_size)
        except OSError:
            stamp = (0, 0)
        if stamp == self._stamp:
            return False
        self._stamp = stamp
        before = self.rules
        try:
            self.rules = load(self._path)
            self.problem = ""
        except BadInput as error:
            self.problem = str(error)
            log.error("the rules file is broken: the last good rules stay in force", reason=self.problem)
        _BROKEN.set(1 if self.problem else 0)
        return self.rules != before


class Alerting:
    """The decider's hands while one lease lasts."""

    def __init__(self, bus: Bus, clock: Clock, rules: RulesFile, *, source: str, look_s: float) -> None:
        """Args: look_s: how often the rules file is looked at."""
        self._rules = rules
        self._look_s = look_s
        self.hears = heard(rules.rules)
        self._names = {payload.kind.name for payload in self.hears}
        self._runner: Runner[AlertCase, None, Rules] = Runner(
            bus,
            AlertDecider(),
            self,
            policy=lambda: rules.rules,
            clock=clock,
            source=source,
            service="alerting",
        )

    async def run(self, lease: Lease) -> None:
        """Alert until the lease ends."""
        await together(alerting=self._runner.run(lease), rules=self._follow_rules())

    # ------------------------------------------------------------------ hands

    def route(self, event: AnyEvent) -> Entity | None:
        """The alerts about the thing that an event speaks of; None when no rule cares."""
        rules = self._rules.rules
        of = Entity("alert", event.of.place, f"{family(event.of.domain)}-{event.of.entity}")
        cares = any(rules.raised_by(event)) or any(rules.resolved_by(event))
        return of if cares else None

    def observe(self, event: AnyEvent) -> None:
        """Nothing is kept outside the cases."""
        del event

    def correlation(self, of: Entity, fact: Payload) -> str:
        """The alert."""
        return f"alert:{of.about}#{getattr(fact, 'alert_id', '')}"

    async def gather(self, of: Entity, case: AlertCase, cause: AnyEvent | None) -> None:
        """A fact says all that a rule needs."""
        del of, case, cause

    async def act(self, effect: Effect, case: AlertCase) -> Payload:
        """Never asked: alerting has no effects."""
        raise RuntimeError(f"{case.of} ordered {effect.key}, and alerting has no effects")

    def failed(self, effect: Effect, error: Exception) -> Payload:
        """Never asked: alerting has no effects."""
        raise RuntimeError(f"alerting has no effects, not {effect.key}") from error

    def said(self, fact: AnyEvent, case: AlertCase) -> None:
        """Count what is open."""
        del fact, case
        _OPEN.clear()
        for _, open_case in self._runner.open_cases():
            for alert in open_case.alerts.values():
                if alert.open:
                    _OPEN.labels(alert.rule).inc()

    # ------------------------------------------------------------------ rules

    async def _follow_rules(self) -> None:
        while True:
            await asyncio.sleep(self._look_s)
            if not self._rules.look():
                continue
            log.info("rules", count=len(self._rules.rules.rules))
            unheard = self._rules.rules.facts() - self._names
            if unheard:
                log.warning("rules name facts that are heard from the next start on", facts=sorted(unheard))
            for of, _ in list(self._runner.open_cases()):
                self._runner.nudge(of)


def heard(rules: Rules) -> tuple[type[Payload], ...]:
    """The facts of the rules, and those meant for alerting, for rules that are still to come."""
    return tuple(
        payload
        for payload, _ in CATALOGUE.values()
        if payload.kind.domain != "alert"
        and (payload.kind.name in rules.facts() or "alerting" in payload.kind.heard_by)
    )


async def run(host: Host, settings: AlertingSettings) -> None:
    """Be alerting whenever the lease is ours."""
    rules = RulesFile(settings.rules_file)

    async def active(lease: Lease) -> None:
        alerting = Alerting(host.bus, host.clock, rules, source=host.source, look_s=settings.look_s)
        await alerting.run(lease)

    await host.while_active(active)
