"""Custom resources for the policies, made from the models that the services read.

    python -m deploy.crds --check      are the files as the models say? (CI)
    python -m deploy.crds --write      make them so

A policy in the cluster and a section of the policy file have the same fields, so one text fits both. Fields
have no defaults here: what is left out is the service's default, also after that default changed. What no
single field can say is a `Rule` in CEL, with a message that says what to do.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel

from deploy import generated
from services.guardian.policy import GuardianPolicy
from services.remediation.policy import Policy as RemediationPolicy

DIRECTORY = Path(__file__).parent / "base" / "crd"
DOMAIN = "media.example.com"

_LONGEST_TEXT = 64
_MOST_ITEMS = 16
"""Bounds of lists, maps and texts: the API server refuses a rule whose worst case it cannot afford."""

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule over several fields.

    Attributes:
        of: the path of the section that it belongs to; empty is the whole policy.
        holds: CEL; `{a.b}` is a number of the section, or its default where it is left out; `{default:a.b}`
            the default alone. Lists and maps are walked as `self` or below `has`: how long an optional value
            may be the API server does not know, and it refuses the rule.
        message: what is wrong and what to do.
    """

    of: str
    holds: str
    message: str


@dataclass(frozen=True, slots=True)
class Kind:
    """One custom resource.

    Attributes:
        columns: shown by `kubectl get`: name and JSON path.
    """

    name: str
    plural: str
    model: type[BaseModel]
    about: str
    rules: tuple[Rule, ...] = ()
    columns: Mapping[str, str] = field(default_factory=dict)


KINDS = (
    Kind(
        "RemediationPolicy",
        "remediationpolicies",
        RemediationPolicy,
        "How failing devices are taken out, drained and brought back.",
        rules=(
            Rule(
                "recovery",
                "!has(self.approvals) || self.approvals.all(step,"
                " has(self.ladder) ? step in self.ladder : step in {default:ladder})",
                "a step that must be approved has to be on the ladder: add it to recovery.ladder, or drop it"
                " from recovery.approvals",
            ),
            Rule(
                "recovery",
                "{probation_most_s} >= {probation_s}",
                "the longest probation is shorter than the first one: raise probation_most_s to probation_s"
                " or more",
            ),
            Rule(
                "deadlines",
                "{stuck_s} >= {drain_s}",
                "a drain counts as stuck before it may take its time: raise stuck_s to drain_s or more",
            ),
            Rule(
                "damping",
                "{retire_at} > {penalty}",
                "one quarantine would retire the device: raise retire_at above penalty",
            ),
            Rule(
                "drain.order",
                "self.all(tier, tier in ['besteffort', 'batch', 'online'])",
                "order knows the tiers besteffort, batch and online only",
            ),
            Rule(
                "drain.order",
                "self.all(tier, self.exists_one(other, other == tier))",
                "a tier stands in order twice: name each once",
            ),
            Rule(
                "common_cause.count",
                "self.all(scope, self[scope] >= 2)",
                "one device is no common cause: give every scope of common_cause.count 2 or more",
            ),
            Rule(
                "",
                "{recovery.healthy_s} < {deadlines.validate_s}",
                "validation would always run out: keep recovery.healthy_s below deadlines.validate_s",
            ),
            Rule(
                "",
                "{drain.replacement_wait_s} < {deadlines.drain_s}",
                "waiting for a replacement would use up the drain: keep drain.replacement_wait_s below"
                " deadlines.drain_s",
            ),
        ),
        columns={
            "Dry run": ".spec.dry_run",
            "Strikes": ".spec.strikes.count",
            "Accepted": '.status.conditions[?(@.type=="Accepted")].status',
        },
    ),
    Kind(
        "GuardianPolicy",
        "guardianpolicies",
        GuardianPolicy,
        "How online pods are kept inside their latency target.",
        rules=(
            Rule(
                "",
                "{breach_of} <= {window}",
                "a breach needs more samples than are judged together: lower breach_of to window or less",
            ),
            Rule(
                "",
                "{kept_samples} >= {window}",
                "fewer samples are kept than are judged together: raise kept_samples to window or more",
            ),
            Rule(
                "",
                "{span_s} >= {sample_age_s}",
                "a sample would be too far back before it is too old: raise span_s to sample_age_s or more",
            ),
            Rule(
                "",
                "{per_device} <= {per_node}",
                "one device may lose more pods than its node: lower per_device to per_node or less",
            ),
            Rule(
                "",
                "{order_within_s} > {grant_wait_s}",
                "an order would be void before its grant may come: raise order_within_s above grant_wait_s",
            ),
        ),
        columns={
            "Dry run": ".spec.dry_run",
            "Accepted": '.status.conditions[?(@.type=="Accepted")].status',
        },
    ),
)


