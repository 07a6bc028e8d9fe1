"""Devices and machines change in the middle of a case."""

from __future__ import annotations

import asyncio

import pytest

from shared.events import device
from shared.events import remediation as say
from tests.chaos.site import NODES, Site

pytestmark = [pytest.mark.chaos, pytest.mark.asyncio(loop_scope="session")]


async def test_a_replaced_device_and_a_rebooted_node_each_come_to_an_end(site: Site) -> None:
    await asyncio.gather(_replaced(site), _rebooted(site))


async def _replaced(site: Site) -> None:
    """The old board's case closes; the new one is validated before anybody may use it."""
    sick = await site.occupy(NODES[0], 1)
    await site.fault(sick, "lost")
    await site.said(say.RepairRequested, sick.about, since=sick.heard_at)
    await site.fault(sick, "replace", serial="1650000000001")
    await site.said(
        device.Registered, sick.about, since=sick.heard_at, where=lambda e: e.device.serial == "1650000000001"
    )
    closed = await site.said(say.Closed, sick.about, since=sick.heard_at)
    assert isinstance(closed.data, say.Closed)
    assert closed.data.reason == "replaced"
    following = closed.data.epoch + 1
    opened = await site.said(
        say.Opened, sick.about, since=sick.heard_at, where=lambda e: e.epoch == following
    )
    assert isinstance(opened.data, say.Opened)
    assert (opened.data.state, opened.data.serial) == ("validating", "1650000000001")
    await site.said(say.Closed, sick.about, since=sick.heard_at, where=lambda e: e.epoch == following)
    await site.until(f"{sick.about} is offered again", lambda: bool(site.now.healthy[sick.about]))
    assert await site.evicted(sick) == list(sick.pods.values())


async def _rebooted(site: Site) -> None:
    """The machine goes down with its agents while its pods are being evicted."""
    sick = await site.occupy(NODES[1], 2, labels={"chaos": "rebooted"})
    await site.protect("rebooted", {"chaos": "rebooted"}, 99)
    await site.break_fatally(sick)
    await site.said(say.PodEvicted, sick.about, since=sick.heard_at)
    agents = [f"{service}@{sick.node}" for service in ("discovery", "bridge")]
    await asyncio.gather(*(site.stage.kill(agent) for agent in agents))
    await site.restart_kubelet(sick.node, action="reboot", down_s=0.3)
    for agent in agents:
        await site.stage.again(agent)
    await site.heal(sick)
    await site.unprotect("rebooted")
    await site.closed(sick)
