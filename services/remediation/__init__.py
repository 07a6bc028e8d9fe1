"""Remediation: the three-strikes case of a device, from its first strike to re-admission or retirement."""
