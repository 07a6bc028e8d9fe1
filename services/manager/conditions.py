"""What a device's MediaResource says of it in conditions. Pure.

Ready: new pods may use it. Degraded: something speaks against it, and it is in use all the same. Quarantined:
it is kept out of use. Unknown is its own answer: a silent agent makes a device neither healthy nor unhealthy.
"""

from __future__ import annotations

from services.manager.fleet import HEALTHY_PHASE, Known
from shared.events.parts import UNHEALTHY, UNKNOWN
from shared.kube.conditions import Condition

_OUT = {
    "Quarantined": "No new pod may use it.",
    "Draining": "Pods that use it are evicted.",
    "Drained": "No pod uses it any more.",
    "Diagnosing": "A deep check looks at it.",
    "Repairing": "A repair step is under way.",
    "Validating": "It must stay healthy for a while before it may come back.",
    "Retired": "It is taken out for good: replace it.",
    "Held": "A person keeps everybody's hands off it.",
}
"""Phases that keep a device out of use."""
_DOUBTED = {
    "Suspect": "Evidence counts against it; more of it makes a case.",
    "Probation": "It came back for best-effort pods only.",
}
_REASON = {"registered": "Registered", "rejected": "Rejected", "lost": "Lost"}


def conditions(known: Known) -> tuple[Condition, ...]:
    """Ready, Degraded and Quarantined of a device."""
    return _ready(known), _degraded(known), _quarantined(known)


def _ready(known: Known) -> Condition:
    if known.state != "registered":
        message = "; ".join(known.reasons) or "no node has it now"
        return Condition("Ready", "False", _REASON.get(known.state, "Absent"), message)
    if known.phase in _OUT or known.phase == "Probation":
        return Condition("Ready", "False", known.phase, _why(known))
    if known.verdict == UNKNOWN:
        return Condition("Ready", "Unknown", "NotReported", "Its node's agent has not said how it is.")
    return Condition("Ready", "True", "Usable", "New pods may use it.")


def _degraded(known: Known) -> Condition:
    if known.phase in _DOUBTED:
        return Condition("Degraded", "True", known.phase, _why(known))
    if known.verdict == UNHEALTHY:
        return Condition("Degraded", "True", "Unhealthy", "Its last probe found it unhealthy.")
    if known.verdict == UNKNOWN:
        return Condition("Degraded", "Unknown", "NotReported", "Its node's agent has not said how it is.")
    return Condition("Degraded", "False", "Healthy", "Nothing speaks against it.")


def _quarantined(known: Known) -> Condition:
    if known.phase in _OUT:
        return Condition("Quarantined", "True", known.phase, _why(known))
    reason = "Healthy" if known.phase == HEALTHY_PHASE else known.phase
    return Condition("Quarantined", "False", reason, "It is in use.")


def _why(known: Known) -> str:
    """What the phase means, and what led to it."""
    led = known.hold or known.why
    return f"{_OUT.get(known.phase) or _DOUBTED.get(known.phase, '')}" + (f" {led}" if led else "")
