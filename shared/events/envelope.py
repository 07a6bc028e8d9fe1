"""The envelope: CloudEvents 1.0 structured JSON around one typed payload.

Identity comes from the subject an event was published on, never from its body: `decode` refuses an envelope
whose type and subject do not match. Producers forbid unknown fields (a payload is built strictly), consumers
ignore them (`decode` reads leniently), so within v1 optional fields can be added.

Ids are deterministic per fact: a UUIDv5 of the cause, the type, the subject and the type's discriminator.
Saying the same thing twice is saying it once.
"""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar, Generic, Literal, TypeVar, cast

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, ValidationError

from shared.errors import BadInput
from shared.events.address import PREFIX, Address, Entity, whole_place

NAMESPACE = uuid.uuid5(uuid.NAMESPACE_DNS, "events.mediafleet.io")
_NAMESPACE = NAMESPACE.bytes
_LONGEST_SOURCE = 512
CONTENT_TYPE = "application/cloudevents+json"
SCHEMA_BASE = "https://mediafleet.io/schemas"
MAX_BYTES = 512 * 1024
"""Largest encoded event: half of the server's default limit, so that a dead letter can carry it whole."""

PayloadT_co = TypeVar("PayloadT_co", bound="Payload", covariant=True)
P = TypeVar("P", bound="Payload")


@dataclass(frozen=True, slots=True)
class FactType:
    """What the catalogue knows of one kind of event."""

    domain: str
    fact: str
    discriminator: tuple[str, ...]
    """Dotted paths into the payload whose values tell apart two facts of one cause."""
    said_by: tuple[str, ...]
    """The services that may say it (an outside party is named too)."""
    heard_by: tuple[str, ...]
    version: int = 1

    @property
    def name(self) -> str:
        """`domain.fact`."""
        return f"{self.domain}.{self.fact}"

    @property
    def type(self) -> str:
        """The CloudEvents type."""
        return f"io.mediafleet.{self.domain}.{self.fact}.v{self.version}"

    @property
    def dataschema(self) -> str:
        """Where the JSON Schema of the payload is published."""
        return f"{SCHEMA_BASE}/{self.domain}.{self.fact}.v{self.version}.json"


class Part(BaseModel):
    """A piece of a payload. Numbers are finite; unknown fields are refused when it is built."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, populate_by_name=True)


class Payload(Part):
    """The data of one kind of event; `@fact` puts a subclass into the catalogue."""

    kind: ClassVar[FactType]


class Event(BaseModel, Generic[PayloadT_co]):
    """A CloudEvents 1.0 envelope around a payload."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    specversion: Literal["1.0"] = "1.0"
    id: str = Field(min_length=1, max_length=128)
    source: str = Field(
        min_length=1, max_length=_LONGEST_SOURCE, description="/mediafleet/<service>/<instance>"
    )
    type: str
    subject: str = Field(description="place/entity, as in the bus subject but unescaped")
    time: AwareDatetime
    datacontenttype: Literal["application/json"] = "application/json"
    dataschema: str
    traceparent: str | None = None
    correlationid: str | None = Field(default=None, description="the case: domain:place/entity#epoch")
    causationid: str | None = Field(default=None, description="id of the event that made this one happen")
    epoch: int | None = Field(default=None, ge=0)
    data: PayloadT_co

    @property
    def address(self) -> Address:
        """Where it is published; derived from type and subject, which `decode` has checked."""
        return _address(self.type, self.subject)

    @property
    def of(self) -> Entity:
        """What it is about."""
        return _entity(self.type, self.subject)

    def encode(self) -> bytes:
        """The wire form.

        Raises:
            BadInput: larger than `MAX_BYTES`.
        """
        body: bytes = self.__pydantic_serializer__.to_json(self, exclude_none=True, by_alias=True)
        if len(body) > MAX_BYTES:
            raise BadInput(
                "data", f"{self.type} of {len(body)} bytes is too large", f"keep it below {MAX_BYTES} bytes"
            )
        return body


AnyEvent = Event[Payload]
_STATED = frozenset(Event.model_fields) - {"specversion", "datacontenttype"}
"""The fields that `event` sets; the others have one value only."""


