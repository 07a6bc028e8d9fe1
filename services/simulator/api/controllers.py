"""All controllers of the simulated cluster on one store, each a named task.

async with running(server.store) as controllers:
    controllers.dispatch.register("worker-1", kubelet)
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from services.simulator.api.disruption import DisruptionBudgets
from services.simulator.api.jobs import Jobs
from services.simulator.api.loop import Controller, ControlLoop
from services.simulator.api.runner import InstantRunner, PodDispatch
from services.simulator.api.scheduler import Scheduler
from services.simulator.api.upkeep import Autoscalers, GarbageCollection, LostPods
from services.simulator.api.workloads import Deployments, ReplicaSets

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from services.simulator.api.store import Store


@dataclass(frozen=True, slots=True)
class Controllers:
    """What runs: register a node's kubelet with ``dispatch``."""

    dispatch: PodDispatch
    loops: tuple[ControlLoop, ...]

    @property
    def idle(self) -> bool:
        """No controller has anything to look at now; timers may still come."""
        return all(loop.idle for loop in self.loops)


@asynccontextmanager
async def running(
    store: Store, *, instant_pods: bool = True, grace_s: float = 2.0
) -> AsyncIterator[Controllers]:
    """Run the scheduler and every controller while the block lasts.

    Args:
        store: the cluster.
        instant_pods: run the pods of nodes without a kubelet (`InstantRunner`); False leaves them Pending.
        grace_s: the longest that such a pod takes to end.
    """
    instant = InstantRunner(store, grace_s=grace_s)
    dispatch = PodDispatch(store, instant if instant_pods else None)
    made: list[Controller] = [
        Scheduler(store),
        Deployments(store),
        ReplicaSets(store),
        Jobs(store),
        DisruptionBudgets(store),
        Autoscalers(store),
        GarbageCollection(store),
        LostPods(store),
    ]
    loops = tuple(ControlLoop(store, controller) for controller in made)
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [
                group.create_task(loop.run(), name=f"controller {controller.name}")
                for loop, controller in zip(loops, made, strict=True)
            ]
            try:
                yield Controllers(dispatch, loops)
            finally:
                for task in tasks:
                    task.cancel()
    finally:
        dispatch.close()
        instant.close()
