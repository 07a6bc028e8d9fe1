"""Follow the kernel log: /dev/kmsg itself, or a regular file that grows in its record form.

The device gives one record per read, never blocks, and says EPIPE when the ring overtook the reader: records
were lost, the next read goes on behind them. A regular file may be cut or replaced; then it is read from its
start. A line without its end is kept until the rest is there.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import stat
from collections.abc import AsyncGenerator
from pathlib import Path

import structlog

_RECORD_BYTES = 8192
"""The kernel's own bound of one record."""
_LONGEST_TAIL_BYTES = 65536
_RECORDS_AT_ONCE = 500

log = structlog.get_logger()


def can_open(path: Path) -> bool:
    """Whether the log can be opened now; a device rule may forbid it although its file is there."""
    try:
        os.close(os.open(path, os.O_RDONLY | os.O_NONBLOCK))
    except OSError:
        return False
    return True


async def follow(path: Path, *, poll_s: float) -> AsyncGenerator[list[bytes], None]:
    """Records as they come, some at a time, for ever; first all that the log still holds.

    Args:
        path: of the log; one that is not there yet is waited for.
        poll_s: how often a regular file is looked at.
    """
    while True:
        try:
            handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        except OSError as error:
            if not isinstance(error, FileNotFoundError):
                log.warning("kernel log cannot be read", path=str(path), reason=error.strerror)
            await asyncio.sleep(max(poll_s, 1.0))
            continue
        try:
            if stat.S_ISREG(os.fstat(handle).st_mode):
                async for lines in _file(handle, path, poll_s):
                    yield lines
            else:
                async for lines in _device(handle):
                    yield lines
        finally:
            os.close(handle)


async def _device(handle: int) -> AsyncGenerator[list[bytes], None]:
    """Records of /dev/kmsg, until it ends."""
    loop = asyncio.get_running_loop()
    readable = asyncio.Event()
    with contextlib.suppress(
        PermissionError
    ):  # epoll takes no such file: then it is looked at again and again
        loop.add_reader(handle, readable.set)
    try:
        while True:
            records, ended = _records(handle)
            if records:
                yield records
            if ended:
                return
            if len(records) < _RECORDS_AT_ONCE:
                readable.clear()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(1.0):
                        await readable.wait()
    finally:
        loop.remove_reader(handle)


def _records(handle: int) -> tuple[list[bytes], bool]:
    """What can be read now, and whether the log ended."""
    records: list[bytes] = []
    while len(records) < _RECORDS_AT_ONCE:
        try:
            record = os.read(handle, _RECORD_BYTES)
        except BlockingIOError:
            return records, False
        except BrokenPipeError:
            log.warning("kernel log overran: records are lost")
            continue
        except OSError as error:
            log.warning("kernel log record cannot be read", reason=error.strerror)
            return records, True
        if not record:
            return records, True
        records.append(record)
    return records, False


async def _file(handle: int, path: Path, poll_s: float) -> AsyncGenerator[list[bytes], None]:
    """Lines of a regular file, until it is replaced or cut."""
    tail = b""
    inode = os.fstat(handle).st_ino
    position = 0
    while True:
        chunk = os.read(handle, _LONGEST_TAIL_BYTES)
        if chunk:
            position += len(chunk)
            *lines, tail = (tail + chunk).split(b"\n")
            tail = tail[-_LONGEST_TAIL_BYTES:]
            if lines:
                yield lines
            continue
        await asyncio.sleep(poll_s)
        if _is_another(path, inode, position):
            return


def _is_another(path: Path, inode: int, position: int) -> bool:
    """The file was replaced, removed, or cut shorter than what was read of it."""
    try:
        now = path.stat()
    except FileNotFoundError:
        return True
    return now.st_ino != inode or now.st_size < position
