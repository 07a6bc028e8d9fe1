"""What a device reads at one moment: counters and gauges that change all the time, no part of what it is.

A field that a source does not have, or gave as N/A, NaN or a negative number, is None: missing is not zero.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Readings:
    """One look at a device.

    Attributes:
        ecc_uncorrected: uncorrectable memory errors since the driver was loaded.
        ecc_corrected: correctable ones; never a reason to act, kept for people.
        row_remap_pending: a memory row waits for a reset to be replaced.
        row_remap_failed: a row could not be replaced: no spare is left.
        page_retire_pending: a page waits for a reset to be retired (before Ampere).
        pcie_replays: link replays since the driver was loaded.
        link_generation: PCIe generation in use; drops when idle, which is no fault.
        link_generation_max: what device and slot can do together.
        link_width: PCIe lanes in use.
        link_width_max: lanes that device and slot can use together.
        temperature_c: of the chip.
        temperature_limit_c: where the device slows itself down.
        power_w: drawn now.
        memory_used_bytes: used device memory.
        busy: share of the time the compute engine was busy, 0..1.
        health_word: the vendor tool's own verdict, lower case ("ok", "warning", "alarm", "critical").
        error_codes: active fault codes as the vendor tool prints them, upper case hexadecimal (Ascend).
        recovery_action: the driver's own advice, lower case ("none", "reset", "reboot", ...).
    """

    ecc_uncorrected: int | None = None
    ecc_corrected: int | None = None
    row_remap_pending: bool | None = None
    row_remap_failed: bool | None = None
    page_retire_pending: bool | None = None
    pcie_replays: int | None = None
    link_generation: int | None = None
    link_generation_max: int | None = None
    link_width: int | None = None
    link_width_max: int | None = None
    temperature_c: float | None = None
    temperature_limit_c: float | None = None
    power_w: float | None = None
    memory_used_bytes: int | None = None
    busy: float | None = None
    health_word: str | None = None
    error_codes: tuple[str, ...] = ()
    recovery_action: str | None = None
