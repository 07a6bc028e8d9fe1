"""The startup taint: a new node takes no pod before its devices are there.

A node with accelerators joins with the taint (its pool or kubelet puts it there). It goes when the kubelet
offers the first resource of ours, which it does once the bridge has registered with it. Nothing else of the
node is looked at: neither bus nor memory is needed, and a node that comes back under its name is a new one.
"""

from __future__ import annotations

import asyncio
from contextlib import aclosing

import structlog

from shared.errors import FleetError, Temporary
from shared.kube.models import ChangeKind, Keep, Node
from shared.kube.port import Kube

_AGAIN_S = 1.0
_KEEP = Keep(labels=frozenset(), annotations=frozenset())

log = structlog.get_logger(__name__)


def may_open(node: Node, taint: str, domain: str) -> bool:
    """Whether the node has the startup taint and its kubelet offers a resource of ours."""
    offered = any(name.startswith(f"{domain}/") and amount > 0 for name, amount in node.allocatable.items())
    return offered and any(each.key == taint for each in node.taints)


class Startup:
    """Takes the startup taint from nodes whose devices are registered."""

    def __init__(self, kube: Kube, *, taint: str, domain: str) -> None:
        """Args: taint: its key; empty: there is none. domain: of our resources."""
        self._kube = kube
        self._taint = taint
        self._domain = domain

    async def run(self) -> None:
        """Watch nodes for ever; where that is not allowed, say so and leave taints to a person."""
        if self._taint:
            try:
                await self._watch()
            except FleetError as error:
                log.error("startup taints stay: nodes cannot be watched", reason=str(error))
        await asyncio.Event().wait()

    async def _watch(self) -> None:
        async with aclosing(self._kube.watch_nodes(keep=_KEEP)) as changes:
            async for change in changes:
                node = change.item
                if node is None or change.kind is ChangeKind.DELETED:
                    continue
                if may_open(node, self._taint, self._domain):
                    await self._open(node.name)

    async def _open(self, node: str) -> None:
        while True:
            try:
                if await self._kube.remove_taint(node, self._taint):
                    log.info("startup taint taken away", node=node)
            except Temporary as error:
                log.warning("startup taint stays for now", node=node, reason=str(error))
                await asyncio.sleep(error.delay_s or _AGAIN_S)
            except FleetError as error:
                log.error("startup taint stays", node=node, reason=str(error))
                return
            else:
                return
