"""What the bridge does while the kubelet refuses it, or while the bus is gone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import grpc
import pytest

from protos import deviceplugin_v1beta1_pb2 as api
from services.bridge.board import Board
from services.bridge.decide import Offered
from services.bridge.kubelet import KubeletPaths, look, socket_address
from services.bridge.plugin import Asked, Plugin, Timing
from services.bridge.service import Bridge
from services.bridge.settings import BridgeSettings
from shared.clock import SystemClock
from shared.errors import BadInput, Refused
from shared.events import Cause, event, remediation, world
from shared.events.parts import Evidence
from shared.journal import Journal
from shared.vendors.runtime import RuntimeSpec
from tests.contract.kubelet.conftest import DEVICES, NODE, QUICK, Node
from tests.contract.kubelet.kubelets import Kubelet, SmallKubelet
from tests.unit.bridge.devices import AT, GPU

A, B, C = (each.key for each in DEVICES)
R = "media.example.com/thing"


class Stubborn(SmallKubelet):
    """Refuses the first registrations; then never opens a stream for a while."""

    refusals = 2
    silent = 1

    async def Register(self, request: api.RegisterRequest, context: Any) -> api.Empty:  # noqa: N802 - gRPC's name
        if self.refusals:
            self.refusals -= 1
            await context.abort(grpc.StatusCode.UNAVAILABLE, "not yet")
        if self.silent:
            self.silent -= 1
            return api.Empty()
        return await super().Register(request, context)


async def allocate(_: str, __: Sequence[str]) -> RuntimeSpec:
    raise AssertionError("nobody asks")


ASKED = Asked(allocate, lambda _, available, __, size: available[:size])


@pytest.fixture
async def board(root: Path) -> AsyncIterator[Board]:
    made = Board()
    made.publish({R: (Offered("a", healthy=True),)})
    timing = Timing(
        poll_s=0.02, debounce_s=0.01, pause_s=0.02, longest_pause_s=0.05, stable_s=0.05, open_s=0.1
    )
    plugin = Plugin(R, made, ASKED, KubeletPaths.under(root), timing=timing)
    running = asyncio.create_task(plugin.run())
    yield made
    running.cancel()
    await asyncio.wait({running})


@pytest.mark.parametrize("kubelet", [Stubborn], indirect=True)
async def test_a_kubelet_that_refuses_or_stays_silent_is_asked_again(kubelet: Kubelet, board: Board) -> None:
    del board
    await kubelet.until(lambda: kubelet.devices(R) == {"a": "Healthy"})


@pytest.mark.parametrize("kubelet", [SmallKubelet], indirect=True)
async def test_what_is_in_the_way_of_a_socket_is_waited_out(
    kubelet: Kubelet, root: Path, board: Board
) -> None:
    await kubelet.until(lambda: kubelet.devices(R) == {"a": "Healthy"})
    before = kubelet.registrations()
    socket = KubeletPaths.under(root).plugins / "mediafleet-thing.sock"
    socket.unlink()
    socket.mkdir()
    await kubelet.until(lambda: kubelet.devices(R) == {"a": "Unhealthy"})
    socket.rmdir()
    await kubelet.until(lambda: kubelet.registrations() > before and kubelet.devices(R) == {"a": "Healthy"})
    assert board.list_of(R)


@pytest.mark.parametrize("kubelet", [SmallKubelet], indirect=True)
async def test_a_list_that_is_too_long_ends_the_stream_with_the_reason(
    kubelet: Kubelet, board: Board
) -> None:
    await kubelet.until(lambda: kubelet.devices(R) == {"a": "Healthy"})
    board.publish({R: tuple(Offered(f"{number:062}", healthy=True) for number in range(66_000))})
    await kubelet.until(lambda: kubelet.devices(R) == {"a": "Unhealthy"})
    board.publish({R: (Offered("b", healthy=True),)})
    await kubelet.until(lambda: kubelet.devices(R) == {"b": "Healthy"})


async def test_a_host_root_that_is_too_long_for_sockets_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Refused, match="shorten the host root"):
        socket_address(tmp_path / ("x" * 90) / "kubelet.sock")
    assert socket_address(Path("/a/kubelet.sock")) == "unix:/a/kubelet.sock"


async def test_books_that_cannot_be_read_say_nothing(root: Path) -> None:
    paths = KubeletPaths.under(root)
    paths.plugins.mkdir(parents=True)
    paths.checkpoint.write_text("{")
    seen = await look(paths, timeout_s=0.2)
    assert (seen.listed, seen.checkpointed) == (None, None)


def test_a_bridge_without_node_or_boot_id_does_not_start(tmp_path: Path) -> None:
    def bridge(node: str, root: Path = tmp_path / ("x" * 80)) -> Bridge:
        settings = BridgeSettings()
        folder = tmp_path / "state"
        clock = _NoLoop()
        return Bridge(settings, node=node, domain="d", root=root, state_dir=folder, source="/t", clock=clock)

    with pytest.raises(BadInput, match="MEDIAFLEET_NODE_NAME"):
        bridge("", Path("/short"))
    with pytest.raises(Refused, match="MEDIAFLEET_HOST_ROOT"):
        bridge(NODE, Path("/short"))
    with pytest.raises(Refused, match="shorten the host root"):
        bridge(NODE)


class _NoLoop(SystemClock):
    def monotonic(self) -> float:
        return 0.0


class TestWithoutTheBus:
    def reports(self, root: Path, key: str, *verdicts: str) -> None:
        """What discovery wrote into the node's journal."""
        journal = Journal(root / "state" / "journal")
        evidence = Evidence(id="e", kind="kernel-line", code="79", class_="fatal", at=AT)
        for window, verdict in enumerate(verdicts, start=1):
            fact = world.HealthReported(
                boot_id="boot-1",
                window_id=window,
                verdict=verdict,
                streak=1,
                evidence=(evidence,) if verdict == "unhealthy" else (),
            )
            journal.append(
                event(fact, (NODE, key), cause=Cause.source("boot-1", f"{key}{window}"), source="/d", at=AT)
            )
        journal.close()

    async def test_a_struck_out_device_is_taken_from_the_kubelet_and_an_epoch_answers(
        self, node: Node, kubelet: Kubelet, root: Path
    ) -> None:
        self.reports(root, A, "unhealthy", "unhealthy")
        self.reports(root, B, "unhealthy", "healthy")
        node.bus.partition()
        await kubelet.until(lambda: kubelet.devices(GPU) == {A: "Unhealthy", B: "Healthy", C: "Healthy"})
        node.bus.heal()
        (withdrawn,) = await node.said(world.Withdrawn)
        assert isinstance(withdrawn.data, world.Withdrawn)
        assert withdrawn.of.entity == A
        assert [each.code for each in withdrawn.data.evidence] == ["79", "79"]
        until = AT + timedelta(minutes=5)
        await node.tell(A, remediation.Opened(epoch=1, state="quarantined", reason="withdrawn"))
        await node.tell(A, remediation.Quarantined(epoch=1, reason="withdrawn", deadline=until))
        (fenced,) = await node.said(world.Fenced)
        assert fenced.epoch == 1
        await node.tell(A, remediation.ProbationStarted(epoch=1, until=until))
        await kubelet.until(lambda: kubelet.devices(GPU)[A] == "Healthy")

    async def test_pods_are_admitted_and_everything_is_said_afterwards(
        self, node: Node, kubelet: Kubelet
    ) -> None:
        node.bus.partition()
        assert await kubelet.admit("a", {"main": {GPU: 1}}) == ""
        await node.bridge.allocator.agree()
        assert [str(each.pod) for each in node.bridge.allocator.ledger.live] == ["live/a"]
        assert node.bridge.journal.depth == 2
        node.bus.heal()
        await node.said(world.Granted)
        await node.said(world.Bound)

    async def test_a_plugin_needs_no_bus_at_all(self, kubelet: Kubelet, board: Board) -> None:
        assert QUICK.poll_s
        await kubelet.until(lambda: kubelet.devices(R) == {"a": "Healthy"})
        assert board.resources == (R,)
