"""Which windows of evidence count, in which order, and what flapping costs. Pure.

A window is numbered by its node since boot. Windows of one boot are ordered by number; a boot that was
followed by another is over, so a report of it that arrives late is old whatever its number. One window is one
strike, however many lines it holds. Which classes count: fatal and transient do; sympathetic (a consequence
of another fault) and unknown codes only beside one that does; application faults never.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from services.remediation.policy import Damping, Strikes
from shared.events.parts import FATAL, TRANSIENT, UNHEALTHY, Evidence, Window
from shared.events.world import HealthReported

_COUNTING = (FATAL, TRANSIENT)
_PAST_BOOTS_KEPT = 8


@dataclass(frozen=True, slots=True)
class Mark:
    """The latest window that a case has taken into account, and the boots before its boot."""

    boot_id: str = ""
    window_id: int = -1
    past: tuple[str, ...] = ()

    def newer(self, boot_id: str, window_id: int) -> bool:
        """Whether a window comes after the mark."""
        if boot_id == self.boot_id:
            return window_id > self.window_id
        return boot_id not in self.past

    def moved_to(self, boot_id: str, window_id: int) -> Mark:
        """The mark after taking that window into account; never backwards."""
        if not self.newer(boot_id, window_id):
            return self
        if boot_id == self.boot_id or not self.boot_id:
            return replace(self, boot_id=boot_id, window_id=window_id)
        return Mark(boot_id, window_id, (*self.past, self.boot_id)[-_PAST_BOOTS_KEPT:])

    def window(self) -> Window | None:
        """As it stands in a fact; None before the first."""
        return Window(boot_id=self.boot_id, window_id=self.window_id) if self.window_id >= 0 else None


@dataclass(frozen=True, slots=True)
class Strike:
    """One window that counted."""

    at: datetime
    codes: tuple[str, ...]
    evidence_ids: tuple[str, ...]
    scope: str
    engines: tuple[str, ...]


def counts(report: HealthReported) -> bool:
    """Whether this window counts against the device."""
    return report.verdict == UNHEALTHY and any(one.class_ in _COUNTING for one in report.evidence)


def fatal(evidence: Iterable[Evidence]) -> bool:
    """Whether one strike is enough."""
    return any(one.class_ == FATAL for one in evidence)


def codes(evidence: Iterable[Evidence]) -> tuple[str, ...]:
    """The codes that count, fatal first, each once."""
    counting = [one for one in evidence if one.class_ in _COUNTING]
    counting.sort(key=lambda one: one.class_ != FATAL)
    return tuple(dict.fromkeys(one.code or one.kind for one in counting))


def scope(evidence: Iterable[Evidence]) -> tuple[str, tuple[str, ...]]:
    """What the counting evidence names: (`engines`, their keys), else (`partition` or `device`, ())."""
    counting = [one for one in evidence if one.class_ in _COUNTING]
    named = {one.scope for one in counting}
    if counting and named == {"engine"} and all(one.engine for one in counting):
        return "engines", tuple(sorted({one.engine for one in counting if one.engine}))
    return ("partition", ()) if named == {"partition"} else ("device", ())


def evidence_at(report: HealthReported) -> datetime | None:
    """When the window's first counting evidence was, by the node's clock."""
    times = [one.at for one in report.evidence if one.class_ in _COUNTING]
    return min(times) if times else None


def number(strikes: tuple[Strike, ...], at: datetime, policy: Strikes) -> int:
    """The number of a strike at `at`, counting the earlier ones that are near enough."""
    since = at - timedelta(seconds=policy.within_s)
    return 1 + sum(1 for one in strikes if one.at > since)


def decayed(penalty: float, since: datetime | None, now: datetime, policy: Damping) -> float:
    """A penalty after its decay."""
    if since is None or penalty <= 0:
        return 0.0
    age_s = max((now - since).total_seconds(), 0.0)
    return float(penalty * 0.5 ** (age_s / policy.half_life_s))
