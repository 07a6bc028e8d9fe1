"""Label and field selectors.

Label grammar: apimachinery ``labels.Parse``: ``a=b``, ``a==b``, ``a!=b``, ``a in (x,y)``, ``a notin (x)``,
``a``, ``!a``. Field selectors know ``=``, ``==`` and ``!=`` and the fields that the real server indexes.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from services.simulator.api.status import bad_request

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_KEY: Final = r"[A-Za-z0-9](?:[A-Za-z0-9._/-]*[A-Za-z0-9])?"
_VALUE: Final = r"(?:[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?)?"
_SET: Final = re.compile(rf"(?P<key>{_KEY})\s+(?P<op>in|notin)\s*\((?P<values>[^()]*)\)")
_EQUAL: Final = re.compile(rf"(?P<key>{_KEY})\s*(?P<op>==|=|!=)\s*(?P<value>{_VALUE})")
_EXISTS: Final = re.compile(rf"(?P<not>!?)\s*(?P<key>{_KEY})")
_FIELD: Final = re.compile(r"(?P<field>[A-Za-z0-9._]+)(?P<op>==|=|!=)(?P<value>.*)")

_COMMON_FIELDS: Final = frozenset({"metadata.name", "metadata.namespace"})
_FIELDS: Final[dict[str, frozenset[str]]] = {
    "Pod": frozenset(
        {
            "spec.nodeName",
            "spec.restartPolicy",
            "spec.schedulerName",
            "spec.serviceAccountName",
            "status.phase",
        }
    ),
    "Node": frozenset({"spec.unschedulable"}),
    "Event": frozenset(
        {
            "regarding.kind",
            "regarding.namespace",
            "regarding.name",
            "regarding.uid",
            "reason",
            "reportingController",
            "type",
        }
    ),
    "Job": frozenset({"status.successful"}),
}
_CORE_EVENT_FIELDS: Final = {"involvedObject": "regarding", "reportingComponent": "reportingController"}


@dataclass(frozen=True, slots=True)
class Requirement:
    """One clause of a label selector."""

    key: str
    op: str
    values: frozenset[str] = frozenset()

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Whether these labels meet it; an absent key meets the negative ones."""
        match self.op:
            case "in":
                return labels.get(self.key) in self.values
            case "notin":
                return self.key not in labels or labels[self.key] not in self.values
            case "exists":
                return self.key in labels
            case _:
                return self.key not in labels


def parse_labels(text: str) -> tuple[Requirement, ...]:
    """The clauses of a label selector.

    Raises:
        ApiError: 400, it does not parse.
    """
    return tuple(_clause(part) for part in _split(text))


def matches_all(requirements: tuple[Requirement, ...], labels: Mapping[str, str] | None) -> bool:
    """Whether labels meet every clause; no clause matches all."""
    return all(requirement.matches(labels or {}) for requirement in requirements)


def from_selector(selector: Mapping[str, Any] | None) -> tuple[Requirement, ...] | None:
    """The clauses of a LabelSelector object (matchLabels, matchExpressions); None selects nothing."""
    if selector is None:
        return None
    clauses = [
        Requirement(key, "in", frozenset({value}))
        for key, value in (selector.get("matchLabels") or {}).items()
    ]
    clauses += [expression(entry) for entry in selector.get("matchExpressions") or ()]
    return tuple(clauses)


def expression(entry: Mapping[str, Any]) -> Requirement:
    """One matchExpressions entry.

    Raises:
        ApiError: 400, an unknown operator.
    """
    ops = {"In": "in", "NotIn": "notin", "Exists": "exists", "DoesNotExist": "absent"}
    op = ops.get(str(entry.get("operator")))
    if op is None:
        raise bad_request(
            f"{entry.get('operator')!r} is not one of {', '.join(ops)}", "matchExpressions.operator"
        )
    return Requirement(str(entry.get("key", "")), op, frozenset(entry.get("values") or ()))


def parse_fields(text: str, kind: str) -> Callable[[Mapping[str, Any]], bool]:
    """A test for objects of this kind.

    Raises:
        ApiError: 400, it does not parse, or the field cannot be selected by.
    """
    clauses: list[tuple[tuple[str, ...], bool, str]] = []
    for part in filter(None, text.split(",")):
        match = _FIELD.fullmatch(part.strip())
        if match is None:
            raise bad_request(f"invalid selector: {part!r}; can't understand {part!r}", "fieldSelector")
        name = match["field"]
        if kind == "Event":
            head, _, tail = name.partition(".")
            head = _CORE_EVENT_FIELDS.get(head, head)
            name = f"{head}.{tail}" if tail else head
        if name not in _COMMON_FIELDS and name not in _FIELDS.get(kind, ()):
            raise bad_request(f"field label not supported: {name}", "fieldSelector")
        clauses.append((tuple(name.split(".")), match["op"] != "!=", match["value"]))
    return lambda body: all((_text_at(body, path) == value) is wanted for path, wanted, value in clauses)


def _text_at(body: Any, path: tuple[str, ...]) -> str:
    for part in path:
        body = (body or {}).get(part)
    if isinstance(body, bool):
        return str(body).lower()
    if body is None:
        return "false" if path == ("spec", "unschedulable") else ""
    return str(body)


def _clause(part: str) -> Requirement:
    if match := _SET.fullmatch(part):
        values = frozenset(value.strip() for value in match["values"].split(","))
        return Requirement(match["key"], match["op"], values)
    if match := _EQUAL.fullmatch(part):
        op = "notin" if match["op"] == "!=" else "in"
        return Requirement(match["key"], op, frozenset({match["value"]}))
    if match := _EXISTS.fullmatch(part):
        return Requirement(match["key"], "absent" if match["not"] else "exists")
    raise bad_request(f"unable to parse requirement: {part!r}", "labelSelector")


def _split(text: str) -> list[str]:
    """At commas outside parentheses."""
    parts, depth, start = [], 0, 0
    for index, char in enumerate(text):
        depth += (char == "(") - (char == ")")
        if char == "," and depth == 0:
            parts.append(text[start:index])
            start = index + 1
    parts.append(text[start:])
    return [part.strip() for part in parts if part.strip()]
