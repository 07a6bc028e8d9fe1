"""Start the manager."""

from services.manager.service import run
from services.manager.settings import ManagerPolicy
from shared.host import main

main("manager", ManagerPolicy, run)
