"""Every act that is forbidden, tried."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

import orjson
import pytest

from shared.bus.access import Access
from shared.bus.nats import NatsBus, connect
from shared.bus.nats.frames import Frame
from shared.bus.permissions import SERVICES, VIEW_WRITERS, said
from shared.bus.provision import provision
from shared.errors import Permanent, Refused
from shared.events import DOMAINS
from tests.contract.bus.world import Heard, current, report
from tests.integration.security.site import Site

pytestmark = pytest.mark.asyncio(loop_scope="module")

WITHIN_S = 30.0
API = "$JS.API"


async def refused(bus: NatsBus, subjects: Iterable[str]) -> None:
    """Each of these may not be published."""
    for subject in subjects:
        with pytest.raises(Permanent, match="may not publish"):
            await bus.link.request(subject, b"{}")


async def deaf(here: Site, bus: NatsBus, subjects: Iterable[str]) -> None:
    """None of these may be subscribed to."""
    for subject in subjects:
        before = len(here.violations)
        subscription = await bus.link.subscribe(subject, _never)
        await bus.ping()
        await bus.ping()
        assert len(here.violations) == before + 1, subject
        await bus.link.unsubscribe(subscription)


def _never(frame: Frame) -> None:
    raise AssertionError(frame.subject)


EVERYBODYS = (
    f"{API}.STREAM.DELETE.FLEET_HEALTH",
    f"{API}.STREAM.DELETE.KV_leases",
    f"{API}.STREAM.UPDATE.FLEET_HEALTH",
    f"{API}.STREAM.CREATE.FLEET_MINE",
    f"{API}.STREAM.PURGE.FLEET_HEALTH",
    f"{API}.STREAM.PURGE.FLEET_COMMAND",
    f"{API}.STREAM.MSG.DELETE.FLEET_HEALTH",
    f"{API}.STREAM.RESTORE.FLEET_HEALTH",
    f"{API}.STREAM.SNAPSHOT.FLEET_HEALTH",
    f"{API}.CONSUMER.CREATE.FLEET_HEALTH",
    f"{API}.CONSUMER.DURABLE.CREATE.FLEET_HEALTH.mine",
    f"{API}.CONSUMER.CREATE.FLEET_HEALTH.mine",
    f"{API}.CONSUMER.PAUSE.FLEET_HEALTH.remediation_health-0",
    f"{API}.CONSUMER.LEADER.STEPDOWN.FLEET_HEALTH.remediation_health-0",
    "$JS.EVENT.ADVISORY.CONSUMER.MAX_DELIVERIES.FLEET_HEALTH.x",
    "$SYS.REQ.SERVER.PING",
    "$SYS.REQ.USER.AUTH",
    "fleet.v2.health.a.b.reported",
)
"""What only provisioning, or nobody, may do."""


def of_others(service: str) -> list[str]:
    """Acts on what belongs to other services."""
    other = "remediation" if service != "remediation" else "manager"
    return [
        *(f"fleet.v1.{domain}.a.b.said" for domain in DOMAINS if domain not in said(service)),
        *(f"$KV.{view}.a" for view, writer in VIEW_WRITERS.items() if writer != service),
        f"$KV.leases.{other}",
        f"$KV.attempts.{other}_health.1.1",
        *(
            f"{API}.CONSUMER.{act}.FLEET_HEALTH.{other}_health-0"
            for act in ("CREATE", "INFO", "DELETE", "MSG.NEXT")
        ),
        f"{API}.CONSUMER.CREATE.FLEET_HEALTH.{other}_health-0.fleet.v1.health.*.*.reported",
        f"$JS.ACK.FLEET_HEALTH.{other}_health-0.1.1.1.1.1",
        f"{API}.CONSUMER.MSG.NEXT.FLEET_HEALTH.bridge_health_z_0",
        "$JS.ACK.FLEET_HEALTH.bridge_health_z_0.1.1.1.1.1",
        *([f"fleet.v1.deadletter.a.{other}.rejected"] if service != "alerting" else []),
    ]


@pytest.mark.parametrize("service", [*SERVICES, "console", "simulator"])
async def test_a_service_touches_nothing_of_others(service: str, here: Site) -> None:
    async with here.bus(service) as bus:
        await refused(bus, [*EVERYBODYS, *of_others(service)])
        await deaf(here, bus, (">", "fleet.v1.>", "$SYS.>", "_INBOX_discovery_a.>", "_INBOX.>", "$JS.ACK.>"))


@pytest.mark.parametrize("service", ["discovery", "bridge"])
async def test_an_agent_touches_nothing_but_its_place(service: str, here: Site) -> None:
    own = said(service)
    others = "bridge" if service == "discovery" else "discovery"
    async with here.agent(service, "a") as agent:
        await refused(
            agent,
            [
                *EVERYBODYS,
                *of_others(service),
                *(f"fleet.v1.{domain}.b.x.said" for domain in own),
                f"fleet.v1.deadletter.b.{service}.rejected",
                f"fleet.v1.deadletter.a.{others}.rejected",
                "$KV.leases.remediation",
                f"{API}.STREAM.INFO.FLEET_AUDIT",
                f"{API}.STREAM.MSG.GET.FLEET_REMEDIATION",
                f"{API}.DIRECT.GET.FLEET_REMEDIATION",
                f"{API}.CONSUMER.CREATE.FLEET_REMEDIATION.{service}_remediation_a_0",
                f"{API}.CONSUMER.CREATE.FLEET_REMEDIATION.{service}_remediation_a_0.fleet.v1.remediation.b.>",
                f"{API}.CONSUMER.CREATE.FLEET_REMEDIATION.{service}_remediation_a_0.fleet.v1.>",
                f"{API}.CONSUMER.CREATE.FLEET_REMEDIATION.{service}_remediation_b_0.fleet.v1.remediation.a.*.x",
                f"{API}.CONSUMER.MSG.NEXT.FLEET_REMEDIATION.{service}_remediation_b_0",
                f"{API}.CONSUMER.DELETE.FLEET_REMEDIATION.{service}_remediation_b_0",
                f"$JS.ACK.FLEET_REMEDIATION.{service}_remediation_b_0.1.1.1.1.1",
                f"_INBOX_{service}_b.x",
            ],
        )
        await deaf(here, agent, (">", f"_INBOX_{service}_b.>", "_INBOX_remediation.>", "_R_.>", "fleet.v1.>"))


async def test_an_agent_is_asked_for_the_filter_it_named(here: Site) -> None:
    """The subject that permissions are checked by and the body that counts must say the same."""
    subject = f"{API}.CONSUMER.CREATE.FLEET_REMEDIATION.bridge_remediation_a_0.fleet.v1.remediation.a.*.*"
    config = {"name": "bridge_remediation_a_0", "filter_subject": "fleet.v1.remediation.b.*.*"}
    async with here.agent("bridge", "a") as agent:
        for each in (
            config,
            {**config, "filter_subject": "", "filter_subjects": ["fleet.v1.remediation.b.>"]},
        ):
            body = orjson.dumps({"stream_name": "FLEET_REMEDIATION", "config": each, "action": "create"})
            answer = orjson.loads((await agent.link.request(subject, body)).data)
            assert answer["error"]["code"] == 400


async def test_no_reply_subject_of_an_agent_reaches_a_stream(here: Site) -> None:
    """A server answers wherever it was asked to; from another account that is never a stream's subject."""
    targets = (
        "fleet.v1.remediation.a.x.held",
        "fleet.v1.health.b.x.reported",
        "fleet.v1.health.a.x.reported",
        "fleet.v1.command.a.x.hold-requested",
        "$KV.leases.remediation",
        f"{API}.STREAM.DELETE.FLEET_HEALTH",
    )
    consumer = "bridge_remediation_a_0"
    filtered = "fleet.v1.remediation.a.*.*"
    async with (
        here.root() as root,
        here.agent("discovery", "a") as agent,
        here.agent("bridge", "a") as bridge,
    ):
        config = {"name": consumer, "filter_subject": filtered, "ack_policy": "explicit"}
        await bridge.link.api(
            f"CONSUMER.CREATE.FLEET_REMEDIATION.{consumer}.{filtered}",
            {"stream_name": "FLEET_REMEDIATION", "config": config, "action": "create"},
        )
        for _ in targets:
            await root.link.request("fleet.v1.remediation.a.x.held", b"{}")
        before = await _messages(root)
        for target in targets:
            await agent.link.send("fleet.v1.health.a.y.reported", b"{}", reply=target)
            await bridge.link.send(
                f"{API}.CONSUMER.MSG.NEXT.FLEET_REMEDIATION.{consumer}", b'{"batch":1}', reply=target
            )
        await agent.link.request("fleet.v1.health.a.y.reported", b"{}")
        await bridge.ping()
        after = await _messages(root)
    own = after.pop("FLEET_HEALTH") - before.pop("FLEET_HEALTH")
    assert own == len(targets) + 1
    assert after == before


