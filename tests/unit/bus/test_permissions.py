"""Permissions follow the code; docs/security.md and deploy/base/nats/accounts.yaml follow the permissions."""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest

from services.alerting import rules as alerting_rules
from services.alerting.service import heard as alerting_hears
from services.autoscaler.service import Autoscaler
from services.bridge.service import HEARD as BRIDGE_HEARD
from services.guardian.service import Guardian
from services.manager.service import Manager
from services.remediation.service import Remediation
from shared.bus.names import READER_SLOTS, durables, inbox, readers
from shared.bus.permissions import (
    AGENTS,
    AUDIT,
    CLUSTER,
    NODES,
    SAMPLES,
    SERVICES,
    VIEW_WRITERS,
    Permissions,
    agent,
    console,
    exports,
    heard,
    provisioning,
    said,
    samples,
    service,
    summary,
    users,
)
from shared.bus.provision import VIEWS
from shared.bus.server_config import OPERATOR, accounts, values_file
from shared.events import CATALOGUE, DOMAINS, Keeps
from shared.events.remediation import DiagnosisRequested, RepairRequested

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "security.md"
ACCOUNTS = ROOT / "deploy" / "base" / "nats" / "accounts.yaml"
BEGIN = "<!-- made from the code: MEDIAFLEET_WRITE_DOCS=1 pytest tests/unit/bus/test_permissions.py -->\n"
END = "<!-- end -->"


def takes(pattern: str, subject: str) -> bool:
    """As the server matches."""
    if pattern == subject:
        return True
    if "*" not in pattern and ">" not in pattern:
        return False
    wanted, given = pattern.split("."), subject.split(".")
    for index, token in enumerate(wanted):
        if token == ">":
            return len(given) > index
        if index >= len(given) or token not in ("*", given[index]):
            return False
    return len(wanted) == len(given)


def may(client: Permissions, subject: str) -> bool:
    return any(takes(pattern, subject) for pattern in client.publish)


@functools.cache
def everybody() -> dict[str, Permissions]:
    return {**users(), **{name: agent(name, "node-a") for name in AGENTS}, "samples": samples("live")}


def test_what_services_hear_is_what_their_permissions_name() -> None:
    hears = {
        "manager": Manager.hears,
        "remediation": Remediation.hears,
        "guardian": Guardian.hears,
        "autoscaler": Autoscaler.hears,
        "alerting": alerting_hears(alerting_rules.load()),
        "bridge": tuple(payload for payloads in BRIDGE_HEARD.values() for payload in payloads),
        "discovery": (DiagnosisRequested, RepairRequested),
    }
    assert hears.keys() == {*SERVICES, *AGENTS}
    for name, payloads in hears.items():
        assert {payload.kind.domain for payload in payloads} <= set(heard(name)), name


def test_each_domain_has_the_writers_that_the_catalogue_names() -> None:
    for domain, kept in DOMAINS.items():
        subject = f"fleet.v1.{domain}.node-a.x.anything"
        writers = {name for name, client in everybody().items() if may(client, subject)}
        assert writers <= set(kept.writers), domain
    for name in (*SERVICES, *AGENTS, "console", "simulator"):
        client = everybody()[name]
        for domain in said(name):
            assert may(client, f"fleet.v1.{domain}.node-a.x.anything")
    assert may(samples("live"), "fleet.v1.sample.live.p1.sampled")


def test_what_a_fact_says_of_its_speaker_agrees_with_who_may_write() -> None:
    for payload, _ in CATALOGUE.values():
        if payload.kind.domain != "deadletter":
            assert set(payload.kind.said_by) <= set(DOMAINS[payload.kind.domain].writers)


def test_every_view_has_one_writer() -> None:
    assert set(VIEW_WRITERS) == set(VIEWS)
    for view, writer in VIEW_WRITERS.items():
        assert {name for name, client in everybody().items() if may(client, f"$KV.{view}.x")} == {writer}


def test_only_provisioning_deletes_or_changes_streams() -> None:
    for verb in ("DELETE", "UPDATE", "CREATE"):
        subject = f"$JS.API.STREAM.{verb}.FLEET_REMEDIATION"
        assert {name for name, client in everybody().items() if may(client, subject)} == {"provision"}
    assert {
        name for name, client in everybody().items() if may(client, "$JS.API.STREAM.CREATE.FLEET_SAMPLE")
    } == {
        "provision",
        *(name for name in SERVICES if "sample" in heard(name)),
    }


