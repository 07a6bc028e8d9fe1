"""Who may use which subjects: one set for each kind of client, made from what the code declares.

Writers come from `DOMAINS`, readers from the catalogue (`heard_by`), consumers' names and API subjects from
what `shared.bus.nats` asks for. Three rules hold for every set:

* A client publishes only in domains of which it is a writer; a node only at its own place, a namespace's
  samples only at that namespace.
* It makes, reads, acknowledges and deletes only consumers with its own names, which is why names are taken
  from a small set (`names`): a permission cannot match half a token.
* Its replies come to inboxes of its own. A server's answer goes to whatever reply subject was asked for, and
  is not checked: so clients that are not ours to trust live in accounts of their own, and what they ask
  reaches the cluster's account by imports, whose replies are rewritten (`EXPORTS`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from shared.bus.names import READER_SLOTS, durables, inbox, reader, readers
from shared.events import CATALOGUE, DOMAINS, Keeps, escape
from shared.events.address import PREFIX

CLUSTER, NODES, SAMPLES, AUDIT, AUTH, SYSTEM = "CLUSTER", "NODES", "SAMPLES", "AUDIT", "AUTH", "SYS"
"""The accounts. Streams live in CLUSTER; nodes, samples and audit readers reach it by imports only."""
AUDIT_STREAM = "FLEET_AUDIT"
DEAD_LETTERS = DOMAINS["deadletter"].stream
VIEW_WRITERS = {
    "devices": "manager",
    "claims": "manager",
    "allocations": "manager",
    "cases": "remediation",
    "workloads": "guardian",
}
"""Each view and the one service that writes it."""
AGENTS = ("discovery", "bridge")
"""Services on every node, known by their node's token."""
SERVICES = ("manager", "remediation", "guardian", "autoscaler", "alerting")
"""Services that hold a lease and consume with durables."""
READS_DEAD_LETTERS = "alerting"
"""Copies the bodies of the server's advisories into dead letters."""
AUTH_REQUEST = "$SYS.REQ.USER.AUTH"
_API = "$JS.API"
_ADVISORIES = "$JS.EVENT.ADVISORY.CONSUMER.>"
_TENANT_FACT = "sampled"


@dataclass(frozen=True, slots=True)
class Permissions:
    """What one user may do; everything else is refused.

    Attributes:
        account: where it lives.
        publish: subjects it may publish on, requests included.
        subscribe: subjects it may subscribe to.
        responses: it may answer what it is asked.
    """

    account: str
    publish: tuple[str, ...]
    subscribe: tuple[str, ...]
    responses: bool = False


@dataclass(frozen=True, slots=True)
class Export:
    """One service export of CLUSTER.

    Attributes:
        subject: what may be asked.
        to: the accounts that import it.
        several: one request may have several answers.
    """

    subject: str
    to: tuple[str, ...]
    several: bool = False


def said(service: str) -> tuple[str, ...]:
    """The domains of which a service is a writer."""
    return tuple(name for name, domain in DOMAINS.items() if service in domain.writers)


def heard(service: str) -> tuple[str, ...]:
    """The domains that a service hears.

    Alerting hears what its rules name, and rules are data: everything but alerts and measurements.
    """
    if service == "alerting":
        return tuple(
            name for name, domain in DOMAINS.items() if name != "alert" and domain.keeps is not Keeps.MEMORY
        )
    if service == "console":
        return tuple(DOMAINS)
    named = {payload.kind.domain for payload, _ in CATALOGUE.values() if service in payload.kind.heard_by}
    return tuple(name for name in DOMAINS if name in named)


