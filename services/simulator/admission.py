"""How a kubelet gives devices to a pod: container by container, resource by resource, then one Allocate each.

Follows the kubelet's device manager (k/k pkg/kubelet/cm/devicemanager/manager.go, `devicesToAllocate` and
`allocateContainerResources`). What surprises plugin authors is kept: each resource is chosen on its own, the
plugin's preference is asked only while a choice remains, its error fails the pod, Allocate has no deadline,
and a resource the kubelet has never heard of is ignored.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from services.simulator import pods
from services.simulator.device_sets import DeviceSets, Entry
from shared.errors import Permanent

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from services.simulator.plugin_endpoint import PluginEndpoint

REASON = "UnexpectedAdmissionError"
"""The reason of a pod whose devices could not be given."""


async def allocate(
    pod: pods.PodJson,
    sets: DeviceSets,
    endpoints: Mapping[str, PluginEndpoint],
    entered: Callable[[], None] = lambda: None,
) -> bool:
    """Give every container of the pod its devices; says whether there was anything to give.

    Args:
        pod: the pod.
        sets: what the kubelet knows; what is given is held in them.
        endpoints: the connected plugins.
        entered: called after each container that was given something: the kubelet writes its checkpoint then.

    Raises:
        Permanent: the pod cannot be admitted; the reason is the kubelet's message. What it already got stays
        held
            until the next admission collects it, as in the kubelet.
    """
    pod_uid = pods.uid_of(pod)
    reusable: dict[str, set[str]] = {}
    given = False
    for container in pods.containers(pod):
        given_here = False
        for resource, needed in container.limits.items():
            if resource not in sets.resources:
                continue
            if _already_held(sets, pod_uid, container.name, resource, needed):
                continue
            try:
                ids = await _choose(sets, endpoints, resource, needed, reusable.get(resource, set()))
                endpoint = endpoints.get(resource)
                if endpoint is None:
                    raise Permanent(f"unknown Device Plugin {resource}")  # noqa: TRY301 - one place adds the frame
                response = await endpoint.allocate(sorted(ids))
            except Permanent as refused:
                raise Permanent(f"Allocate failed due to {refused.reason}, which is unexpected") from refused
            numa = sets.by_numa(resource, ids)
            sets.hold(Entry(pod_uid, container.name, resource, numa, response.SerializeToString()))
            given = given_here = True
            pool = reusable.setdefault(resource, set())
            if container.init and not container.sidecar:
                pool |= ids
            else:
                pool -= ids
        if given_here:
            entered()
    return given


def _already_held(sets: DeviceSets, pod_uid: str, container: str, resource: str, needed: int) -> bool:
    """Whether the checkpoint remembers this container (the node booted anew): Allocate is not repeated.

    Raises:
        Permanent: what it held is not there or not healthy any more.
    """
    held = sets.entries.get((pod_uid, container, resource))
    if held is None:
        return False
    healthy = sets.resources[resource].healthy
    if not healthy:
        problem = f"no healthy devices present; cannot allocate unhealthy devices {resource}"
    elif not held.ids <= healthy:
        problem = "previously allocated devices are no longer healthy; "
        problem += f"cannot allocate unhealthy devices {resource}"
    else:
        return len(held.ids) >= needed
    raise Permanent(f"Allocate failed due to {problem}, which is unexpected")


async def _choose(
    sets: DeviceSets, endpoints: Mapping[str, PluginEndpoint], resource: str, needed: int, reusable: set[str]
) -> set[str]:
    chosen = set(sorted(reusable)[:needed])
    missing = needed - len(chosen)
    if missing == 0:
        return chosen
    available = sets.free(resource, missing)
    endpoint = endpoints.get(resource)
    if missing < len(available) and endpoint and endpoint.options.get_preferred_allocation_available:
        wished = await endpoint.preferred(sorted(available | chosen), sorted(chosen), needed)
        # A wish is only a wish: what is not free is passed over, what is missing is filled up.
        chosen |= set([one for one in wished if one in available and one not in chosen][:missing])
    rest = sorted(available - chosen)
    return chosen | set(rest[: needed - len(chosen)])


async def pre_start(pod: pods.PodJson, sets: DeviceSets, endpoints: Mapping[str, PluginEndpoint]) -> None:
    """Call PreStartContainer for every plugin that asked for it.

    Raises:
        Permanent: a plugin refused; the container cannot start.
    """
    for entry in sets.of_pod(pods.uid_of(pod)):
        endpoint = endpoints.get(entry.resource)
        if endpoint is not None:
            await endpoint.pre_start(sorted(entry.ids))
