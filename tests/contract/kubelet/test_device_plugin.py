"""What a kubelet may expect of the bridge, and what the bridge makes of a kubelet."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import grpc
import pytest

from protos import deviceplugin_v1beta1_pb2 as api
from protos import deviceplugin_v1beta1_pb2_grpc as api_grpc
from shared.events import remediation, world
from tests.contract.kubelet.conftest import DEVICES, Node, Start
from tests.contract.kubelet.kubelets import Kubelet, SmallKubelet
from tests.unit.bridge.devices import AT, GPU, NVDEC, NVENC, gpu

A, B, C = (each.key for each in DEVICES)


def healthy(kubelet: Kubelet, resource: str) -> list[str]:
    return [id_ for id_, health in kubelet.devices(resource).items() if health == "Healthy"]


def quarantined(epoch: int = 1, *engines: str) -> remediation.Quarantined:
    scope = "engines" if engines else "device"
    deadline = AT + timedelta(minutes=5)
    return remediation.Quarantined(epoch=epoch, scope=scope, engines=engines, reason="xid", deadline=deadline)


class TestRegistration:
    async def test_every_resource_is_registered_with_all_its_ids(self, node: Node, kubelet: Kubelet) -> None:
        del node
        await kubelet.until(lambda: len(healthy(kubelet, NVENC)) == 10 and len(healthy(kubelet, NVDEC)) == 6)
        assert healthy(kubelet, GPU) == sorted([A, B, C])

    async def test_the_endpoint_is_a_base_name_and_the_options_promise_a_preference(
        self, node: Node, kubelet: Kubelet
    ) -> None:
        del node
        socket = kubelet.plugins / "mediafleet-gpu.sock"
        async with grpc.aio.insecure_channel(f"unix:{socket}") as channel:
            stub: api_grpc.DevicePluginAsyncStub = api_grpc.DevicePluginStub(channel)
            options = await stub.GetDevicePluginOptions(api.Empty(), timeout=5)
        assert options.get_preferred_allocation_available
        assert not options.pre_start_required

    async def test_a_bridge_that_is_there_before_the_kubelet_waits_for_it(
        self, start: Start, kubelet: Kubelet
    ) -> None:
        await kubelet.stop()
        (kubelet.plugins / "kubelet.sock").unlink(missing_ok=True)
        async with start() as node:
            await node.register(*DEVICES)
            await kubelet.start()
            await kubelet.until(lambda: bool(healthy(kubelet, GPU)))

    async def test_a_kubelet_that_restarts_gets_every_resource_again(
        self, node: Node, kubelet: Kubelet
    ) -> None:
        del node
        for _ in range(2):
            await kubelet.stop()
            await kubelet.start()
            await kubelet.until(
                lambda: len(healthy(kubelet, GPU)) == 3 and len(healthy(kubelet, NVENC)) == 10
            )

    async def test_a_stream_that_ends_is_registered_again(self, node: Node, kubelet: Kubelet) -> None:
        del node
        before = kubelet.registrations()
        await kubelet.hang_up(GPU)
        await kubelet.until(lambda: kubelet.registrations() > before and len(healthy(kubelet, GPU)) == 3)

    async def test_a_socket_that_is_deleted_is_made_and_registered_again(
        self, node: Node, kubelet: Kubelet
    ) -> None:
        del node
        before = kubelet.registrations()
        (kubelet.plugins / "mediafleet-gpu.sock").unlink()
        await kubelet.until(lambda: kubelet.registrations() > before and len(healthy(kubelet, GPU)) == 3)

    async def test_a_bridge_that_restarts_offers_at_once_what_it_knew(
        self, start: Start, kubelet: Kubelet
    ) -> None:
        async with start() as node:
            await node.register(*DEVICES)
            await kubelet.until(lambda: len(healthy(kubelet, NVENC)) == 10)
            await node.tell(A, quarantined())
            await kubelet.until(lambda: len(healthy(kubelet, NVENC)) == 6)
        async with start():
            await kubelet.until(lambda: bool(healthy(kubelet, NVENC)))
            assert len(healthy(kubelet, NVENC)) == 6


class TestLists:
    @pytest.mark.parametrize("kubelet", [SmallKubelet], indirect=True)  # it alone counts and shows them
    async def test_an_unchanged_list_is_not_sent_again(self, node: Node, kubelet: Kubelet) -> None:
        assert isinstance(kubelet, SmallKubelet)
        await kubelet.until(lambda: bool(healthy(kubelet, NVENC)))
        before = kubelet._plugins[NVENC].lists
        assert await kubelet.admit("a", {"main": {NVENC: 1}}) == ""
        await node.register(*DEVICES)
        await node.said(world.Bound)
        assert kubelet._plugins[NVENC].lists <= before + 1

    @pytest.mark.parametrize("kubelet", [SmallKubelet], indirect=True)  # it alone counts and shows them
    async def test_numa_nodes_are_told_where_they_are_known(self, node: Node, kubelet: Kubelet) -> None:
        del node
        assert isinstance(kubelet, SmallKubelet)
        assert kubelet._plugins[GPU].numa == {A: 0, B: 1}

    async def test_a_quarantined_device_is_unhealthy_and_comes_back(
        self, node: Node, kubelet: Kubelet
    ) -> None:
        await node.tell(A, quarantined())
        await kubelet.until(lambda: A not in healthy(kubelet, GPU))
        assert A in kubelet.devices(GPU)
        await node.tell(A, remediation.ProbationStarted(epoch=1, until=AT))
        await kubelet.until(lambda: A in healthy(kubelet, GPU))

    async def test_a_unit_that_is_taken_for_encoding_is_withdrawn_from_decoding(
        self, node: Node, kubelet: Kubelet
    ) -> None:
        await node.tell(A, quarantined())
        await node.tell(B, quarantined())
        await kubelet.until(lambda: len(healthy(kubelet, NVDEC)) == 2 and len(healthy(kubelet, NVENC)) == 2)
        assert await kubelet.admit("a", {"main": {NVENC: 1}}) == ""
        await kubelet.until(lambda: len(healthy(kubelet, NVDEC)) == 1 and not healthy(kubelet, GPU))

    async def test_a_new_device_is_offered_without_a_restart(self, node: Node, kubelet: Kubelet) -> None:
        new = gpu("af")
        await node.register(new)
        await kubelet.until(lambda: new.key in healthy(kubelet, GPU))


class TestAllocation:
    async def test_a_pod_gets_its_engine_and_the_bus_hears_of_it(self, node: Node, kubelet: Kubelet) -> None:
        assert await kubelet.admit("a", {"main": {NVENC: 1}}) == ""
        (granted,) = await node.said(world.Granted)
        (bound,) = await node.said(world.Bound)
        assert isinstance(granted.data, world.Granted)
        assert isinstance(bound.data, world.Bound)
        assert bound.data.pod.uid == kubelet.uid("a")
        assert (bound.data.pod.namespace, bound.data.pod.name, bound.data.container) == ("live", "a", "main")
        assert bound.data.allocation_id == granted.data.allocation_id
        assert bound.of.entity in (A, B, C)
        (slot,) = bound.data.slots
        assert kubelet.held("a") == [f"{slot.engine}-s{slot.slot}"]
        assert kubelet.answer("a", "main", NVENC).envs["NVENC_INSTANCE_IDS"] in ("0", "1")

    async def test_two_resources_of_a_container_never_give_one_key_two_values(
        self, node: Node, kubelet: Kubelet
    ) -> None:
        del node
        assert await kubelet.admit("a", {"main": {NVENC: 2, NVDEC: 2}}) == ""
        first, second = kubelet.answer("a", "main", NVENC).envs, kubelet.answer("a", "main", NVDEC).envs
        assert {key for key in first if key in second and first[key] != second[key]} == set()

    async def test_engines_of_one_container_lie_on_one_device(self, node: Node, kubelet: Kubelet) -> None:
        for name in ("a", "b"):
            assert await kubelet.admit(name, {"main": {NVENC: 1, NVDEC: 1}}) == ""
        bound = await node.said(world.Bound, count=4)
        devices: dict[str, set[str]] = {}
        for each in bound:
            assert isinstance(each.data, world.Bound)
            devices.setdefault(each.data.pod.name, set()).add(each.of.entity)
        assert all(len(found) == 1 for found in devices.values())

    async def test_a_released_engine_is_said_and_given_again(self, node: Node, kubelet: Kubelet) -> None:
        assert await kubelet.admit("a", {"main": {GPU: 3}}) == ""
        await node.said(world.Bound, count=3)
        assert await kubelet.admit("b", {"main": {GPU: 1}}) != ""
        await kubelet.end("a")
        released = await node.said(world.Released, count=3)
        assert {each.of.entity for each in released} == {A, B, C}
        assert await kubelet.admit("c", {"main": {GPU: 3}}) == ""

    async def test_a_finished_pods_ids_are_given_again_before_anybody_noticed(
        self, node: Node, kubelet: Kubelet
    ) -> None:
        assert await kubelet.admit("a", {"main": {GPU: 3}}) == ""
        await node.said(world.Bound, count=3)
        node.bridge.allocator._policy = node.bridge.allocator._policy.__class__(settle=timedelta(0), slots=2)
        await kubelet.end("a")
        assert await kubelet.admit("b", {"main": {GPU: 3}}) == ""

    async def test_an_id_that_a_pod_holds_is_refused_to_a_second_one(
        self, node: Node, kubelet: Kubelet
    ) -> None:
        assert await kubelet.admit("a", {"main": {GPU: 3}}) == ""
        await node.said(world.Bound, count=3)
        async with grpc.aio.insecure_channel(f"unix:{kubelet.plugins}/mediafleet-gpu.sock") as channel:
            stub: api_grpc.DevicePluginAsyncStub = api_grpc.DevicePluginStub(channel)
            request = api.ContainerAllocateRequest(devices_ids=[A])
            with pytest.raises(grpc.aio.AioRpcError, match=f"in use: {A} of {GPU} by pod live/a"):
                await stub.Allocate(api.AllocateRequest(container_requests=[request]))
            with pytest.raises(grpc.aio.AioRpcError, match="2 containers in one Allocate"):
                await stub.Allocate(api.AllocateRequest(container_requests=[request, request]))
            assert await stub.PreStartContainer(api.PreStartContainerRequest()) is not None
        (refused,) = await node.said(world.AllocationRefused)
        assert refused.of.entity == A

    async def test_a_quarantined_device_is_refused_even_if_the_kubelet_chose_before_it_knew(
        self, node: Node, kubelet: Kubelet
    ) -> None:
        await node.tell(A, quarantined())
        await kubelet.until(lambda: A not in healthy(kubelet, GPU))
        async with grpc.aio.insecure_channel(f"unix:{kubelet.plugins}/mediafleet-gpu.sock") as channel:
            stub: api_grpc.DevicePluginAsyncStub = api_grpc.DevicePluginStub(channel)
            request = api.ContainerAllocateRequest(devices_ids=[A])
            with pytest.raises(grpc.aio.AioRpcError, match="quarantined"):
                await stub.Allocate(api.AllocateRequest(container_requests=[request]))

    async def test_an_init_containers_device_serves_the_containers_after_it(
        self, node: Node, kubelet: Kubelet
    ) -> None:
        assert await kubelet.admit("a", {"init": {GPU: 1}, "main": {GPU: 1}}) == ""
        assert len(kubelet.held("a")) == 1
        (bound,) = await node.said(world.Bound)
        assert isinstance(bound.data, world.Bound)
        assert bound.data.container == "main"

    async def test_allocations_survive_a_crash_of_the_bridge_and_a_lost_ledger(
        self, start: Start, kubelet: Kubelet, root: Path
    ) -> None:
        async with start() as node:
            await node.register(*DEVICES)
            await kubelet.until(lambda: len(healthy(kubelet, GPU)) == 3)
            assert await kubelet.admit("a", {"main": {GPU: 2}}) == ""
            await node.said(world.Bound, count=2)
        for lost in (False, True):
            if lost:
                (root / "state/bridge/ledger.json").write_text("{")
            async with start() as node:
                await kubelet.until(lambda: len(healthy(kubelet, GPU)) == 3)
                await node.said(world.AllocationsStated)
                await kubelet.until(lambda: len(list(node.bridge.allocator.ledger.live)) == 2)
                assert {str(each.pod) for each in node.bridge.allocator.ledger.live} == {"live/a"}


class TestFencing:
    async def test_a_quarantine_is_answered_with_its_holders_once_the_kubelet_knows(
        self, node: Node, kubelet: Kubelet
    ) -> None:
        assert await kubelet.admit("a", {"main": {GPU: 3}}) == ""
        cause = await node.tell(A, quarantined(7))
        (fenced,) = await node.said(world.Fenced)
        assert isinstance(fenced.data, world.Fenced)
        assert (fenced.of.entity, fenced.epoch, fenced.causationid) == (A, 7, cause.id)
        assert [(pod.name, pod.uid) for pod in fenced.data.holders] == [("a", kubelet.uid("a"))]
        assert fenced.data.as_of.boot_id == "boot-1"
        await kubelet.until(lambda: A not in healthy(kubelet, GPU))

    async def test_a_quarantine_of_one_engine_names_only_its_holders(
        self, node: Node, kubelet: Kubelet
    ) -> None:
        assert await kubelet.admit("a", {"main": {NVENC: 1}}) == ""
        (bound,) = await node.said(world.Bound)
        assert isinstance(bound.data, world.Bound)
        busy = bound.data.slots[0].engine
        other = next(e for e in (f"{bound.of.entity}-enc-0", f"{bound.of.entity}-enc-1") if e != busy)
        await node.tell(bound.of.entity, quarantined(1, other))
        (fenced,) = await node.said(world.Fenced)
        assert isinstance(fenced.data, world.Fenced)
        assert fenced.data.holders == ()
        await node.tell(bound.of.entity, quarantined(2, busy))
        both = await node.said(world.Fenced, count=2)
        assert isinstance(both[1].data, world.Fenced)
        assert [pod.name for pod in both[1].data.holders] == ["a"]

    async def test_a_quarantine_without_a_kubelet_waits_for_it(self, node: Node, kubelet: Kubelet) -> None:
        assert await kubelet.admit("a", {"main": {GPU: 3}}) == ""
        await node.said(world.Bound, count=3)
        await kubelet.stop()
        await node.tell(A, quarantined())
        await kubelet.start()
        (fenced,) = await node.said(world.Fenced)
        assert isinstance(fenced.data, world.Fenced)
        assert [pod.name for pod in fenced.data.holders] == ["a"]