@dataclass(frozen=True, slots=True)
class Unknown:
    """An event of a type that this version does not know, kept as it came."""

    address: Address
    id: str
    body: bytes

    @property
    def of(self) -> Entity:
        """What it is about."""
        return self.address.of


@dataclass(frozen=True, slots=True)
class Cause:
    """Why an event is said; its id is derived from `key`."""

    key: str
    event_id: str | None = None
    correlationid: str | None = None
    traceparent: str | None = None

    @classmethod
    def of(cls, event: AnyEvent) -> Cause:
        """Another event."""
        return cls(event.id, event.id, event.correlationid, event.traceparent)

    @classmethod
    def source(cls, boot_id: str, counter: int | str) -> Cause:
        """An observation of the world, numbered by its observer since boot (or start)."""
        return cls(f"source\n{boot_id}\n{counter}")

    @classmethod
    def timer(
        cls, case: str, epoch: int, state: str, deadline: str, *, since: AnyEvent | None = None
    ) -> Cause:
        """A deadline that passed; `since` is the event that set it."""
        key = f"timer\n{case}\n{epoch}\n{state}\n{deadline}"
        if since is None:
            return cls(key)
        return cls(key, since.id, since.correlationid, since.traceparent)


def event(
    data: P,
    of: Entity | tuple[str, str],
    *,
    cause: Cause,
    source: str,
    at: AwareDatetime,
    correlationid: str | None = None,
) -> Event[P]:
    """Build the one event that states this fact for this cause.

    Args:
        data: the payload; its class decides domain, fact and type.
        of: the entity, or (place, entity) in the payload's domain.
        cause: what made it happen.
        source: `/mediafleet/<service>/<instance>`.
        at: when it happened, UTC.
        correlationid: the case, where it is not the cause's.
    """
    kind = data.kind
    place, entity = (of.place, of.entity) if isinstance(of, Entity) else of
    about = f"{whole_place(place)}/{entity}"
    id_ = fact_id(cause.key, kind, about, data)
    correlation = correlationid or cause.correlationid
    epoch = getattr(data, "epoch", None)
    envelope = CATALOGUE[(kind.domain, kind.fact)][1]
    if at.tzinfo is None:
        raise BadInput("time", f"{kind.name} at {at} has no zone", "give the time in UTC")
    if not 0 < len(source) <= _LONGEST_SOURCE:
        raise BadInput(
            "source", f"{source[:40]!r} is empty or too long", "say /mediafleet/<service>/<instance>"
        )
    return cast(
        "Event[P]",
        _trusted(
            envelope,
            {
                "specversion": "1.0",
                "id": id_,
                "source": source,
                "type": kind.type,
                "subject": about,
                "time": at,
                "datacontenttype": "application/json",
                "dataschema": kind.dataschema,
                "traceparent": _traceparent(cause.traceparent, correlation or id_, id_),
                "correlationid": correlation,
                "causationid": cause.event_id,
                "epoch": epoch if isinstance(epoch, int) else None,
                "data": data,
            },
        ),
    )


def _trusted(envelope: type[AnyEvent], fields: dict[str, Any]) -> AnyEvent:
    """An envelope of values that are known to be valid: the payload was validated when it was built.

    To validate it all once more costs as much as everything else about an event; that the outcome is the same
    is tested for every type.
    """
    made = object.__new__(envelope)
    object.__setattr__(made, "__dict__", fields)
    object.__setattr__(made, "__pydantic_fields_set__", set(_STATED))
    object.__setattr__(made, "__pydantic_extra__", None)
    object.__setattr__(made, "__pydantic_private__", None)
    return made


def fact_id(cause: str, kind: FactType, about: str, data: Payload) -> str:
    """The deterministic id of a fact: the same cause, type, subject and discriminator give the same id."""
    values = [_reach(data, path) for path in kind.discriminator]
    # `uuid.uuid5` without its objects: version and variant stand before the third and fourth group.
    name = "\n".join([cause, kind.type, about, *values])
    found = hashlib.sha1(_NAMESPACE + name.encode(), usedforsecurity=False).hexdigest()
    variant = "89ab"[int(found[16], 16) & 3]
    return f"{found[:8]}-{found[8:12]}-5{found[13:16]}-{variant}{found[17:20]}-{found[20:32]}"


