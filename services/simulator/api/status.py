"""The `Status` bodies that a kube-apiserver answers with, as exceptions.

Reasons, codes and messages follow apimachinery ``pkg/api/errors``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Cause:
    """One entry of ``details.causes``."""

    reason: str
    message: str
    field: str = ""


class ApiError(Exception):
    """A refused request.

    Attributes:
        code: the HTTP status.
        reason: the machine-readable reason, ``NotFound``.
        message: for a person.
        causes: what is wrong with which field.
        retry_after_s: seconds for the Retry-After header; None for no header.
    """

    def __init__(
        self,
        code: int,
        reason: str,
        message: str,
        *,
        details: Json | None = None,
        causes: tuple[Cause, ...] = (),
        retry_after_s: int | None = None,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.reason = reason
        self.message = message
        self.details = details or {}
        self.causes = causes
        self.retry_after_s = retry_after_s

    def body(self) -> Json:
        """The `Status` object."""
        details: Json = dict(self.details)
        if self.causes:
            details["causes"] = [
                {"reason": cause.reason, "message": cause.message}
                | ({"field": cause.field} if cause.field else {})
                for cause in self.causes
            ]
        if self.retry_after_s is not None:
            details["retryAfterSeconds"] = self.retry_after_s
        body: Json = {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": self.message,
            "reason": self.reason,
            "code": self.code,
        }
        return body | ({"details": details} if details else {})


def success(details: Json | None = None) -> Json:
    """The `Status` of a request that has no object to answer with."""
    body: Json = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success"}
    return body | ({"details": details} if details else {})


def not_found(plural: str, group: str, name: str) -> ApiError:
    """404: no such object."""
    return ApiError(
        404,
        "NotFound",
        f'{_qualified(plural, group)} "{name}" not found',
        details=_details(plural, group, name),
    )


def already_exists(plural: str, group: str, name: str) -> ApiError:
    """409: the name is taken."""
    message = f'{_qualified(plural, group)} "{name}" already exists'
    return ApiError(409, "AlreadyExists", message, details=_details(plural, group, name))


def conflict(plural: str, group: str, name: str, why: str) -> ApiError:
    """409: somebody else wrote first, or a precondition does not hold."""
    message = f'Operation cannot be fulfilled on {_qualified(plural, group)} "{name}": {why}'
    return ApiError(409, "Conflict", message, details=_details(plural, group, name))


def failed_precondition(
    plural: str, group: str, name: str, *, what: str, wanted: str, actual: str
) -> ApiError:
    """409: the object is not the one that was meant (``what`` is UID or ResourceVersion)."""
    why = f"Precondition failed: {what} in precondition: {wanted}, {what} in object meta: {actual}"
    return conflict(plural, group, name, why)


def not_the_one_meant(kind: str, group: str, name: str, *, what: str, wanted: str, actual: str) -> ApiError:
    """409 to a deletion or eviction: the preconditions are of another (``registry/rest/delete.go``)."""
    since = {"UID": "deleted and then recreated", "ResourceVersion": "modified"}[what]
    why = (
        f"the {what} in the precondition ({wanted}) does not match the {what} in record ({actual}). "
        f"The object might have been {since}"
    )
    return conflict(kind, group, name, why)


def modified(plural: str, group: str, name: str) -> ApiError:
    """409: the resourceVersion is not the stored one."""
    why = "the object has been modified; please apply your changes to the latest version and try again"
    return conflict(plural, group, name, why)


def invalid(kind: str, group: str, name: str, *causes: Cause) -> ApiError:
    """422: fields that are well-formed but not allowed."""
    problems = ", ".join(f"{cause.field}: {cause.message}" for cause in causes)
    message = f'{_qualified(kind, group)} "{name}" is invalid: {problems}'
    return ApiError(
        422, "Invalid", message, details={"name": name, "group": group, "kind": kind}, causes=causes
    )


def bad_request(message: str, field: str = "") -> ApiError:
    """400: the request cannot be understood; names the field where there is one."""
    causes = (Cause("FieldValueInvalid", message, field),) if field else ()
    return ApiError(400, "BadRequest", f"{field}: {message}" if field else message, causes=causes)


def expired(message: str) -> ApiError:
    """410: the resourceVersion is older than the history that is kept."""
    return ApiError(410, "Expired", message)


def _qualified(plural: str, group: str) -> str:
    return f"{plural}.{group}" if group else plural


def _details(plural: str, group: str, name: str) -> Json:
    return {"name": name, "kind": plural} | ({"group": group} if group else {})
