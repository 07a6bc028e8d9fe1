"""Policies as custom resources: which one is in force, and what the resource says about it."""

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from random import Random
from typing import Any, Final

import pytest

from services.guardian.policy import GuardianPolicy
from services.simulator.api.faults import Fault
from services.simulator.api.resources import EVENTS, GUARDIAN_POLICIES
from services.simulator.api.server import ApiServer
from shared.clock import SystemClock
from shared.host.cluster_policy import ClusterPolicy
from shared.host.policy import PolicyFile
from shared.host.tasks import together
from shared.kube.client import KubeClient, connect

KIND: Final = "GuardianPolicy"
GOOD = {"dry_run": False, "grace_s": 40}
BAD = {"dry_run": False, "breach_of": 0, "no_such_field": 1}


class Site:
    """An API server, and as many processes with a policy as a test wants."""

    def __init__(self, server: ApiServer, kube: KubeClient, file: Path) -> None:
        self.server, self.kube = server, kube
        self.file = file
        self.tasks: list[asyncio.Task[None]] = []

    def process(self, *, active: bool = True, name: str = "default") -> ClusterPolicy[GuardianPolicy]:
        file = PolicyFile(self.file, "guardian", GuardianPolicy)
        policy = ClusterPolicy(file, KIND, SystemClock(), name=name)
        parts = {"watch": policy.watch(lambda: self.kube.watch_policies(KIND))}
        if active:
            parts["answer"] = policy.answer(self.kube.patch_policy_status, self.kube.record_event)
        self.tasks.append(asyncio.create_task(together(**parts), name="process"))
        return policy

    async def stop(self) -> None:
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        self.tasks.clear()

    def apply(self, spec: dict[str, Any]) -> None:
        body = {"metadata": {"name": "default"}, "spec": spec}
        found = self.server.store.find(GUARDIAN_POLICIES, "", "default")
        if found is None:
            self.server.store.create(GUARDIAN_POLICIES, "", body)
        else:
            body["metadata"]["resourceVersion"] = found["metadata"]["resourceVersion"]
            self.server.store.replace(GUARDIAN_POLICIES, "", "default", body)

    def status(self) -> dict[str, Any]:
        return dict(self.server.store.get(GUARDIAN_POLICIES, "", "default").get("status") or {})

    def condition(self) -> dict[str, Any]:
        return dict(next(iter(self.status().get("conditions", ())), {}))

    def events(self) -> list[tuple[str, str, str]]:
        found = self.server.store.each(EVENTS)
        return [(each["type"], each["reason"], each["regarding"]["kind"]) for each in found]

    async def until(self, holds: Callable[[], object]) -> None:
        async with asyncio.timeout(10):
            while not holds():  # noqa: ASYNC110 - what is waited for is on the other side of a socket
                await asyncio.sleep(0.01)


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    server = ApiServer(random=Random(1), bookmark_s=0.2)  # noqa: S311 - uids of a simulation
    file = tmp_path / "policy.yaml"
    file.write_text("guardian: {grace_s: 20}\n", encoding="utf-8")
    async with connect(await server.start(), component="mediafleet-guardian") as kube:
        made = Site(server, kube, file)
        yield made
        await made.stop()
    await server.stop()


async def test_without_a_resource_the_file_is_in_force_as_soon_as_that_is_known(site: Site) -> None:
    policy = site.process()
    async with asyncio.timeout(5):
        await policy.known()
    assert policy.current().grace_s == 20


async def test_a_resource_wins_over_the_file_until_it_is_deleted(site: Site) -> None:
    site.apply(GOOD)
    policy = site.process()
    async with asyncio.timeout(5):
        await policy.known()
    assert (policy.current().dry_run, policy.current().grace_s) == (False, 40)
    await site.until(lambda: site.condition().get("status") == "True")
    assert site.condition()["type"] == "Accepted"
    assert (site.condition()["observedGeneration"], site.condition()["reason"]) == (1, "Valid")
    assert site.status()["observedGeneration"] == 1
    await site.kube.delete_policy(KIND, "default")
    await site.until(lambda: policy.current().grace_s == 20)


