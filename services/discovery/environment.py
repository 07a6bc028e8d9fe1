"""The versions that compatibility depends on, read from files under a node's root; what is absent is None."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from services.discovery.scan import Files
from shared.devices.model import UnifiedDevice
from shared.events.world import Environment


def read_boot_id(root: Path) -> str:
    """The kernel's id of this boot; "unknown" where it does not say."""
    return Files(root).text(root / "proc/sys/kernel/random/boot_id") or "unknown"


def read_uptime_s(root: Path) -> float | None:
    """Seconds since boot by the kernel; None where it does not say."""
    words = (Files(root).text(root / "proc/uptime") or "").split()
    return float(words[0]) if words and re.fullmatch(r"[0-9]+(?:\.[0-9]+)?", words[0]) else None


def read_environment(root: Path, boot_id: str, n: int, devices: Iterable[UnifiedDevice]) -> Environment:
    """Everything that files and devices say about versions."""
    files = Files(root)
    kernel = re.search(r"Linux version (\S+)", files.text(root / "proc/version") or "")
    release = files.text(root / "etc/os-release") or ""
    distribution = re.search(r'PRETTY_NAME="?([^"]*?)"?(?: [A-Z_]+=|$)', release)
    found = tuple(devices)
    capabilities = [name for device in found for name in device.capabilities]
    return Environment(
        boot_id=boot_id,
        n=n,
        kernel=kernel[1] if kernel else None,
        distribution=distribution[1] if distribution else None,
        drivers={device.vendor: device.firmware.driver for device in found if device.firmware.driver},
        firmware={device.key: device.firmware.firmware for device in found if device.firmware.firmware},
        cuda=_version(capabilities, "cuda-"),
        rocm=_version(capabilities, "rocm-") or files.text(root / "opt/rocm/.info/version"),
        cann=_version(capabilities, "cann-"),
    )


def _version(capabilities: Iterable[str], prefix: str) -> str | None:
    return next((name.removeprefix(prefix) for name in capabilities if name.startswith(prefix)), None)
