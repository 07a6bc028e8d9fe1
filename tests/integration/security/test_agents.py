"""Node agents come in by their tokens, and only as what their tokens say."""

from __future__ import annotations

import asyncio
import ssl
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec

from shared.bus.access import Access
from shared.bus.nats import connect
from shared.errors import Permanent, Refused
from tests.contract.bus.world import report
from tests.integration.security.site import AUDIENCE, WITHIN_S, Authority, Site, answering

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def shut_out(
    here: Site, token: str, capsys: pytest.CaptureFixture[str], service: str = "discovery"
) -> str:
    """Try to come in; returns why the callout says no."""
    capsys.readouterr()
    access = here.by_token(token, "a")
    opening = connect(here.server.url, service=service, instance="0", access=access, within_s=0.5)
    with pytest.raises(Refused, match=r"does not let .* in: .*the auth callout logs why"):
        await asyncio.wait_for(opening.__aenter__(), WITHIN_S)
    said = capsys.readouterr().out
    assert token not in said
    assert token not in here.log
    return next(line for line in said.splitlines() if "refused" in line)


async def test_an_agent_with_a_token_of_its_node_speaks_for_that_node_only(here: Site) -> None:
    async with here.agent("discovery", "a") as agent, asyncio.timeout(WITHIN_S):
        assert (await agent.publish(report(1, place="a"))).sequence
        with pytest.raises(Permanent, match="may not publish"):
            await agent.publish(report(2, place="b"))


async def test_two_agents_that_pose_as_each_other_are_refused(here: Site) -> None:
    """What an agent is told about itself counts for nothing: the place is its token's."""
    async with here.agent("discovery", "a") as one, here.agent("discovery", "b") as two:
        with pytest.raises(Permanent, match="may not publish"):
            await one.publish(report(1, place="b"))
        with pytest.raises(Permanent, match="may not publish"):
            await two.publish(report(1, place="a"))
    async with connect(
        here.server.url,
        service="discovery",
        instance="0",
        access=here.by_token(here.api.token("discovery", "a"), "b"),
    ) as posing:
        with pytest.raises(Permanent, match="may not publish"):
            await posing.publish(report(1, place="b"))


async def test_one_agent_does_not_say_what_the_other_of_its_node_says(here: Site) -> None:
    async with here.agent("bridge", "a") as bridge:
        with pytest.raises(Permanent, match="may not publish"):
            await bridge.publish(report(1, place="a"))


@pytest.mark.parametrize(
    ("claims", "why"),
    [
        ({"lasts_s": -60}, "the token has expired"),
        ({"aud": ["https://kubernetes.default.svc"]}, f"not for the audience '{AUDIENCE}'"),
        ({"iss": "https://elsewhere"}, "not of the issuer"),
        ({"key": ec.generate_private_key(ec.SECP256R1())}, "signature is wrong"),
        ({"sub": "system:serviceaccount:mediafleet:manager"}, "subject and service account differ"),
        ({"node": ""}, "the token names no node"),
    ],
)
async def test_a_token_that_is_not_right_is_refused_with_its_reason(
    claims: dict[str, Any], why: str, here: Site, capsys: pytest.CaptureFixture[str]
) -> None:
    token = here.api.token("discovery", **{"node": "a", **claims})
    assert why in await shut_out(here, token, capsys)


async def test_a_service_that_has_a_key_does_not_come_in_by_token(
    here: Site, capsys: pytest.CaptureFixture[str]
) -> None:
    said = await shut_out(here, here.api.token("manager", "a"), capsys, "manager")
    assert "the service account manager has a key of its own" in said


async def test_a_rotated_token_is_read_at_the_next_connection(here: Site) -> None:
    """The server closes a connection whose token's time is over; the client comes back with the new one."""
    path = here.token_file(here.api.token("discovery", "a", lasts_s=2))
    async with connect(
        here.server.url, service="discovery", instance="0", access=here.by_token(path, "a")
    ) as agent:
        await agent.publish(report(1, place="a"))
        broke = asyncio.Event()
        agent.link.on_break.append(broke.set)
        path.write_text(here.api.token("discovery", "a"))
        async with asyncio.timeout(WITHIN_S):
            await broke.wait()
            assert (await agent.publish(report(2, place="a"))).sequence


async def test_an_agent_waits_outside_until_its_token_is_right(here: Site) -> None:
    """A refusal of a token passes, so it ends no process: what serves a kubelet goes on."""
    path = here.token_file(here.api.token("bridge", "a", lasts_s=-60))
    access = here.by_token(path, "a")
    opening = connect(here.server.url, service="bridge", instance="0", access=access, within_s=WITHIN_S)
    before = here.log
    coming = asyncio.ensure_future(opening.__aenter__())
    async with asyncio.timeout(WITHIN_S):
        while "authentication error" not in here.log[len(before) :].lower():
            await asyncio.wait({coming}, timeout=0.02)
        assert not coming.done()
        path.write_text(here.api.token("bridge", "a"))
        await (await coming).ping()
    await opening.__aexit__(None, None, None)


async def test_the_api_servers_new_key_is_fetched_and_its_old_one_forgotten(
    here: Site, capsys: pytest.CaptureFixture[str]
) -> None:
    old = here.api.token("discovery", "a")
    async with here.agent("discovery", "a"):
        pass
    here.api.rotate("k2")
    async with here.agent("discovery", "a"):
        pass
    assert "the API server has no key 'k1'" in await shut_out(here, old, capsys)


async def test_two_callouts_share_the_questions_and_one_is_enough(here: Site) -> None:
    async with answering(here, "1"):
        await asyncio.gather(*(come_and_go(here, f"n{n}") for n in range(8)))
    await come_and_go(here, "a")


async def come_and_go(here: Site, node: str) -> None:
    async with here.agent("bridge", node) as agent, asyncio.timeout(WITHIN_S):
        await agent.ping()


async def test_a_server_whose_certificate_is_anothers_hears_nothing_from_us(
    here: Site, tmp_path: Any
) -> None:
    (tmp_path / "other").mkdir()
    other = Authority(tmp_path / "other")
    access = Access(nkey_file=here.keys / "manager.nk", ca_file=other.ca_file)
    opening = connect(here.server.url, service="manager", instance="0", access=access, within_s=0.3)
    with pytest.raises(Exception, match="certificate verify failed"):
        await opening.__aenter__()


async def test_a_server_without_tls_is_told_no_secret() -> None:
    got: list[bytes] = []

    async def plain(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b'INFO {"server_id":"x","version":"2.12.0","headers":true,"max_payload":1048576}\r\n')
        got.append(await reader.read())
        writer.close()

    server = await asyncio.start_server(plain, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    nats = connect(
        f"nats://127.0.0.1:{port}", service="manager", instance="0", access=_trusting(), within_s=0.3
    )
    with pytest.raises(Exception, match="it offers no TLS"):
        await nats.__aenter__()
    server.close()
    assert b"CONNECT" not in b"".join(got)


class _Trusting(Access):
    def options(self) -> dict[str, Any]:
        return {"user": "u", "password": "p", "tls": ssl.create_default_context()}


def _trusting() -> Access:
    return _Trusting()
