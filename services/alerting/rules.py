"""The rules: data that says which facts a person must know.

A rules file is read whole and checked against the catalogue of events before it is used: an unknown fact, a
field that its payload does not have, or a wrong value is an error that names rule and field.
"""

from __future__ import annotations

import string
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final, Literal, get_args

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from shared.errors import BadInput
from shared.events import CATALOGUE, AnyEvent, Payload

SHIPPED: Final = Path(__file__).with_name("rules.yaml")

_ROOTS: Final = ("place", "entity", "about", "case", "id", "fact")

_FAMILY: Final = {
    **dict.fromkeys(("inventory", "device", "health", "allocation", "repair", "remediation"), "remediation"),
    **dict.fromkeys(("sample", "sla", "scale"), "sla"),
}
"""Domains that speak of the same thing: their alerts share one log, so that one can resolve another's."""


def family(domain: str) -> str:
    """The domain under which alerts about an entity of this domain are kept."""
    return _FAMILY.get(domain, domain)


class _Strict(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class Condition(_Strict):
    """What a field must be; everything given must hold."""

    is_: str | int | float | bool | None = Field(default=None, alias="is")
    in_: tuple[str | int | float, ...] | None = Field(default=None, alias="in")
    above: float | None = None

    def holds(self, value: Any) -> bool:
        """Whether a value meets it; a missing value meets none."""
        if value is None:
            return False
        if self.is_ is not None and value != self.is_:
            return False
        if self.in_ is not None and value not in self.in_:
            return False
        return self.above is None or (isinstance(value, int | float) and value > self.above)


class Trigger(_Strict):
    """A fact, and conditions on its fields."""

    fact: str
    when: dict[str, Condition] = Field(default_factory=dict)

    def matches(self, event: AnyEvent) -> bool:
        """Whether an event is such a fact."""
        if event.data.kind.name != self.fact:
            return False
        return all(condition.holds(reach(event, path)) for path, condition in self.when.items())


class Rule(_Strict):
    """One rule, as the file has it."""

    name: str
    fact: str
    when: dict[str, Condition] = Field(default_factory=dict)
    resolved_by: tuple[Trigger, ...] = ()
    resolve_after_s: float | None = Field(default=None, gt=0)
    key: str = "{case}"
    again: bool = False
    severity: Literal["critical", "warning", "info"]
    summary: str = Field(min_length=1)
    runbook: str = Field(min_length=1)
    who: str = Field(min_length=1)
    affected: tuple[str, ...] = ("{about}",)
    enabled: bool = True

    @field_validator("resolved_by", mode="before")
    @classmethod
    def _names(cls, value: Any) -> Any:
        """A bare name is a fact without conditions."""
        if isinstance(value, list):
            return tuple({"fact": one} if isinstance(one, str) else one for one in value)
        return value

    @cached_property
    def raised_by(self) -> Trigger:
        """What raises it."""
        return Trigger(fact=self.fact, when=self.when)

    @property
    def domain(self) -> str:
        """The domain of what raises it."""
        return self.fact.partition(".")[0]

    def alert_id(self, event: AnyEvent) -> str:
        """The alert that an event raises or resolves."""
        return f"{self.name}/{fill(self.key, event)}"

    def summary_of(self, event: AnyEvent) -> str:
        """The summary of the alert that an event raises."""
        return fill(self.summary, event)

    def affects(self, event: AnyEvent) -> tuple[str, ...]:
        """What is affected; a field that holds several things gives each."""
        found: list[str] = []
        for template in self.affected:
            fields = list(_fields(template))
            value = reach(event, fields[0]) if fields and template == "{" + fields[0] + "}" else None
            found += (
                [str(one) for one in value] if isinstance(value, tuple | list) else [fill(template, event)]
            )
        return tuple(found)


@dataclass(frozen=True)
class Rules:
    """All enabled rules."""

    rules: tuple[Rule, ...] = ()

    def get(self, name: str) -> Rule | None:
        """A rule by name."""
        return next((rule for rule in self.rules if rule.name == name), None)

    def raised_by(self, event: AnyEvent) -> Iterator[Rule]:
        """Rules that an event raises."""
        found = self._raising.get(event.data.kind.name, ())
        return (rule for rule in found if rule.raised_by.matches(event))

    def resolved_by(self, event: AnyEvent) -> Iterator[Rule]:
        """Rules whose alerts an event resolves."""
        found = self._resolving.get(event.data.kind.name, ())
        return (rule for rule in found if any(t.matches(event) for t in rule.resolved_by))

    def facts(self) -> frozenset[str]:
        """Names of all facts that matter to any rule."""
        return frozenset((*self._raising, *self._resolving))

    @cached_property
    def _raising(self) -> dict[str, list[Rule]]:
        found: dict[str, list[Rule]] = {}
        for rule in self.rules:
            found.setdefault(rule.fact, []).append(rule)
        return found

    @cached_property
    def _resolving(self) -> dict[str, list[Rule]]:
        found: dict[str, list[Rule]] = {}
        for rule in self.rules:
            for fact in {trigger.fact for trigger in rule.resolved_by}:
                found.setdefault(fact, []).append(rule)
        return found


def load(own: Path | None = None) -> Rules:
    """The shipped rules with those of a file of one's own laid over them, field by field.

    Raises:
        BadInput: a file cannot be read or a rule is wrong; names file, rule and field.
    """
    merged = _read(SHIPPED)
    for name, fields in (_read(own) if own is not None else {}).items():
        merged[name] = {**merged.get(name, {}), **fields}
    return Rules(
        tuple(rule for rule in (_rule(n, f, own or SHIPPED) for n, f in merged.items()) if rule.enabled)
    )


def fill(template: str, event: AnyEvent) -> str:
    """A template with the event's values; what is missing is left empty."""
    out = []
    for literal, field, _, _ in string.Formatter().parse(template):
        out.append(literal)
        if field is not None:
            out.append(_text(reach(event, field)))
    return "".join(out)


def reach(event: AnyEvent, path: str) -> Any:
    """A value of an event by its dotted path; None when it is not there."""
    root, _, rest = path.partition(".")
    if root != "data":
        return {
            "place": event.of.place,
            "entity": event.of.entity,
            "about": event.subject,
            "case": event.correlationid or event.subject,
            "id": event.id,
            "fact": event.data.kind.name,
        }.get(root)
    value: Any = event.data
    for name in rest.split("."):
        value = value.get(name) if isinstance(value, Mapping) else getattr(value, name, None)
    return value


def _text(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:g}"
    return ", ".join(map(str, value)) if isinstance(value, tuple | list) else str(value)


def _read(path: Path) -> dict[str, dict[str, Any]]:
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(str(path), f"cannot be read: {error}", "give a readable UTF-8 YAML file") from error
    except yaml.YAMLError as error:
        raise BadInput(
            str(path), f"is no YAML: {' '.join(str(error).split())}", "mend it at that line"
        ) from error
    if not isinstance(content, dict) or not all(isinstance(fields, dict) for fields in content.values()):
        raise BadInput(str(path), "is no mapping of rules", "write `rule-name:` and its fields below it")
    return {str(name): dict(fields) for name, fields in content.items()}


def _rule(name: str, fields: dict[str, Any], path: Path) -> Rule:
    try:
        rule = Rule.model_validate({**fields, "name": name})
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        field = ".".join(str(part) for part in first["loc"])
        raise BadInput(
            f"{path}:{name}.{field}", first["msg"], "see the shipped rules for the shape"
        ) from error
    raising = _payload(rule.fact, f"{path}:{name}.fact")
    for field in rule.when:
        _check(field, raising, f"{path}:{name}.when")
    for label, template in (("summary", rule.summary), *(("affected", text) for text in rule.affected)):
        _check_template(template, raising, f"{path}:{name}.{label}")
    _check_template(rule.key, raising, f"{path}:{name}.key")
    for trigger in rule.resolved_by:
        where = f"{path}:{name}.resolved_by"
        resolving = _payload(trigger.fact, where)
        _check_template(rule.key, resolving, f"{path}:{name}.key")
        for field in trigger.when:
            _check(field, resolving, where)
        if family(trigger.fact.partition(".")[0]) != family(rule.domain):
            raise BadInput(
                where,
                f"{trigger.fact} speaks of something else than {rule.fact}",
                "name a fact about the same thing",
            )
    return rule


def _payload(fact: str, where: str) -> type[Payload]:
    domain, _, name = fact.partition(".")
    found = CATALOGUE.get((domain, name))
    if found is None:
        raise BadInput(where, f"there is no fact {fact!r}", "take one of docs/events")
    return found[0]


def _check_template(template: str, payload: type[Payload], where: str) -> None:
    try:
        fields = list(_fields(template))
    except ValueError as error:
        raise BadInput(where, f"{template!r} is no template: {error}", "write {data.field}") from error
    for field in fields:
        _check(field, payload, where)


def _check(path: str, payload: type[BaseModel], where: str) -> None:
    """Whether a path leads to a field."""
    root, _, rest = path.partition(".")
    if root in _ROOTS and not rest:
        return
    model: type[BaseModel] | None = payload
    if root != "data" or not rest:
        raise BadInput(where, f"{path!r} leads nowhere", f"use data.<field> or one of {', '.join(_ROOTS)}")
    for name in rest.split("."):
        if model is None:
            return
        if name not in model.model_fields:
            known = ", ".join(model.model_fields)
            raise BadInput(where, f"{path!r}: {model.__name__} has no field {name!r}", f"use one of {known}")
        model = _model(model.model_fields[name].annotation)


def _model(annotation: Any) -> type[BaseModel] | None:
    """The model behind an annotation; None where anything goes."""
    for one in (annotation, *get_args(annotation)):
        if isinstance(one, type) and issubclass(one, BaseModel):
            return one
    return None


def _fields(template: str) -> Iterator[str]:
    for _, field, spec, conversion in string.Formatter().parse(template):
        if field is not None:
            if spec or conversion or not field:
                raise ValueError("only plain fields can be filled in")
            yield field
