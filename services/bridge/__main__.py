"""Start the bridge of this node: `python -m services.bridge`."""

from services.bridge.service import SERVICE, run
from services.bridge.settings import BridgeSettings
from shared.host import main

if __name__ == "__main__":
    main(SERVICE, BridgeSettings, run)
