"""The unified device manager: translates what nodes find, registers devices, projects the fleet."""
