"""What must hold whatever was broken, judged from streams, journals, access log and kubelets.

Nothing here asks a service; each check reads what is stored or what was seen from outside.
"""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

import orjson

from shared.bus.deadletters import same_fact
from shared.bus.provision import wanted_streams
from shared.errors import BadInput
from shared.events import AnyEvent, Unknown, decode
from shared.events import remediation as say
from shared.events import workload as sla
from shared.events.workload import Rejected
from shared.journal import acknowledged, read
from tests.chaos.site import Look, Site

Json = dict[str, Any]

AUDIT: Final = "FLEET_AUDIT"
_EVICTION: Final = re.compile(r"/api/v1/namespaces/([^/]+)/pods/([^/]+)/eviction")
_SETTLE_WITHIN_S: Final = 10.0
_LOOK_AGAIN_S: Final = 0.1
_KUBELET_TAKES_S: Final = 0.5
"""From the bridge's word to the kubelet's state, on a busy machine."""
_BATCH: Final = 500


@dataclass(frozen=True, slots=True)
class Audited:
    """One message of the audit."""

    stream: str
    sequence: int
    subject: str
    body: bytes

    @property
    def event(self) -> AnyEvent | None:
        """As an event; None for what is none."""
        try:
            decoded = decode(self.subject, self.body)
        except BadInput:
            return None
        return None if isinstance(decoded, Unknown) else decoded


@dataclass
class Judge:
    """Reads on where the last judgement ended, and tells each problem once."""

    site: Site
    audited: list[Audited] = field(default_factory=list)
    _told: set[str] = field(default_factory=set)
    _position: int = 0
    _log_at: int = 0
    _evictions: list[Json] = field(default_factory=list)

    async def judge(self) -> list[str]:
        """What is wrong that was not told before; empty when all holds."""
        self.site.stage.check()
        await self.site.look_again()
        wrong = [*await self._journals_are_said(), *await self._audit_is_whole()]
        facts = [e for each in self.audited if (e := each.event) is not None]
        log = await self.site.cluster.access_log(self._log_at)
        self._log_at = max([self._log_at, *(each["number"] for each in log)])
        self._evictions += [each for each in log if _EVICTION.fullmatch(each["path"])]
        cases = list(_cases(facts))
        found = [
            *wrong,
            *self._evictions_are_right(facts),
            *[problem for case in cases for problem in case.problems],
            *[f"{case.about}: epoch {case.epoch} is open: {case.last}" for case in cases if not case.ended],
            *[problem for case in cases for problem in _kubelets_agree(case, self.site.looks)],
            *self._letters_are_expected(),
        ]
        fresh = [problem for problem in found if problem not in self._told]
        self._told |= set(fresh)
        return fresh

    # ------------------------------------------------------------------ nothing lost

    async def _journals_are_said(self) -> list[str]:
        wrong = []
        for node in self.site.roots:
            state = self.site.state_dir(node)
            for folder in (state / "journal", state / "bridge" / "journal"):
                entries = list(read(folder))
                last = entries[-1].number if entries else 0
                if not await _soon(lambda f=folder, n=last: acknowledged(f) >= n):
                    wrong.append(f"{folder}: said up to {acknowledged(folder)} of {last}")
                    continue
                await self._read_audit()
                kept = {_id(each.body): each.body for each in self.audited}
                wrong += [
                    f"{folder}: event {each.number} is on no stream: {each.event}"
                    for each in entries
                    if not isinstance(each.event, Unknown)
                    and not same_fact(kept.get(each.event.id, b""), each.event.encode())
                ]
        return wrong

    async def _audit_is_whole(self) -> list[str]:
        """Every sequence of every source, once."""
        wrong = []
        for stream in _sources():
            last = int((await self.site.bus.link.api(f"STREAM.INFO.{stream}"))["state"]["last_seq"])
            async with asyncio.timeout(_SETTLE_WITHIN_S):
                while not any(each.stream == stream and each.sequence >= last for each in self.audited):
                    if not last:
                        break
                    await self._read_audit()
                    await asyncio.sleep(0)
            got = [each.sequence for each in self.audited if each.stream == stream]
            if sorted(got) != list(range(1, max([last, *got]) + 1)):
                twice = [n for n, count in Counter(got).items() if count > 1]
                gap = sorted(set(range(1, last + 1)) - set(got))
                wrong.append(f"{AUDIT} of {stream}: missing {gap[:10]}, twice {twice[:10]}")
        return wrong

    async def _read_audit(self) -> None:
        while True:
            wanted = {"seq": self._position + 1, "next_by_subj": ">", "batch": _BATCH}
            found, last = await self.site.bus.link.request_several(
                f"$JS.API.DIRECT.GET.{AUDIT}", orjson.dumps(wanted)
            )
            for each in found:
                self._position = int(each.headers["Nats-Sequence"])
                stream, sequence = each.headers["Nats-Stream-Source"].split(" ")[:2]
                self.audited.append(Audited(stream, int(sequence), each.headers["Nats-Subject"], each.data))
            if not found or not int(last.headers.get("Nats-Num-Pending", "0")):
                return

    # ------------------------------------------------------------------ evictions

    def _evictions_are_right(self, facts: list[AnyEvent]) -> list[str]:
        ordered: dict[str, set[str]] = {}
        for fact in facts:
            if isinstance(fact.data, say.EvictionOrdered):
                ordered.setdefault(fact.data.pod.uid, set()).add(fact.subject)
        by_guardian = {f.data.pod.uid for f in facts if isinstance(f.data, sla.SlaEvictionOrdered)}
        wrong = []
        done: Counter[str] = Counter()
        for each in self._evictions:
            uid = orjson.loads(each["body"])["deleteOptions"]["preconditions"]["uid"]
            done[uid] += each["status"] in (200, 201)
            if uid not in ordered and uid not in by_guardian:
                wrong.append(f"{each['path']} was evicted without an order by {each['user_agent']}")
            held = self.site.ever_held
            if uid in ordered and not any(uid in held.get(about, ()) for about in ordered[uid]):
                wrong.append(f"{each['path']} never held {ordered[uid]}")
        return wrong + [f"pod {uid} was evicted {count} times" for uid, count in done.items() if count > 1]

    # ------------------------------------------------------------------ dead letters

    def _letters_are_expected(self) -> list[str]:
        letters = [e.data for e in self.site.heard if isinstance(e.data, Rejected)]
        return [
            f"dead letter of {letter.consumer} about {letter.subject}: {letter.reason}"
            for letter in letters
            if (letter.stream, letter.sequence) not in self.site.injected
        ]


