"""Start the manager."""

from services.manager.service import run
from services.manager.settings import ManagerSettings
from shared.host import main

main("manager", ManagerSettings, run)