def service(name: str) -> Permissions:
    """A cluster service: its domains, what it hears, its views, its lease."""
    own = said(name)
    publish = [f"{_API}.INFO", *(f"{PREFIX}.{domain}.>" for domain in own)]
    publish += _reads(*own)
    # A log's owner forgets what lies below a snapshot, once it has seen that the audit holds it; streams of
    # facts refuse it to everybody.
    publish += [f"{_API}.STREAM.PURGE.{_stream(d)}" for d in own if DOMAINS[d].keeps is Keeps.LOG]
    publish.append(f"{_API}.STREAM.MSG.GET.{AUDIT_STREAM}")
    for domain in heard(name):
        family = f"{name}_{domain}"
        publish += _reads(domain)
        for consumer in durables(family):
            publish += _consumer(_stream(domain), consumer)
        if DOMAINS[domain].keeps is Keeps.MEMORY:
            # Gone with its server's restart: whoever needs it makes it again.
            publish.append(f"{_API}.STREAM.CREATE.{_stream(domain)}")
        publish.append(f"$KV.attempts.{family}.>")
    publish += [f"$KV.leases.{escape(name)}", f"{_API}.STREAM.MSG.GET.KV_leases"]
    publish += [f"{_API}.STREAM.MSG.GET.KV_attempts", f"{_API}.STREAM.PURGE.KV_attempts"]
    publish += [*_dead_letters("*" if name == READS_DEAD_LETTERS else name), *_views(name)]
    if name == READS_DEAD_LETTERS:
        publish += [f"{_API}.STREAM.MSG.GET.{stream}" for stream in _all_streams()]
        publish.append("$KV.attempts.advisories")
        for consumer in readers(reader(name)):
            publish += _consumer(DEAD_LETTERS, consumer, filtered=_ADVISORIES, acknowledges=False)
    return _made(CLUSTER, publish, inbox(name))


def agent(name: str, place: str) -> Permissions:
    """A service of one node: only facts of its own place are said, only those about it are heard."""
    token = escape(place)
    own = said(name)
    publish = [f"{_API}.INFO", *(f"{PREFIX}.{domain}.{token}.>" for domain in own)]
    publish += [f"{_API}.STREAM.MSG.GET.{_stream(domain)}" for domain in (*own, "deadletter")]
    publish.append(f"{PREFIX}.deadletter.{token}.{name}.rejected")
    for domain in heard(name):
        stream = _stream(domain)
        publish.append(f"{_API}.STREAM.INFO.{stream}")
        for consumer in readers(f"{name}_{domain}", place):
            publish += _consumer(stream, consumer, filtered=f"{PREFIX}.{domain}.{token}.>")
    return _made(NODES, publish, inbox(name, place))


def samples(namespace: str) -> Permissions:
    """Who measures the pods of one namespace."""
    subject = f"{PREFIX}.sample.{escape(namespace)}.*.{_TENANT_FACT}"
    return _made(SAMPLES, [f"{_API}.INFO", subject], inbox("samples", namespace))


def console() -> Permissions:
    """A person: reads everything, says commands."""
    own = said("console")
    publish = [f"{_API}.INFO", *(f"{PREFIX}.{domain}.>" for domain in own), *_dead_letters("console")]
    for domain in heard("console"):
        publish += _reads(domain)
        for consumer in readers(f"console_{domain}"):
            publish += _consumer(_stream(domain), consumer)
    for view in VIEW_WRITERS:
        publish += _view_reads(view, "console")
    publish += _audit()
    return _made(CLUSTER, publish, inbox("console"))


def simulator() -> Permissions:
    """The simulated load's samples."""
    publish = [f"{_API}.INFO", f"{PREFIX}.sample.>", f"{_API}.STREAM.MSG.GET.{_stream('sample')}"]
    return _made(CLUSTER, publish, inbox("simulator"))


def provisioning() -> Permissions:
    """Makes and changes streams; the only one that may delete them."""
    verbs = ("INFO", "CREATE", "UPDATE", "DELETE")
    publish = [f"{_API}.INFO", *(f"{_API}.STREAM.{verb}.*" for verb in verbs)]
    return _made(CLUSTER, publish, inbox("provision"))


def auditor() -> Permissions:
    """Reads the audit and nothing else."""
    return _made(AUDIT, [f"{_API}.INFO", *_audit()], inbox("auditor"))


def callout() -> Permissions:
    """Answers the server's question who an agent is."""
    return Permissions(AUTH, (), (AUTH_REQUEST, f"{inbox('authcallout')}.>"), responses=True)


def users() -> dict[str, Permissions]:
    """Every user with a key of its own. Agents and samples have none: their tokens say who they are."""
    return {
        **{name: service(name) for name in SERVICES},
        "console": console(),
        "simulator": simulator(),
        "provision": provisioning(),
        "auditor": auditor(),
        "authcallout": callout(),
    }


