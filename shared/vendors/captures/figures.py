"""Reading what tools print: placeholders, units, numbers that cannot be, identities that must be distinct."""

from __future__ import annotations

import math
import re
from typing import Final

from shared.errors import BadInput

LARGEST_CAPTURE_BYTES: Final = 16 * 2**20
"""Sixteen GPUs with every supported clock listed print less than half a megabyte."""

_PLACEHOLDERS: Final = frozenset(
    {
        "",
        "n/a",
        "na",
        "none",
        "null",
        "unknown",
        "-",
        "err!",
        "unknown error",
        "not supported",
        "not available",
    }
)
_NUMBER = re.compile(
    r"[-+]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][-+]?[0-9]+)?|[-+]?nan|[-+]?inf(?:inity)?", re.IGNORECASE
)
_SCALE: Final = {
    "": 1,
    "b": 1,
    "kib": 2**10,
    "kb": 2**10,
    "mib": 2**20,
    "mb": 2**20,
    "gib": 2**30,
    "gb": 2**30,
    "tib": 2**40,
}
"""Vendor tools mean powers of two also where they print MB (npu-smi: 65536 MB on a 64 GiB module)."""
_LARGEST = 2**53


def read(capture: str | bytes, tool: str) -> str:
    """The capture as text.

    Raises:
        BadInput: empty, too large, or no UTF-8 text; names the tool.
    """
    if len(capture) > LARGEST_CAPTURE_BYTES:
        raise BadInput(tool, f"the capture has {len(capture)} bytes", f"give at most {LARGEST_CAPTURE_BYTES}")
    if isinstance(capture, bytes):
        try:
            capture = capture.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            raise BadInput(
                tool, f"byte {error.start} is no UTF-8 text", "save the tool's output as it is, unconverted"
            ) from error
    if not capture.strip():
        raise BadInput(tool, "the capture is empty", "run the tool again and save all that it prints")
    return capture


def known(value: str | None) -> str | None:
    """The text without blanks; None for what tools print when they do not know."""
    if value is None:
        return None
    stripped = " ".join(value.split())
    bare = stripped.strip("[]").strip().lower()
    return None if bare in _PLACEHOLDERS else stripped


def identity(value: str | None) -> str | None:
    """A serial or uuid; None for placeholders, also ``0000000000000`` and ``0x0``."""
    stripped = known(value)
    if stripped is None or not stripped.lower().removeprefix("0x").strip("0- "):
        return None
    return stripped


class Figures:
    """Reads the numbers of one device and keeps a list of those that could not be believed."""

    def __init__(self, where: str) -> None:
        self._where = where
        self._warnings: list[str] = []

    @property
    def warnings(self) -> tuple[str, ...]:
        """One line for each field that was printed and not believed."""
        return tuple(self._warnings)

    def doubt(self, field: str, problem: str) -> None:
        """Note that a field is not believed."""
        self._warnings.append(f"{self._where}.{field}: {problem}; taken as unknown")

    def number(
        self, field: str, value: str | None, *, lowest: float = 0.0, highest: float = float(_LARGEST)
    ) -> float | None:
        """A number with or without its unit behind it; None for placeholders and for what cannot be."""
        stripped = known(value)
        if stripped is None:
            return None
        match = _NUMBER.match(stripped)
        figure = math.nan if match is None else float(match[0])
        if not lowest <= figure <= highest:
            self.doubt(field, f"{stripped[:40]!r} is no number from {lowest:g} to {highest:g}")
            return None
        return figure

    def count(self, field: str, value: str | None, *, highest: int = _LARGEST) -> int | None:
        """A whole number."""
        figure = self.number(field, value, highest=highest)
        if figure is not None and figure != int(figure):
            self.doubt(field, f"{figure} is no whole number")
            return None
        return None if figure is None else int(figure)

    def amount_bytes(self, field: str, value: str | None, *, unit: str = "") -> int | None:
        """A size such as ``15360 MiB``; ``unit`` is what the heading says where the cell has none."""
        stripped = known(value)
        figure = self.number(field, stripped)
        if figure is None or stripped is None:
            return None
        word = stripped.lstrip("+0123456789.").strip() or unit
        scale = _SCALE.get(word.lower())
        if scale is None or figure * scale > _LARGEST:
            self.doubt(field, f"{stripped[:40]!r} is no size")
            return None
        return round(figure * scale)

    def flag(self, field: str, value: str | None) -> bool | None:
        """Yes or no."""
        stripped = known(value)
        if stripped is None:
            return None
        answer = {"yes": True, "no": False, "true": True, "false": False}.get(stripped.lower())
        if answer is None:
            self.doubt(field, f"{stripped[:40]!r} is neither yes nor no")
        return answer


class Distinct:
    """Sees to it that no two devices of a capture claim one identity."""

    def __init__(self, tool: str) -> None:
        self._tool = tool
        self._seen: set[tuple[str, str]] = set()

    def claim(self, field: str, value: str | None) -> None:
        """Note an identity; None claims nothing.

        Raises:
            BadInput: another device has it.
        """
        if value is None:
            return
        if (field, value.lower()) in self._seen:
            raise BadInput(
                f"{self._tool}.{field}",
                f"{value[:80]!r} stands for two devices",
                "capture the tool's output again",
            )
        self._seen.add((field, value.lower()))
