"""The bus on NATS JetStream: nats-server 2.12 or newer, nats-py narrowed to what can be trusted of it.

What the credentials of a node service need, for each domain D it hears (stream S) at its place P:
publish `fleet.v1.<its domains>.P.>`, `$JS.API.INFO`, `$JS.API.STREAM.INFO.S`,
`$JS.API.CONSUMER.CREATE.S.*.fleet.v1.D.P.>`, `$JS.API.CONSUMER.MSG.NEXT.S.>`, `$JS.ACK.S.>` and, to leave
nothing behind, `$JS.API.CONSUMER.DELETE.S.*`; subscribe `_INBOX_<service>.>`. To compare a duplicate with
what is stored: `$JS.API.STREAM.MSG.GET.<its domains' streams>`.
"""

from shared.bus.nats.bus import NatsBus, connect

__all__ = ["NatsBus", "connect"]
