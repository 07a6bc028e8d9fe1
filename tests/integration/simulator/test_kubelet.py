from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import grpc
import grpc.aio
import pytest

from protos import deviceplugin_v1beta1_pb2 as pb
from protos import podresources_v1_pb2 as resources_pb
from protos import podresources_v1_pb2_grpc as resources_grpc
from services.simulator.kubelet import Kubelet
from shared.clock import ManualClock

if TYPE_CHECKING:
    from contextlib import AbstractAsyncContextManager

RESOURCE = "media.example.com/nvenc"
StartPlugin = Callable[..., Awaitable[Any]]
MakePod = Callable[..., dict[str, Any]]


def checkpoint(kubelet: Kubelet) -> dict[str, Any]:
    answer: dict[str, Any] = json.loads(kubelet.checkpoint_file.read_text())
    return answer


def lister(kubelet: Kubelet) -> AbstractAsyncContextManager[grpc.aio.Channel]:
    return grpc.aio.insecure_channel(f"unix:{kubelet.pod_resources_socket}")


async def test_a_pod_gets_devices_and_the_checkpoint_says_which(
    kubelet: Kubelet, start_plugin: StartPlugin, make_pod: MakePod
) -> None:
    plugin = await start_plugin()
    assert (await kubelet.admit(make_pod("edge", 2))).admitted
    assert plugin.allocated == [["a", "b"]]
    assert plugin.prepared == [["a", "b"]]
    saved = checkpoint(kubelet)
    assert saved["BootID"] == "boot-1"
    assert isinstance(saved["Checksum"], int)
    assert saved["Data"]["RegisteredDevices"] == {RESOURCE: ["a", "b"]}
    (entry,) = saved["Data"]["PodDeviceEntries"]
    assert entry["PodUID"] == "uid-edge"
    assert entry["ContainerName"] == "main"
    assert entry["ResourceName"] == RESOURCE
    assert entry["DeviceIDs"] == {"0": ["a"], "1": ["b"]}
    answer = pb.ContainerAllocateResponse.FromString(base64.b64decode(entry["AllocResp"]))
    assert answer.envs["MEDIA_DEVICES"] == "a,b"


async def test_ids_without_topology_stand_under_minus_one(
    kubelet: Kubelet, start_plugin: StartPlugin, make_pod: MakePod
) -> None:
    await start_plugin({"x": None})
    await kubelet.admit(make_pod("edge"))
    (entry,) = checkpoint(kubelet)["Data"]["PodDeviceEntries"]
    assert entry["DeviceIDs"] == {"-1": ["x"]}


async def test_the_preference_is_asked_only_while_a_choice_remains(
    kubelet: Kubelet, start_plugin: StartPlugin, make_pod: MakePod
) -> None:
    plugin = await start_plugin({"a": 0, "b": 0, "c": 1}, prefers=True)
    await kubelet.admit(make_pod("one"))
    await kubelet.admit(make_pod("two", 2))
    assert plugin.offered == [["a", "b", "c"]]
    assert plugin.allocated == [["c"], ["a", "b"]]


async def test_a_pod_that_asks_for_too_much_is_refused_in_the_kubelets_words(
    kubelet: Kubelet, start_plugin: StartPlugin, make_pod: MakePod
) -> None:
    await start_plugin()
    refused = await kubelet.admit(make_pod("big", 3))
    assert refused.reason == "UnexpectedAdmissionError"
    assert refused.message == (
        f"Allocate failed due to requested number of devices unavailable for {RESOURCE}. "
        "Requested: 3, Available: 2, which is unexpected"
    )


async def test_a_plugin_that_refuses_fails_the_pod_and_the_ids_stay_free(
    kubelet: Kubelet, start_plugin: StartPlugin, make_pod: MakePod
) -> None:
    plugin = await start_plugin()
    plugin.refuse = "slot a is busy"
    refused = await kubelet.admit(make_pod("edge"))
    assert "desc = slot a is busy" in refused.message
    assert "code = FailedPrecondition" in refused.message
    plugin.refuse = ""
    assert (await kubelet.admit(make_pod("again", 2))).admitted


async def test_ids_are_free_only_once_the_pod_has_ended(
    kubelet: Kubelet, start_plugin: StartPlugin, make_pod: MakePod
) -> None:
    await start_plugin({"a": 0})
    await kubelet.admit(make_pod("first"))
    assert not (await kubelet.admit(make_pod("second"))).admitted
    await kubelet.end("uid-first")
    assert checkpoint(kubelet)["Data"]["PodDeviceEntries"], "the checkpoint lags until the next admission"
    assert (await kubelet.admit(make_pod("third"))).admitted
    (entry,) = checkpoint(kubelet)["Data"]["PodDeviceEntries"]
    assert entry["PodUID"] == "uid-third"


