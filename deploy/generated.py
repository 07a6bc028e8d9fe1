"""Files under deploy/ that are made from code: one way to check and to write them."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path


def run(module: str, about: str | None, wanted: Mapping[Path, str], arguments: Sequence[str] | None) -> int:
    """The command line of a generator; 1 when a file differs.

    Args:
        module: whose command it is, `deploy.crds`.
        about: what the help says.
        wanted: every file and its text.
        arguments: of the command line; None takes the process's.
    """
    parser = argparse.ArgumentParser(prog=f"python -m {module}", description=about)
    how = parser.add_mutually_exclusive_group(required=True)
    how.add_argument("--check", action="store_true", help="1 when a file differs from the code")
    how.add_argument("--write", action="store_true", help="write the files")
    given = parser.parse_args(arguments)
    stale = []
    for path, text in wanted.items():
        if given.write:
            path.write_text(text, encoding="utf-8")
        elif not path.exists() or path.read_text(encoding="utf-8") != text:
            stale.append(path.name)
    if stale:
        sys.stderr.write(f"not as the code says: {', '.join(stale)}; run `python -m {module} --write`\n")
    return 1 if stale else 0
