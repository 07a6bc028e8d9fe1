"""What our client makes of a server that refuses, hangs, throttles, forgets or is gone."""

import asyncio
import subprocess
import sys
from collections.abc import Callable
from contextlib import aclosing
from typing import Any

import pytest

from services.simulator.api.faults import Fault
from services.simulator.api.resources import PODS
from services.simulator.api.server import ApiServer
from shared.errors import Permanent, Temporary
from shared.kube.client import KubeClient, connect
from shared.kube.models import ChangeKind, EvictionOutcome, ObjectRef, PodRef, Taint
from shared.kube.port import StaleWrite

A = PodRef("default", "a", "")


async def test_a_server_that_hangs_is_temporary_within_the_deadline(
    server: ApiServer, kube: KubeClient
) -> None:
    server.faults.inject(Fault(verb="list", path="/pods", hang_s=30))
    started_s = asyncio.get_running_loop().time()
    with pytest.raises(Temporary, match="no answer"):
        await kube.pods()
    assert asyncio.get_running_loop().time() - started_s < 2


async def test_a_server_that_is_gone_is_temporary(server: ApiServer, kube: KubeClient) -> None:
    await server.stop()
    with pytest.raises(Temporary, match="cannot be reached"):
        await kube.pods()


@pytest.mark.parametrize(
    ("status", "error"), [(500, Temporary), (503, Temporary), (403, Permanent), (409, StaleWrite)]
)
async def test_a_refused_write_is_the_right_kind_of_error(
    server: ApiServer, kube: KubeClient, node: str, status: int, error: type[Exception]
) -> None:
    server.faults.inject(Fault(verb="patch", status=status))
    with pytest.raises(error):
        await kube.patch_node_labels(node, {"a": "b"})


@pytest.mark.parametrize(
    ("fault", "outcome"),
    [
        (Fault(status=429, budget=True), EvictionOutcome.BLOCKED),
        (Fault(status=429, retry_after_s=1), EvictionOutcome.THROTTLED),
        (Fault(status=500), EvictionOutcome.FAILED),
        (Fault(status=504), EvictionOutcome.FAILED),
        (Fault(status=403), EvictionOutcome.FAILED),
        (Fault(status=409), EvictionOutcome.THROTTLED),  # a race of writers, not another pod
    ],
)
async def test_an_evictions_answer_is_classified(
    server: ApiServer, kube: KubeClient, fault: Fault, outcome: EvictionOutcome
) -> None:
    fault.path = "/eviction"
    server.faults.inject(fault)
    answer = await kube.evict(A)
    assert (answer.outcome, answer.status) == (outcome, fault.status)


async def test_an_eviction_whose_answer_got_lost_has_happened(
    server: ApiServer, kube: KubeClient, make_pod: Callable[..., Any]
) -> None:
    uid = make_pod("a")["metadata"]["uid"]
    server.faults.inject(Fault(path="/eviction", after=True, status=504))
    ref = PodRef("default", "a", uid)
    assert (await kube.evict(ref)).outcome is EvictionOutcome.FAILED
    pod = await kube.pod("default", "a")
    assert pod is not None
    assert pod.deleting
    assert (await kube.evict(ref)).outcome is EvictionOutcome.EVICTED


async def test_throttling_makes_the_whole_client_wait(server: ApiServer) -> None:
    async with connect(server.url, timeout_s=3) as kube:
        server.faults.inject(Fault(path="/eviction", status=429, retry_after_s=1))
        answer = await kube.evict(A)
        assert (answer.outcome, answer.retry_after_s) == (EvictionOutcome.THROTTLED, 1.0)
        throttled_s = server.access_log.since(0)[-1].monotonic_s
        await kube.nodes()
        assert server.access_log.since(0)[-1].monotonic_s - throttled_s >= 0.95


async def test_a_taint_written_between_read_and_write_is_kept(
    server: ApiServer, kube: KubeClient, node: str
) -> None:
    from services.simulator.api.resources import NODES  # noqa: PLC0415 - the one test that writes behind the back

    taints = [{"key": "other.example.com/x", "effect": "NoSchedule"}]
    real = server.store.replace

    def meddle(*args: Any, **kwargs: Any) -> Any:
        server.store.replace = real  # type: ignore[method-assign]
        server.store.modify(NODES, "", node, lambda body: body["spec"].update(taints=taints))
        return real(*args, **kwargs)

    server.store.replace = meddle  # type: ignore[method-assign]
    assert await kube.set_taint(node, Taint("media.example.com/device-quarantine"))
    read = await kube.node(node)
    assert read is not None
    assert {taint.key for taint in read.taints} == {
        "other.example.com/x",
        "media.example.com/device-quarantine",
    }


async def test_a_race_that_is_always_lost_is_a_stale_write(
    server: ApiServer, kube: KubeClient, node: str
) -> None:
    server.faults.inject(Fault(verb="patch", path="/nodes/", status=409, times=10))
    with pytest.raises(StaleWrite):
        await kube.set_taint(node, Taint("media.example.com/device-quarantine"))
    server.faults.inject(Fault(verb="create", path="/mediaresources", status=409, times=10))
    with pytest.raises(StaleWrite):
        await kube.apply_media_resource("a", {"node": node})


async def test_a_bad_taint_is_permanent_and_names_its_field(kube: KubeClient, node: str) -> None:
    with pytest.raises(Permanent) as refused:
        await kube.set_taint(node, Taint("media.example.com/device-quarantine", "Sometimes"))  # type: ignore[arg-type]
    assert refused.value.field == "spec.taints[0].effect"