def test_only_the_owner_of_a_log_purges_it() -> None:
    for domain in DOMAINS.values():
        subject = f"$JS.API.STREAM.PURGE.{domain.stream}"
        able = {name for name, client in everybody().items() if may(client, subject)}
        assert able == (set(domain.writers) if domain.keeps is Keeps.LOG else set())


def test_nobody_may_use_a_consumer_of_another() -> None:
    for name in (*SERVICES, *AGENTS, "console"):
        place = "node-a" if name in AGENTS else None
        for domain in heard(name):
            names = durables(f"{name}_{domain}") if name in SERVICES else readers(f"{name}_{domain}", place)
            for consumer in (names[0], names[-1]):
                for act in (
                    f"$JS.API.CONSUMER.MSG.NEXT.{DOMAINS[domain].stream}.{consumer}",
                    f"$JS.API.CONSUMER.DELETE.{DOMAINS[domain].stream}.{consumer}",
                    f"$JS.ACK.{DOMAINS[domain].stream}.{consumer}.1.1.1.1.1",
                ):
                    able = {other for other, client in everybody().items() if may(client, act)}
                    assert able == {name}, act


def test_no_wildcard_stands_where_a_place_or_a_name_must() -> None:
    for name in AGENTS:
        for subject in agent(name, "node-a").publish:
            assert subject.startswith("$JS.") or ".node-a." in subject
            assert "*" not in subject.replace("fleet.v1.", "").replace(".*", "") or "node-a" in subject
            assert not re.search(r"CONSUMER\.[A-Z.]+\.\*", subject)
    for client in everybody().values():
        assert ">" not in client.publish
        assert "$JS.>" not in client.publish
        assert all(subject.startswith(("_INBOX_", "$SYS.REQ.USER.AUTH")) for subject in client.subscribe)


def test_two_clients_never_share_an_inbox() -> None:
    prefixes = [client.subscribe[-1] for client in (*everybody().values(), agent("bridge", "node-b"))]
    assert len(set(prefixes)) == len(prefixes)
    assert inbox("bridge", "a.b") == "_INBOX_bridge_a_2eb"
    # No service's prefix may be another's with a node behind it.
    assert not any(other.startswith(f"{name}_") for name in (*SERVICES, *AGENTS) for other in users())


def test_a_node_whose_name_looks_like_a_wildcard_is_escaped() -> None:
    for subject in agent("bridge", "*").publish:
        assert ".*." not in subject.removesuffix(".>")


def test_what_an_agent_may_ask_is_exported_to_its_account() -> None:
    open_to: dict[str, Callable[[], Iterator[Permissions]]] = {
        NODES: lambda: iter([agent(name, "node-a") for name in AGENTS]),
        SAMPLES: lambda: iter([samples("live")]),
        AUDIT: lambda: iter([users()["auditor"]]),
    }
    for account, clients in open_to.items():
        exported = [export.subject for export in exports() if account in export.to]
        for client in clients():
            assert client.account == account
            for subject in client.publish:
                sample = subject.replace(">", "x.y").replace("*", "x")
                assert any(takes(pattern, sample) or takes(pattern, subject) for pattern in exported), subject


def test_no_export_lets_another_account_write_a_case_or_a_command() -> None:
    for export in exports():
        for domain in ("remediation", "command", "device", "sla", "scale", "alert"):
            assert not takes(export.subject, f"fleet.v1.{domain}.a.b.c")
        assert not export.subject.startswith("$KV")
        assert "STREAM.DELETE" not in export.subject


def test_streams_live_in_one_account_only() -> None:
    made = accounts(lambda name: f"U-{name}")
    assert [name for name, account in made["accounts"].items() if "jetstream" in account] == [CLUSTER]


def test_every_user_with_a_key_is_let_in_without_the_callout() -> None:
    made = accounts(lambda name: f"U-{name}")
    named = {user["nkey"] for account in made["accounts"].values() for user in account["users"]}
    assert named == set(made["authorization"]["auth_callout"]["auth_users"])
    assert named == {f"U-{name}" for name in (*users(), OPERATOR)}


