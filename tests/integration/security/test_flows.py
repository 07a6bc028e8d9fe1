"""What each kind of client really does passes with its permissions; the server refuses everything else."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from datetime import UTC, datetime

import orjson
import pytest
from pydantic import BaseModel

from shared.bus.nats import NatsBus, connect
from shared.bus.nats.reading import BATCH, stored
from shared.bus.nats.starts import NatsStarts
from shared.bus.permissions import AGENTS, AUDIT_STREAM, SERVICES, VIEW_WRITERS, heard, said
from shared.bus.port import Delivery, Origin, Subscription
from shared.events import CATALOGUE, DOMAINS, Entity, Event, Payload
from shared.events.workload import Rejected
from shared.events.world import Sampled
from tests.contract.bus.world import Heard, current, hold, report, struck
from tests.integration.security.site import Site

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.usefixtures("nothing_refused")]

PLACE, KEY = "worker-3.example", "nvidia-0000-3b-00-0"
WITHIN_S = 30.0


class Row(BaseModel):
    """A view's value."""

    n: int


def facts_heard(service: str, domain: str) -> tuple[type[Payload], ...]:
    """What it hears of a domain; at least two kinds, where there are, so that the filter is a list."""
    everything = tuple(payload for payload, _ in CATALOGUE.values() if payload.kind.domain == domain)
    own = tuple(payload for payload in everything if service in payload.kind.heard_by)
    return own or everything


async def _say(root: NatsBus, domain: str, fact: str, body: bytes = b"junk") -> None:
    # `worker-3.example` in a subject.
    await root.link.request(f"fleet.v1.{domain}.worker-3_2eexample.{KEY}.{fact}", body)


def listening(service: str, then: Heard, *, place: str | None = None) -> tuple[Subscription, ...]:
    return tuple(
        Subscription(domain, facts_heard(service, domain), then, place=place) for domain in heard(service)
    )


async def letters(root: NatsBus, by: str) -> set[str]:
    """Streams about whose messages somebody wrote dead letters."""
    return {
        each.event.data.stream
        async for each in root.history("deadletter")
        if isinstance(each.event, Event)
        and isinstance(each.event.data, Rejected)
        and each.event.of.entity == by
    }


@pytest.mark.parametrize("service", SERVICES)
async def test_a_service_consumes_is_replaced_and_writes_dead_letters(service: str, here: Site) -> None:
    async with here.root() as root, here.bus(service, "0") as first, here.bus(service, "1") as second:
        domains = [domain for domain in heard(service) if domain != "deadletter"]
        for domain in domains:
            await _say(root, domain, facts_heard(service, domain)[0].kind.fact)
        for bus in (first, second):
            async with (
                bus.lease(service) as lease,
                bus.consume(service, listening(service, Heard()), lease=lease) as consumption,
            ):
                await current(consumption)
        assert await letters(root, service) == {DOMAINS[domain].stream for domain in domains}


@pytest.mark.parametrize("service", SERVICES)
async def test_a_service_reads_counts_and_keeps_its_logs_and_views(service: str, here: Site) -> None:
    async with here.bus(service) as bus:
        await bus.ping()
        for domain in {*heard(service), *said(service)}:
            [each async for each in bus.history(domain)]
        starts = NatsStarts(bus.link, f"{service}_{heard(service)[0]}", datetime.now(UTC))
        await starts.count(1)
        assert await starts.counted(1) == 1
        await starts.forget(1)
        for domain in said(service):
            of = Entity(domain, PLACE, KEY)
            await bus.link.request(f"{of.wildcard[:-1]}anything", b"{}")
            assert await bus.last(of) is None
            assert [each async for each in bus.read(of)] == []
            await bus.audited(of, 1)
            await bus.purge(of, below=2)
        origin = Origin(datetime(2026, 3, 1, tzinfo=UTC), 1)
        for view in (view for view, writer in VIEW_WRITERS.items() if writer == service):
            values = bus.view(view, Row)
            assert await values.put(PLACE, Row(n=1), origin=origin) is not None
            assert await values.get(PLACE) is not None
            assert list(await values.all()) == [PLACE]
            watching = values.watch()
            async with asyncio.timeout(WITHIN_S):
                assert await anext(watching) is not None
                assert await anext(watching) is None
            await watching.aclose()  # type: ignore[attr-defined] # it is a generator


async def test_remediation_appends_to_its_logs(here: Site) -> None:
    of = Entity("remediation", PLACE, KEY)
    async with here.bus("remediation") as bus:
        sequence = await bus.append(struck(1, of=of), 0)
        assert await bus.append(struck(1, of=of), 0) == sequence
        assert await bus.append(struck(2, of=of), sequence) > sequence


async def test_a_stream_in_memory_is_made_again_by_who_hears_it(here: Site) -> None:
    async with here.bus("guardian") as bus:
        await here.server.restart()
        async with (
            bus.lease("guardian") as lease,
            bus.consume(
                "guardian", (Subscription("sample", (Sampled,), Heard()),), lease=lease
            ) as consumption,
        ):
            await current(consumption)


