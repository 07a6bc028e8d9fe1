"""Start the discovery of this node: `python -m services.discovery`."""

import shared.bus.lean  # noqa: F401 - before all others: it decides what they load
from services.discovery.service import SERVICE, run
from services.discovery.settings import DiscoverySettings
from shared.host import main

if __name__ == "__main__":
    main(SERVICE, DiscoverySettings, run)
