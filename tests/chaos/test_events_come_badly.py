"""Events come twice, or as no events at all."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from datetime import UTC, datetime

import orjson
import pytest

from shared.bus.nats import reading
from shared.events import DOMAINS, Address, Cause, event
from shared.events import remediation as say
from shared.events import workload as facts
from shared.events.device import Registered
from shared.events.workload import Rejected
from shared.events.world import HealthReported
from tests.chaos.site import CLUSTER_SERVICES, NODES, Sick, Site

pytestmark = [pytest.mark.chaos, pytest.mark.asyncio(loop_scope="session")]

_NODES_SAY = ("inventory", "health", "allocation", "repair", "node")
_ANEW = (say.Opened, say.Quarantined, Registered, facts.AlertRaised, facts.Breached, facts.ScaleOrdered)
"""What a second telling of the past must not bring about."""


async def test_everything_that_was_ever_said_is_heard_again_and_nothing_is_done_twice(site: Site) -> None:
    """Journals repeat what was acknowledged long ago; consumers are gone and begin from the beginning."""
    sick = await site.occupy(NODES[0], 2, labels={"chaos": "twice"})
    await site.protect("twice", {"chaos": "twice"}, 99)
    await site.break_fatally(sick)
    await site.said(say.PodEvicted, sick.about, since=sick.heard_at, where=lambda e: e.outcome == "blocked")
    mark = len(site.heard)
    dead = [name for service in CLUSTER_SERVICES for name in site.copies(service)]
    await asyncio.gather(*(site.stage.kill(name) for name in dead))
    await _forget_consumers(site)
    assert await _say_again(site, _NODES_SAY) > 20
    for name in dead:
        await site.stage.again(name)
    await site.said(
        say.PodEvicted, sick.about, since=mark, where=lambda e: e.outcome == "blocked", within_s=20
    )
    await site.unprotect("twice")
    await site.heal(sick)
    await site.closed(sick)
    assert sorted(await site.evicted(sick)) == sorted(sick.pods.values())
    anew = [e for e in site.heard[mark:] if isinstance(e.data, _ANEW)]
    assert not anew, anew


async def _forget_consumers(site: Site) -> None:
    """Delete every durable: whoever comes next begins where the stream begins."""
    for domain in DOMAINS.values():
        answer = await site.bus.link.api(f"CONSUMER.NAMES.{domain.stream}", {"offset": 0})
        for name in answer.get("consumers") or ():
            if name.startswith(tuple(f"{service}_" for service in CLUSTER_SERVICES)):
                await site.bus.link.api(f"CONSUMER.DELETE.{domain.stream}.{name}")


async def _say_again(site: Site, domains: tuple[str, ...]) -> int:
    """Publish every stored event once more, without the id that the server would know it by; how many."""
    count = 0
    for domain in domains:
        stream = DOMAINS[domain].stream
        _, head = await reading.state(site.bus.link, stream)
        kept = [
            found
            async for found in reading.stored(
                site.bus.link, stream, f"fleet.v1.{domain}.>", after=0, up_to=head
            )
        ]
        for found in kept:
            await site.bus.link.request(found.subject, found.body)
        count += len(kept)
    return count


async def test_what_is_no_event_becomes_a_dead_letter_with_field_and_reason_and_a_drain_goes_on(
    site: Site,
) -> None:
    sick = await site.occupy(NODES[1], 1, labels={"chaos": "junk"})
    await site.protect("junk", {"chaos": "junk"}, 99)
    await site.break_fatally(sick)
    await site.said(say.PodEvicted, sick.about, since=sick.heard_at, where=lambda e: e.outcome == "blocked")
    counted, mark = await site.metric("mediafleet_bus_dead_letters_total"), len(site.heard)
    junk: dict[tuple[str, int], str] = {}
    for subject, body in _junk(sick):
        answer = orjson.loads((await site.bus.link.request(subject, body)).data)
        junk[answer["stream"], answer["seq"]] = subject
    site.injected |= set(junk)
    await site.unprotect("junk")
    await site.heal(sick)
    await site.closed(sick)

    def letters() -> list[Rejected]:
        said = [e.data for e in site.heard[mark:] if isinstance(e.data, Rejected)]
        return [one for one in said if not one.consumer.startswith("chaos")]

    refused = {origin for origin in junk if origin[0] not in ("FLEET_ALERT", "FLEET_DEADLETTER")}
    await site.until(
        "a dead letter about each", lambda: refused <= {(one.stream, one.sequence) for one in letters()}
    )
    assert all(one.reason and one.field for one in letters())
    assert {one.subject for one in letters()} <= set(junk.values())
    await site.until_true(
        "every dead letter was counted",
        lambda: site.metric("mediafleet_bus_dead_letters_total"),
        counted + len(letters()),
    )
    assert await site.evicted(sick) == list(sick.pods.values())


def _junk(sick: Sick) -> Iterator[tuple[str, bytes]]:
    """No JSON, no envelope, another's, an unknown version, impossible figures, on every stream."""
    heard = {
        "node": "heartbeat",
        "inventory": "discovered",
        "health": "reported",
        "allocation": "bound",
        "repair": "done",
        "command": "hold-requested",
        "sample": "sampled",
        "device": "registered",
        "remediation": "quarantined",
        "sla": "scale-requested",
        "scale": "applied",
        "alert": "raised",
        "deadletter": "rejected",
    }
    assert set(heard) == set(DOMAINS)
    for number, (domain, fact) in enumerate(heard.items()):
        subject = Address(domain, sick.node, sick.device, fact).subject
        yield subject, (b"{", b'{"specversion": "1.0"}', b"\xff\xfe", b"[]")[number % 4]
    report = event(
        HealthReported(boot_id="another", window_id=1, verdict="unhealthy", streak=1),
        (sick.node, sick.device),
        cause=Cause.source("another", 1),
        source="/mediafleet/discovery/chaos",
        at=datetime.now(UTC),
    )
    body = orjson.loads(report.encode())
    for wrong in (
        {"subject": f"{sick.node}/nvidia-0000-99-00-0"},
        {"type": "io.mediafleet.health.reported.v9"},
        {"data": {**body["data"], "streak": -1}},
        {"data": {**body["data"], "window_id": None}},
        {"id": ""},
    ):
        yield report.address.subject, orjson.dumps({**body, **wrong})
