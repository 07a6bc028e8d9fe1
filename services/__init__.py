"""The mediafleet services: independent processes that hear and say events."""
