"""Remediation over the in-memory bus on virtual time: the whole way, and what goes wrong on it."""

from __future__ import annotations

import asyncio

import pytest

from shared.bus.memory import Faults
from shared.events import Entity
from shared.events import remediation as say
from shared.kube.models import EvictionAnswer, EvictionOutcome
from tests.integration.remediation.remediation_site import DEVICE, KEY, NODE, policy, site

pytestmark = pytest.mark.looptime


async def test_three_strikes_lead_to_eviction_diagnosis_and_readmission() -> None:
    async with site() as place:
        place.node.holders = [place.kube.add("clips"), place.kube.add("shots", "besteffort")]
        await place.node.strike_out()
        await place.said("closed", within_s=300)
        assert place.names() == [
            "opened",
            "struck",
            "struck",
            "struck",
            "step-proposed",
            "quarantined",
            "drain-planned",
            "step-proposed",
            "eviction-ordered",
            "pod-evicted",
            "step-proposed",
            "eviction-ordered",
            "pod-evicted",
            "drained",
            "diagnosis-requested",
            "diagnosis-recorded",
            "repaired",
            "health-noted",
            "validated",
            "probation-started",
            "readmitted",
            "closed",
        ]
        assert place.kube.evictions == ["uid-shots", "uid-clips"]
        assert (NODE, "DeviceQuarantined") in place.kube.events


async def test_events_that_come_twice_and_out_of_order_change_nothing() -> None:
    async with site(faults=Faults(seed=7, duplicate=0.5, lost_ack=0.2, delay_s=0.02)) as place:
        place.node.holders = [place.kube.add("clips"), place.kube.add("shots")]
        await place.node.strike_out()
        await place.said("closed", within_s=300)
        names = place.names()
        for once in ("opened", "quarantined", "drained", "readmitted", "closed"):
            assert names.count(once) == 1, (once, names)
        assert names.count("struck") == 3
        assert sorted(place.kube.evictions) == ["uid-clips", "uid-shots"]


@pytest.mark.parametrize(
    "moment",
    [
        "opened",
        "struck",
        "step-proposed",
        "quarantined",
        "drain-planned",
        "eviction-ordered",
        "pod-evicted",
        "drained",
        "diagnosis-requested",
        "repaired",
        "validated",
        "probation-started",
    ],
)
async def test_a_holder_killed_after_any_fact_is_taken_over_from(moment: str) -> None:
    async with site(replicas=2) as place:
        place.node.holders = [place.kube.add("clips")]
        await place.node.report()
        await place.node.report()
        await place.node.report()
        await place.said(moment)
        active = int(place.facts[0].source.rpartition("/")[2])
        await place.kill(active)
        await place.said("closed", within_s=400)
        assert place.kube.evictions == ["uid-clips"]
        assert place.names().count("quarantined") == 1
        assert {fact.source for fact in place.facts} >= {f"/mediafleet/remediation/{1 - active}"}


async def test_an_eviction_without_an_answer_is_looked_at_first_by_the_next_holder() -> None:
    async with site(replicas=2) as place:
        clips = place.kube.add("clips")
        place.node.holders = [clips]
        place.kube.answers = ["hang"]
        place.kube.gone_after_s = None
        await place.node.strike_out()
        await place.said("eviction-ordered")
        active = int(place.facts[0].source.rpartition("/")[2])
        # The request arrived, its answer did not.
        pod = place.kube.all[("media", "clips")]
        place.kube.all[("media", "clips")] = type(pod)(
            **{**{name: getattr(pod, name) for name in type(pod).__slots__}, "deleting": True}
        )
        await place.kill(active)
        await place.said("pod-evicted")
        outcome = next(fact.data for fact in place.facts if isinstance(fact.data, say.PodEvicted))
        assert (outcome.outcome, outcome.detail) == ("evicted", "it is terminating already")
        assert place.kube.evictions == []


async def test_a_writer_that_comes_between_makes_it_read_again() -> None:
    async with site() as place:
        await place.node.report()
        await place.said("struck")
        last = await place.watch.last(DEVICE)
        assert last is not None
        foreign = say.CommandRefused(epoch=1, command_id="elsewhere", reason="another writer")
        said = await place.node.tell(say.HoldRequested(request_id="x", owner="a", reason="b"), place="other")
        from shared.events import Cause, event  # noqa: PLC0415 - only this test writes a log itself

        await place.watch.append(
            event(foreign, DEVICE, cause=Cause.of(said), source="/test", at=place.clock.now()), last.sequence
        )
        await place.node.report()
        await place.node.report()
        await place.said("quarantined")
        assert place.names().count("struck") == 3


