"""The kubelet's pod-resources service (v1): which container holds which device ids.

One answer row per id, as the kubelet gives it; pods that ended are left out; GetAllocatableResources names
unhealthy ids too (k/k #104122), so a reader needs its own health.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import grpc
import grpc.aio

from protos import podresources_v1_pb2 as pb
from protos import podresources_v1_pb2_grpc as pb_grpc
from services.simulator import pods
from services.simulator.device_sets import NO_NUMA, DeviceSets, Entry

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence

    AioContext = grpc.aio.ServicerContext[object, object]


class PodResources(pb_grpc.PodResourcesListerServicer):
    """Serves from the kubelet's memory; reads nothing else."""

    def __init__(
        self, sets: Callable[[], DeviceSets], active: Callable[[], Collection[pods.PodJson]]
    ) -> None:
        self._sets = sets
        self._active = active

    async def List(  # noqa: N802 - the contract's name
        self,
        request: pb.ListPodResourcesRequest,  # noqa: ARG002 - the contract's signature
        context: AioContext,  # noqa: ARG002 - the contract's signature
    ) -> pb.ListPodResourcesResponse:
        """All active pods, those without devices too."""
        return pb.ListPodResourcesResponse(pod_resources=[self._of(pod) for pod in self._active()])

    async def Get(  # noqa: N802 - the contract's name
        self, request: pb.GetPodResourcesRequest, context: AioContext
    ) -> pb.GetPodResourcesResponse:
        """One pod by name; an unknown one is an error of code UNKNOWN, as a Go error without code is."""
        for pod in self._active():
            if pods.name_of(pod) == (request.pod_namespace, request.pod_name):
                return pb.GetPodResourcesResponse(pod_resources=self._of(pod))
        text = f"pod {request.pod_name} in namespace {request.pod_namespace} not found"
        await context.abort(grpc.StatusCode.UNKNOWN, text)
        raise AssertionError(text)

    async def GetAllocatableResources(  # noqa: N802 - the contract's name
        self,
        request: pb.AllocatableResourcesRequest,  # noqa: ARG002 - the contract's signature
        context: AioContext,  # noqa: ARG002 - the contract's signature
    ) -> pb.AllocatableResourcesResponse:
        """Every id of every resource, unhealthy ones too."""
        rows = [
            _row(resource, one, sets.topology.get(one, ()))
            for resource, sets in self._sets().resources.items()
            for one in sorted(sets.healthy | sets.unhealthy)
        ]
        return pb.AllocatableResourcesResponse(devices=rows)

    def _of(self, pod: pods.PodJson) -> pb.PodResources:
        namespace, name = pods.name_of(pod)
        held = self._sets().of_pod(pods.uid_of(pod))
        return pb.PodResources(
            name=name,
            namespace=namespace,
            containers=[
                pb.ContainerResources(name=container.name, devices=_rows(held, container.name))
                for container in pods.containers(pod)
                if not container.init or container.sidecar
            ],
        )


def _rows(held: Iterable[Entry], container: str) -> list[pb.ContainerDevices]:
    nodes: dict[tuple[str, str], list[int]] = {}
    for entry in held:
        if entry.container == container:
            for node, ids in entry.numa.items():
                for one in ids:
                    nodes.setdefault((entry.resource, one), []).append(node)
    return [_row(resource, one, numa) for (resource, one), numa in sorted(nodes.items())]


def _row(resource: str, device_id: str, numa: Sequence[int]) -> pb.ContainerDevices:
    known = [pb.NUMANode(ID=node) for node in numa if node != NO_NUMA]
    return pb.ContainerDevices(
        resource_name=resource,
        device_ids=[device_id],
        topology=pb.TopologyInfo(nodes=known) if known else None,
    )
