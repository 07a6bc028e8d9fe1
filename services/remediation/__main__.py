"""Start remediation."""

from services.remediation.service import run
from services.remediation.settings import RemediationSettings
from shared.host import main

main("remediation", RemediationSettings, run)
