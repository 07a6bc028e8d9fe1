"""What the bus tells Prometheus, for every consumer and every publisher alike.

Depths are read when they are scraped, so an event pays only for one histogram observation.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable
from functools import lru_cache
from itertools import accumulate

from prometheus_client import REGISTRY, Counter, Gauge
from prometheus_client.core import HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

_LABELS = ("service", "domain")

BUCKETS_S = (0.0005, 0.002, 0.01, 0.05, 0.25, 1.0, 5.0, 30.0)
"""Upper bounds of the handler time's buckets."""


class HandlerSeconds:
    """The handler times of one consumer; a third of what the library's histogram costs an event."""

    __slots__ = ("counts", "total_s")

    def __init__(self) -> None:
        self.counts = [0] * (len(BUCKETS_S) + 1)
        self.total_s = 0.0

    def observe(self, took_s: float) -> None:
        """Count one try."""
        self.counts[bisect_left(BUCKETS_S, took_s)] += 1
        self.total_s += took_s


class _HandlerSecondsOfAll(Collector):
    """What Prometheus reads of them."""

    def __init__(self) -> None:
        self.by_labels: dict[tuple[str, str], HandlerSeconds] = {}

    def collect(self) -> Iterable[Metric]:
        """The histogram with one series for each consumer."""
        family = HistogramMetricFamily(
            "mediafleet_bus_handler_seconds", "Time that one try of a handler took", labels=_LABELS
        )
        for labels, seconds in tuple(self.by_labels.items()):
            bounds = [*(repr(bound) for bound in BUCKETS_S), "+Inf"]
            buckets = list(zip(bounds, map(float, accumulate(seconds.counts)), strict=True))
            family.add_metric(labels, buckets, seconds.total_s)
        yield family


_HANDLER_SECONDS = _HandlerSecondsOfAll()
REGISTRY.register(_HANDLER_SECONDS)
RETRIES = Counter("mediafleet_bus_retries", "Tries that ended in Temporary and were tried again", _LABELS)
DEAD_LETTERS = Counter("mediafleet_bus_dead_letters", "Messages given to the dead letters", _LABELS)
DEAD_LETTERS_REFUSED = Counter(
    "mediafleet_bus_dead_letters_refused",
    "Rejected messages whose dead letter could not be written for good; their body is in the log only",
    _LABELS,
)
SKIPPED = Counter("mediafleet_bus_skipped", "Messages that are no envelope for their subject", _LABELS)
REDELIVERED = Counter("mediafleet_bus_redelivered", "Deliveries of what is held or was handled", _LABELS)
LAG = Gauge("mediafleet_bus_lag_messages", "Messages that the server has still to deliver", _LABELS)
HELD = Gauge("mediafleet_bus_held_messages", "Messages held here, queued or in work", _LABELS)
LANE_DEPTH = Gauge("mediafleet_bus_lane_depth_messages", "Depth of the deepest lane", ("service",))
LANE_ALARMS = Gauge(
    "mediafleet_bus_lane_alarms", "Lanes that hold a tenth or more of max_ack_pending", ("service",)
)
PUBLISHED = Counter("mediafleet_bus_published", "Events that a stream took", _LABELS)
published = lru_cache(PUBLISHED.labels)
"""Its child for (service, domain)."""
PUBLISH_RETRIES = Counter("mediafleet_bus_publish_retries", "Publishes and appends sent again", _LABELS)
CONFLICTS = Counter("mediafleet_bus_conflicts", "Appends that another writer was ahead of", _LABELS)
RECONNECTS = Counter("mediafleet_bus_reconnects", "Times the connection came back", ("service",))
ERRORS = Counter(
    "mediafleet_bus_connection_errors", "Errors that the server or the client reported", ("service", "kind")
)


class Meters:
    """The metrics of one consumer, with their labels looked up once."""

    __slots__ = (
        "_labels",
        "dead_letters",
        "dead_letters_refused",
        "handler_seconds",
        "redelivered",
        "retries",
        "skipped",
    )

    def __init__(
        self, service: str, domain: str, *, held: Callable[[], float], lag: Callable[[], float]
    ) -> None:
        """Look the labels up.

        Args:
            service: who consumes.
            domain: what it hears.
            held: called when scraped; messages that the consumer holds.
            lag: called when scraped; messages that the server has still to deliver.
        """
        self._labels = (service, domain)
        self.handler_seconds = _HANDLER_SECONDS.by_labels.setdefault(self._labels, HandlerSeconds())
        self.retries = RETRIES.labels(*self._labels)
        self.dead_letters = DEAD_LETTERS.labels(*self._labels)
        self.dead_letters_refused = DEAD_LETTERS_REFUSED.labels(*self._labels)
        self.skipped = SKIPPED.labels(*self._labels)
        self.redelivered = REDELIVERED.labels(*self._labels)
        HELD.labels(*self._labels).set_function(held)
        LAG.labels(*self._labels).set_function(lag)

    def close(self) -> None:
        """Forget the gauges: what no longer runs has no depth."""
        HELD.labels(*self._labels).set_function(_zero)
        LAG.labels(*self._labels).set_function(_zero)


def watch_lanes(service: str, depth: Callable[[], float], alarms: Callable[[], float]) -> None:
    """Read a service's lanes whenever they are scraped."""
    LANE_DEPTH.labels(service).set_function(depth)
    LANE_ALARMS.labels(service).set_function(alarms)


def forget_lanes(service: str) -> None:
    """The lanes are gone."""
    LANE_DEPTH.labels(service).set_function(_zero)
    LANE_ALARMS.labels(service).set_function(_zero)


def _zero() -> float:
    return 0.0
