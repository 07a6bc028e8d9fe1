from __future__ import annotations

from typing import Any

import pytest

from services.simulator import sampling
from services.simulator.api.resources import DEPLOYMENTS, NAMESPACES, REPLICASETS
from services.simulator.api.store import Store
from services.simulator.device_sets import NO_NUMA, Entry
from shared.clock import ManualClock

SLOT = "nvidia-0000-3b-00-0-enc-0-s0"


@pytest.fixture
def store() -> Store:
    store = Store(ManualClock())
    store.create(NAMESPACES, "", {"metadata": {"name": "live"}})
    return store


def pod(name: str, owner: tuple[str, str] | None = None, **annotations: str) -> sampling.Running:
    meta: dict[str, Any] = {
        "namespace": "live",
        "name": name,
        "uid": f"uid-{name}",
        "annotations": {
            f"simulator.mediafleet/{key.replace('_', '-')}": text for key, text in annotations.items()
        },
    }
    if owner:
        meta["ownerReferences"] = [{"kind": owner[0], "name": owner[1], "controller": True}]
    held = Entry(meta["uid"], "main", "media.example.com/nvenc", {NO_NUMA: (SLOT,)}, b"")
    return {"metadata": meta, "spec": {"nodeName": "w"}}, (held,)


def window() -> sampling.Window:
    return sampling.Window("boot", 3, 2.0, ManualClock().now())


def test_the_owner_is_followed_to_the_deployment_whose_load_its_replicas_share(store: Store) -> None:
    template = {"metadata": {"labels": {"app": "x"}}, "spec": {"containers": [{"name": "m", "image": "x"}]}}
    spec = {"replicas": 2, "selector": {"matchLabels": {"app": "x"}}, "template": template}
    loads = {sampling.WORKLOAD_LOAD: "0.8"}
    store.create(DEPLOYMENTS, "live", {"metadata": {"name": "edge", "annotations": loads}, "spec": spec})
    owner = {"kind": "Deployment", "name": "edge", "uid": "u", "apiVersion": "apps/v1", "controller": True}
    store.create(
        REPLICASETS, "live", {"metadata": {"name": "edge-1", "ownerReferences": [owner]}, "spec": spec}
    )
    both = [pod("edge-1-a", ("ReplicaSet", "edge-1")), pod("edge-1-b", ("ReplicaSet", "edge-1"))]
    work = sampling.work(store, both)
    assert [(one.offered, one.per_slot, owner.entity) for one, owner, _ in work] == [
        (0.4, False, "deployment-edge")
    ] * 2
    first, second = sampling.samples(store, both, {}, window())
    assert first.workload == second.workload == "deployment-edge"
    assert first.latency_p99_ms == pytest.approx(20 / 0.2, rel=0.03)
    assert first.requests == round(0.4 * 240 * 2)


def test_an_owner_that_is_gone_leaves_the_pod_to_itself(store: Store) -> None:
    ((_, owner, _),) = sampling.work(store, [pod("x", ("ReplicaSet", "gone"))])
    assert owner.entity == "pod-x"


def test_pods_without_a_load_are_not_sampled(store: Store) -> None:
    quiet, loud = pod("quiet"), pod("loud", load="0.5")
    assert [sample.pod.name for sample in sampling.samples(store, [quiet, loud], {}, window())] == ["loud"]


@pytest.mark.parametrize("text", ["much", "-1", "nan", "inf"])
def test_a_load_that_cannot_be_read_is_no_load(store: Store, text: str) -> None:
    ((one, _, _),) = sampling.work(store, [pod("x", load=text)])
    assert one.offered == 0


def test_conditions_count_on_their_own_node_only(store: Store) -> None:
    running = [pod("x", load="0.5", base_latency_ms="10", fps="60")]
    elsewhere = sampling.samples(store, running, {("other", "nvidia-0000-3b-00-0"): "dead"}, window())
    here = sampling.samples(store, running, {("w", "nvidia-0000-3b-00-0"): "dead"}, window())
    assert (elsewhere[0].fps, here[0].fps) == (60, 0)
    assert here[0].requests == 0
