"""One line of plain words per event, for timelines and chains."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from shared.events import AnyEvent, device, remediation, workload, world
from shared.events.parts import Evidence


def say(event: AnyEvent) -> str:
    """What an event says, in a few words."""
    words = _WORDS.get(type(event.data))
    return words(event.data) if words else event.address.fact.replace("-", " ")


def colour(event: AnyEvent) -> str:
    """The terminal colour of an event: trouble, action, recovery or neither."""
    fact = event.address.fact
    if fact in {"quarantined", "breached", "raised", "drain-stuck", "retired", "rejected", "lost", "frozen"}:
        return "red"
    if fact in {"struck", "withdrawn", "relief-missed", "refused", "circuit-opened", "held"}:
        return "yellow"
    if fact in {"eviction-ordered", "pod-evicted", "ordered", "applied", "scale-requested"}:
        return "magenta"
    if fact in {"readmitted", "closed", "restored", "relieved", "resolved", "validated", "thawed", "cleared"}:
        return "green"
    return "default"


def _evidence(evidence: tuple[Evidence, ...]) -> str:
    return ", ".join(f"{each.kind} {each.code}".strip() + f" ({each.class_})" for each in evidence[:3])


def _codes(fact: remediation.Struck) -> str:
    return f" [{', '.join(fact.codes)}]" if fact.codes else ""


def _scale(fact: workload.ScaleOrdered | workload.ScaleApplied) -> str:
    return f"{fact.workload.kind} {fact.workload.name} {fact.from_} -> {fact.to} ({fact.mode})"


_TAINT = {
    "tainted": "node tainted: no usable device is left",
    "not-last": "node not tainted: another device is usable",
    "removed": "taint removed from the node",
}

_WORDS: dict[type[Any], Callable[[Any], str]] = {
    world.Heartbeat: lambda f: f"alive with {len(f.device_keys)} devices",
    world.Environment: lambda f: f"kernel {f.kernel or 'unknown'}",
    world.Discovered: lambda f: f"found a {f.device.vendor} device at {f.device.bus_address}",
    world.Changed: lambda f: f"changed: {f.device.vendor} device at {f.device.bus_address}",
    world.Removed: lambda f: f"gone: {f.reason}",
    world.InventoryStated: lambda f: f"has {len(f.devices)} devices",
    world.HealthReported: lambda f: f"{f.verdict} {_evidence(f.evidence)}".strip(),
    world.Diagnosed: lambda f: f"diagnosis {f.outcome} (attempt {f.attempt})",
    world.Granted: lambda f: f"kubelet took {len(f.slots) or 1} of {f.resource}",
    world.Bound: lambda f: f"{f.resource} is held by {f.pod}",
    world.Released: lambda f: f"released: {f.reason}",
    world.AllocationRefused: lambda f: f"refused {f.resource}: {f.reason}",
    world.Fenced: lambda f: f"kubelet gives it to nobody; held by {len(f.holders)} pods",
    world.Withdrawn: lambda f: f"taken from the kubelet without the bus: {_evidence(f.evidence)}",
    world.AllocationsStated: lambda f: f"has {len(f.holdings)} allocations",
    world.Sampled: lambda f: f"{f.pod}: p99 {f.latency_p99_ms} ms",
    device.Registered: lambda f: f"registered as {f.device.model}, generation {f.generation}",
    device.DeviceRejected: lambda f: f"rejected: {'; '.join(f.reasons)}",
    device.Lost: lambda f: f"lost: {f.reason}",
    remediation.Opened: lambda f: f"case opened at {f.state}: {f.reason}",
    remediation.Struck: lambda f: f"strike {f.strike} of {f.of}{_codes(f)}",
    remediation.Cleared: lambda f: f"cleared after {f.streak} healthy windows",
    remediation.StepProposed: lambda f: f"asks the budget for {f.step}",
    remediation.BudgetGranted: lambda f: f"budget grants {f.step} to {f.case}",
    remediation.Queued: lambda f: f"{f.case} waits for {f.step}: {f.limited_by} is full",
    remediation.BudgetReturned: lambda f: f"{f.case} gives {f.step} back: {f.reason}",
    remediation.Frozen: lambda f: f"common cause {f.code} in {f.scope}: {len(f.cases)} cases frozen",
    remediation.Thawed: lambda f: f"thawed {f.reason}".strip(),
    remediation.Quarantined: lambda f: f"quarantined ({f.scope}): {f.reason}",
    remediation.DrainPlanned: lambda f: (
        "drain: " + (", ".join(str(p.pod) for p in f.pods) or "nobody holds it")
    ),
    remediation.EvictionOrdered: lambda f: f"evict {f.pod} ({f.tier}), attempt {f.attempt}",
    remediation.PodEvicted: lambda f: f"{f.pod}: {f.outcome}" + (f" ({f.status})" if f.status else ""),
    remediation.ReplacementRequested: lambda f: f"a replacement for {f.pod} first",
    remediation.Drained: lambda f: f"drained, {len(f.evicted)} pods evicted",
    remediation.DrainStuck: lambda f: f"drain stuck with {len(f.left)} pods left",
    remediation.DiagnosisRequested: lambda f: f"diagnosis asked for (attempt {f.attempt})",
    remediation.DiagnosisRecorded: lambda f: f"diagnosis {f.outcome}",
    remediation.RepairRequested: lambda f: f"repair asked for: {f.step}",
    remediation.Repaired: lambda f: f"repaired by {f.step}",
    remediation.Validated: lambda f: f"validated after {f.streak} healthy windows",
    remediation.ProbationStarted: lambda _: "back on probation",
    remediation.Readmitted: lambda f: f"readmitted after {f.after_s:.1f} s",
    remediation.Closed: lambda f: f"case closed: {f.reason}",
    remediation.Retired: lambda f: f"retired: {f.reason}",
    remediation.Held: lambda f: f"held by {f.owner}: {f.reason}",
    remediation.HoldReleased: lambda f: f"released by {f.owner} to {f.to_state}",
    remediation.NodeTainted: lambda f: _TAINT.get(f.outcome, f"taint {f.outcome}: {f.detail}"),
    remediation.CommandRefused: lambda f: f"command refused: {f.reason}",
    remediation.DeadlinePassed: lambda f: f"deadline of {f.state} passed ({f.timer})",
    remediation.StepRefused: lambda f: f"not acted on: {f.reason}",
    workload.Breached: lambda f: (
        f"{f.metric} {f.observed:g} over {f.target:g}: {f.attribution.verdict}"
        + (f" on {f.attribution.engine}" if f.attribution.engine else "")
    ),
    workload.SlaEvictionOrdered: lambda f: f"evict {f.pod} ({f.tier}, {f.share:.0%} of {f.engine})",
    workload.SlaPodEvicted: lambda f: f"{f.pod}: {f.outcome}" + (f" ({f.status})" if f.status else ""),
    workload.Relieved: lambda f: f"relieved: {f.before:g} -> {f.after:g}",
    workload.ReliefMissed: lambda f: f"no relief (miss {f.n})",
    workload.CircuitOpened: lambda f: f"no more evictions: {f.reason}",
    workload.Restored: lambda f: f"SLA restored: {f.before:g} -> {f.after:g}",
    workload.ScaleRequested: lambda f: f"asks for {f.min_replicas} replicas: {f.reason}",
    workload.ScaleOrdered: _scale,
    workload.ScaleApplied: _scale,
    workload.ScaleRefused: lambda f: f"scale refused: {f.reason}",
    workload.ScaleExpired: lambda f: f"scale lease ended {f.reason}".strip(),
    workload.AlertRaised: lambda f: f"{f.severity}: {f.summary}",
    workload.AlertResolved: lambda f: f"{f.rule} is over: {f.reason}",
    workload.Rejected: lambda f: f"{f.subject} refused: {f.reason}",
}
