"""What a pod's samples say: breached, recovered, grown. Missing is not zero, and an old value is missing.

Kept in memory only: after a restart the windows fill again from the sample stream's last minutes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from statistics import median

from services.guardian.policy import GuardianPolicy
from shared.events.world import Sampled

_INT32_BLANK = range(0x7FFFFFF0, 0x80000000)
_FP64_BLANK = range(1 << 47, (1 << 47) + 16)
_INT64_BLANK = 9.2e18
"""DCGM writes 'no value' as numbers just below the largest of a type (dcgm_fields.h: DCGM_INT32_BLANK
0x7ffffff0, DCGM_INT64_BLANK 0x7ffffffffffffff0, DCGM_FP64_BLANK 2^47; not-found, not-supported and
not-permissioned follow each)."""

_WIDEN_S = 60.0
"""Requests are counted over this long before a percentile is called insufficient."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One measurement; None is missing."""

    measured_at: datetime
    p99_ms: float | None
    queue: float | None = None
    requests: int | None = None
    window_s: float = 10.0


@dataclass(frozen=True, slots=True)
class Series:
    """A pod's last samples, oldest first."""

    samples: tuple[Sample, ...] = ()

    def add(self, sample: Sample, keep: int) -> Series:
        """With one more sample; one that is not newer than the last is a repetition and changes nothing."""
        if self.samples and sample.measured_at <= self.samples[-1].measured_at:
            return self
        return replace(self, samples=(*self.samples, sample)[-keep:])

    def since(self, at: datetime) -> tuple[float, ...]:
        """Latencies in ms measured after `at`."""
        return tuple(s.p99_ms for s in self.samples if s.measured_at > at and s.p99_ms is not None)


@dataclass(frozen=True, slots=True)
class Reading:
    """A judgement of a series against a target.

    Attributes:
        latest_ms: the newest latency, None when missing or old.
        window_ms: the judged latencies, oldest first, without the missing ones.
        breached: enough of the window lies above the target.
        recovered: the last ones in a row lie clearly below it.
        rate_growth: own requests per second, as a factor of the baseline; None when not known.
        queue_growth: the same of the queue.
    """

    latest_ms: float | None
    window_ms: tuple[float, ...]
    breached: bool
    recovered: bool
    rate_growth: float | None = None
    queue_growth: float | None = None


def admit(value: float | None) -> float | None:
    """A figure that can be believed, else None: no NaN, no infinity, nothing negative, no DCGM blank."""
    if value is None or not math.isfinite(value) or value < 0:
        return None
    if value >= _INT64_BLANK or (
        value.is_integer() and (int(value) in _INT32_BLANK or int(value) in _FP64_BLANK)
    ):
        return None
    return value


def sample(data: Sampled) -> Sample:
    """The believable part of a heard sample."""
    return Sample(
        data.measured_at, admit(data.latency_p99_ms), admit(data.queue_length), data.requests, data.window_s
    )


def read(series: Series, target_ms: float, now: datetime, policy: GuardianPolicy) -> Reading:
    """Judge a pod's samples as of now."""
    known = [s for s in series.samples if s.measured_at <= now + timedelta(seconds=policy.skew_s)]
    span = [s for s in known if now - s.measured_at <= timedelta(seconds=policy.span_s)]
    window = span[-policy.window :]
    if not window or now - window[-1].measured_at > timedelta(seconds=policy.sample_age_s):
        return Reading(None, (), breached=False, recovered=False)
    values = [s.p99_ms if _enough(span, s, policy) else None for s in window]
    above = [v for v in values if v is not None and v > target_ms]
    last = values[-policy.exit_samples :]
    below = [v for v in last if v is not None and v < policy.exit_ratio * target_ms]
    base = [s for s in known[: -policy.window] if s.p99_ms is not None and s.p99_ms <= target_ms]
    return Reading(
        latest_ms=values[-1],
        window_ms=tuple(v for v in values if v is not None),
        breached=len(above) >= policy.breach_of,
        recovered=len(below) == policy.exit_samples,
        rate_growth=_growth([_rate(s) for s in base], [_rate(s) for s in window]),
        queue_growth=_growth([s.queue for s in base], [s.queue for s in window]),
    )


def _enough(span: list[Sample], of: Sample, policy: GuardianPolicy) -> bool:
    """Whether a percentile rests on enough requests of its last minute; uncounted ones are believed."""
    if of.requests is None:
        return True
    counted = sum(
        s.requests or 0
        for s in span
        if timedelta(0) <= of.measured_at - s.measured_at < timedelta(seconds=max(_WIDEN_S, of.window_s))
    )
    return counted >= policy.min_requests


def _rate(of: Sample) -> float | None:
    return None if of.requests is None else of.requests / of.window_s


def _growth(before: list[float | None], after: list[float | None]) -> float | None:
    """Median over median; a baseline below one is taken as one, so that an empty queue can grow."""
    old, new = [v for v in before if v is not None], [v for v in after if v is not None]
    if not old or not new:
        return None
    return median(new) / max(median(old), 1.0)