async def test_init_containers_leave_their_devices_to_the_containers_after_them(
    kubelet: Kubelet, start_plugin: StartPlugin, make_pod: MakePod
) -> None:
    plugin = await start_plugin({"a": 0, "b": 0})
    pod = make_pod("edge")
    main = pod["spec"]["containers"][0]
    pod["spec"]["initContainers"] = [
        main | {"name": "warm"},
        main | {"name": "side", "restartPolicy": "Always"},
    ]
    assert (await kubelet.admit(pod)).admitted
    assert plugin.allocated == [["a"], ["a"], ["b"]]


async def test_an_unhealthy_device_keeps_its_capacity_and_is_not_given(
    kubelet: Kubelet, start_plugin: StartPlugin, make_pod: MakePod
) -> None:
    plugin = await start_plugin()
    plugin.say("a")
    await kubelet.until(lambda: kubelet.sets.capacity()[RESOURCE] == (2, 1))
    await kubelet.admit(make_pod("edge"))
    assert plugin.allocated == [["b"]]
    assert kubelet.sets.health(RESOURCE, "a") == "Unhealthy"


async def test_when_the_stream_ends_all_is_unhealthy_and_after_the_grace_the_resource_is_forgotten(
    kubelet: Kubelet, start_plugin: StartPlugin, make_pod: MakePod, clock: ManualClock
) -> None:
    plugin = await start_plugin()
    await kubelet.admit(make_pod("edge"))
    plugin.hang_up()
    await kubelet.until(lambda: kubelet.sets.capacity()[RESOURCE] == (2, 0))
    refused = await kubelet.admit(make_pod("late"))
    assert "no healthy devices present" in refused.message
    clock.advance(299)
    await kubelet.sync_node()
    assert RESOURCE in kubelet.sets.resources
    clock.advance(2)
    await kubelet.sync_node()
    assert RESOURCE not in kubelet.sets.resources
    assert kubelet.snapshot()["pods"][0]["devices"] == {RESOURCE: ["a"]}


async def test_a_plugin_that_registers_again_is_healthy_again(
    kubelet: Kubelet, start_plugin: StartPlugin
) -> None:
    plugin = await start_plugin()
    plugin.hang_up()
    await kubelet.until(lambda: kubelet.sets.capacity()[RESOURCE] == (2, 0))
    await plugin.register()
    await kubelet.until(lambda: kubelet.sets.capacity()[RESOURCE] == (2, 2))
    assert kubelet.registrations == 2


async def test_a_restart_deletes_sockets_only_and_keeps_what_running_pods_hold(
    kubelet: Kubelet, start_plugin: StartPlugin, make_pod: MakePod
) -> None:
    plugin = await start_plugin()
    await kubelet.admit(make_pod("edge"))
    keep = kubelet.plugin_directory / "not-a-socket"
    keep.write_text("x")
    before = kubelet.socket.stat()
    await kubelet.restart()
    assert not plugin.socket.exists()
    assert keep.exists()
    after = kubelet.socket.stat()
    assert (before.st_ino, before.st_ctime_ns) != (after.st_ino, after.st_ctime_ns)
    await plugin.stream_ended.wait()
    assert kubelet.sets.capacity() == {RESOURCE: (0, 0)}
    await plugin.start()
    await plugin.register()
    await kubelet.until(lambda: kubelet.sets.capacity()[RESOURCE] == (2, 2))
    assert len(plugin.allocated) == 1, "Allocate is not repeated"
    await kubelet.admit(make_pod("next"))
    assert plugin.allocated[-1] == ["b"]


async def test_after_a_reboot_a_pod_whose_device_is_not_registered_yet_fails_for_good(
    kubelet: Kubelet, start_plugin: StartPlugin, make_pod: MakePod
) -> None:
    await start_plugin()
    await kubelet.admit(make_pod("edge"))
    await kubelet.admit(make_pod("plain", resource="cpu"))
    await kubelet.reboot()
    await kubelet.until(lambda: {p["phase"] for p in kubelet.snapshot()["pods"]} == {"ended", "running"})
    assert [p["name"] for p in kubelet.snapshot()["pods"] if p["phase"] == "ended"] == ["edge"]


async def test_a_restart_in_the_middle_of_allocate_fails_the_pod_and_nothing_hangs(
    kubelet: Kubelet, start_plugin: StartPlugin, make_pod: MakePod
) -> None:
    plugin = await start_plugin()
    plugin.answering.clear()
    admitting = asyncio.create_task(kubelet.admit(make_pod("edge")))
    await plugin.asked.wait()
    await kubelet.restart()
    refused = await admitting
    assert refused.reason == "UnexpectedAdmissionError"
    assert "client connection is closing" in refused.message


async def test_a_broken_checkpoint_is_passed_over_at_the_start(
    kubelet: Kubelet, start_plugin: StartPlugin, make_pod: MakePod
) -> None:
    plugin = await start_plugin()
    kubelet.checkpoint_file.write_text('{"Data": {"PodDev')
    await kubelet.restart()
    assert kubelet.sets.capacity() == {}
    await plugin.start()
    await plugin.register()
    await kubelet.until(lambda: kubelet.sets.capacity() == {RESOURCE: (2, 2)})
    assert (await kubelet.admit(make_pod("edge"))).admitted


