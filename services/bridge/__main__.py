"""Start the bridge of this node: `python -m services.bridge`."""

import shared.bus.lean  # noqa: F401 - before all others: it decides what they load
from services.bridge.service import SERVICE, run
from services.bridge.settings import BridgeSettings
from shared.host import main

if __name__ == "__main__":
    main(SERVICE, BridgeSettings, run)