def manifest(kind: Kind, domain: str = DOMAIN) -> Json:
    """The CustomResourceDefinition of a policy."""
    spec = _structural(kind.model.model_json_schema(), kind.model.model_json_schema().get("$defs", {}))
    spec["description"] = kind.about
    for rule in kind.rules:
        _section(spec, rule.of).setdefault("x-kubernetes-validations", []).append(
            {"rule": _cel(rule, kind.model), "message": rule.message}
        )
    columns = [{"name": name, "type": "string", "jsonPath": path} for name, path in kind.columns.items()]
    columns.append({"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"})
    only = {
        "rule": "self.metadata.name == 'default'",
        "message": f"there is one {kind.name}, and its name is default",
    }
    schema = {
        "type": "object",
        "required": ["spec"],
        "properties": {"spec": spec, "status": _status()},
        "x-kubernetes-validations": [only],
    }
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{kind.plural}.{domain}"},
        "spec": {
            "group": domain,
            "scope": "Cluster",
            "names": {
                "kind": kind.name,
                "listKind": f"{kind.name}List",
                "plural": kind.plural,
                "singular": kind.name.lower(),
                "categories": ["mediafleet"],
            },
            "versions": [
                {
                    "name": "v1alpha1",
                    "served": True,
                    "storage": True,
                    "subresources": {"status": {}},
                    "additionalPrinterColumns": columns,
                    "schema": {"openAPIV3Schema": schema},
                }
            ],
        },
    }


def text(kind: Kind) -> str:
    """The file of a policy's definition."""
    head = f"# Made from the model of the service by `python -m deploy.crds --write`: {kind.about}\n"
    return head + yaml.safe_dump(manifest(kind), sort_keys=False, width=110, allow_unicode=True)


def _structural(schema: Mapping[str, Any], definitions: Mapping[str, Any]) -> Json:
    """A pydantic JSON Schema as Kubernetes takes it: no references, unions or JSON Schema 2020 words."""
    if "$ref" in schema:
        return _structural(definitions[schema["$ref"].rpartition("/")[2]], definitions)
    if "anyOf" in schema:
        (one,) = (each for each in schema["anyOf"] if each.get("type") != "null")
        inner = _structural(one, definitions) | {"nullable": True}
        return inner | ({"description": schema["description"]} if "description" in schema else {})
    out: Json = {"type": schema["type"]}
    if "description" in schema:
        out["description"] = schema["description"]
    for strict, bound in (("exclusiveMinimum", "minimum"), ("exclusiveMaximum", "maximum")):
        if strict in schema:
            out |= {bound: schema[strict], strict: True}
        elif bound in schema:
            out[bound] = schema[bound]
    if "enum" in schema:
        out["enum"] = list(schema["enum"])
    if schema["type"] == "string" and "enum" not in schema:
        out["maxLength"] = _LONGEST_TEXT
    if schema["type"] == "array":
        out |= {"maxItems": _MOST_ITEMS, "items": _structural(schema["items"], definitions)}
    if schema["type"] == "object":
        out |= _object(schema, definitions)
    return out


def _object(schema: Mapping[str, Any], definitions: Mapping[str, Any]) -> Json:
    if "properties" in schema:
        inner = {name: _structural(each, definitions) for name, each in schema["properties"].items()}
        for name, each in schema["properties"].items():
            if "description" in each:
                inner[name]["description"] = each["description"]
        return {"properties": inner}
    out: Json = {
        "maxProperties": _MOST_ITEMS,
        "additionalProperties": _structural(schema["additionalProperties"], definitions),
    }
    names = schema.get("propertyNames", {}).get("enum")
    if names:
        known = ", ".join(f"'{name}'" for name in names)
        rule = {
            "rule": f"self.all(name, name in [{known}])",
            "message": f"known names are {', '.join(names)}",
        }
        out["x-kubernetes-validations"] = [rule]
    return out


def _section(spec: Json, path: str) -> Json:
    for name in path.split(".") if path else ():
        spec = spec["properties"][name]
    return spec


def _cel(rule: Rule, model: type[BaseModel]) -> str:
    """The rule with every `{field}` read from the object, or its default where it is left out."""
    out, rest = "", rule.holds
    while "{" in rest:
        before, _, rest = rest.partition("{")
        path, _, rest = rest.partition("}")
        only, _, path = path.rpartition(":")
        value: Any = model().model_dump(mode="json")
        for name in [*rule.of.split("."), *path.split(".")] if rule.of else path.split("."):
            value = value[name]
        optional = ".".join(f"?{name}" for name in path.split("."))
        out += before + (_literal(value) if only else f"self.{optional}.orValue({_literal(value)})")
    return out + rest


def _literal(value: Any) -> str:
    if isinstance(value, Sequence) and not isinstance(value, str):
        return "[" + ", ".join(_literal(each) for each in value) + "]"
    return f"'{value}'" if isinstance(value, str) else str(value)


def _status() -> Json:
    described = yaml.safe_load((DIRECTORY / "mediaresources.yaml").read_text(encoding="utf-8"))
    version = described["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    conditions = dict(version["properties"]["status"]["properties"]["conditions"])
    conditions["description"] = (
        "Accepted: this policy is what the service decides by. False: why it is not; the last good one stays."
    )
    return {
        "type": "object",
        "properties": {
            "observedGeneration": {"type": "integer", "format": "int64", "minimum": 0},
            "conditions": conditions,
            "lastGood": {
                "type": "object",
                "description": "The policy in force, for a service that starts while spec is not valid.",
                "x-kubernetes-preserve-unknown-fields": True,
            },
        },
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Check or write the files; 1 when one differs."""
    wanted = {DIRECTORY / f"{kind.plural}.yaml": text(kind) for kind in KINDS}
    return generated.run("deploy.crds", __doc__, wanted, arguments)


if __name__ == "__main__":
    raise SystemExit(main())
