"""The lease on an HPA's floor, written onto the HPA itself so that anybody can see it and give it back."""

from __future__ import annotations

from datetime import datetime

from pydantic import AwareDatetime, BaseModel, ConfigDict, ValidationError

KEY = "min-replicas-lease"
"""Name of the annotation, below the resource domain."""


class FloorLease(BaseModel):
    """What the annotation says.

    Attributes:
        before: `minReplicas` to give back.
        raised: what it was raised to; another value by now is a person's, and stays.
        until: when it is given back.
        request: id of the request that it serves.
    """

    model_config = ConfigDict(frozen=True, extra="ignore")

    before: int
    raised: int
    until: AwareDatetime
    request: str

    def text(self) -> str:
        """The annotation's value."""
        return self.model_dump_json()


def read(text: str | None) -> FloorLease | None:
    """The lease that an annotation states; None when there is none or somebody broke it."""
    if text is None:
        return None
    try:
        return FloorLease.model_validate_json(text)
    except ValidationError:
        return None


def lease(before: int, raised: int, until: datetime, request: str) -> FloorLease:
    """A lease as it is to be written."""
    return FloorLease(before=before, raised=raised, until=until, request=request)
