"""Start alerting."""

from services.alerting.service import run
from services.alerting.settings import AlertingSettings
from shared.host import main

main("alerting", AlertingSettings, run)