@dataclass(frozen=True, slots=True)
class _Expected:
    """What may come on one subject; looked up once, because every event is decoded."""

    type: str
    about: str
    schema: str
    read: Callable[..., AnyEvent]


@lru_cache(maxsize=65536)
def _expected(subject: str) -> _Expected | None:
    """None for a type that this version does not know."""
    address = Address.parse(subject)
    found = CATALOGUE.get((address.domain, address.fact))
    if found is None:
        return None
    payload, envelope = found
    kind = payload.kind
    return _Expected(
        kind.type,
        address.about,
        f"schemas/{kind.name}.v{kind.version}.json",
        envelope.__pydantic_validator__.validate_json,
    )


def decode(subject: str, body: bytes) -> AnyEvent | Unknown:
    """Read an event as it came on `subject`.

    Raises:
        BadInput: not an envelope, or one that does not match its subject; names the field.
    """
    expected = _expected(subject)
    if expected is None:
        address = Address.parse(subject)
        return Unknown(address, _peek_id(address, body), body)
    if len(body) > MAX_BYTES:
        raise BadInput("data", f"{len(body)} bytes are too large", f"keep an event below {MAX_BYTES} bytes")
    try:
        read = expected.read(body, extra="ignore")
    except ValidationError as error:
        raise bad_field(error, f"see {expected.schema}") from error
    if read.type != expected.type:
        raise BadInput("type", f"{read.type!r} came on {subject}", f"publish {expected.type} there")
    if read.subject != expected.about:
        raise BadInput("subject", f"{read.subject!r} came on {subject}", f"say {expected.about!r}")
    return read


def bad_field(error: ValidationError, fix: str) -> BadInput:
    """The first of a validation's complaints as one readable error."""
    first = error.errors(include_url=False, include_input=False)[0]
    field = ".".join(str(part) for part in first["loc"]) or "body"
    return BadInput(field, first["msg"], fix)


CATALOGUE: dict[tuple[str, str], tuple[type[Payload], type[AnyEvent]]] = {}
"""(domain, fact) to payload class and its envelope; filled by importing `shared.events`."""


def _peek_id(address: Address, body: bytes) -> str:
    """The id of a newer version's fact. What is no such fact is nobody's: it must not hold a log up."""
    try:
        seen = _Peek.model_validate_json(body, extra="ignore")
    except ValidationError as error:
        raise bad_field(error, "send a CloudEvents 1.0 envelope") from error
    if not seen.type.startswith(f"io.mediafleet.{address.domain}.{address.fact}.v"):
        raise BadInput("type", f"{seen.type!r} came on {address.subject}", "publish each type on its subject")
    if seen.subject != address.about:
        raise BadInput("subject", f"{seen.subject!r} came on {address.subject}", f"say {address.about!r}")
    return seen.id


class _Peek(BaseModel):
    id: str = Field(min_length=1, max_length=128)
    type: str
    subject: str


@lru_cache(maxsize=65536)
def _address(type_: str, about: str) -> Address:
    domain, fact, _ = type_.removeprefix("io.mediafleet.").split(".")
    place, _, entity = about.partition("/")
    return Address(domain, place, entity, fact)


@lru_cache(maxsize=65536)
def _entity(type_: str, about: str) -> Entity:
    return _address(type_, about).of


def _reach(data: BaseModel, path: str) -> str:
    value: Any = data
    for name in path.split("."):
        value = getattr(value, name)
    return str(value)


def _traceparent(parent: str | None, root: str, id_: str) -> str:
    """W3C trace context: the cause's trace, else one derived from the case, so that replay gives the same."""
    trace = parent.split("-")[1] if parent else hashlib.sha256(root.encode()).hexdigest()[:32]
    return f"00-{trace}-{hashlib.sha256(id_.encode()).hexdigest()[:16]}-01"


__all__ = ["CATALOGUE", "PREFIX", "AnyEvent", "Cause", "Event", "FactType", "Part", "Payload", "Unknown"]
