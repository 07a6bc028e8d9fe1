"""How events travel: the port in `port`, NATS JetStream in `nats`, a twin in `memory`, and provisioning."""
