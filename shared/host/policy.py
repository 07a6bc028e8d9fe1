"""Policy: what a deciding service is allowed and how careful it is. A section per service in one YAML file.

Settings say where things are and are read at start; policy says what is decided and may be replayed.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Generic, TypeVar

import structlog
from prometheus_client import Counter
from pydantic import BaseModel, ValidationError

from shared.errors import BadInput
from shared.host.settings import read_section

PolicyT = TypeVar("PolicyT", bound=BaseModel)

SECTIONS = ("remediation", "guardian", "autoscaler")
"""The services that have a policy; another name in the file is a slip that would change nothing."""

_REJECTED = Counter("mediafleet_policies_rejected", "Policy files that were not valid.", ["service"])

log = structlog.get_logger(__name__)


def load_policy(path: Path | None, service: str, policy: type[PolicyT]) -> PolicyT:
    """The section of a service in the policy file; defaults hold where it is silent or there is no file.

    Raises:
        BadInput: a value is wrong; names the file, the section and the field.
    """
    section = {} if path is None else read_section(path, service, known=SECTIONS)
    try:
        return policy.model_validate(section)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        field = ".".join(str(part) for part in first["loc"])
        raise BadInput(f"{path}:{service}.{field}", first["msg"], "correct it in the policy file") from error


class PolicyFile(Generic[PolicyT]):
    """A policy that follows its file; one that is not valid never replaces a good one."""

    def __init__(self, path: Path | None, service: str, policy: type[PolicyT]) -> None:
        """Read it once.

        Raises:
            BadInput: it is not valid, and there is no good policy to fall back to.
        """
        self._path, self._service, self.model = path, service, policy
        self._stamp = _stamp(path)
        self._policy = load_policy(path, service, policy)

    def current(self) -> PolicyT:
        """The policy in force."""
        return self._policy

    def refresh(self) -> bool:
        """Read the file again if it changed; True when another policy is in force now. Never raises."""
        stamp = _stamp(self._path)
        if stamp == self._stamp:
            return False
        self._stamp = stamp
        try:
            policy = load_policy(self._path, self._service, self.model)
        except BadInput as error:
            _REJECTED.labels(self._service).inc()
            log.error("the policy file is not valid; the last good policy stays", reason=error.reason)
            return False
        changed, self._policy = policy != self._policy, policy
        log.info("policy read again", changed=changed)
        return changed

    async def follow(self, every_s: float = 2.0) -> None:
        """Keep it fresh, for ever."""
        while True:
            await asyncio.sleep(every_s)
            self.refresh()


def _stamp(path: Path | None) -> tuple[int, int] | None:
    """What differs when the file does; None when it cannot be looked at."""
    if path is None:
        return None
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size
