from __future__ import annotations

import json
from typing import Any

import pytest

from services.simulator import admission, pods
from services.simulator.device_sets import NO_NUMA, DeviceSets, Entry
from shared.errors import BadInput, Permanent

RESOURCE = "media.example.com/nvenc"


def known(*healthy: str, sick: tuple[str, ...] = (), **topology: tuple[int, ...]) -> DeviceSets:
    sets = DeviceSets()
    sets.listed(RESOURCE, healthy, sick, topology)
    return sets


def held(pod: str, *ids: str) -> Entry:
    return Entry(pod, "main", RESOURCE, {NO_NUMA: ids}, b"\x01")


def pod(uid: str = "u", count: int = 1, **meta: Any) -> pods.PodJson:
    limits = {RESOURCE: str(count), "cpu": "2", "media.example.com/gpu-memory": "8Gi"}
    return {
        "metadata": {"name": "p", "namespace": "live", "uid": uid} | meta,
        "spec": {"containers": [{"name": "main", "resources": {"requests": {"cpu": "1"}, "limits": limits}}]},
    }


def test_the_checkpoint_is_read_back_with_holders_and_without_devices() -> None:
    sets = known("a", "b", a=(0, 1))
    sets.hold(Entry("pod-1", "main", RESOURCE, sets.by_numa(RESOURCE, ["a", "b"]), b"\xff\x00"))
    text = sets.checkpoint("boot")
    assert json.loads(text)["Data"]["PodDeviceEntries"][0]["DeviceIDs"] == {
        "-1": ["b"],
        "0": ["a"],
        "1": ["a"],
    }
    again = DeviceSets()
    again.restore(text, now_s=5.0)
    assert again.entries == sets.entries
    assert again.capacity() == {RESOURCE: (0, 0)}
    assert again.forget_stopped(305.0, 300.0) == ()
    assert again.forget_stopped(305.1, 300.0) == (RESOURCE,)


def test_without_holders_the_entries_are_null_as_go_writes_them() -> None:
    assert json.loads(known("a").checkpoint(""))["Data"]["PodDeviceEntries"] is None


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"Data":{}}', '{"Data":{"PodDeviceEntries":[{}]}}', '{"Data":1}']
)
def test_a_broken_checkpoint_is_refused(text: str) -> None:
    with pytest.raises(BadInput, match="kubelet_internal_checkpoint"):
        DeviceSets().restore(text, 0.0)


def test_changes_of_health_are_told() -> None:
    sets = known("a", "b")
    assert sets.listed(RESOURCE, ["a"], ["b"], {}) == {"b"}
    assert sets.listed(RESOURCE, ["a"], ["b"], {}) == frozenset()
    assert sets.disconnected(RESOURCE, 0.0) == {"a"}
    assert [sets.health(RESOURCE, one) for one in ("a", "z")] == ["Unhealthy", "Unknown"]
    assert sets.health("other.com/x", "a") == "Unknown"


def test_what_ended_pods_held_is_collected_once() -> None:
    sets = known("a", "b")
    sets.hold(held("gone", "a"))
    sets.hold(held("here", "b"))
    assert sets.in_use(RESOURCE) == {"a", "b"}
    assert sets.collect({"here"})
    assert not sets.collect({"here"})
    assert sets.free(RESOURCE, 1) == {"a"}


async def test_after_a_reboot_a_pod_whose_devices_are_healthy_again_keeps_them_without_allocate() -> None:
    sets = known("a", "b")
    sets.hold(held("u", "a"))
    assert not await admission.allocate(pod(), sets, {})


async def test_after_a_reboot_a_pod_whose_device_is_sick_fails() -> None:
    sets = known("b", sick=("a",))
    sets.hold(held("u", "a"))
    with pytest.raises(Permanent, match="previously allocated devices are no longer healthy"):
        await admission.allocate(pod(), sets, {})


async def test_devices_without_their_plugin_cannot_be_given() -> None:
    with pytest.raises(Permanent, match="unknown Device Plugin"):
        await admission.allocate(pod(), known("a"), {})


def test_only_whole_extended_resources_are_device_plugin_resources() -> None:
    (container,) = pods.containers(pod())
    assert container.limits == {RESOURCE: 1}


@pytest.mark.parametrize(
    ("meta", "spec", "grace_s"),
    [
        ({"deletionGracePeriodSeconds": 0}, {"terminationGracePeriodSeconds": 9}, 0),
        ({}, {"terminationGracePeriodSeconds": 9}, 9),
        ({}, {}, 30),
    ],
)
def test_the_grace_is_the_deletions_then_the_pods_then_thirty_seconds(
    meta: dict[str, Any], spec: dict[str, Any], grace_s: float
) -> None:
    assert pods.grace_s({"metadata": meta, "spec": spec}) == grace_s


@pytest.mark.parametrize("text", ["soon", "-1", "nan", "inf"])
def test_a_run_time_that_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(BadInput, match="run-for-s"):
        pods.run_for_s(pod(annotations={pods.RUN_FOR: text}))
