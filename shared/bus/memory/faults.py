"""What goes wrong between a process and the in-memory server, drawn from a seed."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random


@dataclass(slots=True)
class Faults:
    """How often what goes wrong. The same seed gives the same run.

    Attributes:
        duplicate: share of deliveries that come a second time, later and so out of order.
        lost_answer: share of calls that the server carried out and whose answer is lost.
        lost_ack: share of acknowledgements that never arrive.
        delay_s: longest time of a call or a delivery; deliveries of one consumer keep their order.
    """

    seed: int = 0
    duplicate: float = 0.0
    lost_answer: float = 0.0
    lost_ack: float = 0.0
    delay_s: float = 0.0
    random: Random = field(init=False)

    def __post_init__(self) -> None:
        self.random = Random(self.seed)  # noqa: S311 - a simulation that can be repeated, no secret

    def happens(self, share: float) -> bool:
        """Whether it goes wrong this time."""
        return share > 0 and self.random.random() < share

    def delay(self) -> float:
        """Seconds that this step takes."""
        return self.random.uniform(0, self.delay_s) if self.delay_s else 0.0