# ---------------------------------------------------------------------- cases

_OUTSIDE: Final = (say.RemediationSnapshotted, say.StepRefused, say.CommandRefused)
"""Facts that may stand where no case is open."""
_WAY_BACK: Final = (say.Validated, say.ProbationStarted, say.Readmitted)
"""What a device that is readmitted must have gone through."""


@dataclass
class Case:
    """One epoch of one device, as its log tells it."""

    about: str
    epoch: int
    facts: list[AnyEvent] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def add(self, fact: AnyEvent, data: say.CasePayload) -> None:
        """One more fact, which must belong to this epoch and follow from what was before."""
        if self.ended and not isinstance(data, _OUTSIDE):
            self.problems.append(f"{self.about}: {fact.address.fact} after its end")
        if data.epoch != self.epoch:
            self.problems.append(f"{self.about}: {fact.address.fact} of epoch {data.epoch} in {self.epoch}")
        self.facts.append(fact)
        if isinstance(data, say.Closed) and data.reason == "readmitted":
            missing = [kind.kind.fact for kind in _WAY_BACK if self.at(kind) is None]
            if missing:
                self.problems.append(f"{self.about}: readmitted without {missing}")

    @property
    def ended(self) -> bool:
        return any(isinstance(fact.data, say.Closed) for fact in self.facts)

    @property
    def last(self) -> str:
        return self.facts[-1].address.fact

    def at(self, *kinds: type) -> datetime | None:
        """When the first of these was said."""
        return next((fact.time for fact in self.facts if isinstance(fact.data, kinds)), None)


def _cases(facts: list[AnyEvent]) -> Iterator[Case]:
    """Every case; at most one is open per device, epochs grow by one, and none is healed without its way."""
    current: dict[str, Case] = {}
    for fact in facts:
        data = fact.data
        if fact.address.domain != "remediation" or not isinstance(data, say.CasePayload):
            continue
        case = current.get(fact.subject)
        if isinstance(data, say.Opened):
            opened = Case(fact.subject, data.epoch, [fact])
            if case is not None and not case.ended:
                opened.problems.append(f"{case.about}: epoch {data.epoch} opened in epoch {case.epoch}")
            if data.epoch != (1 if case is None else case.epoch + 1):
                opened.problems.append(f"{fact.subject}: epoch {data.epoch} follows {case and case.epoch}")
            if case is not None:
                yield case
            current[fact.subject] = opened
            continue
        if case is None:
            if not isinstance(data, _OUTSIDE):
                yield Case(fact.subject, data.epoch, [fact], [f"{fact.subject}: {data} belongs to no case"])
            continue
        case.add(fact, data)
    yield from current.values()


def _kubelets_agree(case: Case, looks: list[Look]) -> Iterator[str]:
    """While a device is out, no kubelet may give it; once it is drained, nobody holds it."""
    back = case.at(say.ProbationStarted, say.HoldReleased, say.Closed)
    fenced, drained = case.at(say.DrainPlanned), case.at(say.Drained)
    for since, what in ((fenced, "given"), (drained, "held")):
        if since is None:
            continue
        for look in looks:
            if look.began_s < since.timestamp() + _KUBELET_TAKES_S:
                continue
            if back is not None and look.ended_s >= back.timestamp():
                break
            count = (
                look.healthy.get(case.about, 0) if what == "given" else len(look.holders.get(case.about, ()))
            )
            if count:
                at = datetime.fromtimestamp(look.began_s).astimezone()
                yield f"{case.about} (epoch {case.epoch}) could be {what} at {at:%H:%M:%S.%f}: {count}"
                break


async def _soon(true: Any) -> bool:
    try:
        async with asyncio.timeout(_SETTLE_WITHIN_S):
            while not true():  # noqa: ASYNC110 - a file tells nobody that it changed
                await asyncio.sleep(_LOOK_AGAIN_S)
    except TimeoutError:
        return False
    return True


def _sources() -> list[str]:
    audit = next(each for each in wanted_streams() if each["name"] == AUDIT)
    return [each["name"] for each in audit["sources"]]


def _id(body: bytes) -> str:
    try:
        return str(orjson.loads(body).get("id", ""))
    except (orjson.JSONDecodeError, AttributeError):
        return ""
