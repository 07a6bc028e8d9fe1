"""The node's one book-keeper: devices and their standing, the ledger, fences; every face asks it.

Deciding is `decide`'s and `reconcile`'s; here their answers are put on disk, published on the board and said.
Disk comes first, then the answer to the kubelet or the word to the bus. Steps that change the books hold no
await, so they need no lock; only questions to the kubelet are awaited, and what was decided before such a
question is decided again after it.

Writing is synchronous on purpose: a ledger is a few kilobytes, the kubelet admits one pod at a time, and what
is not on the disk must not be answered.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

import structlog
from prometheus_client import Counter, Gauge

from services.bridge import decide, facts
from services.bridge.board import Board
from services.bridge.identity import Owners, Sighting, owners
from services.bridge.ledger import Ledger, State
from services.bridge.reconcile import Adopt, Bind, Release, holders, misaligned, reconcile, stale
from services.bridge.record import Heard, NodeRecord, Question
from services.bridge.runtime import container_spec
from services.bridge.share import Share, catalogue
from services.bridge.standing import Standing, after
from services.bridge.store import DiskRecord
from shared.clock import Clock
from shared.devices.model import UnifiedDevice
from shared.errors import FleetError, Refused
from shared.events import AnyEvent, Cause, Payload, device, remediation, world
from shared.events.parts import PodRef, Window
from shared.vendors.runtime import RuntimeSpec

Say = Callable[[Payload, str, Cause], None]
"""Say a fact about an entity of this node, for a cause; it is on the disk when this returns."""

BRIDGE = "bridge"
"""The entity of facts that are about no single device."""

_ALLOCATIONS = Gauge("mediafleet_bridge_allocations", "Allocations in the ledger.", ["state"])
_UNRESOLVED = Gauge("mediafleet_bridge_unresolved", "Ids held by a pod that cannot be named.")
_REFUSALS = Counter("mediafleet_bridge_refusals", "Allocate calls that were refused.", ["resource"])
_FENCES = Counter("mediafleet_bridge_fences", "Quarantines answered with the device's holders.")
_FENCES_OPEN = Gauge("mediafleet_bridge_fences_open", "Quarantines that are not answered yet.")

log = structlog.get_logger()


class AllocationRefused(FleetError):  # noqa: N818 - the field's term, as the event's
    """The ids may not be given; the message goes to the pod's status."""


@dataclass(frozen=True, slots=True)
class Policy:
    """What the node offers and how long things may take.

    Attributes:
        domain: resource domain.
        slots: shares per engine.
        whole_devices: offer devices too.
        settle: from our answer to the kubelet's own books.
        grace: how long an allocation may be missing from them before it is over.
        tell: how long a stream may take to send a list.
        anchor: how long after a grant another resource of the same container may still be asked for.
    """

    domain: str = "media.example.com"
    slots: int = 1
    whole_devices: bool = True
    settle: timedelta = timedelta(seconds=2)
    grace: timedelta = timedelta(seconds=10)
    tell: timedelta = timedelta(seconds=2)
    anchor: timedelta = timedelta(seconds=1)


