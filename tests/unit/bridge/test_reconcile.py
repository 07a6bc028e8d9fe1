from __future__ import annotations

from datetime import datetime

import pytest

from services.bridge.identity import Checkpointed, Owner, Owners, Sighting
from services.bridge.ledger import Ledger
from services.bridge.reconcile import (
    Adopt,
    Bind,
    Reconciliation,
    Release,
    holders,
    misaligned,
    reconcile,
    stale,
)
from services.bridge.share import Catalogue
from services.bridge.standing import Standing
from tests.unit.bridge.devices import AT, NVDEC, NVENC, SECOND, gpu, offered, owner, pod, sighting

A, B = "nvidia-0000-3b-00-0", "nvidia-0000-5e-00-0"
ID, NEXT = f"{A}-enc-0-s0", f"{A}-enc-1-s0"
KNOWN = offered(gpu("3b"), gpu("5e"))
EMPTY = Ledger(ledger_id="test")
OUT = Standing(epoch=1, quarantined=True)


def holding(*ids: str, ledger: Ledger = EMPTY, resource: str = NVENC) -> Ledger:
    ledger, new = ledger.reserve(resource, [KNOWN[resource][id_] for id_ in ids], AT)
    return ledger.grant([each.allocation_id for each in new], AT)


def bound(name: str, *ids: str, ledger: Ledger = EMPTY, resource: str = NVENC) -> Ledger:
    before = len(ledger.allocations)
    ledger = holding(*ids, ledger=ledger, resource=resource)
    for each in ledger.allocations[before:]:
        ledger = ledger.bind(each.allocation_id, pod(name), "main", AT)
    return ledger


def compare(
    ledger: Ledger,
    owners: Owners | None,
    *,
    absent: dict[str, datetime] | None = None,
    now: datetime = AT,
    catalogue: Catalogue = KNOWN,
) -> Reconciliation:
    return reconcile(ledger, owners, catalogue=catalogue, absent=absent or {}, now=now, grace=10 * SECOND)


def test_a_grant_is_bound_to_the_pod_that_the_kubelet_lists() -> None:
    found = compare(holding(ID), {(NVENC, ID): owner(pod("a"))})
    assert found.steps == (Bind("test-1", pod("a"), "main"),)


def test_what_agrees_needs_no_step() -> None:
    found = compare(bound("a", ID), {(NVENC, ID): owner(pod("a"))})
    assert found == Reconciliation()


def test_a_kubelet_that_cannot_be_asked_decides_nothing() -> None:
    found = compare(bound("a", ID), None, absent={"test-1": AT}, now=AT + 99 * SECOND)
    assert found == Reconciliation(absent={"test-1": AT})


@pytest.mark.parametrize(
    ("ledger", "reason"), [(holding(ID), "no pod took it"), (bound("a", ID), "the pod is gone")]
)
def test_what_the_kubelet_does_not_list_is_over_after_a_grace(ledger: Ledger, reason: str) -> None:
    first = compare(ledger, {})
    assert first == Reconciliation(absent={"test-1": AT})
    again = compare(ledger, {}, absent=dict(first.absent), now=AT + 9 * SECOND)
    assert again.absent == {"test-1": AT}
    over = compare(ledger, {}, absent=dict(again.absent), now=AT + 10 * SECOND)
    assert over.steps == (Release("test-1", reason),)
    assert over.absent == {}


def test_what_is_listed_again_within_the_grace_was_never_gone() -> None:
    ledger = bound("a", ID)
    assert compare(ledger, {(NVENC, ID): owner(pod("a"))}, absent={"test-1": AT}).absent == {}


def test_what_a_pod_holds_without_the_ledger_is_adopted() -> None:
    owners = {(NVENC, id_): owner(pod("a")) for id_ in (ID, NEXT)}
    found = compare(EMPTY, owners)
    assert found.steps == (Adopt(NVENC, (KNOWN[NVENC][ID], KNOWN[NVENC][NEXT]), pod("a"), "main"),)


def test_an_adopted_id_of_no_registered_device_is_known_by_its_name() -> None:
    (step,) = compare(EMPTY, {(NVENC, ID): owner(pod("a"))}, catalogue={}).steps
    assert isinstance(step, Adopt)
    assert step.shares[0].guessed


def test_another_pods_ids_are_released_and_adopted_for_it() -> None:
    recreated = pod("a", "uid-new")
    for other in (pod("b"), recreated):
        found = compare(bound("a", ID), {(NVENC, ID): owner(other)})
        assert found.steps == (
            Release("test-1", "the kubelet lists its ids for another pod"),
            Adopt(NVENC, (KNOWN[NVENC][ID],), other, "main"),
        )


def test_one_grant_in_the_hands_of_two_pods_is_taken_apart() -> None:
    owners = {(NVENC, ID): owner(pod("a")), (NVENC, NEXT): owner(pod("b"))}
    found = compare(holding(ID, NEXT), owners)
    assert found.steps[0] == Release("test-1", "the kubelet lists its ids for several pods")
    assert len(found.steps) == 3


