"""The catalogue as a page to read: every event with who says it, who hears it, and its fields."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from shared.events.asyncapi import summary
from shared.events.catalogue import DOMAINS, Domain, Keeps
from shared.events.envelope import CATALOGUE, PREFIX, Payload

_KEEPS = {
    Keeps.FACTS: "facts of the world",
    Keeps.MEMORY: "measurements, in memory",
    Keeps.LOG: "case log",
}
_HEAD = f"""# The events

*Generated from `shared/events` by `python -m shared.events.schemas --write`.*

Every event is a CloudEvents 1.0 envelope in JSON on the subject `{PREFIX}.<domain>.<place>.<entity>.<fact>`.
*Place* is a node or a namespace, *entity* a device key or `<kind>-<name>`; in a token any byte outside
`A-Za-z0-9-` is `_` and two hex digits. Subscribe with `nats sub '{PREFIX}.remediation.>'` or
`mediafleet events --follow`. Within v1 only optional fields are added: ignore what you do not know.
The id is the same whenever the same fact is said again; the fields in *told apart by* are part of it.

JSON Schemas of the payloads: [`schemas/`](schemas). AsyncAPI document: [`asyncapi.yaml`](asyncapi.yaml).
"""


def page(schemas: Mapping[str, Mapping[str, Any]]) -> str:
    """The page, in Markdown.

    Args:
        schemas: `domain.fact` to the JSON Schema of its payload.
    """
    lines = [_HEAD]
    parts: dict[str, Mapping[str, Any]] = {}
    for domain in DOMAINS.values():
        types = [payload for payload, _ in CATALOGUE.values() if payload.kind.domain == domain.name]
        lines += _domain(domain, types, schemas)
        for payload in types:
            parts |= schemas[payload.kind.name].get("$defs", {})
    lines += ["## Parts", ""]
    for name in sorted(parts):
        lines += [f"### {name}", "", *_sentence(parts[name]), *_fields(parts[name]), ""]
    return "\n".join(lines).rstrip() + "\n"


def _domain(
    domain: Domain, types: list[type[Payload]], schemas: Mapping[str, Mapping[str, Any]]
) -> Iterator[str]:
    age = f", kept {_age(domain.max_age.total_seconds())}" if domain.max_age else ""
    yield f"## {domain.name}"
    yield ""
    yield f"Stream `{domain.stream}`: {_KEEPS[domain.keeps]}{age}, written by {', '.join(domain.writers)}."
    yield ""
    yield "| event | what it says | said by | heard by |"
    yield "|---|---|---|---|"
    for payload in types:
        kind = payload.kind
        said, heard = ", ".join(kind.said_by), ", ".join(kind.heard_by)
        yield f"| [`{kind.name}`](#{_anchor(kind.name)}) | {summary(payload)} | {said} | {heard} |"
    yield ""
    for payload in types:
        kind = payload.kind
        yield f"### {kind.name}"
        yield ""
        yield f"{summary(payload)} Told apart by: {', '.join(f'`{path}`' for path in kind.discriminator)}."
        yield ""
        yield from _fields(schemas[kind.name])
        yield ""


def _fields(schema: Mapping[str, Any]) -> Iterator[str]:
    required = schema.get("required", ())
    yield "| field | type | | what it is |"
    yield "|---|---|---|---|"
    for name, field in schema.get("properties", {}).items():
        need = "required" if name in required else ""
        yield f"| `{name}` | {_type(field)} | {need} | {field.get('description', '')} |"


def _sentence(schema: Mapping[str, Any]) -> Iterator[str]:
    if "description" in schema:
        yield " ".join(schema["description"].split("\n\n")[0].split())
        yield ""


def _type(field: Mapping[str, Any]) -> str:
    if "anyOf" in field:
        return " or ".join(_type(choice) for choice in field["anyOf"] if choice != {"type": "null"})
    if "$ref" in field:
        name = str(field["$ref"]).rpartition("/")[2]
        return f"[{name}](#{_anchor(name)})"
    if "enum" in field:
        return ", ".join(f"`{word}`" for word in field["enum"])
    if field.get("type") == "array":
        return f"list of {_type(field['items'])}"
    values = field.get("additionalProperties")
    if isinstance(values, Mapping):
        return f"map to {_type(values)}"
    return "time" if field.get("format") == "date-time" else str(field.get("type", "anything"))


def _anchor(name: str) -> str:
    """As GitHub makes it from a heading."""
    return "".join(char for char in name.lower() if char.isalnum() or char in "-_")


def _age(seconds: float) -> str:
    day = 86400
    return f"{seconds / day:g} days" if seconds >= day else f"{seconds / 60:g} minutes"
