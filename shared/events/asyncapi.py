"""The catalogue as an AsyncAPI 3.0 document: a channel per subject, an operation per service and direction.

The NATS binding of AsyncAPI (0.1.0) knows queue groups only, so what matters of JetStream stands in `x-nats`.
"""

from __future__ import annotations

import inspect
from typing import Any

import yaml

from shared.events.catalogue import DOMAINS, Domain, Keeps
from shared.events.envelope import CATALOGUE, CONTENT_TYPE, PREFIX, Event, FactType, Payload

_PARAMETERS = {
    "place": {"description": "A node or a namespace; a byte outside A-Za-z0-9- is _ and two hex digits."},
    "entity": {"description": "A device key or <kind>-<name>, escaped likewise."},
}


def document() -> str:
    """The document, as YAML."""
    return yaml.safe_dump(build(), sort_keys=False, width=110, allow_unicode=True)


def build() -> dict[str, Any]:
    """The document, as plain data."""
    types = [payload for payload, _ in CATALOGUE.values()]
    return {
        "asyncapi": "3.0.0",
        "info": {
            "title": "mediafleet",
            "version": "1.0.0",
            "description": "What its services say, on NATS JetStream. Generated from shared/events.",
            "license": {"name": "Apache-2.0"},
        },
        "defaultContentType": CONTENT_TYPE,
        "channels": {kind.kind.name: _channel(kind) for kind in types},
        "operations": {
            f"{service}.{action}.{payload.kind.name}": _operation(payload.kind, service, action)
            for payload in types
            for action, services in (("send", payload.kind.said_by), ("receive", payload.kind.heard_by))
            for service in services
        },
        "components": {
            "messages": {payload.kind.name: _message(payload) for payload in types},
            "parameters": _PARAMETERS,
            "schemas": {"envelope": _envelope()},
        },
    }


def _channel(payload: type[Payload]) -> dict[str, Any]:
    kind = payload.kind
    return {
        "address": f"{PREFIX}.{kind.domain}.{{place}}.{{entity}}.{kind.fact}",
        "description": summary(payload),
        "parameters": {name: {"$ref": f"#/components/parameters/{name}"} for name in _PARAMETERS},
        "messages": {kind.name: {"$ref": f"#/components/messages/{kind.name}"}},
        "x-nats": _stream(DOMAINS[kind.domain]),
    }


def _stream(domain: Domain) -> dict[str, Any]:
    made: dict[str, Any] = {
        "stream": domain.stream,
        "subjects": [f"{PREFIX}.{domain.name}.>"],
        "storage": "memory" if domain.keeps is Keeps.MEMORY else "file",
        "discard": "new" if domain.keeps is Keeps.LOG else "old",
        "max_bytes": domain.max_bytes,
    }
    if domain.max_age is not None:
        made["max_age_s"] = int(domain.max_age.total_seconds())
    return made


def _operation(kind: FactType, service: str, action: str) -> dict[str, Any]:
    channel = f"#/channels/{kind.name}"
    return {
        "action": action,
        "channel": {"$ref": channel},
        "messages": [{"$ref": f"{channel}/messages/{kind.name}"}],
        "tags": [{"name": service}],
    }


def _message(payload: type[Payload]) -> dict[str, Any]:
    kind = payload.kind
    return {
        "name": kind.type,
        "summary": summary(payload),
        "contentType": CONTENT_TYPE,
        "correlationId": {"description": "The case.", "location": "$message.payload#/correlationid"},
        "payload": {
            "allOf": [
                {"$ref": "#/components/schemas/envelope"},
                {
                    "type": "object",
                    "properties": {
                        "type": {"const": kind.type},
                        "dataschema": {"const": kind.dataschema},
                        "data": {"$ref": f"./schemas/{kind.name}.v{kind.version}.json"},
                    },
                },
            ]
        },
        "x-discriminator": list(kind.discriminator),
    }


def _envelope() -> dict[str, Any]:
    schema = Event[Payload].model_json_schema()
    properties = {name: _plain(field) for name, field in schema["properties"].items()}
    properties["data"] = {"type": "object"}
    return {
        "description": "A CloudEvents 1.0 envelope; attributes that are None are left out.",
        "type": "object",
        "properties": properties,
        "required": ["specversion", *schema["required"]],
    }


def _plain(field: dict[str, Any]) -> dict[str, Any]:
    """Without a made title, and without null: what is None is not sent."""
    choices = [choice for choice in field.get("anyOf", ()) if choice != {"type": "null"}]
    kept = {key: value for key, value in field.items() if key not in {"title", "anyOf", "default"}}
    return {**(choices[0] if choices else {}), **kept}


def summary(payload: type[Payload]) -> str:
    """What the fact says: the first paragraph of its docstring."""
    return " ".join(inspect.getdoc(payload).split("\n\n")[0].split())  # type: ignore[union-attr] # every one has it
