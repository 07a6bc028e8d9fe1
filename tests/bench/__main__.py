"""Every bench, one after another: `python -m tests.bench [NAME ...]`, NAME as in `bench_NAME.py`.

Each runs in a process of its own, so that none inherits another's heap; with names, only those run.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

_PREFIX = "bench_"


def names() -> list[str]:
    """The benches there are, in order."""
    return sorted(path.stem.removeprefix(_PREFIX) for path in Path(__file__).parent.glob(f"{_PREFIX}*.py"))


def main() -> int:
    """Run them; the number of those that failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description=__doc__)
    parser.add_argument("name", nargs="*", help=f"one of {', '.join(names())}; all when none is given")
    wanted = parser.parse_args().name or names()
    for name in wanted:
        if name not in names():
            parser.error(f"there is no bench {name!r}: use one of {', '.join(names())}")
    failed = 0
    for name in wanted:
        sys.stdout.write(f"\n== {name.replace('_', ' ')} ==\n")
        sys.stdout.flush()
        module = f"{__package__}.{_PREFIX}{name}"
        failed += subprocess.run([sys.executable, "-m", module], check=False).returncode != 0
    return failed


if __name__ == "__main__":
    raise SystemExit(main())
