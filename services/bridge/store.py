"""One record on disk that survives a crash at any instant: the old one or the new one, never half of either.

A new record goes to a temporary file beside the old one, is flushed to the disk, takes the old one's name,
and the folder is flushed too. A file that cannot be read as the record is set aside under another name, for
a person to look at, and never overwritten; what it held is rebuilt from elsewhere.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from pydantic import BaseModel, ValidationError

from shared.errors import Refused

M = TypeVar("M", bound=BaseModel)


@dataclass(frozen=True, slots=True)
class Loaded(Generic[M]):
    """What a file held.

    Attributes:
        record: None when there is no file, or one that is no such record.
        problem: why a file could not be read; empty when all is well.
        set_aside: where that file is now.
    """

    record: M | None
    problem: str = ""
    set_aside: Path | None = None


class DiskRecord(Generic[M]):
    """A pydantic model kept in one file."""

    def __init__(self, path: Path, model: type[M]) -> None:
        self._path = path
        self._model = model

    def load(self) -> Loaded[M]:
        """Read the record.

        Raises:
            Refused: the file or its folder cannot be read or renamed.
        """
        try:
            body = self._path.read_bytes()
        except FileNotFoundError:
            return Loaded(None)
        except OSError as error:
            raise Refused(f"{self._path} cannot be read ({error}); check the state directory") from error
        try:
            return Loaded(self._model.model_validate_json(body))
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            field = ".".join(str(part) for part in first["loc"]) or "file"
            return Loaded(None, f"{self._path}: {field}: {first['msg']}", self._aside())

    def save(self, record: M) -> None:
        """Write the record; it is on the disk when this returns.

        Raises:
            Refused: the disk is full, read-only or gone.
        """
        scratch = self._path.with_name(f".{self._path.name}.new")
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with scratch.open("wb") as file:
                file.write(record.model_dump_json(by_alias=True, exclude_defaults=True).encode())
                file.flush()
                os.fsync(file.fileno())
            scratch.replace(self._path)
            folder = os.open(self._path.parent, os.O_RDONLY | os.O_DIRECTORY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)
        except OSError as error:
            raise Refused(f"{self._path} cannot be written ({error}); check the state directory") from error

    def _aside(self) -> Path:
        """Move the unreadable file out of the way, under the first free name."""
        number = 1
        while (target := self._path.with_name(f"{self._path.name}.corrupt-{number}")).exists():
            number += 1
        try:
            self._path.rename(target)
        except OSError as error:
            raise Refused(f"{self._path} cannot be set aside ({error}); move it away by hand") from error
        return target