async def _messages(root: NatsBus) -> dict[str, int]:
    """How many messages each stream holds, the audit aside, which follows."""
    found = {}
    for stream in (*(domain.stream for domain in DOMAINS.values()), "KV_leases"):
        found[stream] = int((await root.link.api(f"STREAM.INFO.{stream}"))["state"]["messages"])
    return found


async def test_another_nodes_replies_are_not_heard(here: Site) -> None:
    """Even guessing: an agent's inboxes carry its node, and its permissions name no other's."""
    async with here.agent("bridge", "a") as one, here.agent("bridge", "b") as two:
        await deaf(here, one, (f"{two.link.inbox()}", "_INBOX_bridge_b.*", "_INBOX_*.>", "_INBOX_bridge_>"))


async def test_an_auditor_only_reads_the_audit(here: Site) -> None:
    async with here.bus("auditor") as bus:
        await refused(
            bus,
            [
                *EVERYBODYS,
                *of_others("auditor"),
                f"{API}.STREAM.INFO.FLEET_REMEDIATION",
                f"{API}.STREAM.MSG.GET.FLEET_COMMAND",
                f"{API}.STREAM.PURGE.FLEET_AUDIT",
                f"{API}.CONSUMER.CREATE.FLEET_AUDIT.mine",
            ],
        )
        await deaf(here, bus, (">", "_INBOX_remediation.>"))


