"""The service as its process runs it: the host around it, and the Kubernetes API over a real socket."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from services.remediation.record import CaseView
from services.remediation.service import run
from services.remediation.settings import RemediationSettings
from services.simulator.api.resources import NODES, PODS, REMEDIATION_POLICIES
from services.simulator.api.server import ApiServer
from shared.bus.memory import MemoryBus
from shared.events import remediation as say
from shared.events.parts import PodRef
from shared.host import Host, SharedSettings
from tests.integration.remediation.remediation_site import DEVICE, NODE, Site, policy


@asynccontextmanager
async def serving(
    policy_file: Path | None = None, policy_spec: dict[str, Any] | None = None
) -> AsyncIterator[tuple[Site, ApiServer]]:
    """A site whose replica is the whole service, against the simulated API server."""
    server = ApiServer(bookmark_s=0.05)
    await server.start()
    server.store.create(NODES, "", {"metadata": {"name": NODE}})
    if policy_spec is not None:
        server.store.create(REMEDIATION_POLICIES, "", {"metadata": {"name": "default"}, "spec": policy_spec})
    site = Site(policy())
    shared = SharedSettings(kube_url=server.url, instance="http", policy_file=policy_file)
    host = Host("remediation", shared, site.clock, MemoryBus(site.server, "remediation"))
    own = RemediationSettings(policy_look_s=0.05)
    site.resume(replica=False)
    service = asyncio.create_task(run(host, own), name="remediation")
    try:
        yield site, server
    finally:
        service.cancel()
        await asyncio.gather(service, return_exceptions=True)
        await site.pause()
        await server.stop()


async def test_a_struck_out_device_s_pod_is_evicted_through_the_real_client() -> None:
    async with serving() as (site, server):
        body = {
            "metadata": {"name": "clips"},
            "spec": {"nodeName": NODE, "containers": [{"name": "c", "image": "i"}]},
        }
        made = server.store.create(PODS, "default", body)
        site.node.holders = [PodRef(namespace="default", name="clips", uid=made["metadata"]["uid"])]
        await site.node.strike_out()
        await site.said("pod-evicted", within_s=20)
        evicted = next(fact.data for fact in site.facts if isinstance(fact.data, say.PodEvicted))
        assert (evicted.outcome, evicted.status) == ("evicted", 201)
        asked = server.access_log.find("create", "pods/clips/eviction")
        assert [access.status for access in asked] == [201]
        entry = None
        async with asyncio.timeout(10):
            while entry is None or entry.value is None or not entry.value.left + entry.value.evicted:
                await asyncio.sleep(0.05)
                entry = await site.watch.view("cases", CaseView).get(DEVICE.about)
        assert entry.value.epoch == 1
        assert entry.value.strikes == "3/3"
        await site.until(lambda: bool(server.access_log.find("create", "events")), within_s=10)


async def test_a_policy_file_that_changes_is_followed(tmp_path: Path) -> None:
    path = tmp_path / "policy.yaml"
    path.write_text("remediation: {strikes: {count: 9}}\n", encoding="utf-8")
    async with serving(path) as (site, _):
        await site.node.strike_out()
        await site.until(lambda: site.names().count("struck") == 3, within_s=20)
        assert "quarantined" not in site.names()
        path.write_text("remediation: {strikes: {count: 2}}\n", encoding="utf-8")
        os.utime(path, (1, 1))
        await asyncio.sleep(0.2)
        await site.node.report()
        await site.said("quarantined", within_s=20)


async def test_a_policy_resource_wins_over_the_file_and_is_followed(tmp_path: Path) -> None:
    path = tmp_path / "policy.yaml"
    path.write_text("remediation: {strikes: {count: 2}}\n", encoding="utf-8")
    async with serving(path, {"strikes": {"count": 9}}) as (site, server):
        await site.node.strike_out()
        await site.until(lambda: site.names().count("struck") == 3, within_s=20)
        assert "quarantined" not in site.names()
        server.store.modify(
            REMEDIATION_POLICIES, "", "default", lambda body: body.update(spec={"strikes": {"count": 3}})
        )
        await site.until(lambda: accepted(server) == ("True", 2), within_s=10)
        await site.node.report()
        await site.said("quarantined", within_s=20)


def accepted(server: ApiServer) -> tuple[str, int]:
    """The policy's condition, and of which generation it speaks."""
    status = server.store.get(REMEDIATION_POLICIES, "", "default").get("status") or {}
    condition: dict[str, Any] = next(iter(status.get("conditions", ())), {})
    return condition.get("status", ""), condition.get("observedGeneration", 0)


async def test_a_replica_too_old_for_a_log_leaves_the_lease_to_others() -> None:
    async with serving() as (site, _):
        newer = DEVICE.address("reimagined")
        body = f'{{"id": "x", "type": "io.mediafleet.remediation.reimagined.v1", "subject": "{newer.about}"}}'
        site.server.store(newer.subject, body.encode())
        await site.node.report()
        seats = site.server.seats
        await site.until(lambda: "remediation" in seats and seats["remediation"].released, within_s=20)
        assert site.names() == []
