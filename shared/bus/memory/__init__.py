"""The bus in memory, for tests and simulation: the same port and the same answers as NATS.

No threads, no sockets, no wall time and no chance but the seed's: on a virtual loop a run can be repeated.
"""

from shared.bus.memory.bus import MemoryBus
from shared.bus.memory.faults import Faults
from shared.bus.memory.server import MemoryServer

__all__ = ["Faults", "MemoryBus", "MemoryServer"]
