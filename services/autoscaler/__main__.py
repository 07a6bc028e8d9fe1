"""Start the autoscaler."""

from services.autoscaler.service import run
from services.autoscaler.settings import AutoscalerSettings
from shared.host import main

main("autoscaler", AutoscalerSettings, run)
