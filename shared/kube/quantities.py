"""Kubernetes quantities (``500m``, ``8Gi``, ``4``) as exact numbers in base units: cores, bytes, pieces.

Grammar: apimachinery ``resource.Quantity``; a decimal number and an SI, binary or exponent suffix.
"""

from __future__ import annotations

import re
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final

from shared.errors import BadInput

if TYPE_CHECKING:
    from collections.abc import Mapping

_SUFFIXES: Final[dict[str, Decimal]] = {
    "n": Decimal("1e-9"),
    "u": Decimal("1e-6"),
    "m": Decimal("1e-3"),
    "": Decimal(1),
    "k": Decimal("1e3"),
    "M": Decimal("1e6"),
    "G": Decimal("1e9"),
    "T": Decimal("1e12"),
    "P": Decimal("1e15"),
    "E": Decimal("1e18"),
    "Ki": Decimal(1 << 10),
    "Mi": Decimal(1 << 20),
    "Gi": Decimal(1 << 30),
    "Ti": Decimal(1 << 40),
    "Pi": Decimal(1 << 50),
    "Ei": Decimal(1 << 60),
}
_QUANTITY: Final = re.compile(
    r"(?P<number>[+-]?(?:[0-9]{1,30}(?:\.[0-9]{0,30})?|\.[0-9]{1,30}))"
    r"(?:(?P<suffix>[numkMGTPE]|[KMGTPE]i)|[eE](?P<exponent>[+-]?[0-9]{1,2}))?",
    re.ASCII,
)


def parse_quantity(text: Any, *, field: str = "quantity") -> Decimal:
    """The number a quantity stands for, in base units.

    Raises:
        BadInput: it is no quantity; the error names ``field``.
    """
    if isinstance(text, int) and not isinstance(text, bool):
        return Decimal(text)
    if isinstance(text, float):
        text = str(text)
    match = _QUANTITY.fullmatch(text) if isinstance(text, str) else None
    if match is None:
        raise BadInput(
            field, f"{text!r} is not a quantity", 'write a number with a unit, as in "500m" or "8Gi"'
        )
    number = Decimal(match["number"])
    if match["exponent"]:
        return number.scaleb(int(match["exponent"]))
    return number * _SUFFIXES[match["suffix"] or ""]


def parse_quantities(resources: Mapping[str, Any] | None, *, field: str = "resources") -> dict[str, Decimal]:
    """Every resource of a resource list in base units; an absent list is empty."""
    return {name: parse_quantity(text, field=f"{field}[{name}]") for name, text in (resources or {}).items()}


def pod_requests(spec: Mapping[str, Any]) -> dict[str, Decimal]:
    """What the scheduler counts for a pod, by resource, in base units.

    The sum over containers, or the largest init container where that is more; a limit without a request is
    the request. Restartable init containers (sidecars) count like containers. Source: component-helpers
    ``resource.PodRequests``.
    """
    total: dict[str, Decimal] = {}
    for container in spec.get("containers") or ():
        _add(total, _container_requests(container))
    peak: dict[str, Decimal] = {}
    sidecars: dict[str, Decimal] = {}
    for container in spec.get("initContainers") or ():
        needed = _container_requests(container)
        if container.get("restartPolicy") == "Always":
            _add(total, needed)
            _add(sidecars, needed)
            needed = dict(sidecars)
        else:
            _add(needed, sidecars)
        for name, amount in needed.items():
            peak[name] = max(peak.get(name, Decimal(0)), amount)
    for name, amount in peak.items():
        total[name] = max(total.get(name, Decimal(0)), amount)
    _add(total, parse_quantities(spec.get("overhead"), field="spec.overhead"))
    return total


def _container_requests(container: Mapping[str, Any]) -> dict[str, Decimal]:
    resources = container.get("resources") or {}
    merged = {**(resources.get("limits") or {}), **(resources.get("requests") or {})}
    return parse_quantities(merged, field=f"container {container.get('name', '?')} resources")


def _add(total: dict[str, Decimal], more: Mapping[str, Decimal]) -> None:
    for name, amount in more.items():
        total[name] = total.get(name, Decimal(0)) + amount
