import asyncio

import pytest

from shared.host import health


async def get(port: int, request: bytes) -> tuple[int, str]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request)
    answer = (await reader.read()).decode()
    writer.close()
    await writer.wait_closed()
    head, _, body = answer.partition("\r\n\r\n")
    return (int(head.split()[1]) if head else 0), body


async def test_probes_say_why_not() -> None:
    reasons = {"live": "", "ready": "starting"}
    async with health.serve(
        "127.0.0.1", 0, live=lambda: reasons["live"], ready=lambda: reasons["ready"]
    ) as here:
        assert await get(here.port, b"GET /healthz HTTP/1.1\r\n\r\n") == (200, "ok\n")
        assert await get(here.port, b"GET /readyz?verbose HTTP/1.1\r\n\r\n") == (503, "starting\n")
        reasons["ready"] = ""
        assert await get(here.port, b"GET /readyz HTTP/1.1\r\n\r\n") == (200, "ok\n")
        status, metrics = await get(here.port, b"GET /metrics HTTP/1.1\r\n\r\n")
        assert status == 200
        assert "process_resident_memory_bytes" in metrics


@pytest.mark.parametrize(
    ("request_line", "status"),
    [
        (b"POST /healthz HTTP/1.1\r\n\r\n", 405),
        (b"GET / HTTP/1.1\r\n\r\n", 404),
        (b"\x00\x01\r\n\r\n", 405),
        (b"x" * 20000, 0),
    ],
)
async def test_nonsense_is_answered_or_dropped_and_the_next_is_served(
    request_line: bytes, status: int
) -> None:
    async with health.serve("127.0.0.1", 0, live=lambda: "", ready=lambda: "") as here:
        assert (await get(here.port, request_line))[0] == status
        assert (await get(here.port, b"GET /healthz HTTP/1.1\r\n\r\n"))[0] == 200
