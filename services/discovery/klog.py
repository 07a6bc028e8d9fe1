"""Follow the kernel log by the syslog call, where /dev/kmsg cannot be opened: in a pod with CAP_SYSLOG.

The call gives the end of the kernel's ring as text, oldest line first, `<priority>[seconds] text`. It neither
blocks nor takes anything away, so the ring is read again and again and what is new lies behind what was seen.
Lines become records as /dev/kmsg has them; for the sequence number, which the call does not give, stands the
time: microseconds since boot times 1000, and the place among lines of one microsecond.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import AsyncGenerator, Callable

import structlog

_READ_ALL, _SIZE = 3, 10
"""SYSLOG_ACTION_READ_ALL, SYSLOG_ACTION_SIZE_BUFFER: syslog(2)."""
_TAIL_BYTES = 65536
"""Read first; the whole ring only when more than this is new."""
_SEEN_BYTES = 1024
"""The end of what was seen, by which it is found again; with its times it stands there once."""
_LINE = re.compile(rb"<(\d{1,5})>(?:\[ *(\d{1,12})\.(\d{6})\](?:\[[^\]]{0,40}\])? ?)?(.*)", re.DOTALL)

Read = Callable[[int], bytes]
"""The last so many bytes of the ring, whole lines."""

log = structlog.get_logger()


def read_ring(size: int) -> bytes:
    """The end of the kernel's ring.

    Raises:
        OSError: EPERM without CAP_SYSLOG, where the kernel asks for it (`kernel.dmesg_restrict`).
    """
    import ctypes  # noqa: PLC0415 - only where there is no /dev/kmsg

    libc = ctypes.CDLL(None, use_errno=True)
    buffer = ctypes.create_string_buffer(size)
    length = libc.klogctl(_READ_ALL, buffer, size)
    if length < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return buffer.raw[:length]


def ring_size() -> int:
    """Bytes of the kernel's ring; 0 when the kernel does not say."""
    import ctypes  # noqa: PLC0415 - as above

    return max(0, int(ctypes.CDLL(None, use_errno=True).klogctl(_SIZE, None, 0)))


def allowed() -> bool:
    """Whether this process may read the ring."""
    try:
        read_ring(1)
    except OSError as error:
        log.warning("the kernel log cannot be read", reason=error.strerror, fix="add the capability SYSLOG")
        return False
    return True


async def follow(
    *, poll_s: float, read: Read = read_ring, size: Callable[[], int] = ring_size
) -> AsyncGenerator[list[bytes], None]:
    """Records as they come, for ever; first all that the ring still holds.

    Args:
        poll_s: how often it is read.
        read: gives the end of the ring.
        size: bytes of the whole.
    """
    ring = Ring(read, max(size(), _TAIL_BYTES))
    while True:
        records = ring.news()
        if records:
            yield records
        await asyncio.sleep(poll_s)


class Ring:
    """What was seen of the ring, so that each line is given once."""

    def __init__(self, read: Read, size: int) -> None:
        """Args: read: gives the end of the ring. size: bytes of the whole."""
        self._read, self._size = read, size
        self._seen = b""
        self._at, self._among = -1, 0

    def news(self) -> list[bytes]:
        """Records behind what was seen."""
        text = self._behind(_TAIL_BYTES) if self._seen else None
        if text is None:
            text = self._behind(self._size)
        if text is None:
            log.warning("kernel log overran: records are lost")
            text = self._read(self._size)
        if text:
            self._seen = (self._seen + text)[-_SEEN_BYTES:]
        return [record for line in text.splitlines() if (record := self._record(line)) is not None]

    def _behind(self, size: int) -> bytes | None:
        """The end of the ring from where we stood; None when that is not in it."""
        text = self._read(size)
        if not self._seen:
            return text
        at = text.rfind(self._seen)
        return None if at < 0 else text[at + len(self._seen) :]

    def _record(self, line: bytes) -> bytes | None:
        """The line as a record of /dev/kmsg; None for what a program wrote and for what is no line."""
        match = _LINE.fullmatch(line)
        if match is None or int(match[1]) >> 3:
            return None
        if match[2] is None:
            return match[4]  # a kernel that prints no times: text without number
        at = int(match[2]) * 1_000_000 + int(match[3])
        self._among = self._among + 1 if at == self._at else 0
        self._at = at
        return b"%d,%d,%d,-;%s" % (int(match[1]), at * 1000 + min(self._among, 999), at, match[4])