def test_every_request_in_the_code_is_one_that_permissions_were_made_for() -> None:
    """A new one fails here: think who needs it, and give it to them."""
    asked = set()
    for path in (*(ROOT / "shared/bus/nats").glob("*.py"), ROOT / "shared/bus/provision.py"):
        text = path.read_text(encoding="utf-8").partition('"""\n\n')[2]
        asked |= set(re.findall(r"\b((?:CONSUMER|STREAM|DIRECT)(?:\.[A-Z]+)+)(?=\.\{|\")", text))
    assert asked == {
        "CONSUMER.CREATE",
        "CONSUMER.DELETE",
        "CONSUMER.INFO",
        "CONSUMER.MSG.NEXT",
        "DIRECT.GET",
        "STREAM.CREATE",
        "STREAM.INFO",
        "STREAM.MSG.GET",
        "STREAM.PURGE",
        "STREAM.UPDATE",
    }


def test_a_summary_has_a_line_for_a_set_of_names() -> None:
    assert summary(
        [
            "$JS.ACK.S.a_health-0.>",
            "$JS.ACK.S.a_health-1.>",
            "$JS.ACK.S.a_health_7.>",
            "x.worker-3.y",
            "a_b.c",
        ]
    ) == ["$JS.ACK.S.a_health-[n].>", "$JS.ACK.S.a_health_[n].>", "x.worker-3.y", "a_b.c"]
    assert len(summary(console().publish)) < len(console().publish) / READER_SLOTS * 2


def described(client: Permissions) -> Iterator[str]:
    """What a client may do, a line for each sort of act."""
    subjects = summary(client.publish)
    facts = [each for each in subjects if each.startswith("fleet.")]
    values = [each for each in subjects if each.startswith("$KV.")]
    consumers: dict[str, list[str]] = {}
    asks: dict[str, list[str]] = {}
    for each in subjects:
        act, _, rest = each.removeprefix("$JS.API.").rpartition(".")
        if act.startswith("CONSUMER.MSG.NEXT."):
            consumers.setdefault(act.removeprefix("CONSUMER.MSG.NEXT."), []).append(rest)
        elif each.startswith("$JS.API.") and not act.startswith("CONSUMER."):
            asks.setdefault(act or rest, []).extend([rest] if act else [])
    if facts:
        yield f"- says {code(facts)}"
    if values:
        yield f"- writes {code(values)}"
    for stream, names in consumers.items():
        filters = {
            each.partition(f".{stream}.{name}.")[2]
            for name in names
            for each in subjects
            if each.startswith(f"$JS.API.CONSUMER.CREATE.{stream}.{name}.")
        } - {">"}
        only = f", only {code(sorted(filters))}" if filters else ""
        yield f"- consumes `{stream}` as {code(names)}{only}"
    for act, streams in asks.items():
        yield f"- asks `{act}`" + (f" of {code(streams)}" if streams else "")
    yield f"- subscribes to {code(client.subscribe)}"
    if client.responses:
        yield "- answers what it is asked"


def code(words: Iterable[str]) -> str:
    return ", ".join(f"`{word}`" for word in words)


def table() -> str:
    shown = {
        **users(),
        **{f"{name}, of node N": agent(name, "N") for name in AGENTS},
        "samples, of namespace N": samples("N"),
    }
    return "\n".join(
        "\n".join([f"### {name} (`{client.account}`)", *described(client), ""])
        for name, client in shown.items()
    )


def test_the_page_says_what_each_may_do() -> None:
    text = PAGE.read_text(encoding="utf-8")
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    expected = f"{before}{BEGIN}{table()}{END}{after}"
    if os.environ.get("MEDIAFLEET_WRITE_DOCS"):
        PAGE.write_text(expected, encoding="utf-8")
        ACCOUNTS.write_text(values_file(), encoding="utf-8")
    assert PAGE.read_text(encoding="utf-8") == expected, "write it anew: MEDIAFLEET_WRITE_DOCS=1"


def test_the_charts_accounts_are_those_of_the_code() -> None:
    assert ACCOUNTS.read_text(encoding="utf-8") == values_file(), (
        "python -m shared.bus.server_config values > deploy/base/nats/accounts.yaml"
    )


def test_a_service_without_views_has_none() -> None:
    assert not [subject for subject in service("autoscaler").publish if subject.startswith("$KV.devices")]
    assert may(provisioning(), "$JS.API.STREAM.DELETE.FLEET_AUDIT")


@pytest.mark.parametrize("name", SERVICES)
def test_a_lease_is_its_services_own(name: str) -> None:
    able = {other for other, client in everybody().items() if may(client, f"$KV.leases.{name}")}
    assert able == {name}
