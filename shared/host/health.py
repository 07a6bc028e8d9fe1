"""/healthz, /readyz and /metrics of a process, on a few lines of HTTP.

A web framework would cost each service more memory than this whole layer; only GET of three fixed paths is
answered, a request line is read with a bound and a deadline, and the connection closes after each answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

from prometheus_client import CONTENT_TYPE_LATEST, REGISTRY, generate_latest

Probe = Callable[[], str]
"""Empty when well, else the reason."""

_DEADLINE_S = 5.0
_MAX_HEAD = 8192


@dataclass(frozen=True, slots=True)
class Health:
    """Where the process answers.

    Attributes:
        port: the port it listens on.
    """

    port: int


@asynccontextmanager
async def serve(host: str, port: int, *, live: Probe, ready: Probe) -> AsyncIterator[Health]:
    """Answer probes while inside.

    Args:
        host: address to listen on.
        port: port, 0 for a free one.
        live: why the process should be restarted; empty when it should not.
        ready: why it should get no work; empty when it may.
    """

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(_DEADLINE_S):
                head = await reader.readuntil(b"\r\n\r\n")
                writer.write(_respond(head, live, ready))
                await writer.drain()
        except (TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, ConnectionError):
            pass  # a client that went away or sends no HTTP gets no answer, and is nobody's loss
        finally:
            writer.close()

    server = await asyncio.start_server(answer, host, port, limit=_MAX_HEAD)
    async with server:
        yield Health(server.sockets[0].getsockname()[1])


def _respond(head: bytes, live: Probe, ready: Probe) -> bytes:
    method, _, rest = head.partition(b" ")
    path = rest.partition(b" ")[0].partition(b"?")[0]
    if method != b"GET":
        return _reply(405, "text/plain", b"GET only\n")
    if path == b"/metrics":
        return _reply(200, CONTENT_TYPE_LATEST, generate_latest(REGISTRY))
    probe = {b"/healthz": live, b"/readyz": ready}.get(path)
    if probe is None:
        return _reply(404, "text/plain", b"try /healthz, /readyz or /metrics\n")
    reason = probe()
    return _reply(503 if reason else 200, "text/plain", (reason or "ok").encode() + b"\n")


def _reply(status: int, content_type: str, body: bytes) -> bytes:
    phrase = {200: "OK", 404: "Not Found", 405: "Method Not Allowed", 503: "Service Unavailable"}[status]
    head = f"HTTP/1.1 {status} {phrase}\r\nContent-Type: {content_type}\r\nContent-Length: {len(body)}\r\n"
    return f"{head}Connection: close\r\n\r\n".encode() + body
