import logging as standard
from datetime import UTC, datetime

import orjson
import pytest
import structlog

from shared.bus.handling import handling
from shared.errors import BadInput
from shared.events import Cause, event
from shared.events.world import HealthReported
from shared.host import logging


def test_a_line_is_json_with_the_event_and_case_it_belongs_to(
    capfdbinary: pytest.CaptureFixture[bytes],
) -> None:
    logging.configure("remediation", "r-0", "info")
    heard = event(
        HealthReported(boot_id="b", window_id=1, verdict="unhealthy", streak=1),
        ("w", "d"),
        cause=Cause("k", "before", "remediation:w/d#3", None),
        source="/test",
        at=datetime(2026, 1, 1, tzinfo=UTC),
    )
    handling(heard)
    structlog.get_logger().info("decided", strike=1)
    handling(None)
    structlog.get_logger().debug("not shown")
    lines = [orjson.loads(line) for line in capfdbinary.readouterr().err.splitlines()]
    assert len(lines) == 1
    assert lines[0] | {"timestamp": ""} == {
        "event": "decided",
        "strike": 1,
        "level": "info",
        "timestamp": "",
        "service": "remediation",
        "instance": "r-0",
        "event_id": heard.id,
        "about": "w/d",
        "case": "remediation:w/d#3",
        "trace_id": heard.traceparent.split("-")[1] if heard.traceparent else "",
    }


def test_a_librarys_line_comes_out_in_the_same_shape(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    logging.configure("bridge", "b-0", "info")
    standard.getLogger("grpc").warning("channel %s", "closed")
    line = orjson.loads(capfdbinary.readouterr().err)
    assert (line["event"], line["logger"], line["level"]) == ("channel closed", "grpc", "warning")


def test_an_unknown_level_is_refused() -> None:
    with pytest.raises(BadInput, match="MEDIAFLEET_LOG_LEVEL"):
        logging.configure("bridge", "b-0", "loud")
