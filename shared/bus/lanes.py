"""Keyed lanes: lanes in parallel, strictly serial inside.

A lane is a queue that exists while something is in it. What runs stays at its head until it is done, so a
queue that is not empty is either running or waiting for a worker. Workers are tasks that take one ready lane
after another; a task for each event would cost more than most handlers. A worker cannot know whether the
handler it starts will block, so whenever more lanes are ready it calls one more worker first: if the handler
blocks, the other one takes over; if not, it finds nothing to do. Idle workers are kept for reuse.

Retries happen inside the lane, so order is kept; nothing else waits for them. A handler that leaks a
`CancelledError` does not end its lane (it is told apart from a real cancellation by `Task.cancelling`).

Context variables that a handler sets may be seen by the next one on the same worker: bind them anew each
time (as `handling` is, for logs).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Protocol

import structlog

from shared.bus import metrics
from shared.bus.handling import handling
from shared.bus.port import Disconnected
from shared.errors import FleetError, Temporary

_MAX_IDLE = 64
"""Idle workers kept: enough for the usual burst, few enough to forget about."""
_YIELD_AFTER = 32
"""Items that one worker runs before it lets the loop breathe (32 x ~30 us: about a millisecond)."""
JOB_ATTEMPTS = 20
"""Tries of a job until its `Temporary` ends the consumption; as `Subscription.attempts`."""
JOB_GIVE_UP_S = 600.0
"""Time until the same; as `Subscription.give_up_after_s`."""

_log = structlog.get_logger(__name__)


class Abandoned(Exception):  # noqa: N818 - says what became of the work
    """The lanes stop: work that waits for another try is left to the next holder, unacknowledged."""


class Work(Protocol):
    """What a lane runs."""

    @property
    def order(self) -> tuple[str, int] | None:
        """(stream, sequence) of a message; None for a job."""
        ...

    def run(self, lanes: Lanes) -> Coroutine[Any, Any, None]:
        """Do it, retries included. Raises `Abandoned` when stopped; any other error ends the consumption."""
        ...


class Lanes:
    """The lanes of one consumption."""

    def __init__(self, service: str, *, alarm_depth: int) -> None:
        """Make them; needs a running loop.

        Args:
            service: for metrics and task names.
            alarm_depth: messages in one lane that are an alarm (a tenth of max_ack_pending).
        """
        self._service = service
        self._alarm_depth = max(2, alarm_depth)
        self._lanes: dict[str, _Lane] = {}
        self._ready: deque[_Lane] = deque()
        self._idle: list[asyncio.Future[None]] = []
        self._workers: set[asyncio.Task[None]] = set()
        self._called = False
        self._handled = 0
        self._loop = asyncio.get_running_loop()
        self._stopping = asyncio.Event()
        self._empty = asyncio.Event()
        self._empty.set()
        self.failed: asyncio.Future[None] = self._loop.create_future()
        """Done when the lanes can go on no more; holds the error."""
        metrics.watch_lanes(service, self.deepest, self.alarms)

    def deepest(self) -> int:
        """Depth of the deepest lane."""
        return max((len(lane.queue) for lane in self._lanes.values()), default=0)

    def alarms(self) -> int:
        """Lanes at or over the alarm depth."""
        return sum(len(lane.queue) >= self._alarm_depth for lane in self._lanes.values())

    def __len__(self) -> int:
        return len(self._lanes)

    @property
    def stopping(self) -> bool:
        """Nothing new is taken."""
        return self._stopping.is_set()

    def put(self, key: str, work: Work) -> None:
        """Queue work in the lane of `key`; ignored once the lanes stop.

        A message whose sequence is lower than queued ones of its stream (a redelivery) goes before them.
        """
        if self._stopping.is_set():
            return
        lane = self._lanes.get(key)
        if lane is None:
            lane = self._lanes[key] = _Lane(key)
            lane.queue.append(work)
            self._empty.clear()
            self._ready.append(lane)
            if not self._called:
                self._call()
            return
        queue = lane.queue
        order = work.order
        last = queue[-1].order if queue else None  # empty while its worker pauses between two
        if order is not None and last is not None and order < last and order[0] == last[0]:
            lane.insert(work, order)
        else:
            queue.append(work)
        if len(queue) == self._alarm_depth:
            _log.warning("lane_depth", service=self._service, lane=key, depth=len(queue))

    def submit(self, key: str, job: Callable[[], Awaitable[None]]) -> None:
        """Queue a job in the lane of `key`."""
        self.put(key, _Job(job))

    def fail(self, error: BaseException) -> None:
        """End the consumption with this error."""
        if not self.failed.done():
            self.failed.set_exception(error)

    async def pause(self, delay_s: float) -> None:
        """Wait between two tries.

        Raises:
            Abandoned: the lanes stop.
        """
        if delay_s <= 0 and not self._stopping.is_set():
            await asyncio.sleep(0)
            return
        try:
            async with asyncio.timeout(delay_s):
                await self._stopping.wait()
        except TimeoutError:
            return
        raise Abandoned

    async def stop(self, deadline_s: float) -> bool:
        """Take nothing new, finish what is queued, then cancel what is left.

        Args:
            deadline_s: for what is queued and in work; none after a failure, as nothing may be done any more.

        Returns:
            Whether everything was finished. What waits for another try is left at once.
        """
        self._stopping.set()
        finished = True
        if self.failed.done():
            deadline_s = 0.0
        try:
            async with asyncio.timeout(deadline_s):
                await self._empty.wait()
        except TimeoutError:
            finished = False
            _log.warning("lanes_unfinished", service=self._service, lanes=list(self._lanes)[:10])
        finally:
            for worker in self._workers:
                worker.cancel()
            await asyncio.gather(*self._workers, return_exceptions=True)
            self._lanes.clear()
            metrics.forget_lanes(self._service)
            if self.failed.done():
                self.failed.exception()
        return finished

    def _call(self) -> None:
        self._called = True
        while self._idle:
            waiting = self._idle.pop()
            if not waiting.done():
                waiting.set_result(None)
                return
        worker = self._loop.create_task(self._work(), name=f"{self._service}-lanes")
        self._workers.add(worker)
        worker.add_done_callback(self._workers.discard)

    async def _work(self) -> None:
        ready = self._ready
        while True:
            self._called = False
            while ready:
                lane = ready.popleft()
                if ready and not self._called:
                    self._call()
                await self._drain(lane)
                del self._lanes[lane.key]
                if not self._lanes:
                    self._empty.set()
            if len(self._idle) >= _MAX_IDLE or self._stopping.is_set():
                return
            waiting = self._loop.create_future()
            self._idle.append(waiting)
            await waiting

    async def _drain(self, lane: _Lane) -> None:
        queue = lane.queue
        lane.running = True
        while queue:
            if self.failed.done():
                # The lease is lost, or a job failed: nothing more is begun.
                queue.clear()
                return
            try:
                await queue[0].run(self)
            except Abandoned:
                queue.clear()
                return
            except Exception as error:  # noqa: BLE001 - whatever it is ends the consumption with it
                self.fail(error)
            queue.popleft()
            self._handled += 1
            if self._handled >= _YIELD_AFTER:
                self._handled = 0
                await asyncio.sleep(0)


class _Lane:
    """One key's queue; its head is what runs."""

    __slots__ = ("key", "queue", "running")

    def __init__(self, key: str) -> None:
        self.key = key
        self.queue: deque[Work] = deque()
        self.running = False

    def insert(self, work: Work, order: tuple[str, int]) -> None:
        """Put a late redelivery before the later messages of its stream, but never before what runs."""
        at = len(self.queue)
        while at > int(self.running):
            before = self.queue[at - 1].order
            if before is None or before[0] != order[0] or before < order:
                break
            at -= 1
        self.queue.insert(at, work)


class _Job:
    """A timer or an outcome that shares a lane with the messages of its key."""

    __slots__ = ("_job",)

    order = None

    def __init__(self, job: Callable[[], Awaitable[None]]) -> None:
        self._job = job

    async def run(self, lanes: Lanes) -> None:
        started_s = asyncio.get_running_loop().time()
        attempt = 1
        handling(None)
        while True:
            try:
                await self._job()
            except Temporary as error:
                waited_s = asyncio.get_running_loop().time() - started_s
                if attempt >= JOB_ATTEMPTS or waited_s + error.delay_s > JOB_GIVE_UP_S:
                    raise
                attempt += 1
                await lanes.pause(error.delay_s)
            except Disconnected:
                await lanes.pause(1.0)
            except asyncio.CancelledError:
                if really_cancelled():
                    raise
                raise FleetError("a job leaked the cancellation of something it awaited") from None
            else:
                return


def really_cancelled() -> bool:
    """Whether the running task was asked to end; False for a `CancelledError` leaked by what it awaited."""
    task = asyncio.current_task()
    return task is None or task.cancelling() > 0
