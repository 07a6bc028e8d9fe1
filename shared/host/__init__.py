"""The process around a service: settings, lifespan, logs, metrics, health endpoints."""

from shared.host.process import Host, main
from shared.host.settings import ServiceSettings, SharedSettings, load, read_section

__all__ = ["Host", "ServiceSettings", "SharedSettings", "load", "main", "read_section"]