async def test_a_workload_says_samples_of_its_namespace_only(here: Site) -> None:
    access = here.by_token(here.api.token("encoder", "a", namespace="live"), "live")
    async with connect(here.server.url, service="samples", instance="0", access=access) as bus:
        await refused(
            bus,
            [
                *EVERYBODYS,
                *of_others("samples"),
                "fleet.v1.sample.batch.p1.sampled",
                "fleet.v1.sample.live.p1.other",
                f"{API}.STREAM.MSG.GET.FLEET_SAMPLE",
            ],
        )
        await deaf(here, bus, (">", "fleet.v1.sample.live.>", "_INBOX_samples_batch.>"))


async def test_only_provisioning_deletes_a_stream_and_it_does_nothing_else(here: Site) -> None:
    async with here.bus("provision") as bus:
        await refused(
            bus,
            [
                *(f"fleet.v1.{domain}.a.b.said" for domain in DOMAINS),
                f"{API}.STREAM.PURGE.FLEET_REMEDIATION",
                f"{API}.STREAM.MSG.GET.FLEET_REMEDIATION",
                f"{API}.CONSUMER.CREATE.FLEET_REMEDIATION.mine",
                "$KV.leases.remediation",
            ],
        )
        assert (await bus.link.api("STREAM.DELETE.FLEET_SAMPLE"))["success"] is True
    changes = await provision(here.server.url, access=here.access("provision"))
    assert [str(change) for change in changes] == ["FLEET_SAMPLE: created"]


async def test_a_stolen_pull_of_another_service_brings_nothing(here: Site) -> None:
    """The guardian hears the same stream as remediation; remediation's consumer is not its own."""
    came = Heard()
    async with (
        here.root() as root,
        here.bus("remediation") as owner,
        here.bus("guardian") as thief,
        owner.lease("remediation") as lease,
        owner.consume("remediation", (came.health(),), lease=lease) as consumption,
    ):
        await current(consumption)
        await refused(thief, [f"{API}.CONSUMER.MSG.NEXT.FLEET_HEALTH.remediation_health-0"])
        await root.publish(report(777))
        await came.count(len(came.deliveries) + 1 if 777 not in came.windows else 0)
    assert came.windows[-1] == 777


async def test_the_callouts_user_cannot_do_anything_else(here: Site) -> None:
    access = here.access("authcallout")
    async with connect(here.server.url, service="authcallout", instance="1", access=access) as bus:
        await refused(bus, [f"{API}.INFO", "fleet.v1.health.a.b.reported", "$SYS.REQ.USER.AUTH", "x"])


async def test_nobody_comes_in_without_credentials(here: Site) -> None:
    access = Access(ca_file=here.authority.ca_file)
    opening = connect(here.server.url, service="bridge", instance="0", access=access)
    with pytest.raises(Refused, match="does not let bridge in: check its credentials"):
        await asyncio.wait_for(opening.__aenter__(), WITHIN_S)
