"""Where an event lives: the subject grammar and its reversible escaping.

    fleet.v1.<domain>.<place>.<entity>.<fact>

*place* is a node name or a namespace, *entity* a device key (`nvidia-0000-3b-00-0`) or a workload
(`deployment-rtmp-edge`). The place stands at a fixed position so that a node's credentials can allow only its
own. In a token every byte outside `[A-Za-z0-9-]` is `_` and two hex digits (`.` is `_2e`, `_` is `_5f`).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

from shared.errors import BadInput

PREFIX = "fleet.v1"
FLEET = "fleet"
"""The place of what belongs to no node and no namespace (budgets, circuit breakers)."""

_PLAIN = re.compile(r"[A-Za-z0-9-]+")
_TOKEN = re.compile(r"(?:[A-Za-z0-9-]|_[0-9a-f]{2})+")
_NAME = re.compile(r"[a-z][a-z-]*")
_MAX_TOKEN = 253 * 3
"""A Kubernetes name has at most 253 characters, each of at most three when escaped."""


@lru_cache(maxsize=65536)
def escape(text: str) -> str:
    """A place or entity as one subject token; `unescape` gives it back.

    Raises:
        BadInput: the text is empty or too long for a Kubernetes name.
    """
    if not text:
        raise BadInput(
            "subject", "a place or entity is empty", "give the node, namespace, device or workload"
        )
    if _PLAIN.fullmatch(text):
        token = text
    else:
        token = "".join(chr(byte) if _PLAIN.fullmatch(chr(byte)) else f"_{byte:02x}" for byte in _utf8(text))
    if len(token) > _MAX_TOKEN:
        raise BadInput("subject", f"{text[:40]!r}... is too long", "use a name of at most 253 characters")
    return token


def _utf8(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise BadInput("subject", f"{text!r} holds half a surrogate", "use a name in UTF-8") from error


def whole_place(place: str) -> str:
    """The place; `place/entity` must come apart again, so it has no slash.

    Raises:
        BadInput: it has one.
    """
    if "/" in place:
        raise BadInput("subject", f"the place {place!r} holds a slash", "name a node or a namespace")
    return place


@lru_cache(maxsize=65536)
def unescape(token: str) -> str:
    """The place or entity that `escape` made the token from.

    Raises:
        BadInput: no text escapes to this token.
    """
    if _PLAIN.fullmatch(token):
        return token
    if not _TOKEN.fullmatch(token):
        raise BadInput(
            "subject", f"token {token!r} holds a bare special character", "write it as _ and two hex digits"
        )
    parts = re.split(r"_([0-9a-f]{2})", token)
    raw = b"".join(bytes.fromhex(part) if index % 2 else part.encode() for index, part in enumerate(parts))
    try:
        text = raw.decode()
    except UnicodeDecodeError:
        text = ""
    if not text or escape(text) != token:
        raise BadInput(
            "subject", f"token {token!r} is no text's escape", "escape the UTF-8 bytes of the name"
        )
    return text


@dataclass(frozen=True, slots=True)
class Entity:
    """One thing that facts are about, inside its place and domain; also the name of its case log."""

    domain: str
    place: str
    entity: str

    @property
    def wildcard(self) -> str:
        """The subject filter of all its facts."""
        return f"{PREFIX}.{self.domain}.{escape(self.place)}.{escape(self.entity)}.*"

    @property
    def about(self) -> str:
        """`place/entity`: the CloudEvents subject, readable and unescaped."""
        return f"{self.place}/{self.entity}"

    def address(self, fact: str) -> Address:
        """The address of one kind of fact about it."""
        return Address(self.domain, self.place, self.entity, fact)

    def __str__(self) -> str:
        return f"{self.domain}:{self.about}"


@dataclass(frozen=True, slots=True)
class Address:
    """The parts of an event's subject, unescaped."""

    domain: str
    place: str
    entity: str
    fact: str

    @property
    def subject(self) -> str:
        """The NATS subject."""
        return _subject(self.domain, self.place, self.entity, self.fact)

    @property
    def of(self) -> Entity:
        """The entity that the fact is about."""
        return Entity(self.domain, self.place, self.entity)

    @property
    def about(self) -> str:
        """`place/entity`: the CloudEvents subject."""
        return f"{self.place}/{self.entity}"

    @classmethod
    def parse(cls, subject: str) -> Address:
        """The address that a subject spells.

        Raises:
            BadInput: it is not `fleet.v1.<domain>.<place>.<entity>.<fact>`.
        """
        return _parse(subject)


@lru_cache(maxsize=65536)
def _subject(domain: str, place: str, entity: str, fact: str) -> str:
    for name in (domain, fact):
        if not _NAME.fullmatch(name):
            raise BadInput("subject", f"{name!r} is no domain or fact", "use lower-case words joined by -")
    return f"{PREFIX}.{domain}.{escape(whole_place(place))}.{escape(entity)}.{fact}"


@lru_cache(maxsize=65536)
def _parse(subject: str) -> Address:
    tokens = subject.split(".")
    if len(tokens) != 6 or tokens[:2] != PREFIX.split("."):  # noqa: PLR2004 - the grammar has six tokens
        raise BadInput(
            "subject", f"{subject!r} has another shape", f"use {PREFIX}.<domain>.<place>.<entity>.<fact>"
        )
    _, _, domain, place, entity, fact = tokens
    for name in (domain, fact):
        if not _NAME.fullmatch(name):
            raise BadInput(
                "subject", f"{name!r} in {subject!r} is no domain or fact", "use lower-case words joined by -"
            )
    return Address(domain, whole_place(unescape(place)), unescape(entity), fact)