def test_an_owner_without_uid_is_waited_for_and_never_guessed() -> None:
    nameless = {(NVENC, ID): Owner("live", "a", "main")}
    assert compare(holding(ID), nameless) == Reconciliation(unresolved=(f"{ID} of {NVENC}",))
    assert compare(bound("a", ID), nameless) == Reconciliation()
    assert compare(bound("b", ID), nameless).unresolved == (f"{ID} of {NVENC}",)
    taken = compare(EMPTY, nameless)
    assert taken.steps == (Adopt(NVENC, (KNOWN[NVENC][ID],), None, "main"),)
    assert taken.unresolved == (f"{ID} of {NVENC}",)


def test_ids_under_our_domain_that_are_none_of_ours_are_named_and_left_alone() -> None:
    found = compare(EMPTY, {(NVENC, "GPU-1"): owner(pod("a"))})
    assert found == Reconciliation(unresolved=(f"GPU-1 of {NVENC}",))


def test_a_reservation_is_nobodys_until_it_is_answered() -> None:
    ledger, _ = EMPTY.reserve(NVENC, [KNOWN[NVENC][ID]], AT)
    assert compare(ledger, {(NVENC, ID): owner(pod("a"))}) == Reconciliation()


class TestAskedAtAllocation:
    def ask(self, ledger: Ledger, seen: Sighting, after_s: int = 5) -> list[str]:
        return stale(ledger.live, seen, AT + after_s * SECOND, 2 * SECOND)

    def test_a_holder_that_the_kubelet_does_not_list_has_given_up(self) -> None:
        assert self.ask(bound("a", ID), Sighting((), ())) == ["test-1"]

    def test_a_holder_that_it_lists_has_not(self) -> None:
        assert self.ask(bound("a", ID), sighting((pod("a"), NVENC, ID))) == []

    def test_a_young_grant_may_not_be_in_the_books_yet(self) -> None:
        assert self.ask(holding(ID), Sighting((), ()), after_s=1) == []
        assert self.ask(holding(ID), Sighting((), None), after_s=1) == []

    def test_an_init_containers_ids_go_to_the_next_container_of_its_pod(self) -> None:
        entered = (Checkpointed("uid-a", "init", NVENC, ID),)
        assert self.ask(holding(ID), Sighting((), entered), after_s=0) == ["test-1"]

    def test_a_reservation_and_a_kubelet_that_cannot_be_asked_stay(self) -> None:
        ledger, _ = EMPTY.reserve(NVENC, [KNOWN[NVENC][ID]], AT)
        assert self.ask(ledger, Sighting((), ())) == []
        assert self.ask(bound("a", ID), Sighting(None, ())) == []


class TestHolders:
    def test_holders_come_from_the_ledger_and_from_the_kubelet(self) -> None:
        owners = {(NVENC, NEXT): owner(pod("b")), (NVENC, f"{B}-enc-0-s0"): owner(pod("c"))}
        found = holders(A, OUT, bound("a", ID), owners)
        assert found.pods == (pod("a"), pod("b"))
        assert found.unsettled == ()

    def test_a_grant_without_pod_keeps_the_fence_open(self) -> None:
        assert holders(A, OUT, holding(ID), {}).unsettled == ("test-1",)
        assert holders(A, OUT, EMPTY, {(NVENC, ID): Owner("live", "a", "main")}).unsettled == (ID,)

    def test_a_holder_known_to_the_ledger_needs_no_uid_from_the_kubelet(self) -> None:
        found = holders(A, OUT, bound("a", ID), {(NVENC, ID): Owner("live", "a", "main")})
        assert (found.pods, found.unsettled) == ((pod("a"),), ())

    def test_a_quarantined_engine_has_only_its_own_holders(self) -> None:
        engine = Standing(epoch=1, quarantined=True, parts=(f"{A}-enc-1",))
        ledger = bound("b", NEXT, ledger=bound("a", ID))
        assert holders(A, engine, ledger, {(NVENC, ID): owner(pod("a"))}).pods == (pod("b"),)

    def test_ids_of_others_do_not_matter(self) -> None:
        assert holders(A, OUT, EMPTY, {(NVENC, "GPU-1"): owner(pod("a"))}).pods == ()
        assert holders(A, OUT, EMPTY, None).pods == ()


def test_engines_of_one_container_on_two_devices_are_misaligned() -> None:
    ledger = bound("a", f"{B}-dec-0-s0", ledger=bound("a", ID), resource=NVDEC)
    assert misaligned(ledger) == {pod("a"): {NVDEC: (B,), NVENC: (A,)}}
    together = bound("a", f"{A}-dec-0-s0", ledger=bound("a", ID), resource=NVDEC)
    assert misaligned(together) == {}
    assert misaligned(holding(f"{B}-dec-0-s0", ledger=bound("a", ID), resource=NVDEC)) == {}
