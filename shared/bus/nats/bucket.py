"""A key-value bucket: one stream, one subject per key, compare-and-set by subject sequence.

nats-py's own is not used: its `get` and `create` are wrong on buckets with limit markers, and its watch takes
ten seconds to notice a server restart. No bucket of ours has limit markers, so an expired key is simply
absent.
"""

from __future__ import annotations

from dataclasses import dataclass

from shared.bus.nats.link import ApiError, Link, checked
from shared.bus.nats.publishing import WRONG_LAST_SEQUENCE, message
from shared.errors import Conflict


@dataclass(frozen=True, slots=True)
class Value:
    """A key's value as the bucket holds it."""

    body: bytes
    revision: int


class Bucket:
    """One bucket. Keys are subject tokens (separated by dots): escape what comes from outside."""

    def __init__(self, link: Link, name: str) -> None:
        self._link = link
        self.name = name
        self.stream = f"KV_{name}"

    def subject(self, key: str) -> str:
        """Where a key's values are published."""
        return f"$KV.{self.name}.{key}"

    async def get(self, key: str) -> Value | None:
        """The value as the leader holds it; None when there is none (or it expired)."""
        found = await message(self._link, self.stream, {"last_by_subj": self.subject(key)})
        return None if found is None else Value(found.body, found.sequence)

    async def put(
        self, key: str, body: bytes, *, expected: int | None = None, ttl_s: int | None = None
    ) -> int:
        """Write a value and return its revision.

        Args:
            key: the key.
            body: the value.
            expected: revision that must still stand; 0 for none.
            ttl_s: seconds until it vanishes, at least 1.

        Raises:
            Conflict: another revision stands.
            Disconnected: no answer; it may be written.
        """
        headers: dict[str, str] = {}
        if expected is not None:
            headers["Nats-Expected-Last-Subject-Sequence"] = str(expected)
        if ttl_s is not None:
            headers["Nats-TTL"] = str(ttl_s)
        answer = await self._link.request(self.subject(key), body, headers=headers or None)
        try:
            return int(checked(self.subject(key), answer.data)["seq"])
        except ApiError as error:
            if error.err_code in WRONG_LAST_SEQUENCE:
                raise Conflict(f"{self.name}/{key}", expected=expected or 0) from None
            raise

    async def forget(self, key: str) -> None:
        """Remove a key without a trace."""
        await self._link.api(f"STREAM.PURGE.{self.stream}", {"filter": self.subject(key)})
