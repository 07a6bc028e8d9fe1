"""`python -m services.console` is `mediafleet`."""

from services.console.cli import main

main()
