"""Faults to inject: the next N requests that match get this answer, or none for a while."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

from services.simulator.api.status import ApiError, Cause, bad_request

_REASONS = {
    400: "BadRequest",
    401: "Unauthorized",
    403: "Forbidden",
    404: "NotFound",
    409: "Conflict",
    410: "Expired",
    422: "Invalid",
    429: "TooManyRequests",
    500: "InternalError",
    503: "ServiceUnavailable",
    504: "Timeout",
}


@dataclass(slots=True)
class Fault:
    """One injected fault.

    Attributes:
        verb: Kubernetes verb or HTTP method, any case; empty matches all.
        path: regular expression searched in the path.
        times: how many requests it still meets.
        status: answer with this status; 0 lets the request through (after the hang).
        retry_after_s: Retry-After of the answer.
        hang_s: seconds of silence before anything else.
        budget: a 429 is a disruption budget's, not the whole client's.
        after: carry the request out first, then answer with ``status`` (an answer that got lost).
    """

    verb: str = ""
    path: str = ""
    times: int = 1
    status: int = 0
    retry_after_s: int | None = None
    hang_s: float = 0.0
    budget: bool = False
    after: bool = False
    met: int = field(default=0)

    def matches(self, verb: str, method: str, path: str) -> bool:
        """Whether it meets this request."""
        named = not self.verb or self.verb.lower() in (verb, method.lower())
        return self.times > 0 and named and re.search(self.path, path) is not None

    def error(self) -> ApiError:
        """The answer it gives."""
        if self.status == 429 and not self.budget:  # noqa: PLR2004 - Too Many Requests
            message = "Too many requests, please try again later."
            return ApiError(429, "TooManyRequests", message, retry_after_s=self.retry_after_s or 1)
        causes = (Cause("DisruptionBudget", "injected fault"),) if self.budget else ()
        return ApiError(
            self.status,
            _REASONS.get(self.status, "Unknown"),
            "injected fault",
            causes=causes,
            retry_after_s=self.retry_after_s,
        )

    def to_json(self) -> dict[str, Any]:
        """As JSON."""
        return {name: getattr(self, name) for name in self.__slots__}


class Faults:
    """The faults that wait for their requests, in the order they were injected."""

    def __init__(self) -> None:
        self._waiting: list[Fault] = []

    def inject(self, fault: Fault) -> Fault:
        """Add a fault; the object counts in ``met`` how often it struck."""
        re.compile(fault.path)
        self._waiting.append(fault)
        return fault

    def take(self, verb: str, method: str, path: str) -> Fault | None:
        """The fault that meets this request, counted down."""
        for fault in self._waiting:
            if fault.matches(verb, method, path):
                fault.times -= 1
                fault.met += 1
                if not fault.times:
                    self._waiting.remove(fault)
                return fault
        return None

    def clear(self) -> None:
        """Forget all."""
        self._waiting.clear()

    def waiting(self) -> list[Fault]:
        """What is still to come."""
        return list(self._waiting)


def fault_from(body: Any) -> Fault:
    """A fault from JSON.

    Raises:
        ApiError: 400, an unknown or malformed field.
    """
    if not isinstance(body, dict):
        raise bad_request("must be an object", "body")
    types: dict[str, type | tuple[type, ...]] = {
        "verb": str,
        "path": str,
        "times": int,
        "status": int,
        "retry_after_s": int,
        "hang_s": (int, float),
        "budget": bool,
        "after": bool,
    }
    for name, value in body.items():
        if name not in types:
            raise bad_request(f"unknown field; known are {', '.join(types)}", name)
        if not isinstance(value, types[name]) or (isinstance(value, bool) and types[name] is not bool):
            raise bad_request(f"{value!r} has the wrong type", name)
    try:
        re.compile(body.get("path", ""))
    except re.error as error:
        raise bad_request(f"not a regular expression: {error}", "path") from error
    return Fault(**body)
