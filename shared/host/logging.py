"""Logs as one JSON object a line on stderr, with the case and event that a line belongs to.

The bus knows which event a task handles (`shared.bus.handling`), and every line written meanwhile carries its
ids. Secrets never enter: settings hide their input, URLs are logged without user information.
"""

from __future__ import annotations

import logging
import sys
from typing import Any

import orjson
import structlog

from shared.bus.handling import add_event
from shared.errors import BadInput

LEVELS = {"debug": 10, "info": 20, "warning": 30, "error": 40}


def configure(service: str, instance: str, level: str) -> None:
    """Set logging up for this process.

    Raises:
        BadInput: the level is no level.
    """
    number = LEVELS.get(level.lower())
    if number is None:
        raise BadInput("MEDIAFLEET_LOG_LEVEL", f"{level!r} is no level", f"use one of {', '.join(LEVELS)}")
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            add_event,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            structlog.processors.JSONRenderer(serializer=_dumps),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(number),
        logger_factory=structlog.BytesLoggerFactory(sys.stderr.buffer),
        cache_logger_on_first_use=False,
    )
    structlog.contextvars.clear_contextvars()
    structlog.contextvars.bind_contextvars(service=service, instance=instance)
    logging.basicConfig(handlers=[_ToStructlog()], level=max(number, logging.WARNING), force=True)


def _dumps(value: Any, **_: Any) -> bytes:
    return orjson.dumps(value, default=str, option=orjson.OPT_NON_STR_KEYS)


class _ToStructlog(logging.Handler):
    """Libraries log through the standard module; their lines come out in the same shape."""

    def emit(self, record: logging.LogRecord) -> None:
        """Hand one record over."""
        logger = structlog.get_logger(record.name)
        logger.log(record.levelno, record.getMessage(), exc_info=record.exc_info, logger=record.name)
