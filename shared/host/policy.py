"""Policy: what a deciding service is allowed and how careful it is. A section per service in one YAML file.

Settings say where things are and are read at start; policy says what is decided and may be replayed.
"""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ValidationError

from shared.errors import BadInput
from shared.host.settings import read_section

PolicyT = TypeVar("PolicyT", bound=BaseModel)


def load_policy(path: Path | None, service: str, policy: type[PolicyT]) -> PolicyT:
    """The section of a service in the policy file; defaults hold where it is silent or there is no file.

    Raises:
        BadInput: a value is wrong; names the file, the section and the field.
    """
    section = {} if path is None else read_section(path, service)
    try:
        return policy.model_validate(section)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        field = ".".join(str(part) for part in first["loc"])
        raise BadInput(f"{path}:{service}.{field}", first["msg"], "correct it in the policy file") from error
