"""Whose the given ids are: the ledger compared with the kubelet's own books.

The kubelet never says that a pod ended, nor which pod an Allocate was for. So the ledger is compared with
what the kubelet lists, again and again, and what the kubelet lists is right. What cannot be read decides
nothing, and what cannot be named stays unresolved. Pure.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from services.bridge.identity import Owner, Owners, Sighting
from services.bridge.ledger import Allocation, Ledger, State
from services.bridge.share import Catalogue, Share, from_id
from services.bridge.standing import Standing
from shared.errors import BadInput
from shared.events.parts import PodRef


@dataclass(frozen=True, slots=True)
class Bind:
    """A granted allocation belongs to this pod."""

    allocation_id: str
    pod: PodRef
    container: str


@dataclass(frozen=True, slots=True)
class Release:
    """An allocation is over."""

    allocation_id: str
    reason: str


@dataclass(frozen=True, slots=True)
class Adopt:
    """A pod holds these ids and the ledger does not know of it.

    Attributes:
        pod: None while it cannot be named: the ids are taken all the same.
    """

    resource: str
    shares: tuple[Share, ...]
    pod: PodRef | None
    container: str


@dataclass(frozen=True, slots=True)
class Reconciliation:
    """What makes the ledger agree with the kubelet.

    Attributes:
        steps: to take, in this order.
        absent: allocations that the kubelet does not list, and since when.
        unresolved: what is held by somebody who cannot be named (yet), for the log and a gauge.
    """

    steps: tuple[Bind | Release | Adopt, ...] = ()
    absent: Mapping[str, datetime] = field(default_factory=dict)
    unresolved: tuple[str, ...] = ()


def reconcile(
    ledger: Ledger,
    owners: Owners | None,
    *,
    catalogue: Catalogue,
    absent: Mapping[str, datetime],
    now: datetime,
    grace: timedelta,
) -> Reconciliation:
    """Compare the ledger with what the kubelet says.

    Args:
        ledger: what the bridge believes.
        owners: who holds what; None when the kubelet could not be asked, which decides nothing.
        catalogue: what can be offered, to know an adopted id by.
        absent: since when which allocation was not listed, from the last reconciliation.
        now: the time.
        grace: how long an allocation may be missing: a kubelet that just started lists nothing for a while,
            and one that was just answered has not entered it yet.
    """
    if owners is None:
        return Reconciliation(absent=absent)
    steps: list[Bind | Release | Adopt] = []
    missing: dict[str, datetime] = {}
    unresolved: list[str] = []
    entered: set[tuple[str, str]] = set()
    for allocation in ledger.live:
        keys = {(allocation.resource, id_) for id_ in allocation.ids}
        found = {owners[key] for key in keys if key in owners}
        if allocation.state is State.RESERVED:
            entered |= keys
        elif not found:
            since = absent.get(allocation.allocation_id, now)
            if now - since < grace:
                missing[allocation.allocation_id] = since
            else:
                reason = "the pod is gone" if allocation.pod else "no pod took it"
                steps.append(Release(allocation.allocation_id, reason))
        else:
            step = _compare(allocation, found)
            if isinstance(step, Release):
                steps.append(step)
                continue
            entered |= keys
            if isinstance(step, Bind):
                steps.append(step)
            elif step == UNRESOLVED:
                unresolved.extend(f"{id_} of {allocation.resource}" for id_ in allocation.ids)
    adopted, unnamed = _adoptions(owners, entered, catalogue)
    return Reconciliation((*steps, *adopted), missing, tuple(sorted([*unresolved, *unnamed])))


UNRESOLVED = "unresolved"


def _compare(allocation: Allocation, found: Collection[Owner]) -> Bind | Release | str:
    """What the owners that the kubelet lists for an allocation's ids mean; empty: nothing changed."""
    pods = {owner.pod for owner in found}
    mine = allocation.pod
    if mine is None:
        if None in pods:
            return UNRESOLVED
        if len(found) == 1:
            (owner,) = found
            return Bind(allocation.allocation_id, next(iter(pods - {None})), owner.container)  # type: ignore[arg-type] # None was ruled out
        return Release(allocation.allocation_id, "the kubelet lists its ids for several pods")
    named = {(owner.namespace, owner.name) for owner in found}
    if pods == {mine} or (pods <= {None, mine} and named == {(mine.namespace, mine.name)}):
        return ""
    if None in pods:
        return UNRESOLVED
    return Release(allocation.allocation_id, "the kubelet lists its ids for another pod")


