"""The autoscaler's hand alone: what it finds decides what it does."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from services.autoscaler.act import Scaler
from services.autoscaler.lease import lease
from services.autoscaler.policy import AutoscalerPolicy
from shared.clock import ManualClock
from shared.errors import Temporary
from shared.events import Payload
from shared.events.parts import WorkloadRef
from shared.events.workload import ScaleApplied, ScaleExpired, ScaleOrdered, ScaleRefused
from shared.kube.port import StaleWrite
from tests.integration.workloads.cluster import Cluster

AT = datetime(2026, 1, 1, tzinfo=UTC)
EDGE = WorkloadRef(namespace="live", kind="Deployment", name="edge")
NOTE = "media.example.com/min-replicas-lease"


def order(mode: str = "scale", **more: Any) -> ScaleOrdered:
    fields: dict[str, Any] = {
        "request_id": "r",
        "workload": EDGE,
        "from": 2,
        "to": 4,
        "mode": mode,
        "restore_to": 2,
        "by": "x",
        "until": AT + timedelta(seconds=600),
    }
    return ScaleOrdered(**{**fields, **more})


def restore(**more: Any) -> ScaleOrdered:
    return order("restore", **{"n": 2, "from": 4, "to": 2, **more})


@pytest.fixture
def cluster() -> Cluster:
    made = Cluster(ManualClock(AT))
    made.deploy("edge", replicas=2)
    return made


async def does(cluster: Cluster, what: ScaleOrdered, *, after_s: float = 1) -> Payload:
    scaler = Scaler(cluster, "media.example.com")  # type: ignore[arg-type] # only what it uses
    return await scaler.carry_out(what, AT, AT + timedelta(seconds=after_s), AutoscalerPolicy())


def why(said: Payload) -> str:
    assert isinstance(said, ScaleRefused | ScaleExpired)
    return said.reason


async def test_an_order_that_waited_too_long_is_void(cluster: Cluster) -> None:
    assert "too late" in why(await does(cluster, order(), after_s=121))
    assert not cluster.writes


async def test_more_replicas_than_ordered_are_left(cluster: Cluster) -> None:
    cluster.person_scales("live", "edge", 7)
    assert isinstance(await does(cluster, order()), ScaleApplied)
    assert not cluster.writes


async def test_an_hpa_that_came_meanwhile_is_not_fought(cluster: Cluster) -> None:
    cluster.hpa("h", target="edge")
    assert "an HPA targets it by now" in why(await does(cluster, order()))
    cluster.person_scales("live", "edge", 4)
    assert "an HPA targets it by now" in why(await does(cluster, restore()))
    assert not cluster.writes


async def test_what_is_gone_is_said_to_be_gone(cluster: Cluster) -> None:
    cluster.workloads.clear()
    assert "is gone" in why(await does(cluster, order()))
    assert "is gone" in why(await does(cluster, restore()))
    assert "is gone" in why(await does(cluster, order("min-replicas-lease", hpa="h")))
    assert "is gone" in why(await does(cluster, restore(hpa="h")))


async def test_a_maximum_that_was_lowered_meanwhile_is_kept(cluster: Cluster) -> None:
    cluster.hpa("h", target="edge", low=2, high=3)
    assert "allows only 3" in why(await does(cluster, order("min-replicas-lease", hpa="h")))


async def test_a_floor_that_is_higher_already_is_left(cluster: Cluster) -> None:
    cluster.hpa("h", target="edge", low=5, high=9)
    assert isinstance(await does(cluster, order("min-replicas-lease", hpa="h")), ScaleApplied)
    assert not cluster.writes


async def test_a_raise_that_was_written_before_a_crash_is_not_written_again(cluster: Cluster) -> None:
    cluster.hpa("h", target="edge", low=3, high=9)
    note = {NOTE: lease(2, 4, AT, "r").text()}
    cluster.person_edits("live", "h", 3, note)
    assert isinstance(await does(cluster, order("min-replicas-lease", hpa="h")), ScaleApplied)
    assert not cluster.writes


@pytest.mark.parametrize("noted", [False, True])
async def test_what_was_given_back_before_a_crash_is_not_given_back_again(
    cluster: Cluster,
    noted: bool,  # noqa: FBT001 - a parameter of the test
) -> None:
    cluster.hpa("h", target="edge", low=2, high=9)
    if noted:
        cluster.person_edits("live", "h", 2, {NOTE: lease(1, 2, AT, "r").text()})
    assert why(await does(cluster, restore(hpa="h"))) == "given back"
    cluster.hpas_.clear()
    assert why(await does(cluster, restore())) == "given back"
    assert not cluster.writes


async def test_a_step_down_to_a_level_still_wanted_keeps_the_note(cluster: Cluster) -> None:
    cluster.hpa("h", target="edge", low=4, high=9)
    await does(cluster, restore(hpa="h", to=3, restore_to=1))
    hpa = cluster.hpas_["live", "h"]
    assert hpa.min_replicas == 3
    assert '"before":1' in hpa.annotations[NOTE]


async def test_an_object_that_keeps_changing_is_left_for_later(cluster: Cluster) -> None:
    cluster.failures = [StaleWrite("busy")] * 3
    with pytest.raises(Temporary):
        await does(cluster, order())
    cluster.person_scales("live", "edge", 4)
    cluster.failures = [StaleWrite("busy")] * 3
    with pytest.raises(Temporary, match="keeps changing"):
        await does(cluster, restore())
