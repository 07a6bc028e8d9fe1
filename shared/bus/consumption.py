"""A running consumption, as both implementations answer for it: lanes, intakes, and whether it is current."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from shared.bus.intake import Intake
from shared.bus.lanes import Lanes
from shared.bus.port import Subscription
from shared.clock import Clock

FIRST_DOMAIN = "command"
"""Heard before everything else: a person's word holds whatever the other inputs say."""
STOP_WITHIN_S = 2.5
"""For the lanes at the end; a service has 5 s from SIGTERM, of which a hanging server may cost 1.5 more."""


def in_order(subscriptions: tuple[Subscription, ...]) -> list[Subscription]:
    """The order in which inputs catch up: commands first.

    Raises:
        ValueError: two subscriptions of one domain.
    """
    domains = [subscription.domain for subscription in subscriptions]
    if len(set(domains)) != len(domains):
        raise ValueError(f"at most one subscription per domain, not {domains}")
    return sorted(subscriptions, key=lambda subscription: subscription.domain != FIRST_DOMAIN)


def lanes_for(service: str, subscriptions: tuple[Subscription, ...]) -> Lanes:
    """The lanes that the subscriptions share; one that holds a tenth of max_ack_pending is an alarm."""
    smallest = min((subscription.max_ack_pending for subscription in subscriptions), default=1000)
    return Lanes(service, alarm_depth=smallest // 10)


class Flow:
    """The port's `Consumption` over lanes and intakes."""

    def __init__(self, lanes: Lanes, intakes: list[Intake], clock: Clock) -> None:
        """Args: lanes: shared by the intakes; intakes: one per subscription; clock: the time."""
        self.lanes = lanes
        self.intakes = intakes
        self._clock = clock
        self._moved = asyncio.Event()
        for intake in intakes:
            intake.on_caught_up = self._moved.set
        lanes.failed.add_done_callback(lambda _: self._moved.set())

    @property
    def caught_up(self) -> bool:
        """Every input has reached its head as of the last (re)connect or takeover."""
        return all(intake.caught_up for intake in self.intakes)

    async def until_caught_up(self) -> None:
        """Return when `caught_up`; raises what ended the consumption before."""
        for intake in self.intakes:
            await self.until(intake)
        if not self.caught_up:
            await self.until_caught_up()

    async def until(self, intake: Intake) -> None:
        """Return when this one is caught up; raises what ended the consumption before."""
        while not intake.caught_up:
            if self.lanes.failed.done():
                self.lanes.failed.result()
            self._moved.clear()
            await self._moved.wait()

    @property
    def listening_since_s(self) -> float:
        """Monotonic time since when every input delivers without a break; now, while one does not."""
        now_s = self._clock.monotonic()
        return max((now_s if i.since_s is None else i.since_s for i in self.intakes), default=now_s)

    def interrupted(self) -> None:
        """The connection broke."""
        for intake in self.intakes:
            intake.interrupted()

    def submit(self, key: str, job: Callable[[], Awaitable[None]]) -> None:
        """Run a job in the lane of `key`."""
        self.lanes.submit(key, job)

    async def wait(self) -> None:
        """Until it ends; raises what ended it."""
        await asyncio.shield(self.lanes.failed)