async def test_a_watch_survives_compaction_and_tells_what_it_missed(
    server: ApiServer, kube: KubeClient, make_pod: Callable[..., Any]
) -> None:
    make_pod("a")
    make_pod("b")
    told: list[tuple[ChangeKind, str]] = []
    async with asyncio.timeout(10), aclosing(kube.watch_pods()) as changes:
        async for change in changes:
            told.append((change.kind, change.item.name if change.item else ""))
            if told.count((ChangeKind.SYNCED, "")) == 1 and change.kind is ChangeKind.SYNCED:
                server.store.delete(PODS, "default", "a", {"gracePeriodSeconds": 0})
                make_pod("c")
                server.store.compact()
            elif change.kind is ChangeKind.SYNCED:
                break
    assert told[:3] == [(ChangeKind.ADDED, "a"), (ChangeKind.ADDED, "b"), (ChangeKind.SYNCED, "")]
    assert told[3:] == [(ChangeKind.DELETED, "a"), (ChangeKind.ADDED, "c"), (ChangeKind.SYNCED, "")]


async def test_a_watch_survives_a_restart_of_the_server(
    make_pod: Callable[..., Any], server: ApiServer
) -> None:
    make_pod("a")
    port = int(server.url.rpartition(":")[2])
    async with connect(server.url, timeout_s=0.5) as kube:
        kinds: list[ChangeKind] = []
        replacement = ApiServer()
        replacement.store = server.store
        async with asyncio.timeout(15), aclosing(kube.watch_pods()) as changes:
            async for change in changes:
                kinds.append(change.kind)
                if change.kind is ChangeKind.SYNCED:
                    await server.stop()
                    await replacement.start(port=port)
                    server.store.delete(PODS, "default", "a", {"gracePeriodSeconds": 0})
                if change.kind is ChangeKind.DELETED:
                    break
        await replacement.stop()
    assert kinds[-1] is ChangeKind.DELETED


async def test_a_watch_backs_off_from_a_server_that_refuses(
    server: ApiServer, kube: KubeClient, make_pod: Callable[..., Any]
) -> None:
    make_pod("a")
    server.faults.inject(Fault(verb="list", path="/pods", status=500, times=2))
    async with asyncio.timeout(10), aclosing(kube.watch_pods()) as changes:
        assert (await anext(changes)).kind is ChangeKind.ADDED
    lists = server.access_log.find("list", "/pods")
    assert [access.status for access in lists] == [500, 500, 200]
    assert lists[2].monotonic_s - lists[1].monotonic_s >= 0.1


async def test_a_watch_that_is_not_allowed_is_permanent(server: ApiServer, kube: KubeClient) -> None:
    server.faults.inject(Fault(verb="watch", path="/pods", status=403))
    async with asyncio.timeout(10), aclosing(kube.watch_pods()) as changes:
        assert (await anext(changes)).kind is ChangeKind.SYNCED
        with pytest.raises(Permanent, match="ClusterRole"):
            await anext(changes)


async def test_bookmarks_keep_a_quiet_watch_young(
    server: ApiServer, kube: KubeClient, make_pod: Any, node: str
) -> None:
    make_pod("a")
    async with asyncio.timeout(10), aclosing(kube.watch_pods()) as changes:
        async for change in changes:
            if change.kind is ChangeKind.SYNCED:
                break
        reading = asyncio.create_task(changes.asend(None))
        for _ in range(3):
            await kube.patch_node_labels(node, {"a": None})
        make_pod("b")
        read = (await reading).item
        assert read is not None
        assert read.name == "b"
    assert len(server.access_log.find("watch", "/pods")) == 1


async def test_events_of_one_cause_are_counted_even_when_the_first_answer_got_lost(
    server: ApiServer, kube: KubeClient, node: str
) -> None:
    server.faults.inject(Fault(verb="create", path="/events", after=True, status=504))
    regarding = ObjectRef("Node", node)
    with pytest.raises(Temporary):
        await kube.record_event(regarding, "DeviceQuarantined", "why", "Warning", "Quarantine")
    await kube.record_event(regarding, "DeviceQuarantined", "why", "Warning", "Quarantine")
    assert len(server.access_log.find("create", "/events")) == 2


async def test_a_plain_url_is_reached_past_any_proxy(
    server: ApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HTTP_PROXY", "http_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    async with connect(server.url) as kube:
        assert await kube.nodes() == []


def test_connecting_without_any_configuration_says_what_to_set(tmp_path: Any) -> None:
    program = (
        "import asyncio\nfrom shared.errors import Refused\nfrom shared.kube.client import connect\n"
        "async def main():\n"
        "    try:\n"
        "        async with connect():\n            pass\n"
        "    except Refused as error:\n        print(error)\n"
        "asyncio.run(main())\n"
    )
    environment = {"HOME": str(tmp_path), "PYTHONPATH": ":".join(filter(None, sys.path))}
    ran = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
        env=environment,
    )
    assert "MEDIAFLEET_KUBE_URL" in ran.stdout


def test_the_client_leaves_the_generated_models_out_and_the_library_whole(tmp_path: Any) -> None:
    program = (
        "import asyncio, sys\nfrom shared.kube.client import connect\n"
        "async def main():\n"
        "    async with connect('http://127.0.0.1:1'):\n"
        "        print(sum(name.startswith('kubernetes_asyncio') for name in sys.modules))\n"
        "asyncio.run(main())\n"
        "import kubernetes_asyncio.client\n"
        "print(kubernetes_asyncio.client.CoreV1Api.__name__)\n"
    )
    environment = {"HOME": str(tmp_path), "PYTHONPATH": ":".join(filter(None, sys.path))}
    ran = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
        env=environment,
    )
    assert ran.stdout.split() == ["0", "CoreV1Api"]