async def test_a_bad_one_leaves_the_last_good_one_in_force_and_says_what_to_correct(site: Site) -> None:
    site.apply(GOOD)
    policy = site.process()
    await site.until(lambda: site.condition().get("status") == "True")
    site.apply(BAD)
    await site.until(lambda: site.condition().get("status") == "False")
    condition = site.condition()
    assert policy.current().grace_s == 40
    assert (condition["reason"], condition["observedGeneration"]) == ("Invalid", 2)
    assert "spec.breach_of: Input should be greater than or equal to 1" in condition["message"]
    assert "spec.no_such_field: " in condition["message"]
    assert "until then generation 1 stays in force" in condition["message"]
    await site.until(lambda: ("Warning", "PolicyRefused", KIND) in site.events())
    site.apply({**GOOD, "grace_s": 50})
    await site.until(lambda: site.condition().get("status") == "True")
    assert policy.current().grace_s == 50
    assert site.status()["lastGood"] == {"generation": 3, "spec": {"dry_run": False, "grace_s": 50}}


async def test_the_last_good_one_outlives_the_process(site: Site) -> None:
    site.apply(GOOD)
    site.process()
    await site.until(lambda: site.condition().get("status") == "True")
    await site.stop()
    site.apply(BAD)
    policy = site.process()
    async with asyncio.timeout(5):
        await policy.known()
    assert policy.current().grace_s == 40
    await site.until(lambda: site.condition().get("status") == "False")
    assert "generation 1 stays in force" in site.condition()["message"]


async def test_a_bad_one_that_was_never_good_leaves_the_file_in_force(site: Site) -> None:
    site.apply(BAD)
    policy = site.process()
    await site.until(lambda: site.condition().get("status") == "False")
    assert policy.current().grace_s == 20
    assert "until then the policy file stays in force" in site.condition()["message"]


async def test_a_remembered_policy_that_is_not_valid_any_more_is_not_put_in_force(site: Site) -> None:
    site.apply(BAD)
    status = {"lastGood": {"generation": 1, "spec": {"field_of_an_older_version": 1}}}
    await site.kube.patch_policy_status(KIND, "default", status)
    policy = site.process()
    await site.until(lambda: site.condition().get("status") == "False")
    assert policy.current().grace_s == 20
    assert "lastGood" not in site.status()


async def test_a_replica_that_stands_by_follows_and_writes_nothing(site: Site) -> None:
    policy = site.process(active=False)
    site.apply(GOOD)
    await site.until(lambda: policy.current().grace_s == 40)
    assert site.status() == {}
    assert site.events() == []


async def test_a_second_start_writes_nothing_that_stands_already(site: Site) -> None:
    site.apply(GOOD)
    site.process()
    await site.until(site.events)
    await site.stop()
    policy = site.process()
    async with asyncio.timeout(5):
        await policy.known()
    await site.until(lambda: policy.current().grace_s == 40)
    site.apply({**GOOD, "grace_s": 41})
    await site.until(lambda: site.status().get("observedGeneration") == 2)
    written = site.server.access_log.find("patch", "guardianpolicies/default/status")
    assert len(written) == 2


async def test_a_server_without_the_kind_leaves_the_file_in_force(site: Site) -> None:
    site.server.faults.inject(Fault(path="guardianpolicies", times=100, status=404))
    policy = site.process()
    async with asyncio.timeout(5):
        await policy.known()
    assert policy.current().grace_s == 20


async def test_nothing_is_known_while_the_server_does_not_answer(site: Site) -> None:
    site.server.faults.inject(Fault(path="guardianpolicies", times=2, status=503))
    site.apply(GOOD)
    policy = site.process()
    async with asyncio.timeout(10):
        await policy.known()
    assert policy.current().grace_s == 40


async def test_a_status_that_the_server_does_not_take_is_written_later(site: Site) -> None:
    site.server.faults.inject(Fault(verb="patch", path="guardianpolicies", times=1, status=503))
    site.apply(GOOD)
    site.process()
    await site.until(lambda: site.condition().get("status") == "True")


async def test_without_a_name_only_the_file_counts(site: Site) -> None:
    site.apply(GOOD)
    policy = site.process(name="")
    async with asyncio.timeout(5):
        await policy.known()
    assert policy.current().grace_s == 20
