"""What arrives, before nats-py spends more on it than we do.

nats-py parses headers, builds a message, puts it into a queue and wakes a task for each one; that is a third
of what an event costs here. Our subscriptions take frames where the parser hands them over
(`Client._process_msg`), in order, within the read of the socket that brought them. All other behaviour is
nats-py's.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from nats.aio.client import Client
from nats.errors import Error, MaxPayloadError

from shared.errors import Refused

_EXPIRED = "authentication expired"
"""The server's last word when a token's time is over."""


class Frame:
    """One message as it came: subject, reply subject, body; headers are parsed when asked for."""

    __slots__ = ("_headers", "_raw", "data", "reply", "subject")

    def __init__(self, subject: str, reply: str, data: bytes, raw: bytes | None) -> None:
        self.subject = subject
        self.reply = reply
        self.data = data
        self._raw = raw
        self._headers: dict[str, str] | None = None

    @property
    def headers(self) -> dict[str, str]:
        """The headers; `Status` and `Description` are those of the first line."""
        if self._headers is None:
            self._headers = parse(self._raw) if self._raw else {}
        return self._headers


def parse(raw: bytes) -> dict[str, str]:
    """Headers as NATS writes them: `NATS/1.0 408 Request Timeout`, then `Name: value` lines."""
    first, *lines = raw.decode(errors="replace").split("\r\n")
    headers = dict(line.split(": ", 1) for line in lines if ": " in line)
    _, _, status = first.partition(" ")
    if status:
        code, _, description = status.partition(" ")
        headers["Status"] = code
        headers["Description"] = description
    return headers


def _worth_saying(record: logging.LogRecord) -> bool:
    """Not asyncio's word about nats-py's way to turn TLS on, said at the end of every connection."""
    return "eof_received() has no effect when using ssl" not in record.getMessage()


class FrameClient(Client):
    """The client; its subscriptions may take frames directly. A taker is synchronous and never raises."""

    def __init__(self) -> None:
        super().__init__()
        logging.getLogger("asyncio").addFilter(_worth_saying)
        self.takers: dict[int, Callable[[Frame], None]] = {}
        self._writing = False
        self.only_tls = False
        """Say nothing, credentials least of all, to a server that does not speak TLS."""
        if "_process_msg" not in Client.__dict__:
            raise Refused("this nats-py hands messages over in another way: install nats-py 2.16")

    def _connect_command(self) -> bytes:
        # nats-py speaks TLS when the server asks for it; whoever sits between would not ask.
        if self.only_tls and not self._server_info.get("tls_required"):
            raise OSError("it offers no TLS: check the address, or leave MEDIAFLEET_NATS_CA_FILE empty")
        return super()._connect_command()

    def ask(
        self, subject: str, body: bytes, reply: str, headers: dict[str, str] | None, *, at_once: bool
    ) -> bool:
        """Send one message, behind what nats-py has still to write; False: not connected.

        nats-py checks every header and leaves the writing to a task of its own; ours need no check, and one
        alone need not wait for the loop's next turn.

        Args:
            subject: where to.
            body: of the message.
            reply: where its answer goes.
            headers: names and values without line breaks.
            at_once: write it now; else with all others of this turn of the loop.

        Raises:
            MaxPayloadError: larger than the server takes.
        """
        if not self.is_connected or self._transport is None:
            return False
        if len(body) > self._max_payload:
            raise MaxPayloadError
        if headers:
            lines = "".join([f"{name}: {value}\r\n" for name, value in headers.items()])
            head = f"NATS/1.0\r\n{lines}\r\n".encode()
            first = f"HPUB {subject} {reply} {len(head)} {len(head) + len(body)}\r\n".encode()
            command = b"".join((first, head, body, b"\r\n"))
        else:
            first = f"PUB {subject} {reply} {len(body)}\r\n".encode()
            command = b"".join((first, body, b"\r\n"))
        self._pending.append(command)
        self._pending_data_size += len(command)
        if at_once:
            self._write_pending()
        elif not self._writing:
            self._writing = True
            asyncio.get_running_loop().call_soon(self._write_pending)
        return True

    def _write_pending(self) -> None:
        self._writing = False
        if self._pending and self.is_connected and self._transport is not None:
            written, self._pending, self._pending_data_size = self._pending, [], 0
            self._transport.write(b"".join(written))

    async def _process_err(self, err_msg: str) -> None:
        if _EXPIRED in err_msg.lower():
            # nats-py would close for good; credentials are read anew at the next connection.
            await self._process_op_err(Error(err_msg.strip("'")))
            return
        await super()._process_err(err_msg)

    async def _process_msg(self, sid: int, subject: bytes, reply: bytes, data: bytes, headers: bytes) -> None:
        taker = self.takers.get(sid)
        if taker is None:
            await super()._process_msg(sid, subject, reply, data, headers)
        else:
            taker(Frame(subject.decode(), reply.decode(), data, headers))
