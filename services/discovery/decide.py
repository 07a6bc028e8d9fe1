"""From what was seen of a device to its health: pure, one device, one look at a time.

A look is a window: what the kernel log said since the last one, and what a probe found, if there was one.
Kernel lines and counters are edges: they count once. A device that is missing, a tool that hangs and a tool's
own verdict are states: they count in every window in which they are seen. One burst is one report: what comes
within a second of reported evidence belongs to it, unless it counts and is worse.

Unknown is its own verdict: no data (a driver being replaced, a tool that fails for all devices, the first
moments after start) is neither healthy nor unhealthy. Codes that no catalogue has, faults of programs and
side effects of other faults are reported as evidence and change no verdict.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Final, Literal

from shared.devices.keys import ENGINE_KINDS, EngineKind, engine_id
from shared.devices.readings import Readings
from shared.events.parts import HEALTHY, UNHEALTHY, UNKNOWN, Evidence
from shared.events.world import Check
from shared.vendors.faults import CLASSES, Fault, lookup

_Seen = tuple[str, str, str]
"""Kind, code and words of one observation."""

COUNTS: Final = frozenset({"fatal", "transient"})
"""Classes that make a window unhealthy."""
MOST_EVIDENCE = 16
"""Different observations that one report carries; a burst of more says nothing new."""

_RANK: Final[dict[str, int]] = {name: rank for rank, name in enumerate(CLASSES)}
_ADVICE: Final = {"none", "no action"}


@dataclass(frozen=True, slots=True)
class Limits:
    """What is policy in judging.

    Attributes:
        burst_s: evidence this soon after reported evidence belongs to it, unless it is worse.
        settle_windows: healthy windows reported one by one after a device was not healthy.
        replays: PCIe replays from one probe to the next that are worth telling.
    """

    burst_s: float = 1.0
    settle_windows: int = 30
    replays: int = 1000


@dataclass(frozen=True, slots=True)
class Sighting:
    """One kernel line about a device."""

    id: str
    code: str
    fault: Fault
    engine_index: int | None
    at: datetime
    raw: str


@dataclass(frozen=True, slots=True)
class Probe:
    """What a probe found.

    Attributes:
        present: the device is on its bus.
        driver: a driver is bound to it; None where there is no such thing.
        answer: of the vendor's tool: ``none`` there is no tool, ``dark`` it fails for every device,
        ``waiting`` it has
            not answered yet since the start and the grace is not over.
        detail: why there is no answer.
        readings: by key, of the device and its chips.
    """

    present: bool
    answer: Literal["answered", "hung", "failed", "none", "dark", "waiting"]
    driver: bool | None = None
    detail: str = ""
    readings: Mapping[str, Readings] = field(default_factory=dict)

    @property
    def answered(self) -> bool:
        """All that can be asked has answered: the tool, or sysfs alone where there is no tool."""
        return self.answer in ("answered", "none")


@dataclass(frozen=True, slots=True)
class Look:
    """One window of one device.

    Attributes:
        boot_id: of the node.
        window_id: seconds since boot, whole.
        since_boot_s: the same, exact.
        at: when, by the node's clock.
        sightings: kernel lines since the last look.
        probe: None when only the kernel log spoke.
    """

    boot_id: str
    window_id: int
    since_boot_s: float
    at: datetime
    sightings: tuple[Sighting, ...] = ()
    probe: Probe | None = None


@dataclass(frozen=True, slots=True)
class Standing:
    """What is remembered of a device from look to look.

    Attributes:
        verdict: the last one; None before the first.
        streak: windows in a row with it.
        window_id: the last one reported; -1 before the first.
        settling: healthy windows still to be reported.
        evidence_s: when evidence was last reported, in seconds since boot.
        worst: rank of that evidence.
        explained: a kernel line counted since the last probe: counters that rose are its shadow.
        baseline: last readings by key.
        driver: a driver was bound at the last probe.
    """

    verdict: str | None = None
    streak: int = 0
    window_id: int = -1
    settling: int = 0
    evidence_s: float = float("-inf")
    worst: int = len(CLASSES)
    explained: bool = False
    baseline: Mapping[str, Readings] = field(default_factory=dict)
    driver: bool | None = None

    @property
    def restless(self) -> bool:
        """Worth a second look soon: unhealthy, or healthy again but not for long."""
        return self.verdict == UNHEALTHY or (self.verdict == HEALTHY and self.settling > 0)


@dataclass(frozen=True, slots=True)
class HealthVerdict:
    """What is to be said about a device in one window."""

    window_id: int
    verdict: str
    streak: int
    evidence: tuple[Evidence, ...]


def judge(
    key: str,
    vendor: str,
    standing: Standing,
    look: Look,
    *,
    engines: Mapping[EngineKind, int | None] | None = None,
    limits: Limits = Limits(),
) -> tuple[Standing, HealthVerdict | None]:
    """What a look changes, and what is to be said; None when there is nothing new.

    Args:
        key: of the physical device.
        vendor: whose fault catalogue holds.
        standing: what is remembered.
        look: what was seen.
        engines: units of the device by kind, to name the engine that a fault is about.
        limits: policy.
    """
    lines = [_from_line(key, sighting, engines or {}) for sighting in look.sightings]
    found = (
        []
        if look.probe is None
        else _from_probe(key, vendor, standing, look, probe=look.probe, limits=limits)
    )
    evidence = _once(each for each in (*lines, *found) if each.class_ != "ignore")
    remembered = _remember(standing, look, counted=any(each.class_ in COUNTS for each in lines))
    worst = min((_rank(each) for each in evidence), default=len(CLASSES))
    counts = any(each.class_ in COUNTS for each in evidence)
    worse = counts and worst < standing.worst
    if evidence and not worse and look.since_boot_s - standing.evidence_s < limits.burst_s:
        return remembered, None
    verdict = _verdict(standing, look.probe, counts=counts)
    window_id = look.window_id
    if window_id <= standing.window_id:
        if not evidence:
            return remembered, None
        window_id = standing.window_id + 1
    if not evidence and look.probe is None:
        return remembered, None
    streak = standing.streak + 1 if verdict == standing.verdict else 1
    settling = limits.settle_windows if verdict == UNHEALTHY else standing.settling
    if verdict == HEALTHY:
        settling = max(0, settling - 1)
    said = bool(evidence) or verdict != standing.verdict or verdict != HEALTHY or standing.settling > 0
    remembered = replace(
        remembered,
        verdict=verdict,
        streak=streak,
        settling=settling,
        window_id=window_id if said else standing.window_id,
        evidence_s=look.since_boot_s if evidence else standing.evidence_s,
        worst=worst if evidence else standing.worst,
    )
    return remembered, HealthVerdict(window_id, verdict, streak, evidence) if said else None


def _verdict(standing: Standing, probe: Probe | None, *, counts: bool) -> str:
    if counts:
        return UNHEALTHY
    if probe is None:
        return standing.verdict or UNKNOWN
    if not probe.present or not probe.answered:
        return UNKNOWN
    return HEALTHY


def _remember(standing: Standing, look: Look, *, counted: bool) -> Standing:
    if look.probe is None:
        return replace(standing, explained=standing.explained or counted)
    baseline = (
        {**standing.baseline, **look.probe.readings} if look.probe.answer == "answered" else standing.baseline
    )
    return replace(standing, explained=False, baseline=baseline, driver=look.probe.driver)


def _once(evidence: Iterable[Evidence]) -> tuple[Evidence, ...]:
    """One of each code and engine, worst first, so that a cut never loses the worst."""
    distinct = {(each.code, each.engine): each for each in reversed(list(evidence))}
    return tuple(sorted(distinct.values(), key=_rank)[:MOST_EVIDENCE])


def _rank(evidence: Evidence) -> int:
    return _RANK[evidence.class_]


def _from_line(key: str, sighting: Sighting, engines: Mapping[EngineKind, int | None]) -> Evidence:
    """Evidence of a kernel line. A fault of an engine that cannot be named is a fault of the device."""
    fault = sighting.fault
    engine = None
    if fault.scope == "engine" and fault.engine_kind in ENGINE_KINDS:
        units = engines.get(fault.engine_kind)
        index = 0 if sighting.engine_index is None and units == 1 else sighting.engine_index
        if index is not None and (units is None or index < units):
            engine = engine_id(key, fault.engine_kind, index)
    return Evidence(
        id=sighting.id,
        kind="kernel-line",
        code=sighting.code,
        class_=fault.fault_class,
        scope="device" if fault.scope == "engine" and engine is None else fault.scope,
        engine=engine,
        at=sighting.at,
        raw=sighting.raw,
    )


def _from_probe(
    key: str, vendor: str, standing: Standing, look: Look, *, probe: Probe, limits: Limits
) -> list[Evidence]:
    seen: list[tuple[str, _Seen]] = []
    if not probe.present:
        seen.append((key, ("missing", "missing", "no longer on its bus")))
    elif probe.answer in ("hung", "failed"):
        seen.append((key, ("tool", "tool-hang" if probe.answer == "hung" else "tool-failed", probe.detail)))
    if probe.present and standing.driver and probe.driver is False:
        seen.append((key, ("tool", "driver-gone", "no driver is bound")))
    if probe.present and probe.answered:
        for part, readings in probe.readings.items():
            seen.extend((part, state) for state in _states(readings))
            before = standing.baseline.get(part)
            if before is not None and not standing.explained:
                seen.extend((part, edge) for edge in _edges(before, readings, limits))
    return [_from_state(key, vendor, look, part, observed) for part, observed in seen]


def _from_state(key: str, vendor: str, look: Look, part: str, observed: _Seen) -> Evidence:
    kind, code, words = observed
    fault = lookup(vendor, code)
    return Evidence(
        id=f"{look.boot_id}/{part}/{look.window_id}/{code}",
        kind=kind,
        code=code,
        class_=fault.fault_class,
        scope=fault.scope if part == key else "partition",
        at=look.at,
        raw=words if part == key else f"{part}: {words}",
    )


def _states(now: Readings) -> list[_Seen]:
    """What holds now, whatever was before: kind, code, words."""
    seen: list[_Seen] = []
    if now.row_remap_failed:
        seen.append(("counter", "row-remap-failed", "no spare memory row is left"))
    if now.health_word not in (None, "ok", "unknown", "offline"):
        seen.append(("tool", f"health-{now.health_word}", f"the tool says {now.health_word}"))
    if now.recovery_action is not None and now.recovery_action not in _ADVICE:
        seen.append(
            ("tool", f"recovery-{now.recovery_action.replace(' ', '-')}", f"advice: {now.recovery_action}")
        )
    seen.extend(("tool", code, f"active fault code {code}") for code in now.error_codes)
    if (
        now.temperature_c is not None
        and now.temperature_limit_c
        and now.temperature_c >= now.temperature_limit_c
    ):
        seen.append(
            ("temperature", "temperature", f"{now.temperature_c:g} C, limit {now.temperature_limit_c:g} C")
        )
    return seen


def _edges(before: Readings, now: Readings, limits: Limits) -> list[_Seen]:
    """What changed for the worse. A counter that fell was reset: its new value is a new beginning."""
    seen: list[_Seen] = []
    risen = _risen(before.ecc_uncorrected, now.ecc_uncorrected)
    if risen:
        seen.append(("counter", "ecc-uncorrected", f"{risen} more uncorrectable memory errors"))
    if now.row_remap_pending and before.row_remap_pending is False:
        seen.append(("counter", "row-remap-pending", "a memory row waits for a reset"))
    if now.page_retire_pending and before.page_retire_pending is False:
        seen.append(("counter", "page-retire-pending", "a memory page waits for a reset"))
    if _risen(before.pcie_replays, now.pcie_replays) >= limits.replays:
        seen.append(
            ("link", "pcie-replays", f"{_risen(before.pcie_replays, now.pcie_replays)} more PCIe replays")
        )
    if _risen(now.link_width, before.link_width):
        seen.append(("link", "link-width", f"{now.link_width} lanes in use, {before.link_width} before"))
    return seen


def _risen(before: int | None, now: int | None) -> int:
    return now - before if before is not None and now is not None and now > before else 0


PASSED, FAILED, AMBIGUOUS = "passed", "failed", "ambiguous"
_SKIPPED = "skipped"


def examine(
    before: Probe, after: Probe, *, counted_since: bool, limits: Limits
) -> tuple[str, tuple[Check, ...]]:
    """Outcome and checks of a deep check: two probes a while apart, and the kernel log since the request.

    Args:
        before: the first probe.
        after: the second one.
        counted_since: the kernel log said something that counts after the check was asked for.
        limits: policy.
    """
    checks = (
        _check(
            "present",
            passed=before.present and after.present,
            detail="" if after.present else "not on its bus",
        ),
        _check("driver", passed=None if after.driver is None else after.driver, detail=""),
        _answers(before, after),
        _quiet(before, after, limits),
        _check("kernel-log", passed=not counted_since, detail="new fault lines" if counted_since else ""),
    )
    outcomes = {check.outcome for check in checks}
    if FAILED in outcomes:
        return FAILED, checks
    return (AMBIGUOUS if "dark" in (before.answer, after.answer) else PASSED), checks


def _check(name: str, *, passed: bool | None, detail: str) -> Check:
    outcome = _SKIPPED if passed is None else PASSED if passed else FAILED
    return Check(name=name, outcome=outcome, detail=detail)


def _answers(before: Probe, after: Probe) -> Check:
    silent = next((probe for probe in (before, after) if probe.answer in ("hung", "failed")), None)
    if silent is not None:
        return _check("tool-answers", passed=False, detail=silent.detail)
    told = before.answer == after.answer == "answered"
    return _check("tool-answers", passed=True if told else None, detail=after.detail)


def _quiet(before: Probe, after: Probe, limits: Limits) -> Check:
    """No counter rose in between, and nothing holds that would make the device unhealthy at once."""
    if not after.readings:
        return _check("counters-quiet", passed=None, detail="there are no counters")
    seen = [state for readings in after.readings.values() for state in _states(readings)]
    for part, readings in after.readings.items():
        earlier = before.readings.get(part)
        seen.extend(() if earlier is None else _edges(earlier, readings, limits))
    bad = [words for _, code, words in seen if code not in _TOLERATED]
    return _check("counters-quiet", passed=not bad, detail="; ".join(bad))


_TOLERATED: Final = frozenset({"temperature", "link-width", "pcie-replays", "health-warning"})
"""States that a device may have and still be fit for work."""
