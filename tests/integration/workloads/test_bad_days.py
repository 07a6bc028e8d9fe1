"""All three services together on bad days: copies, kills, restarts, duplicates, a failing API server."""

from __future__ import annotations

import asyncio
from random import Random

import pytest

from services.alerting.service import RulesFile
from shared.bus.memory import Faults
from shared.errors import Temporary
from shared.events import workload as facts
from shared.kube.models import EvictionAnswer, EvictionOutcome
from tests.integration.workloads.stage import Stage, stage
from tests.integration.workloads.test_alerting import alerting
from tests.integration.workloads.test_autoscaler import autoscaler
from tests.integration.workloads.test_guardian import POLICY, begin, crowded, guardian

pytestmark = pytest.mark.looptime


async def disturb(on: Stage, random: Random, start: dict[str, list[asyncio.Task[None]]], rounds: int) -> None:
    """Kill and restart at random moments."""
    for _ in range(rounds):
        await asyncio.sleep(random.uniform(0.2, 4.0))
        what = random.choice(["restart", "expire", "expire", "nothing"])
        name = random.choice(sorted(start))
        if what == "restart":
            on.server.restart()
        elif what == "expire":
            on.server.expire(name)


@pytest.mark.parametrize("seed", range(5))
async def test_one_eviction_one_scale_up_and_a_restored_sla_whatever_fails(seed: int) -> None:
    random = Random(seed)  # noqa: S311 - a simulation that can be repeated
    async with stage(Faults(seed=seed, duplicate=0.3, lost_ack=0.2, lost_answer=0.1, delay_s=0.02)) as on:
        cluster = crowded(on)
        ok = EvictionAnswer(201, EvictionOutcome.EVICTED)
        days: list[EvictionAnswer | Exception] = [ok, Temporary("500"), Temporary("hung")]
        cluster.answers = [random.choice(days) for _ in range(3)]
        cluster.failures = [Temporary("500") for _ in range(random.randint(0, 3))]
        rules = RulesFile(None)
        assert not rules.problem
        running = {
            name: [on.start(name, act, copy) for copy in ("a", "b")]
            for name, act in (
                ("guardian", guardian(cluster, on, POLICY.model_copy(update={"scale_lease_s": 60.0}))),
                ("autoscaler", autoscaler(cluster, on)),
                ("alerting", alerting(on)),
            )
        }
        await begin(on, cluster)
        disturbing = on.background(disturb(on, random, running, 15))
        await on.until(facts.Restored)
        await disturbing
        await asyncio.sleep(60)
        await on.until(facts.ScaleExpired)
        named = await on.names("sla")
        assert set(cluster.evictions) == {"large"}
        assert [named.count(n) for n in ("breached", "eviction-ordered", "restored")] == [1, 1, 1]
        outcomes = [e.data.outcome for e in await on.said("sla") if isinstance(e.data, facts.SlaPodEvicted)]
        assert outcomes in (["evicted"], ["gone"])
        scaled = [e for e in await on.said("scale") if isinstance(e.data, facts.ScaleApplied)]
        assert len(scaled) == 1
        assert cluster.workloads["live", "edge"].replicas == 2
        raised = [e.data.alert_id for e in await on.said("alert") if isinstance(e.data, facts.AlertRaised)]
        assert len(raised) == len(set(raised))
        assert await on.said("deadletter") == []
