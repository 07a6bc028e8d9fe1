"""Import this first in a service's `__main__`: two libraries are loaded without parts that no service uses.

structlog loads rich for a console renderer, and nats-py loads aiohttp for websockets; our logs are JSON, and
our connections TCP or TLS. Together they are 12 MB of every process. Whoever wants rich or aiohttp later (the
command line, the simulator) imports them as usual.
"""

from __future__ import annotations

import importlib
import sys

_UNUSED = ("rich", "aiohttp")
_WHO_WOULD_LOAD_THEM = ("structlog", "nats")

_absent = [name for name in _UNUSED if name not in sys.modules]
for _name in _absent:
    sys.modules[_name] = None  # type: ignore[assignment] # the import system's way to say: not installed
try:
    for _name in _WHO_WOULD_LOAD_THEM:
        importlib.import_module(_name)
finally:
    for _name in _absent:
        del sys.modules[_name]
