from __future__ import annotations

import asyncio

import pytest

from services.bridge.board import Board
from services.bridge.decide import Offered
from services.bridge.plugin import device_list
from shared.errors import Refused

R = "media.example.com/nvenc"
WELL, SICK = (Offered("a", healthy=True),), (Offered("a", healthy=False),)


async def test_a_stream_gets_the_list_at_once_and_then_only_changes() -> None:
    board = Board()
    assert board.publish({R: WELL})
    with board.stream(R) as stream:
        revision, devices = await board.next(stream)
        assert devices == WELL
        board.delivered(stream, revision)
        waiting = asyncio.create_task(board.next(stream))
        assert not board.publish({R: WELL})
        await asyncio.sleep(0)
        assert not waiting.done()
        assert board.publish({R: SICK})
        assert (await waiting)[1] == SICK


async def test_everybody_is_told_once_every_open_stream_has_sent_the_newest_list() -> None:
    board = Board()
    board.publish({R: WELL})
    await board.until_told()
    with board.stream(R) as slow:
        told = asyncio.create_task(board.until_told())
        await asyncio.sleep(0)
        assert not told.done()
        revision, _ = await board.next(slow)
        board.delivered(slow, revision)
        await told
        board.publish({R: SICK})
        told = asyncio.create_task(board.until_told())
        await asyncio.sleep(0)
        assert not told.done()
    await told


async def test_a_resource_without_devices_has_an_empty_list() -> None:
    board = Board()
    board.publish({R: WELL})
    board.publish({})
    assert board.list_of(R) == ()
    assert board.resources == (R,)


def test_a_list_that_the_kubelet_cannot_take_is_refused() -> None:
    many = [
        Offered(f"nvidia-0000-3b-00-0-enc-{number:03}-s{'0' * 30}", healthy=True) for number in range(60_000)
    ]
    with pytest.raises(Refused, match="lower the slots per engine"):
        device_list(many)
    assert device_list([Offered("a", healthy=True, numa=1)]).devices[0].topology.nodes[0].ID == 1
    assert not device_list(WELL).devices[0].HasField("topology")
