"""What the bridge decides: what to offer, which ids to prefer, whether to give them, what to take back alone.

Pure: everything that a decision needs is passed in, and it comes back as data. Whose the given ones are is
`reconcile`'s subject.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from services.bridge.ledger import Allocation, Ledger, Occupancy
from services.bridge.share import Catalogue, Share, from_id
from services.bridge.standing import Standing
from shared.errors import BadInput
from shared.events.parts import FATAL, UNHEALTHY, Evidence
from shared.events.world import HealthReported

Standings = Mapping[str, Standing]
"""Device key to standing; a device without one is in use as usual."""

_USUAL = Standing()


@dataclass(frozen=True, slots=True)
class Offered:
    """One id as the kubelet is told of it."""

    id: str
    healthy: bool
    numa: int | None = None


Offer = Mapping[str, tuple[Offered, ...]]
"""Resource to its complete device list."""


def refusal(share: Share, standings: Standings) -> str:
    """Why a share may not be given, whoever holds what; a physical device's fault reaches its partitions."""
    for key in dict.fromkeys((share.device, share.physical)):
        reason = standings.get(key, _USUAL).refusal(share)
        if reason:
            return reason
    return ""


def offer(catalogue: Catalogue, standings: Standings, ledger: Ledger) -> dict[str, tuple[Offered, ...]]:
    """The device list of every resource.

    An id is unhealthy while its device may not be given, or while another resource holds what is behind it.
    An id that its own resource holds stays healthy: the kubelet counts it. Ids that are held but no longer
    offered stay in the list, unhealthy: the kubelet admits a restarted pod only if it knows its ids.
    """
    occupied = ledger.occupancy()
    lists: dict[str, dict[str, Offered]] = {}
    for resource, shares in catalogue.items():
        lists[resource] = {
            share.id: Offered(
                share.id,
                not refusal(share, standings)
                and all(each.resource == resource for each in occupied.in_the_way(share)),
                share.numa,
            )
            for share in shares.values()
        }
    for allocation in ledger.live:
        for share in allocation.shares:
            lists.setdefault(allocation.resource, {}).setdefault(
                share.id, Offered(share.id, healthy=False, numa=share.numa)
            )
    return {resource: tuple(ids[id_] for id_ in sorted(ids)) for resource, ids in lists.items()}


@dataclass(frozen=True, slots=True)
class Wanted:
    """The kubelet's request may be answered, once `holders` are out of the way (none: now)."""

    shares: tuple[Share, ...]
    holders: tuple[Allocation, ...] = ()


@dataclass(frozen=True, slots=True)
class Refusal:
    """The kubelet's request is refused.

    Attributes:
        reason: for a person who reads the pod's status.
        devices: keys of the devices concerned; empty when the ids name none.
    """

    reason: str
    devices: tuple[str, ...] = ()


def allocate(
    resource: str, ids: Sequence[str], *, catalogue: Catalogue, standings: Standings, ledger: Ledger
) -> Wanted | Refusal:
    """Whether ids may be given to one container."""
    known = catalogue.get(resource, {})
    if not ids:
        return Refusal(f"{resource}: no ids were asked for")
    if len(set(ids)) < len(ids):
        return Refusal(
            f"{resource}: an id was asked for twice", _devices(known[i] for i in ids if i in known)
        )
    unknown = [id_ for id_ in ids if id_ not in known]
    if unknown:
        return Refusal(f"{resource}: {', '.join(unknown)}: no such device here", _named(unknown))
    shares = tuple(known[id_] for id_ in ids)
    for share in shares:
        reason = refusal(share, standings)
        if reason:
            return Refusal(f"{resource}: {share.id}: {reason}", _devices(shares))
    occupied = ledger.occupancy()
    holders = {each.allocation_id: each for share in shares for each in occupied.in_the_way(share)}
    return Wanted(shares, tuple(holders.values()))


