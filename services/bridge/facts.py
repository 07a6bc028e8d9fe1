"""How the ledger's allocations are told on the bus. Pure."""

from __future__ import annotations

from services.bridge.ledger import Allocation, Ledger, State
from shared.events import Payload, world
from shared.events.parts import Slot


def of(allocation: Allocation, state: State) -> Payload:
    """The fact that an allocation came into a state."""
    if state is State.GRANTED:
        return world.Granted(
            allocation_id=allocation.allocation_id,
            resource=allocation.resource,
            slots=_slots(allocation),
            whole_device=_whole(allocation),
        )
    if state is State.BOUND and allocation.pod is not None:
        return world.Bound(
            allocation_id=allocation.allocation_id,
            pod=allocation.pod,
            container=allocation.container or "",
            resource=allocation.resource,
            slots=_slots(allocation),
            whole_device=_whole(allocation),
        )
    return world.Released(
        allocation_id=allocation.allocation_id, pod=allocation.pod, reason=allocation.reason
    )


def holdings(ledger: Ledger) -> tuple[world.Holding, ...]:
    """Everything that is held now."""
    return tuple(
        world.Holding(
            allocation_id=each.allocation_id,
            device=each.device,
            resource=each.resource,
            slots=_slots(each),
            whole_device=_whole(each),
            pod=each.pod,
            container=each.container,
        )
        for each in ledger.live
        if each.state is not State.RESERVED
    )


def _slots(allocation: Allocation) -> tuple[Slot, ...]:
    found = (share.as_slot() for share in allocation.shares)
    return tuple(slot for slot in found if slot is not None)


def _whole(allocation: Allocation) -> bool:
    return any(share.whole for share in allocation.shares)