@pytest.mark.parametrize(
    ("first", "outcome"),
    [
        (EvictionAnswer(429, EvictionOutcome.BLOCKED, "budget"), "blocked"),
        (EvictionAnswer(500, EvictionOutcome.FAILED, "two budgets match"), "failed"),
    ],
)
async def test_a_refused_eviction_is_asked_again_until_it_is_granted(
    first: EvictionAnswer, outcome: str
) -> None:
    async with site() as place:
        place.node.holders = [place.kube.add("clips")]
        place.kube.answers = [first]
        await place.node.strike_out()
        await place.said("drained", within_s=200)
        outcomes = [fact.data.outcome for fact in place.facts if isinstance(fact.data, say.PodEvicted)]
        assert outcomes == [outcome, "evicted"]


async def test_a_pod_replaced_under_its_name_is_not_evicted() -> None:
    async with site() as place:
        clips = place.kube.add("clips")
        place.node.holders = [clips]
        await place.ready()
        place.kube.down = True
        await place.node.strike_out()
        await place.said("drain-planned")
        place.kube.add("clips", uid="uid-another")
        place.kube.down = False
        await place.said("drained")
        assert place.kube.evictions == []
        assert place.kube.all[("media", "clips")].uid == "uid-another"


async def test_an_api_server_that_hangs_is_asked_again() -> None:
    async with site() as place:
        place.node.holders = [place.kube.add("clips")]
        place.kube.answers = ["hang", "hang"]
        await place.node.strike_out()
        await place.said("drained")
        assert place.kube.evictions == ["uid-clips"]


async def test_an_api_server_that_is_away_delays_the_drain_and_nothing_else() -> None:
    async with site() as place:
        place.node.holders = [place.kube.add("clips")]
        await place.ready()
        place.kube.down = True
        await place.node.strike_out()
        await place.said("quarantined", "drain-planned")
        await place.node.command(say.HoldRequested, "r1")
        await place.said("held")
        place.kube.down = False
        await asyncio.sleep(60)
        assert "eviction-ordered" not in place.names()


async def test_a_drain_that_never_ends_is_said_at_its_deadline() -> None:
    rules = policy(deadlines={"drain_s": 60})
    async with site(rules) as place:
        place.node.holders = [place.kube.add("clips")]
        place.kube.answers = [EvictionAnswer(429, EvictionOutcome.BLOCKED, "budget")] * 50
        await place.node.strike_out()
        await place.said("drain-stuck", within_s=90)
        place.kube.all.clear()
        await place.said("drained")


async def test_a_hold_outlives_every_retention() -> None:
    async with site() as place:
        await place.node.strike_out()
        await place.said("quarantined")
        await place.node.command(say.HoldRequested, "r1")
        await place.said("held")
        await place.pause()
        for _ in range(200):
            await asyncio.sleep(43_200)
        assert not [m async for m in place.watch.history("command")]
        place.resume()
        await place.node.command(say.ReleaseRequested, "r2")
        await place.said("released", "closed", within_s=400)
        released = next(fact.data for fact in place.facts if isinstance(fact.data, say.HoldReleased))
        assert released.to_state == "validating"
        assert place.names().count("opened") == 1


async def test_a_fault_a_hold_and_a_reboot_while_the_bus_was_gone_end_in_the_hold() -> None:
    async with site() as place:
        place.node.holders = [place.kube.add("clips")]
        await place.ready()
        place.buses[0].partition()
        for _ in range(3):
            await place.node.report(class_="fatal", code="79")
            await asyncio.sleep(60)
        await place.node.command(say.HoldRequested, "r1")
        await asyncio.sleep(600)
        place.node.boot, place.node.window = "b2", 0
        await place.node.report("healthy")
        await asyncio.sleep(400)
        place.buses[0].heal()
        await place.said("held")
        await asyncio.sleep(120)
        assert not {"quarantined", "eviction-ordered"} & set(place.names())
        assert place.kube.evictions == []