async def test_alerting_copies_the_bodies_that_the_servers_advisories_are_about(here: Site) -> None:
    async with here.root() as root, here.bus("alerting") as bus:
        found = await root.publish(report(99))
        advisory = {"stream": "FLEET_HEALTH", "stream_seq": found.sequence, "consumer": "outsider"}
        await root.link.request(
            "$JS.EVENT.ADVISORY.CONSUMER.MAX_DELIVERIES.FLEET_HEALTH.outsider", orjson.dumps(advisory)
        )
        copied = asyncio.Event()

        async def take(delivery: Delivery) -> None:
            if delivery.event.of.entity == "outsider":
                copied.set()

        heard_now = Subscription("deadletter", (Rejected,), take)
        async with bus.lease("alerting") as lease, bus.consume("alerting", (heard_now,), lease=lease):
            await asyncio.wait_for(copied.wait(), WITHIN_S)


@pytest.mark.parametrize("service", AGENTS)
async def test_an_agent_says_hears_and_dead_letters_what_is_of_its_place(service: str, here: Site) -> None:
    async with here.root() as root, here.agent(service, PLACE) as agent:
        async with asyncio.timeout(WITHIN_S):
            await agent.ping()
            for domain in said(service):
                await agent.link.request(f"fleet.v1.{domain}.worker-3_2eexample.{KEY}.anything", b"{}")
        for domain in heard(service):
            await _say(root, domain, facts_heard(service, domain)[0].kind.fact)
        for _ in range(2):
            async with agent.consume(service, listening(service, Heard(), place=PLACE)) as consumption:
                await current(consumption)
        assert await letters(root, service) == {DOMAINS[domain].stream for domain in heard(service)}
        consumers = await root.link.api(f"CONSUMER.NAMES.{DOMAINS[heard(service)[0]].stream}", {"offset": 0})
        left = [name for name in consumers["consumers"] or [] if name.startswith(f"{service}_")]
        assert not left, "it leaves nothing behind"


async def test_an_agent_that_says_a_fact_twice_is_told_so(here: Site) -> None:
    async with here.agent("discovery", "a") as agent:
        first = await agent.publish(report(50, place="a"))
        again = await agent.publish(report(50, place="a"))
    assert (again.sequence, again.duplicate) == (first.sequence, True)


async def test_an_agent_hears_again_after_its_process_died(here: Site) -> None:
    """Names of readers that nobody deleted do not stand in the way of the next process."""
    async with here.root() as root, AsyncExitStack() as stack:
        agent = await stack.enter_async_context(here.agent("bridge", "a"))
        for number in range(6):
            heard_now = Heard()
            async with agent.consume("bridge", (heard_now.health(place="a"),)) as consumption:
                await root.publish(report(number, place="a"))
                await current(consumption)
                assert heard_now.windows[-1] == number
                agent.link._up.clear()  # what is left now, it leaves as a killed process would
            agent.link._up.set()


async def test_the_console_follows_reads_views_and_says_commands(here: Site) -> None:
    async with here.bus("console", "x") as bus, here.bus("console", "y") as another:
        said = hold("r1")
        await bus.publish(said)
        for domain in DOMAINS:
            [each async for each in bus.history(domain)]
        [each async for each in bus.audit("worker-3", KEY)]
        for view in VIEW_WRITERS:
            await bus.view(view, Row).all()
        came, came_too = Heard(), Heard()
        everything = tuple((domain, facts_heard("console", domain)) for domain in DOMAINS)
        async with (
            bus.consume("console", tuple(Subscription(d, f, came) for d, f in everything)) as one,
            another.consume("console", tuple(Subscription(d, f, came_too) for d, f in everything)) as two,
        ):
            await current(one)
            await current(two)
            assert said.id in {each.event.id for each in came.deliveries}
            assert len(came.deliveries) == len(came_too.deliveries)


async def test_an_auditor_reads_the_audit_from_an_account_of_its_own(here: Site) -> None:
    async with here.root() as root, here.bus("auditor") as auditor:
        await asyncio.gather(*(root.publish(report(1000 + number)) for number in range(BATCH + 100)))
        last = 0
        async with asyncio.timeout(WITHIN_S):
            while last <= BATCH:
                last = int((await auditor.link.api(f"STREAM.INFO.{AUDIT_STREAM}"))["state"]["last_seq"])
            [each async for each in auditor.audit("worker-3", KEY)]
            found = [m.sequence async for m in stored(auditor.link, AUDIT_STREAM, ">", after=0, up_to=last)]
    assert found == list(range(1, last + 1))


async def test_samples_come_from_their_own_namespace_by_a_workloads_token(here: Site) -> None:
    subject = "fleet.v1.sample.live.p1.sampled"
    token = here.api.token("encoder", "a", namespace="live")
    access = here.by_token(token, "live")
    async with here.bus("guardian") as guardian:
        async with connect(here.server.url, service="samples", instance="0", access=access) as workload:
            await workload.link.request(subject, b"{}")
        assert (await guardian.link.api("STREAM.INFO.FLEET_SAMPLE"))["state"]["messages"] > 0


async def test_the_simulator_says_samples(here: Site) -> None:
    async with here.bus("simulator") as bus:
        await bus.link.request("fleet.v1.sample.live.p1.sampled", b"{}")