def prefer(
    available: Sequence[str],
    required: Sequence[str],
    size: int,
    *,
    known: Mapping[str, Share],
    occupied: Occupancy,
    anchors: Collection[str] = (),
) -> list[str]:
    """The ids that fit best together: a hint that the kubelet asks for, so it is always answered.

    In order: what must be included; what the ledger has free; the same device as that, or as what the same
    container seems to be getting under another resource; the same NUMA node; engines and devices that are in
    use already, so that whole ones stay free; a device that has just enough left.

    Args:
        available: ids that the kubelet may choose from.
        required: ids that must be in the answer.
        size: how many ids; an impossible one is cut to what there is.
        known: the resource's shares; an id that is none of ours counts as a device of its own.
        occupied: what is given.
        anchors: devices of which another resource was given a moment ago.
    """
    chosen = list(dict.fromkeys(required))
    left = {id_: _known(id_, known) for id_ in dict.fromkeys(available) if id_ not in set(chosen)}
    free: dict[str, int] = {}
    for share in left.values():
        free[share.device] = free.get(share.device, 0) + 1
    while len(chosen) < size and left:
        near = _Near.of([_known(id_, known) for id_ in chosen], anchors, size - len(chosen))
        best = min(left.values(), key=lambda share: _rank(share, near, free[share.device], occupied))
        chosen.append(best.id)
        del left[best.id]
        free[best.device] -= 1
    return chosen[: max(size, len(required))]


@dataclass(frozen=True, slots=True)
class _Near:
    """What the next id should be close to."""

    devices: frozenset[str]
    numas: frozenset[int]
    units: frozenset[str]
    missing: int

    @classmethod
    def of(cls, taken: Sequence[Share], anchors: Collection[str], missing: int) -> _Near:
        return cls(
            frozenset(share.device for share in taken) or frozenset(anchors),
            frozenset(share.numa for share in taken if share.numa is not None),
            frozenset(share.unit for share in taken if share.unit is not None),
            missing,
        )


def _rank(share: Share, near: _Near, room: int, occupied: Occupancy) -> tuple[bool | int | float | str, ...]:
    """How well a share fits, lowest best; the order is that of `prefer`'s docstring."""
    return (
        bool(occupied.in_the_way(share)),
        share.device not in near.devices,
        bool(near.numas) and share.numa not in near.numas,
        room < near.missing,
        share.unit not in near.units,
        -float(occupied.taken(share.unit)) if share.unit else 0.0,
        -occupied.uses(share.device),
        room,
        share.device,
        share.id,
    )


def _known(id_: str, known: Mapping[str, Share]) -> Share:
    return known.get(id_) or Share(id=id_, device=id_, physical=id_)


def withdraw(
    key: str, verdict: str, evidence: Sequence[Evidence], *, devices: Collection[str], standings: Standings
) -> tuple[Evidence, ...]:
    """The evidence on which the bridge takes a device from the kubelet by itself; empty: it does not.

    Only while nobody else can decide, only on fatal evidence, at most one device per node at a time, never
    the last usable one, and never one that a person holds.

    Args:
        key: of the physical device.
        verdict: of the report.
        evidence: of the report.
        devices: keys of all physical devices of the node.
        standings: as they are now.
    """
    fatal = tuple(each for each in evidence if each.class_ == FATAL)
    mine = standings.get(key, _USUAL)
    if verdict != UNHEALTHY or not fatal or key not in devices or mine.held or not mine.usable:
        return ()
    if any(standings.get(each, _USUAL).withdrawn for each in devices):
        return ()
    usable = [each for each in devices if standings.get(each, _USUAL).usable]
    return fatal if usable != [key] else ()


def struck_out(reports: Iterable[tuple[str, HealthReported]]) -> dict[str, HealthReported]:
    """Devices that are unhealthy by their last report and had fatal evidence since they were last healthy.

    Args:
        reports: device key and report, in the order in which the node made them.

    Returns:
        By device key the last report, with all the evidence since then.
    """
    found: dict[str, HealthReported] = {}
    for key, report in reports:
        if report.verdict != UNHEALTHY:
            found.pop(key, None)
            continue
        earlier = found[key].evidence if key in found else ()
        found[key] = report.model_copy(update={"evidence": (*earlier, *report.evidence)})
    return {key: each for key, each in found.items() if any(e.class_ == FATAL for e in each.evidence)}


def _devices(shares: Iterable[Share]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(share.device for share in shares))


def _named(ids: Iterable[str]) -> tuple[str, ...]:
    """The devices that unknown ids name, as far as they are ids of ours."""
    found: dict[str, None] = {}
    for id_ in ids:
        try:
            found[from_id(id_).device] = None
        except BadInput:
            continue
    return tuple(found)
