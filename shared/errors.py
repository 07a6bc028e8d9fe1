"""The errors of mediafleet.

    FleetError
    ├── Temporary      try again after ``delay_s``; counted, and permanent once attempts or time run out
    ├── Permanent      never going to work: dead-lettered with its reason
    │   └── BadInput   something from outside is malformed: names the field and the fix
    ├── Conflict       another writer was first: reload and decide again (raised by the bus)
    ├── Yields         this replica cannot go on and another may: the lease is left to it
    └── Refused        the environment cannot run us (an old server, a missing program): says what to do

Library errors are mapped to these at the edge (`bus`, `kube`, `vendors`), once.
"""

from __future__ import annotations


class FleetError(Exception):
    """Root of every error that mediafleet raises on purpose."""


class Temporary(FleetError):  # noqa: N818 - the word says what the handler's outcome is, as in kopf
    """Try again later.

    Attributes:
        delay_s: seconds to wait before the next attempt.
    """

    def __init__(self, reason: str, *, delay_s: float = 1.0) -> None:
        super().__init__(reason)
        self.reason = reason
        self.delay_s = delay_s


class Permanent(FleetError):  # noqa: N818 - as above
    """It will never work; the message goes to the dead letters with this reason.

    Attributes:
        reason: why, and what to do, for a person.
        field: the dotted path of the offending field, empty when no field is at fault.
    """

    def __init__(self, reason: str, *, field: str = "") -> None:
        super().__init__(reason)
        self.reason = reason
        self.field = field


class BadInput(Permanent):
    """Something from outside is malformed; the message names the field and the fix.

    Attributes:
        problem: what is wrong with the field.
        fix: what to write instead.
    """

    def __init__(self, field: str, problem: str, fix: str) -> None:
        super().__init__(f"{field}: {problem}; {fix}", field=field)
        self.problem = problem
        self.fix = fix


class Conflict(FleetError):  # noqa: N818 - the field's term for a failed expectation
    """The log moved on: another writer appended first.

    Attributes:
        last: the last sequence of the log as the server knows it; None when the server did not say.
    """

    def __init__(self, log: str, *, expected: int, last: int | None = None) -> None:
        super().__init__(f"{log}: expected last sequence {expected}, the log stands at {last}")
        self.expected = expected
        self.last = last


class Yields(FleetError):  # noqa: N818 - says what the replica does
    """This replica cannot go on, and another one may: it leaves the lease alone for a while."""


class Refused(FleetError):  # noqa: N818 - what the program does with such an environment
    """The environment cannot run mediafleet; the message says what to install or change."""
