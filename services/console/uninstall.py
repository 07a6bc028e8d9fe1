"""Take away what mediafleet wrote into a cluster: first found and shown, then removed thing by thing.

Only what is ours by name goes: taints by their keys, labels that the manager writes (not those that people
set for us to read, such as the rack), capacity below our domain, a floor that the autoscaler lent an HPA, and
our custom resources. Pods are left alone. What cannot be removed is told and the rest goes on.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, replace

import orjson

from shared.errors import FleetError
from shared.kube.models import Hpa, Node, Pod
from shared.kube.port import Kube
from shared.kube.requests import POLICY_PLURALS, VERSION

STARTUP_TAINT = "startup-taint.cluster-autoscaler.kubernetes.io/mediafleet-devices"
"""The manager's default."""
PART_OF = "app.kubernetes.io/part-of=mediafleet"
"""Labels of our own pods."""
_FLOOR = "min-replicas-lease"


@dataclass(frozen=True, slots=True)
class Step:
    """One thing to remove, and what became of it.

    Attributes:
        what: taint, label, capacity, hpa floor, a custom resource's kind, or definition.
        of: the object that it is, or is on.
        name: which one on it; empty when it is the object itself.
        outcome: planned, removed, gone or failed.
        detail: why it failed.
    """

    what: str
    of: str
    name: str = ""
    outcome: str = "planned"
    detail: str = ""


class Uninstall:
    """Finds and removes; knows no terminal."""

    def __init__(self, kube: Kube, *, domain: str, startup_taint: str, definitions: bool) -> None:
        """Args: definitions: remove the definitions of custom resources too."""
        self._kube = kube
        self._domain = domain
        self._taints = {f"{domain}/device-quarantine", startup_taint} - {""}
        self._definitions = definitions
        self._hpas: dict[str, Hpa] = {}

    async def running(self) -> list[Pod]:
        """Pods of ours that still run, and would write again what is removed."""
        return [pod for pod in await self._kube.pods(labels=PART_OF) if not pod.terminal]

    async def plan(self) -> list[Step]:
        """Everything that there is to remove.

        Raises:
            FleetError: the API server could not be asked.
        """
        self._hpas = {
            f"{hpa.namespace}/{hpa.name}": hpa
            for hpa in await self._kube.hpas()
            if f"{self._domain}/{_FLOOR}" in hpa.annotations
        }
        steps = [Step("hpa floor", of, f"{self._domain}/{_FLOOR}") for of in sorted(self._hpas)]
        for node in sorted(await self._kube.nodes(), key=lambda node: node.name):
            steps += self._on_node(node)
        for kind in POLICY_PLURALS:
            steps += [Step(kind, policy.name) for policy in await self._kube.policies(kind)]
        if f"{self._domain}/{VERSION}" in await self._kube.api_versions():
            steps += [Step("MediaResource", each.name) for each in await self._kube.media_resources()]
        if self._definitions:
            defined = await self._kube.definitions()
            steps += [Step("definition", f"{plural}.{self._domain}", plural) for plural in defined]
        return steps

    def _on_node(self, node: Node) -> Iterable[Step]:
        keys = sorted({taint.key for taint in node.taints} & self._taints)
        yield from (Step("taint", node.name, key) for key in keys)
        yield from (Step("label", node.name, key) for key in sorted(node.labels) if self._is_our_label(key))
        ours = f"{self._domain}/"
        yield from (Step("capacity", node.name, key) for key in sorted(node.capacity) if key.startswith(ours))

    def _is_our_label(self, key: str) -> bool:
        domain, _, name = key.rpartition("/")
        return domain == self._domain and (name in ("gpu-vendor", "gpu-model") or name.startswith("vendor-"))

    async def carry_out(self, steps: Iterable[Step], tell: Callable[[Step], None]) -> list[Step]:
        """Remove every step's thing; what became of each."""
        done = []
        for step in steps:
            try:
                there = await self._remove(step)
            except FleetError as error:
                done.append(replace(step, outcome="failed", detail=str(error)))
            else:
                done.append(replace(step, outcome="removed" if there else "gone"))
            tell(done[-1])
        return done

    async def _remove(self, step: Step) -> bool:
        match step.what:
            case "taint":
                return await self._kube.remove_taint(step.of, step.name)
            case "label":
                return await _done(self._kube.patch_node_labels(step.of, {step.name: None}))
            case "capacity":
                return await _done(self._kube.patch_node_capacity(step.of, {step.name: None}))
            case "hpa floor":
                return await self._give_back(self._hpas[step.of], step.name)
            case "MediaResource":
                return await self._kube.delete_media_resource(step.of)
            case "definition":
                return await self._kube.delete_definition(step.name)
            case "RemediationPolicy" | "GuardianPolicy" as kind:
                return await self._kube.delete_policy(kind, step.of)
        raise ValueError(step.what)

    async def _give_back(self, hpa: Hpa, annotation: str) -> bool:
        """The floor as it was before it was lent, unless somebody has set another meanwhile."""
        floor = hpa.min_replicas
        try:
            lent = orjson.loads(hpa.annotations[annotation])
            if lent["raised"] == floor:
                floor = int(lent["before"])
        except (ValueError, KeyError, TypeError):
            pass  # somebody broke the annotation: it goes, and the floor stays what it is
        await self._kube.patch_hpa_min(
            hpa.namespace,
            hpa.name,
            floor,
            {annotation: None},
            expected_resource_version=hpa.resource_version,
        )
        return True


async def _done(write: Awaitable[None]) -> bool:
    await write
    return True
