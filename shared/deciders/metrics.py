"""What the runner counts, for `/metrics`."""

from __future__ import annotations

from prometheus_client import Counter, Gauge, Histogram

FACTS = Counter("mediafleet_decider_facts", "Own facts appended", ["domain", "fact"])
CONFLICTS = Counter("mediafleet_decider_conflicts", "Appends refused because the log moved on", ["domain"])
EFFECTS = Counter("mediafleet_decider_effects", "Tries of effects, by how they ended", ["domain", "ended"])
FAILURES = Counter(
    "mediafleet_decider_failures", "Timers and outcomes that raised; the case is tried again", ["domain"]
)
COMPACTED = Counter("mediafleet_decider_compacted", "Logs of which only the snapshot was kept", ["domain"])
OPEN_CASES = Gauge("mediafleet_decider_open_cases", "Cases that are not closed", ["domain"])
STEP_SECONDS = Histogram(
    "mediafleet_decider_step_seconds",
    "From a cause to quiescence of its case",
    ["domain"],
    buckets=(0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.5, 1.0, 5.0),
)