async def test_while_a_kubelet_is_away_nothing_begins_and_nothing_ends(
    kubelet: Kubelet, start_plugin: StartPlugin, make_pod: MakePod
) -> None:
    await start_plugin()
    await kubelet.admit(make_pod("edge"))
    away = asyncio.create_task(kubelet.restart(down_s=0.2))
    await kubelet.until(lambda: not kubelet.endpoints)
    ending = asyncio.create_task(kubelet.end("uid-edge"))
    late = asyncio.create_task(kubelet.admit(make_pod("late", resource="cpu")))
    for _ in range(20):
        await asyncio.sleep(0)
    assert not any(task.done() for task in (away, ending, late))
    await away
    await ending
    assert (await late).admitted


async def test_a_pod_deleted_in_the_middle_of_allocate_never_runs(
    kubelet: Kubelet, start_plugin: StartPlugin, make_pod: MakePod
) -> None:
    plugin = await start_plugin({"a": 0})
    plugin.answering.clear()
    admitting = asyncio.create_task(kubelet.admit(make_pod("edge")))
    await plugin.asked.wait()
    await kubelet.end("uid-edge")
    plugin.answering.set()
    assert not (await admitting).admitted
    assert (await kubelet.admit(make_pod("next"))).admitted


async def test_a_plugin_nobody_serves_cannot_register(
    kubelet: Kubelet, start_plugin: StartPlugin, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("services.simulator.plugin_endpoint.DIAL_TIMEOUT_S", 0.05)
    plugin = await start_plugin()
    await plugin.stop()
    with pytest.raises(grpc.aio.AioRpcError, match="failed to dial device plugin"):
        await plugin.register()
    assert kubelet.registrations == 1


@pytest.mark.parametrize(
    ("resource", "version", "problem"),
    [
        (RESOURCE, "v1alpha1", "is not supported by kubelet"),
        ("nvenc", "v1beta1", "is invalid"),
        ("kubernetes.io/nvenc", "v1beta1", "is invalid"),
        ("requests.media/nvenc", "v1beta1", "is invalid"),
    ],
)
async def test_a_bad_registration_is_refused(
    start_plugin: StartPlugin, resource: str, version: str, problem: str
) -> None:
    plugin = await start_plugin()
    with pytest.raises(grpc.aio.AioRpcError, match=problem):
        await plugin.register(resource, version)


async def test_pod_resources_lists_active_pods_with_one_row_per_id(
    kubelet: Kubelet, start_plugin: StartPlugin, make_pod: MakePod
) -> None:
    plugin = await start_plugin()
    await kubelet.admit(make_pod("edge", 2))
    plugin.say("b")
    await kubelet.until(lambda: kubelet.sets.health(RESOURCE, "b") == "Unhealthy")
    async with lister(kubelet) as channel:
        stub: resources_grpc.PodResourcesListerAsyncStub = resources_grpc.PodResourcesListerStub(channel)
        listed = await stub.List(resources_pb.ListPodResourcesRequest())
        (pod,) = listed.pod_resources
        (container,) = pod.containers
        rows = [
            (d.resource_name, list(d.device_ids), [n.ID for n in d.topology.nodes]) for d in container.devices
        ]
        assert (pod.namespace, pod.name, container.name) == ("live", "edge", "main")
        assert rows == [(RESOURCE, ["a"], [0]), (RESOURCE, ["b"], [1])]
        one = await stub.Get(resources_pb.GetPodResourcesRequest(pod_name="edge", pod_namespace="live"))
        assert one.pod_resources == pod
        allocatable = await stub.GetAllocatableResources(resources_pb.AllocatableResourcesRequest())
        assert [list(d.device_ids) for d in allocatable.devices] == [["a"], ["b"]], "unhealthy ones too"
        await kubelet.end("uid-edge")
        assert not (await stub.List(resources_pb.ListPodResourcesRequest())).pod_resources
        with pytest.raises(grpc.aio.AioRpcError, match="not found"):
            await stub.Get(resources_pb.GetPodResourcesRequest(pod_name="edge", pod_namespace="live"))


async def test_a_resource_nobody_registered_is_ignored_at_admission(
    kubelet: Kubelet, make_pod: MakePod
) -> None:
    assert (await kubelet.admit(make_pod("edge"))).admitted


async def test_a_pod_that_runs_for_a_time_ends_by_itself(kubelet: Kubelet, make_pod: MakePod) -> None:
    await kubelet.admit(make_pod("job", **{"simulator.mediafleet/run-for-s": "0.01"}))
    await kubelet.until(lambda: kubelet.snapshot()["pods"][0]["phase"] == "ended")


async def test_a_list_over_four_mebibytes_ends_the_stream(
    kubelet: Kubelet, start_plugin: StartPlugin
) -> None:
    plugin = await start_plugin()
    plugin.devices = {f"{n:063d}": 0 for n in range(60_000)}
    plugin.say()
    await kubelet.until(lambda: kubelet.sets.capacity()[RESOURCE] == (2, 0))
