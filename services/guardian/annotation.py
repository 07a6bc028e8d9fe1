"""The SLA annotation of a pod, read strictly.

A target is compared as a number, never as text ('100' sorts before '90'), and what is not plainly a number is
refused: `float()` would take `1_000`, `1e3`, `inf` and full-width digits, each of them somebody's mistake.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from shared.errors import BadInput

LATENCY_P99_MS = "sla/latency-p99-ms"
"""Annotation of a pod: the 99th percentile of its latency that it must stay below, in milliseconds."""

LEAST_MS = 1.0
"""A target below 1 ms is most likely written in seconds."""
MOST_MS = 60_000.0
"""A target above 60 s is most likely written in microseconds."""

_DECIMAL = re.compile(r"[0-9]{1,12}(\.[0-9]{1,9})?", re.ASCII)


@dataclass(frozen=True, slots=True)
class Target:
    """What a pod promises.

    Attributes:
        latency_p99_ms: the limit.
        doubt: why it is only observed and never acted on; empty for a target that is believed.
    """

    latency_p99_ms: float
    doubt: str = ""


def parse(value: str) -> Target:
    """Read the annotation's value.

    Raises:
        BadInput: it is no plain positive decimal.
    """
    text = value.strip(" \t\r\n")
    if not _DECIMAL.fullmatch(text):
        raise BadInput(
            LATENCY_P99_MS,
            f"{value[:40]!r} is no decimal number",
            "write milliseconds in ASCII digits without a unit, for example 200",
        )
    number = float(text)
    if number <= 0:
        raise BadInput(LATENCY_P99_MS, f"{text} is not above zero", "write a positive number of milliseconds")
    doubt = ""
    if number < LEAST_MS:
        doubt = f"{text} ms is below {LEAST_MS:g} ms: if it means seconds, multiply by 1000"
    elif number > MOST_MS:
        doubt = f"{text} ms is above {MOST_MS:g} ms: if it means microseconds, divide by 1000"
    return Target(number, doubt)