class Allocator:
    """The books of one node, and the only one who changes them."""

    def __init__(
        self,
        *,
        policy: Policy,
        root: Path,
        clock: Clock,
        board: Board,
        ledgers: DiskRecord[Ledger],
        nodes: DiskRecord[NodeRecord],
        look: Callable[[], Awaitable[Sighting]],
        say: Say,
        boot_id: str,
        fresh_id: str,
    ) -> None:
        """Read the books from the disk; unreadable ones are set aside and rebuilt from the kubelet's.

        Args:
            policy: what is offered.
            root: the host's root directory.
            clock: the time.
            board: where the lists are published.
            ledgers: the ledger on disk.
            nodes: devices and standings on disk.
            look: asks the kubelet who holds what.
            say: says a fact.
            boot_id: the node's.
            fresh_id: names a new ledger, if there has to be one: never used before on this node.

        Raises:
            Refused: the state directory cannot be used.
        """
        self._policy = policy
        self._root = root
        self._clock = clock
        self._board = board
        self._ledgers = ledgers
        self._nodes = nodes
        self._look = look
        self._say = say
        self._boot_id = boot_id
        self._absent: dict[str, datetime] = {}
        self._misaligned: set[PodRef] = set()
        self._wake = asyncio.Event()
        loaded, known = ledgers.load(), nodes.load()
        for problem, aside in ((loaded.problem, loaded.set_aside), (known.problem, known.set_aside)):
            if problem:
                log.error("unreadable books were set aside", reason=problem, now_at=str(aside))
        self._ledger = loaded.record or Ledger(ledger_id=fresh_id)
        self._rebuilt = loaded.record is not None
        self._node = (known.record or NodeRecord()).next_start()
        self._open = known.record is not None
        self._nodes.save(self._node)
        self._unsaved = False
        self._n = self._node.counter
        self._catalogue = self._offered()
        if self._open:
            self.publish()

    @property
    def ledger(self) -> Ledger:
        """The ledger as it is."""
        return self._ledger

    @property
    def devices(self) -> dict[str, UnifiedDevice]:
        """The registered devices by key."""
        return self._node.devices

    def open(self) -> None:
        """Everything was heard once: offer what there is. Books that were on the disk offer at once."""
        self._open = True
        self.publish()
        self._save_node()

    def standing(self, key: str) -> Standing:
        """A device's standing."""
        return self._node.standings.get(key, Standing())

    # Facts from the bus

    def apply(self, event: AnyEvent, at: Heard) -> None:
        """Take in one fact about a device of this node.

        A fact that the books have already, from before a restart, is passed over: replaying an old quarantine
        would take a device from the kubelet that was given back long ago.
        """
        domain, key, fact = event.of.domain, event.of.entity, event.data
        known = self._node.heard.get(domain)
        if known is not None and known.covers(at):
            return
        before = self.standing(key)
        standing = after(before, fact)
        node = self._node.hearing(domain, at)
        if standing != before:
            node = node.with_standing(key, standing)
        match fact:
            case device.Registered():
                node = node.with_device(key, fact.device)
            case device.DeviceRejected():
                node = node.with_device(key, None)
            case world.HealthReported():
                node = node.with_window(key, Window(boot_id=fact.boot_id, window_id=fact.window_id))
            case remediation.Quarantined() if fact.epoch >= before.epoch:
                if not node.has_answered(key, fact.epoch, event.id):
                    node = node.with_question(key, event)
            case _:
                pass
        self._replace(node)

    def consider(self, key: str, report: world.HealthReported) -> bool:
        """Take a device from the kubelet on a report that nobody else can judge now; True if it was taken."""
        physical = [each for each, known in self.devices.items() if known.parent is None]
        evidence = decide.withdraw(
            key, report.verdict, report.evidence, devices=physical, standings=self._node.standings
        )
        if not evidence:
            return False
        window = Window(boot_id=report.boot_id, window_id=report.window_id)
        fact = world.Withdrawn(
            boot_id=self._boot_id, n=self._next(), serial=report.serial, evidence=evidence, window=window
        )
        log.error("withdrawn without the bus", device=key, codes=[each.code for each in evidence])
        self._replace(self._node.with_withdrawal(key, fact).with_window(key, window))
        self._save_node()
        self._say(fact, key, self._numbered(fact.n))
        return True

    # The kubelet's questions

    async def allocate(self, resource: str, ids: Sequence[str]) -> RuntimeSpec:
        """Give ids of a resource to one container.

        Raises:
            AllocationRefused: they may not be given; says why.
            Refused: the ledger cannot be written.
        """
        if not self._rebuilt:
            # What pods hold from before is not in the ledger yet; to give now might be to give it twice.
            await self.agree()
        decision = self._decide(resource, ids)
        if isinstance(decision, decide.Wanted) and decision.holders:
            # The kubelet frees a finished pod's ids in silence: ask whether it still lists the holders.
            sighting = await self._look()
            now = self._clock.now()
            for allocation_id in stale(decision.holders, sighting, now, self._policy.settle):
                self._ledger = self._ledger.release(allocation_id, "the kubelet gave its ids up", now)
            decision = self._decide(resource, ids)
            if isinstance(decision, decide.Wanted) and decision.holders:
                in_use = "; ".join(str(holder) for holder in decision.holders)
                keys = tuple(dict.fromkeys(share.device for share in decision.shares))
                decision = decide.Refusal(f"{resource}: in use: {in_use}", keys)
        if isinstance(decision, decide.Refusal):
            self._refuse(resource, ids, decision)
            raise AllocationRefused(decision.reason)
        return self._grant(resource, decision)

    def prefer(
        self, resource: str, available: Sequence[str], required: Sequence[str], size: int
    ) -> list[str]:
        """The ids of a resource that fit best together."""
        now = self._clock.now()
        anchors = {
            each.device
            for each in self._ledger.live
            if each.state is State.GRANTED
            and each.resource != resource
            and now - each.since <= self._policy.anchor
        }
        return decide.prefer(
            available,
            required,
            size,
            known=self._catalogue.get(resource, {}),
            occupied=self._ledger.occupancy(),
            anchors=anchors,
        )

    # What is done again and again

    def publish(self) -> None:
        """Put the current lists on the board."""
        self._board.publish(decide.offer(self._catalogue, self._node.standings, self._ledger))

    def speak(self) -> None:
        """Say what the ledger went through and the journal lacks; a crash in between repeats it, same ids."""
        for allocation in self._ledger.allocations:
            for state in allocation.unsaid:
                self._say(
                    facts.of(allocation, state),
                    allocation.device,
                    Cause.source(self._ledger.ledger_id, allocation.allocation_id),
                )
                self._ledger = self._ledger.said(allocation.allocation_id, state)

    def state(self) -> None:
        """Say the complete list of what is held, and again what was withdrawn and no epoch answered."""
        n = self._next()
        fact = world.AllocationsStated(boot_id=self._boot_id, n=n, holdings=facts.holdings(self._ledger))
        self._say(fact, BRIDGE, self._numbered(n))
        self.restate_withdrawals()

    def restate_withdrawals(self) -> None:
        """Say again which devices were withdrawn, until an epoch answers."""
        for key, fact in self._node.withdrawals.items():
            again = fact.model_copy(update={"boot_id": self._boot_id, "n": self._next()})
            self._say(again, key, self._numbered(again.n))

    async def agree(self) -> None:
        """Make the ledger agree with the kubelet, and answer the quarantines that can be answered."""
        self._settle()
        told = await self._told()
        seen = owners(await self._look(), self._policy.domain)
        now = self._clock.now()
        found = reconcile(
            self._ledger,
            seen,
            catalogue=self._catalogue,
            absent=self._absent,
            now=now,
            grace=self._policy.grace,
        )
        self._absent = dict(found.absent)
        _UNRESOLVED.set(len(found.unresolved))
        if found.unresolved:
            log.warning("held by a pod that cannot be named", ids=found.unresolved)
        for step in found.steps:
            self._take(step, now)
        self._rebuilt = self._rebuilt or seen is not None
        self._settle()
        for pod, keys in misaligned(self._ledger).items():
            if pod not in self._misaligned:
                self._misaligned.add(pod)
                first = next(iter(keys.values()))[0]
                fact = world.Misaligned(pod=pod, devices=keys)
                self._say(fact, first, Cause.source(self._ledger.ledger_id, pod.uid))
        self._fence(told, seen)

    @property
    def busy(self) -> bool:
        """Somebody waits for the next look: a quarantine, or a grant whose pod is not known."""
        return bool(self._node.questions) or any(each.state is State.GRANTED for each in self._ledger.live)

    async def news(self) -> None:
        """Return when there is a reason to look before the usual time."""
        await self._wake.wait()
        self._wake.clear()

    # Inside

    def _decide(self, resource: str, ids: Sequence[str]) -> decide.Wanted | decide.Refusal:
        if not self._rebuilt:
            return decide.Refusal(f"{resource}: the ledger is new and pod resources cannot be read yet")
        return decide.allocate(
            resource,
            ids,
            catalogue=self._catalogue,
            standings=self._node.standings,
            ledger=self._ledger,
        )

    def _grant(self, resource: str, wanted: decide.Wanted) -> RuntimeSpec:
        now = self._clock.now()
        before = self._ledger
        self._ledger, made = before.reserve(resource, wanted.shares, now)
        try:
            spec = container_spec(resource, wanted.shares, devices=self.devices, root=self._root)
            self._ledger = self._ledger.grant((each.allocation_id for each in made), now)
            self._ledgers.save(self._ledger.durable())
        except BaseException:
            self._ledger = before
            raise
        self.publish()
        self._wake.set()
        return spec

    def _refuse(self, resource: str, ids: Sequence[str], refusal: decide.Refusal) -> None:
        _REFUSALS.labels(resource).inc()
        log.warning("refused", resource=resource, ids=list(ids), reason=refusal.reason)
        n = self._next()
        fact = world.AllocationRefused(
            boot_id=self._boot_id, n=n, resource=resource, ids=tuple(ids), reason=refusal.reason
        )
        for key in refusal.devices or (BRIDGE,):
            self._say(fact, key, self._numbered(n))

    def _take(self, step: Bind | Release | Adopt, now: datetime) -> None:
        match step:
            case Bind():
                self._ledger = self._ledger.bind(step.allocation_id, step.pod, step.container, now)
            case Release():
                self._ledger = self._ledger.release(step.allocation_id, step.reason, now)
            case Adopt():
                log.warning("adopted from the kubelet", pod=str(step.pod or "?"), resource=step.resource)
                self._ledger, _ = self._ledger.adopt(
                    step.resource, step.shares, now, step.pod, step.container
                )

    def _settle(self) -> None:
        """Disk, board, journal, in this order; nothing is written when nothing changed."""
        if any(each.unsaid for each in self._ledger.allocations):
            self._ledgers.save(self._ledger.durable())
            self.publish()
            self.speak()  # that it was said is written with the next change: until then it is said again
        for state in State:
            count = sum(1 for each in self._ledger.allocations if each.state is state)
            _ALLOCATIONS.labels(state.value).set(count)

    async def _told(self) -> Mapping[str, Question]:
        """By device the quarantine that the kubelet has been told of: it stood before the lists went out."""
        asked = self._node.questions
        if asked:
            try:
                async with asyncio.timeout(self._policy.tell.total_seconds()):
                    await self._board.until_told()
            except TimeoutError:
                log.warning("the kubelet does not take its device list", waiting=tuple(asked))
                return {}
        return asked

    def _fence(self, told: Mapping[str, Question], seen: Owners | None) -> None:
        """Answer these quarantines, as far as everybody who holds their devices is known."""
        for key, question in told.items():
            standing = self.standing(key)
            if self._node.questions.get(key) != question:
                continue  # a wider one came meanwhile: the kubelet has not been told of that
            if not standing.quarantined or question.epoch not in (0, standing.epoch):
                self._node, self._unsaved = self._node.without_question(key), True
                continue
            found = holders(key, standing, self._ledger, seen)
            if seen is None or found.unsettled:
                continue
            window = self._node.windows.get(key) or Window(boot_id=self._boot_id, window_id=0)
            fact = world.Fenced(epoch=standing.epoch, holders=found.pods, as_of=window)
            self._say(fact, key, question.cause)
            self._node = self._node.without_question(key, fenced=standing.epoch)
            self._unsaved = True
            _FENCES.inc()
            log.info("fenced", device=key, epoch=standing.epoch, holders=[str(pod) for pod in found.pods])
        self._save_node()
        _FENCES_OPEN.set(len(self._node.questions))

    def _replace(self, node: NodeRecord) -> None:
        """Take over new books of the node; only what changes what is offered is worth a write."""
        before, self._node = self._node, node
        if node.devices != before.devices:
            self._catalogue = self._offered()
            self._ledger = self._ledger.learn(self._catalogue)
        changed = (node.devices, node.standings, node.questions)
        if changed != (before.devices, before.standings, before.questions):
            # Told first, written soon, by `agree`. A crash in between hears it from the bus again, since how
            # far the bus was heard is written together with what was heard.
            self._unsaved = True
            self._wake.set()
            if self._open:
                self.publish()

    def _save_node(self) -> None:
        """Write the node's books. A full disk keeps no quarantine from the kubelet; it is tried again."""
        if not self._unsaved:
            return
        try:
            self._nodes.save(self._node)
        except Refused as error:
            log.error("the node's books are not saved", reason=str(error))
        else:
            self._unsaved = False

    def _offered(self) -> dict[str, dict[str, Share]]:
        return catalogue(
            self._node.devices.values(),
            domain=self._policy.domain,
            slots=self._policy.slots,
            whole_devices=self._policy.whole_devices,
        )

    def _next(self) -> int:
        self._n += 1
        return self._n

    def _numbered(self, n: int) -> Cause:
        return Cause.source(self._boot_id, f"{BRIDGE}-{n}")