async def test_a_holder_that_wakes_after_its_lease_appends_nothing_more() -> None:
    async with site(replicas=2) as place:
        place.node.holders = [place.kube.add("clips")]
        await place.node.report()
        await place.said("struck")
        active = int(place.facts[0].source.rpartition("/")[2])
        place.buses[active].partition()
        await asyncio.sleep(20)
        place.buses[active].heal()
        await place.node.report()
        await place.node.report()
        await place.said("closed", within_s=400)
        later = [fact for fact in place.facts if fact.data.kind.fact not in ("opened", "struck")]
        assert {fact.source for fact in later} == {f"/mediafleet/remediation/{1 - active}"}
        assert place.kube.evictions == ["uid-clips"]


async def test_a_gpu_replaced_in_its_slot_starts_at_validating_without_damping() -> None:
    async with site() as place:
        place.node.diagnoses = ""
        await place.node.strike_out()
        await place.said("diagnosis-requested")
        place.node.diagnoses, place.node.serial = "passed", "S2"
        await place.node.report("healthy")
        await place.said("readmitted", within_s=400)
        opened = [fact.data for fact in place.facts if isinstance(fact.data, say.Opened)]
        assert [(one.epoch, one.state, one.serial) for one in opened] == [
            (1, "suspect", "S1"),
            (2, "validating", "S2"),
        ]
        assert opened[1].penalty == 0


async def test_a_device_that_nobody_remembers_is_held_not_healed() -> None:
    from shared.kube.models import MediaResource  # noqa: PLC0415 - only here

    async with site() as place:
        place.kube.resources = [
            MediaResource(
                f"{NODE}-{KEY}",
                "u",
                "1",
                1,
                spec={},
                status={"phase": "Quarantined", "epoch": 4},
                labels={"media.example.com/node": NODE},
            )
        ]
        await place.node.report("healthy")
        await place.said("held")
        held = next(fact.data for fact in place.facts if isinstance(fact.data, say.Held))
        assert (held.epoch, held.owner) == (5, "mediafleet")


async def test_many_alike_at_once_freeze_the_budget() -> None:
    rules = policy(budgets={}, common_cause={"count": {"node": 3}, "freeze_s": 300})
    keys = [f"nvidia-0000-{number:02x}-00-0" for number in (0x3B, 0x5E, 0xAF)]
    async with site(rules) as place:
        for key in keys:
            await place.node.report(class_="fatal", code="79", entity=key)
        budget = Entity("remediation", "fleet", "budget")
        await place.said("frozen", "queued", of=budget)
        await asyncio.sleep(30)
        assert sum("quarantined" in place.names(Entity("remediation", NODE, key)) for key in keys) == 2
        await place.node.tell(
            say.ApproveRequested(request_id="a", owner="ann", reason="a bad driver"),
            place="fleet",
            entity="budget",
        )
        await place.said("thawed", of=budget)
        await place.until(
            lambda: all("quarantined" in place.names(Entity("remediation", NODE, k)) for k in keys)
        )


async def test_the_last_device_of_a_node_that_is_retired_taints_it_with_our_key() -> None:
    async with site() as place:
        await place.node.command(say.RetireRequested, "r1")
        await place.said("retired", "node-tainted")
        assert place.kube.taints == {NODE: {"media.example.com/device-quarantine"}}


async def test_an_online_pod_waits_for_its_replacement() -> None:
    from shared.events import workload  # noqa: PLC0415 - only here
    from shared.events.parts import WorkloadRef  # noqa: PLC0415

    rules = policy(drain={"replacement_wait_s": 300})
    async with site(rules) as place:
        place.node.holders = [place.kube.add("edge-1", "online", owner="edge")]
        await place.node.strike_out()
        await place.said("replacement-requested")
        asked = next(fact.data for fact in place.facts if isinstance(fact.data, say.ReplacementRequested))
        assert asked.workload.entity == "deployment-edge"
        await asyncio.sleep(20)
        assert place.kube.evictions == []
        applied = workload.ScaleApplied.model_validate(
            {
                "request_id": asked.request_id,
                "workload": WorkloadRef(namespace="media", kind="Deployment", name="edge"),
                "from": 1,
                "to": 2,
                "mode": "scale",
                "by": "x",
            }
        )
        await place.node.tell(applied, place="media", entity="deployment-edge")
        await place.said("drained", within_s=30)
        assert place.kube.evictions == ["uid-edge-1"]


async def test_a_dry_run_takes_nothing_out() -> None:
    async with site(policy(dry_run=True)) as place:
        place.node.holders = [place.kube.add("clips")]
        await place.node.strike_out()
        await place.said("step-refused")
        await asyncio.sleep(60)
        assert "quarantined" not in place.names()
        assert place.kube.evictions == []
