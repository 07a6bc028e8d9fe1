"""The hand: a last look before each eviction, and what the API server's answers mean."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from services.remediation.act import Hand, failed
from services.remediation.case import DeviceCase, State
from services.remediation.fleet import Fleet
from services.remediation.policy import Policy
from shared.bus.port import LeaseLost
from shared.clock import ManualClock
from shared.errors import Permanent, Temporary
from shared.events import Cause, Entity, event, world
from shared.events import device as device_facts
from shared.events import remediation as say
from shared.events.parts import Compatibility
from shared.kube.models import EvictionAnswer, EvictionOutcome, Owner
from tests.integration.remediation.remediation_site import FakeKube
from tests.unit.remediation.device_stage import DEVICE, KEY, NODE, START, pod, unified


class Setting:
    """A hand, what it works on, and one order."""

    def __init__(self) -> None:
        self.kube = FakeKube()
        self.kube.gone_after_s = None
        self.fleet = Fleet("media.example.com")
        self.clock = ManualClock(START)
        self.policy = Policy()
        self.frozen = False
        self.devices_out: set[Entity] = set()
        self.lost = False
        self.case = DeviceCase(DEVICE, epoch=1, state=State.DRAINING)
        self.order = say.EvictionOrdered(epoch=1, pod=pod("clips"), attempt=1, deadline=START)
        self.hand = Hand(
            self.kube,  # type: ignore[arg-type] # as much of it as the hand asks for
            self.fleet,
            self.clock,
            policy=lambda: self.policy,
            domain="media.example.com",
            frozen=lambda: self.frozen,
            out=lambda of: of in self.devices_out,
            still_ours=self.still_ours,
        )
        self.kube.add("clips")

    def still_ours(self) -> None:
        if self.lost:
            raise LeaseLost("it ran out")

    def change(self, **fields: object) -> None:
        key = ("media", "clips")
        self.kube.all[key] = replace(self.kube.all[key], **fields)  # type: ignore[arg-type] # a test's choice

    async def evict(self) -> say.PodEvicted:
        return await self.hand.evict(self.order, self.case)

    def hear(self, data: world.Bound | world.Released | device_facts.Registered, key: str = KEY) -> None:
        heard = event(data, (NODE, key), cause=Cause.source("b", repr(data)), source="/t", at=START)
        self.fleet.hear(heard, START)


@pytest.fixture
def setting() -> Setting:
    return Setting()


async def test_a_lease_that_ran_out_during_the_look_evicts_nobody() -> None:
    setting = Setting()
    setting.lost = True
    with pytest.raises(LeaseLost):
        await setting.evict()
    assert not setting.kube.evictions


async def test_a_pod_that_still_holds_the_device_is_evicted(setting: Setting) -> None:
    said = await setting.evict()
    assert (said.outcome, said.status) == ("evicted", 201)
    assert setting.kube.evictions == ["uid-clips"]


@pytest.mark.parametrize(
    ("fields", "outcome"),
    [
        ({"uid": "another"}, "replaced"),
        ({"deleting": True}, "evicted"),
        ({"phase": "Succeeded"}, "gone"),
        ({"node": "worker-9"}, "gone"),
        ({"annotations": {"media.example.com/eviction": "never"}}, "withheld"),
    ],
)
async def test_what_changed_since_the_order_is_seen_before_it_is_carried_out(
    setting: Setting, fields: dict[str, object], outcome: str
) -> None:
    setting.change(**fields)
    assert (await setting.evict()).outcome == outcome
    assert setting.kube.evictions == []


async def test_a_pod_that_is_gone_is_gone(setting: Setting) -> None:
    setting.kube.all.clear()
    assert (await setting.evict()).outcome == "gone"


async def test_a_pod_that_let_the_device_go_is_left_alone(setting: Setting) -> None:
    for allocation_id in ("a1", "a2"):
        setting.hear(world.Bound(allocation_id=allocation_id, pod=pod("clips"), container="c", resource="r"))
    setting.hear(world.Released(allocation_id="a1", reason="r"))
    assert not setting.fleet.let_go(DEVICE, "uid-clips")
    setting.hear(world.Released(allocation_id="a2", reason="r"))
    setting.hear(world.Released(allocation_id="a2", reason="again"))
    assert (await setting.evict()).detail == "it holds the device no more"


@pytest.mark.parametrize("change", [{"epoch": 2}, {"state": State.HELD}])
async def test_a_case_that_went_on_withholds_the_eviction(
    setting: Setting, change: dict[str, object]
) -> None:
    setting.case = replace(setting.case, **change)  # type: ignore[arg-type] # a test's choice
    said = await setting.evict()
    assert (said.outcome, said.retry_at) == ("withheld", None)


async def test_a_common_cause_withholds_it_for_a_while(setting: Setting) -> None:
    setting.frozen = True
    said = await setting.evict()
    assert (said.outcome, said.retry_at) == ("withheld", START + timedelta(seconds=5))


async def test_a_dry_run_asks_and_evicts_nobody(setting: Setting) -> None:
    setting.order = setting.order.model_copy(update={"dry_run": True})
    said = await setting.evict()
    assert said.outcome == "dry-run"
    assert setting.kube.evictions == []


@pytest.mark.parametrize(
    ("answer", "outcome", "retry_s"),
    [
        (EvictionAnswer(429, EvictionOutcome.BLOCKED), "blocked", 5),
        (EvictionAnswer(429, EvictionOutcome.BLOCKED, retry_after_s=10), "blocked", 10),
        (EvictionAnswer(500, EvictionOutcome.FAILED), "failed", 30),
        (EvictionAnswer(409, EvictionOutcome.REPLACED), "replaced", None),
        (EvictionAnswer(404, EvictionOutcome.GONE), "gone", None),
        (Permanent("no right to evict"), "failed", 30),
    ],
)
async def test_refusals_say_when_to_ask_again(
    setting: Setting, answer: EvictionAnswer | Exception, outcome: str, retry_s: float | None
) -> None:
    setting.kube.answers = [answer]
    said = await setting.evict()
    retry_at = None if retry_s is None else START + timedelta(seconds=retry_s)
    assert (said.outcome, said.retry_at) == (outcome, retry_at)


async def test_a_throttling_server_is_waited_for(setting: Setting) -> None:
    setting.kube.answers = [EvictionAnswer(429, EvictionOutcome.THROTTLED, retry_after_s=7)]
    with pytest.raises(Temporary) as raised:
        await setting.evict()
    assert raised.value.delay_s == 7


async def test_a_look_tells_tier_owner_and_wishes(setting: Setting) -> None:
    setting.kube.add("edge-1", "online", owner="edge")
    setting.kube.add("bare", "online")
    setting.kube.add("odd", "no-such-tier")
    setting.change(owner=Owner("Job", "transcode", "u"), annotations={"media.example.com/eviction": "never"})
    looks = await setting.hand.look([pod(name) for name in ("clips", "edge-1", "bare", "odd", "ghost")])
    assert looks is not None
    tiers = {uid: look.tier for uid, look in looks.items()}
    assert tiers == {
        "uid-clips": "batch",
        "uid-edge-1": "online",
        "uid-bare": "online",
        "uid-odd": "batch",
        "uid-ghost": "",
    }
    clips, edge = looks["uid-clips"], looks["uid-edge-1"]
    assert clips.opted_out
    assert clips.workload is not None
    assert clips.workload.entity == "job-transcode"
    assert edge.workload is not None
    assert edge.workload.entity == "deployment-edge"
    assert looks["uid-bare"].workload is None
    assert not looks["uid-ghost"].there


async def test_a_look_that_gets_no_answer_tells_nothing(setting: Setting) -> None:
    setting.kube.down = True
    assert await setting.hand.look([pod("clips")]) is None


async def test_a_node_is_tainted_only_when_no_usable_device_is_left(setting: Setting) -> None:
    other = "nvidia-0000-5e-00-0"
    registered = device_facts.Registered(
        device=unified(key=other), generation=1, compatibility=Compatibility(verdict="compatible")
    )
    setting.hear(registered, other)
    retired = say.Retired(epoch=1, reason="r")
    assert (await setting.hand.taint(retired, DEVICE)).outcome == "not-last"
    setting.devices_out.add(Entity("remediation", NODE, other))
    assert (await setting.hand.taint(retired, DEVICE)).outcome == "tainted"
    assert setting.kube.taints == {NODE: {"media.example.com/device-quarantine"}}
    back = await setting.hand.taint(say.Readmitted(epoch=1, after_s=1), DEVICE)
    assert back.outcome == "removed"
    assert setting.kube.taints == {NODE: set()}


def test_an_effect_that_raised_has_failed(setting: Setting) -> None:
    error = ValueError("a mistake")
    evicted = failed(setting.order, error, START)
    assert isinstance(evicted, say.PodEvicted)
    assert (evicted.outcome, evicted.retry_at) == ("failed", START)
    assert failed(say.Retired(epoch=1, reason="r"), error, START).outcome == "failed"
    with pytest.raises(TypeError, match="orders nothing"):
        failed(say.Cleared(epoch=1, streak=1), error, START)
