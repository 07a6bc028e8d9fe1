"""The auth callout as a process: an API server by HTTP, a key in a file, an end when it is told."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import orjson
import pytest

from tests.contract.bus.world import report
from tests.integration.security.site import NAMESPACE, TOKEN_ISSUER, WITHIN_S, Site, site

pytestmark = pytest.mark.asyncio(loop_scope="module")
ROOT = Path(__file__).parents[3]


@asynccontextmanager
async def api_over_http(here: Site) -> AsyncIterator[str]:
    """The API server's documents; returns its address."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        path = (await reader.readuntil(b"\r\n\r\n")).split()[1].decode()
        body = orjson.dumps(await here.api.fetch(path))
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


async def start(**environment: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "services.authcallout",
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        cwd=ROOT,
        env={
            **os.environ,
            "MEDIAFLEET_HEALTH_HOST": "127.0.0.1",
            "MEDIAFLEET_HEALTH_PORT": "0",
            **environment,
        },
    )


async def told(process: asyncio.subprocess.Process, word: str) -> str:
    """The first line with that word."""
    assert process.stdout is not None
    async with asyncio.timeout(WITHIN_S):
        while line := (await process.stdout.readline()).decode():
            if word in line:
                return line
    raise AssertionError(f"it ended without saying {word!r}")


async def get(port: int, path: str) -> str:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(f"GET {path} HTTP/1.1\r\n\r\n".encode())
    answer = (await reader.read()).decode()
    writer.close()
    return answer


async def test_it_lets_an_agent_in_is_ready_and_ends_when_told(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    directory = tmp_path_factory.mktemp("process")
    async with site(directory, callout=False) as here, api_over_http(here) as api:
        (directory / "token").write_text("ours")
        process = await start(
            MEDIAFLEET_NATS_URL=here.server.url,
            MEDIAFLEET_NATS_NKEY_FILE=str(here.keys / "authcallout.nk"),
            MEDIAFLEET_NATS_CA_FILE=str(here.authority.ca_file),
            MEDIAFLEET_AUTHCALLOUT__ISSUER_SEED_FILE=str(here.keys / "issuer.nk"),
            MEDIAFLEET_AUTHCALLOUT__API_URL=api,
            MEDIAFLEET_AUTHCALLOUT__API_CA_FILE=str(here.authority.ca_file),
            MEDIAFLEET_AUTHCALLOUT__API_TOKEN_FILE=str(directory / "token"),
            MEDIAFLEET_AUTHCALLOUT__NAMESPACE=NAMESPACE,
            MEDIAFLEET_AUTHCALLOUT__TOKEN_ISSUER=TOKEN_ISSUER,
        )
        try:
            line = await told(process, "health_port")
            port = int(orjson.loads(line)["health_port"])
            await told(process, "answering")
            async with here.agent("discovery", "a") as agent, asyncio.timeout(WITHIN_S):
                assert (await agent.publish(report(1, place="a"))).sequence == 1
            assert "200 OK" in await get(port, "/readyz")
            assert "200 OK" in await get(port, "/healthz")
            metrics = await get(port, "/metrics")
            assert 'mediafleet_authcallout_answers_total{outcome="granted"} 1.0' in metrics
            process.send_signal(signal.SIGTERM)
            await told(process, "stopped")
            assert await asyncio.wait_for(process.wait(), WITHIN_S) == 0
        finally:
            if process.returncode is None:
                process.kill()
                await process.communicate()


@pytest.mark.parametrize(
    ("environment", "code", "line"),
    [
        ({"MEDIAFLEET_AUTHCALLOUT__FETCH_AGAIN_S": "0"}, 2, "MEDIAFLEET_AUTHCALLOUT__FETCH_AGAIN_S"),
        ({"MEDIAFLEET_AUTHCALLOUT__ISSUER_SEED_FILE": "/absent"}, 1, "mount the issuer's seed"),
    ],
)
async def test_a_wrong_start_says_why(environment: dict[str, str], code: int, line: str) -> None:
    process = await start(**environment)
    said, _ = await asyncio.wait_for(process.communicate(), WITHIN_S)
    assert process.returncode == code
    assert line in said.decode()
