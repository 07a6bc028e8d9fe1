"""The policy in force: read at start, and again when its file changes.

A file that cannot be read or is not valid never replaces a good policy: the last good one stays in force, the
error names field and fix, and it is counted.
"""

from __future__ import annotations

from pathlib import Path

import structlog
from prometheus_client import Counter

from services.remediation.policy import Policy
from shared.errors import BadInput
from shared.host.policy import load_policy

log = structlog.get_logger(__name__)
REJECTED = Counter("mediafleet_remediation_policies_rejected", "Policy files that were not valid")


class PolicyFile:
    """A policy that follows its file."""

    def __init__(self, path: Path | None) -> None:
        """Read it once.

        Args:
            path: the YAML file, whose section `remediation` counts; None: the defaults.

        Raises:
            BadInput: it is not valid, and there is no good policy to fall back to.
        """
        self._path = path
        self._stamp = _stamp(path)
        self._policy = load_policy(path, "remediation", Policy)

    def current(self) -> Policy:
        """The policy in force."""
        return self._policy

    def refresh(self) -> bool:
        """Read the file again if it changed; True when another policy is in force now. Never raises."""
        stamp = _stamp(self._path)
        if stamp == self._stamp:
            return False
        self._stamp = stamp
        try:
            policy = load_policy(self._path, "remediation", Policy)
        except BadInput as error:
            REJECTED.inc()
            log.error("the policy file is not valid; the last good policy stays", reason=error.reason)
            return False
        changed, self._policy = policy != self._policy, policy
        log.info("policy read again", changed=changed)
        return changed


def _stamp(path: Path | None) -> tuple[int, int] | None:
    """What differs when the file does; None when it cannot be looked at."""
    if path is None:
        return None
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size