def exports() -> tuple[Export, ...]:
    """What CLUSTER lets the other accounts ask; narrower sets hold for each of their users."""
    facts = sorted({domain for name in AGENTS for domain in said(name)})
    listened = sorted({domain for name in AGENTS for domain in heard(name)})
    to = (NODES,)
    found = [Export(f"{_API}.INFO", (NODES, SAMPLES, AUDIT))]
    found += [Export(f"{PREFIX}.{domain}.*.*.*", to) for domain in facts]
    found += [Export(f"{PREFIX}.deadletter.*.{name}.rejected", to) for name in AGENTS]
    found += [Export(f"{_API}.STREAM.MSG.GET.{_stream(domain)}", to) for domain in (*facts, "deadletter")]
    for domain in listened:
        stream = _stream(domain)
        found += [
            Export(f"{_API}.STREAM.INFO.{stream}", to),
            Export(f"{_API}.CONSUMER.CREATE.{stream}.*.{PREFIX}.{domain}.>", to),
            Export(f"{_API}.CONSUMER.INFO.{stream}.*", to),
            Export(f"{_API}.CONSUMER.DELETE.{stream}.*", to),
            Export(f"{_API}.CONSUMER.MSG.NEXT.{stream}.*", to, several=True),
            Export(f"$JS.ACK.{stream}.>", to),
        ]
    found.append(Export(f"{PREFIX}.sample.*.*.{_TENANT_FACT}", (SAMPLES,)))
    found += [Export(subject, (AUDIT,), several="DIRECT" in subject) for subject in _audit()]
    return tuple(found)


def _made(account: str, publish: Iterable[str], replies: str) -> Permissions:
    return Permissions(account, tuple(dict.fromkeys(publish)), (f"{replies}.>",))


def _stream(domain: str) -> str:
    return DOMAINS[domain].stream


def _all_streams() -> list[str]:
    return [domain.stream for domain in DOMAINS.values()]


def _reads(*domains: str) -> list[str]:
    """What reading logs and history asks for, and comparing a duplicate with what is stored."""
    return [
        f"{_API}.{request}.{_stream(domain)}"
        for domain in domains
        for request in ("STREAM.INFO", "STREAM.MSG.GET", "DIRECT.GET")
    ]


def _consumer(stream: str, name: str, *, filtered: str = "", acknowledges: bool = True) -> list[str]:
    """All that one consumer's life asks for; with a filter, only that one may be asked for."""
    create = f"{_API}.CONSUMER.CREATE.{stream}.{name}"
    made = [f"{create}.{filtered}"] if filtered else [create, f"{create}.>"]
    made += [f"{_API}.CONSUMER.{request}.{stream}.{name}" for request in ("INFO", "DELETE", "MSG.NEXT")]
    return [*made, f"$JS.ACK.{stream}.{name}.>"] if acknowledges else made


def _dead_letters(by: str) -> list[str]:
    return [f"{PREFIX}.deadletter.*.{by}.rejected", f"{_API}.STREAM.MSG.GET.{DEAD_LETTERS}"]


def _views(writer: str) -> list[str]:
    found: list[str] = []
    for view, by in VIEW_WRITERS.items():
        if by == writer:
            found += [f"$KV.{view}.*", *_view_reads(view, writer)]
    return found


def _view_reads(view: str, by: str) -> list[str]:
    stream = f"KV_{view}"
    found = [f"{_API}.{request}.{stream}" for request in ("STREAM.INFO", "STREAM.MSG.GET", "DIRECT.GET")]
    for consumer in readers(reader(by)):
        found += _consumer(stream, consumer, filtered=f"$KV.{view}.*", acknowledges=False)
    return found


def _audit() -> list[str]:
    return [f"{_API}.{request}.{AUDIT_STREAM}" for request in ("STREAM.INFO", "STREAM.MSG.GET", "DIRECT.GET")]


def summary(subjects: Iterable[str]) -> list[str]:
    """Subjects for people: names that differ only in their slot are one line, `[n]`."""
    found: dict[str, None] = {}
    for subject in subjects:
        tokens = [_without_slot(token) for token in subject.split(".")]
        found[".".join(tokens)] = None
    return list(found)


def _without_slot(token: str) -> str:
    for mark in ("-", "_"):
        head, _, slot = token.rpartition(mark)
        if "_" in head and slot.isdigit() and len(slot) < len(str(READER_SLOTS)) + 1:
            return f"{head}{mark}[n]"
    return token