def _adoptions(
    owners: Owners, entered: Collection[tuple[str, str]], catalogue: Catalogue
) -> tuple[list[Adopt], list[str]]:
    """What pods hold without the ledger's knowledge, and what cannot be named."""
    groups: dict[tuple[str, Owner], list[Share]] = {}
    unnamed: list[str] = []
    for (resource, id_), owner in sorted(owners.items(), key=lambda item: item[0]):
        if (resource, id_) in entered:
            continue
        if owner.pod is None:
            unnamed.append(f"{id_} of {resource}")
        try:
            share = catalogue.get(resource, {}).get(id_) or from_id(id_)
        except BadInput:
            unnamed.append(f"{id_} of {resource}")
            continue
        groups.setdefault((resource, owner), []).append(share)
    adopted = [Adopt(each, tuple(held), owner.pod, owner.container) for (each, owner), held in groups.items()]
    return adopted, unnamed


def stale(holders: Iterable[Allocation], sighting: Sighting, now: datetime, settle: timedelta) -> list[str]:
    """Which allocations the kubelet has given up, asked at the moment when it gives their ids again.

    It frees the ids of finished pods just before it allocates, without a word to the plugin. So an allocation
    that pod resources does not list is over, unless it is so young that the kubelet may not have entered it.
    A young one that stands in the checkpoint has been entered: it is an init container's, which pod resources
    does not list and whose ids the kubelet gives to the pod's next container.

    Args:
        holders: the allocations in the way.
        sighting: what the kubelet says; when pod resources cannot be read nobody has given up anything.
        now: the time.
        settle: how long the kubelet may take from our answer to its own books.
    """
    if sighting.listed is None:
        return []
    listed = {(each.resource, each.id) for each in sighting.listed}
    entered = {(each.resource, each.id) for each in sighting.checkpointed or ()}
    return [
        each.allocation_id
        for each in holders
        if each.state is not State.RESERVED
        and not any((each.resource, id_) in listed for id_ in each.ids)
        and (now - each.since >= settle or all((each.resource, id_) in entered for id_ in each.ids))
    ]


@dataclass(frozen=True, slots=True)
class Holders:
    """Who holds a device that is taken out of use.

    Attributes:
        pods: all that are known, in a stable order.
        unsettled: allocations whose pod is not known yet: no fence while there are any.
    """

    pods: tuple[PodRef, ...]
    unsettled: tuple[str, ...]


def holders(key: str, standing: Standing, ledger: Ledger, owners: Owners | None) -> Holders:
    """Who holds the part of a device that its case is about: by the ledger and by the kubelet's own books."""
    pods: dict[str, PodRef] = {}
    unsettled: list[str] = []
    entered: set[tuple[str, str]] = set()
    for allocation in ledger.live:
        entered.update((allocation.resource, id_) for id_ in allocation.ids)
        if not any(key in (s.device, s.physical) and standing.covers(s) for s in allocation.shares):
            continue
        if allocation.pod is None:
            unsettled.append(allocation.allocation_id)
        else:
            pods[allocation.pod.uid] = allocation.pod
    for (resource, id_), owner in (owners or {}).items():
        try:
            share = from_id(id_)
        except BadInput:
            continue
        if key not in (share.device, share.physical) or not standing.covers(share):
            continue
        if owner.pod is not None:
            pods[owner.pod.uid] = owner.pod
        elif (resource, id_) not in entered:
            unsettled.append(id_)
    return Holders(
        tuple(sorted(pods.values(), key=lambda pod: (pod.namespace, pod.name, pod.uid))), tuple(unsettled)
    )


def misaligned(ledger: Ledger) -> dict[PodRef, dict[str, tuple[str, ...]]]:
    """Pods that got engines of different devices in one container, with the devices by resource.

    The kubelet chooses for each resource on its own, so an encoder and a decoder that were meant to work
    together may lie on two devices.
    """
    containers: dict[tuple[PodRef, str], dict[str, set[str]]] = {}
    for allocation in ledger.live:
        if allocation.pod is not None and allocation.container is not None:
            by_resource = containers.setdefault((allocation.pod, allocation.container), {})
            by_resource.setdefault(allocation.resource, set()).add(allocation.device)
    return {
        pod: {resource: tuple(sorted(keys)) for resource, keys in sorted(found.items())}
        for (pod, _), found in containers.items()
        if len(found) > 1 and not set.intersection(*found.values())
    }
