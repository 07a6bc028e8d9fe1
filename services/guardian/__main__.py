"""Start the guardian."""

from services.guardian.service import run
from services.guardian.settings import GuardianSettings
from shared.host import main

main("guardian", GuardianSettings, run)
