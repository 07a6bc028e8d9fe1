"""The watch loop on a transport that says what the test wants, on virtual time."""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import aclosing
from random import Random
from typing import Any

import pytest

from shared.errors import Permanent, Temporary
from shared.kube.models import Change, ChangeKind
from shared.kube.transport import Answer
from shared.kube.watching import Watching

pytestmark = pytest.mark.looptime
Json = dict[str, Any]


def thing(name: str, version: int = 1) -> Json:
    return {"metadata": {"name": name, "uid": name, "resourceVersion": str(version)}}


def page(*items: Json, version: int = 10, token: str = "") -> Answer:
    return Answer(
        200, {"metadata": {"resourceVersion": str(version), "continue": token}, "items": list(items)}
    )


def line(kind: str, body: Json) -> bytes:
    return json.dumps({"type": kind, "object": body}).encode()


class Script:
    """Answers lists and watches in turn; the last watch stays open and silent."""

    def __init__(self, lists: list[Any], watches: list[Any]) -> None:
        self.lists, self.watches = lists, watches
        self.asked: list[tuple[str, Json]] = []

    async def request(self, method: str, path: str, *, query: Json) -> Answer:
        self.asked.append((f"{method} {path}", query))
        answer = self.lists.pop(0)
        if isinstance(answer, Exception):
            raise answer
        assert isinstance(answer, Answer)
        return answer

    async def lines(self, path: str, query: Json, *, silence_s: float) -> AsyncIterator[bytes]:
        assert silence_s > float(query["timeoutSeconds"])
        self.asked.append((f"WATCH {path}", query))
        if not self.watches:
            await asyncio.Event().wait()
        for told in self.watches.pop(0):
            if isinstance(told, Exception):
                raise told
            yield told


async def told(script: Script, count: int) -> list[tuple[str, str]]:
    """The first changes, as kind and name."""
    watching: Watching[str] = Watching(
        script,  # type: ignore[arg-type]
        "/things",
        {},
        lambda body: str(body["metadata"]["name"]),
        Random(1),  # noqa: S311 - jitter
    )
    seen: list[tuple[str, str]] = []
    async with asyncio.timeout(3600), aclosing(watching.changes()) as changes:
        while len(seen) < count:
            change: Change[str] = await anext(changes)
            seen.append((change.kind.value, change.item or ""))
    return seen


SYNCED = (ChangeKind.SYNCED.value, "")


async def test_a_list_in_pages_is_one_list() -> None:
    script = Script(
        [page(thing("a"), token="t"), page(thing("b"), version=12)], [[line("DELETED", thing("a", 13))]]
    )
    assert await told(script, 4) == [("added", "a"), ("added", "b"), SYNCED, ("deleted", "a")]
    assert script.asked[1][1]["continue"] == "t"
    assert script.asked[2][1]["resourceVersion"] == "10"


async def test_a_watch_goes_on_from_the_last_bookmark() -> None:
    script = Script([page()], [[line("BOOKMARK", thing("", 40)), line("ADDED", thing("a", 41))], []])
    assert await told(script, 2) == [SYNCED, ("added", "a")]
    script = Script([page()], [[line("BOOKMARK", thing("", 40))], [line("ADDED", thing("a", 41))]])
    assert await told(script, 2) == [SYNCED, ("added", "a")]
    assert script.asked[-1][1]["resourceVersion"] == "40"


async def test_a_watch_that_closes_at_once_is_not_asked_in_a_loop() -> None:
    script = Script([page()], [[], [], [], [], [line("ADDED", thing("a", 11))]])
    loop = asyncio.get_running_loop()
    assert await told(script, 2) == [SYNCED, ("added", "a")]
    assert loop.time() >= 1.0


@pytest.mark.parametrize(
    "broken",
    [b"{", b"[]", b'{"type": "ADDED"}', line("ERROR", {"code": 500, "message": "x"}), Temporary("silent")],
)
async def test_a_broken_watch_goes_on_where_it_was(broken: Any) -> None:
    script = Script([page()], [[line("ADDED", thing("a", 11)), broken], [line("MODIFIED", thing("a", 12))]])
    assert await told(script, 3) == [SYNCED, ("added", "a"), ("modified", "a")]
    assert script.asked[-1][1]["resourceVersion"] == "11"


async def test_after_410_everything_is_listed_again_and_the_difference_told() -> None:
    gone = line("ERROR", {"code": 410, "message": "too old"})
    lists = [
        page(thing("a"), thing("b"), thing("c")),
        Answer(410, {}),
        page(thing("a"), thing("b", 20), thing("d", 21), version=22),
    ]
    script = Script(lists, [[gone]])
    assert await told(script, 8) == [
        ("added", "a"),
        ("added", "b"),
        ("added", "c"),
        SYNCED,
        ("deleted", "c"),
        ("modified", "b"),
        ("added", "d"),
        SYNCED,
    ]


async def test_waits_after_failures_grow_and_are_bounded() -> None:
    script = Script([Temporary("away", delay_s=0.0)] * 12 + [page()], [])
    loop = asyncio.get_running_loop()
    assert await told(script, 1) == [SYNCED]
    assert 30.0 <= loop.time() <= 12 * 15.0


async def test_a_list_that_is_not_allowed_is_permanent() -> None:
    with pytest.raises(Permanent):
        await told(Script([Answer(403, {"message": "no"})], []), 1)


async def test_now_and_then_everything_is_listed_again_and_what_was_swallowed_is_told() -> None:
    class Minutes(Script):
        """Watches that last their minute and tell nothing."""

        async def lines(self, path: str, query: Json, *, silence_s: float) -> AsyncIterator[bytes]:
            del path, silence_s
            await asyncio.sleep(float(query["timeoutSeconds"]))
            if not query:
                yield b""

    script = Minutes([page(thing("a"), thing("b")), page(thing("a"), thing("c", 21), version=22)], [])
    loop = asyncio.get_running_loop()
    assert await told(script, 6) == [
        ("added", "a"),
        ("added", "b"),
        SYNCED,
        ("deleted", "b"),
        ("added", "c"),
        SYNCED,
    ]
    assert 900 <= loop.time() <= 1860


async def test_what_a_second_list_shows_unchanged_is_not_kept_twice() -> None:
    gone = line("ERROR", {"code": 410, "message": "too old"})
    script = Script([page(thing("a")), page(thing("a"), thing("b", 12), version=20)], [[gone]])
    decoded: list[str] = []

    def decode(body: Mapping[str, Any]) -> str:
        decoded.append(str(body["metadata"]["name"]))
        return decoded[-1]

    watching: Watching[str] = Watching(script, "/things", {}, decode, Random(1))  # type: ignore[arg-type]  # noqa: S311 - jitter
    async with asyncio.timeout(3600), aclosing(watching.changes()) as changes:
        assert [(await anext(changes)).item for _ in range(4)] == ["a", None, "b", None]
    assert decoded == ["a", "b"]
