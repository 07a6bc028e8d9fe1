"""The bus on NATS JetStream: nats-server 2.12 or newer, nats-py narrowed to what can be trusted of it.

Which subjects each client needs of it, and may use: `shared.bus.permissions`.
"""

from shared.bus.nats.bus import NatsBus, connect

__all__ = ["NatsBus", "connect"]
