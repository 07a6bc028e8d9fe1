import asyncio
import os
from contextlib import aclosing
from pathlib import Path

from services.discovery import kmsg
from services.discovery.kmsg import follow


def append(path: Path, text: str) -> None:
    with path.open("a") as file:
        file.write(text)


async def test_lines_are_read_as_they_come_and_a_half_one_waits_for_its_end(tmp_path: Path) -> None:
    log = tmp_path / "kmsg"
    append(log, "one\ntwo\nthr")
    async with aclosing(follow(log, poll_s=0.001)) as lines:
        assert await anext(lines) == [b"one", b"two"]
        append(log, "ee\n")
        assert await anext(lines) == [b"three"]
        log.write_text("1\n")  # cut: a reboot
        assert await anext(lines) == [b"1"]
        (tmp_path / "new").write_text("other\n")
        (tmp_path / "new").replace(log)
        assert await anext(lines) == [b"other"]


async def test_a_log_that_is_not_there_yet_is_waited_for(tmp_path: Path, monkeypatch: object) -> None:
    del monkeypatch
    log = tmp_path / "kmsg"
    async with aclosing(follow(log, poll_s=0.001)) as lines:
        waiting = asyncio.ensure_future(anext(lines))
        await asyncio.sleep(0)
        log.write_text("late\n")
        assert await waiting == [b"late"]


async def test_a_log_that_goes_away_is_opened_again(tmp_path: Path) -> None:
    log = tmp_path / "kmsg"
    log.write_text("a\n")
    async with aclosing(follow(log, poll_s=0.001)) as lines:
        assert await anext(lines) == [b"a"]
        log.unlink()
        waiting = asyncio.ensure_future(anext(lines))
        await asyncio.sleep(0.01)
        log.write_text("b\n")
        assert await waiting == [b"b"]


async def test_a_device_gives_its_records_through_a_pipe_s_end(tmp_path: Path) -> None:
    fifo = tmp_path / "kmsg"
    os.mkfifo(fifo)
    writer = os.open(fifo, os.O_RDWR)
    try:
        async with aclosing(follow(fifo, poll_s=0.001)) as lines:
            os.write(writer, b"6,1,1,-;first")
            assert await anext(lines) == [b"6,1,1,-;first"]
            waiting = asyncio.ensure_future(anext(lines))
            await asyncio.sleep(0)
            os.write(writer, b"6,2,2,-;second")
            assert await waiting == [b"6,2,2,-;second"]
    finally:
        os.close(writer)


async def test_a_record_that_was_overrun_or_cannot_be_read_does_not_stop_the_rest() -> None:
    answers: list[bytes | OSError] = [BrokenPipeError(), b"next", BlockingIOError()]

    def read(_handle: int, _size: int) -> bytes:
        answer = answers.pop(0)
        if isinstance(answer, OSError):
            raise answer
        return answer

    original, kmsg.os.read = os.read, read  # type: ignore[attr-defined]
    try:
        assert kmsg._records(0) == ([b"next"], False)
        answers[:] = [OSError(22, "bad"), b""]
        assert kmsg._records(0) == ([], True)
        assert kmsg._records(0) == ([], True)
    finally:
        kmsg.os.read = original  # type: ignore[attr-defined]
