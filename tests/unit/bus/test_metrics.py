"""What a scrape reads of a consumer."""

from __future__ import annotations

from prometheus_client import REGISTRY

from shared.bus.metrics import Meters


def sample(name: str, **more: str) -> float | None:
    return REGISTRY.get_sample_value(name, {"service": "scraped", "domain": "health", **more})


def test_a_scrape_reads_depths_as_they_are_and_times_in_buckets() -> None:
    held = [1, 2, 3]
    meters = Meters("scraped", "health", held=lambda: len(held), lag=lambda: 7)
    for took_s in (0.0001, 0.001, 0.001, 60.0):
        meters.handler_seconds.observe(took_s)
    assert sample("mediafleet_bus_held_messages") == 3
    assert sample("mediafleet_bus_lag_messages") == 7
    assert sample("mediafleet_bus_handler_seconds_bucket", le="0.0005") == 1
    assert sample("mediafleet_bus_handler_seconds_bucket", le="0.002") == 3
    assert sample("mediafleet_bus_handler_seconds_bucket", le="30.0") == 3
    assert sample("mediafleet_bus_handler_seconds_bucket", le="+Inf") == 4
    assert sample("mediafleet_bus_handler_seconds_count") == 4
    meters.close()
    assert sample("mediafleet_bus_held_messages") == 0
