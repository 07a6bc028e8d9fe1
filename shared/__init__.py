"""What every mediafleet service stands on; imports nothing from services."""
