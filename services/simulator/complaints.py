"""What drivers write into the kernel log when a device is in trouble: our words in their forms. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from shared.errors import BadInput

if TYPE_CHECKING:
    from services.simulator.hardware import Device

_XID_WORDS: Final = {
    13: "pid=4711, name=ffmpeg, Graphics SM Warp Exception on (GPC 0, TPC 1, SM 0): Out Of Range Address",
    31: "pid=4711, name=ffmpeg, Ch 00000018, MMU Fault: ENGINE GRAPHICS faulted @ 0x7f12_4a000000",
    43: "pid=4711, name=ffmpeg, Ch 00000018",
    45: "pid=4711, name=ffmpeg, Ch 00000018",
    48: "pid='<unknown>', name=<unknown>, DBE (double bit error) ECC Error",
    68: "pid=4711, name=ffmpeg, Ch 00000020, NVDEC0 exception",
    74: "pid='<unknown>', name=<unknown>, NVLink: fatal error detected on link 0",
    79: "pid='<unknown>', name=<unknown>, GPU has fallen off the bus.",
    94: "pid=4711, name=ffmpeg, Contained: SM (0x1). RST: No, D-RST: No",
    95: "pid=4711, name=ffmpeg, Uncontained: LTC TAG (0x2,0x0). RST: Yes, D-RST: No",
    119: "pid=4711, name=ffmpeg, Timeout after 6s of waiting for RPC response from GPU0 GSP!",
}


def complaint(device: Device, code: int | str | None = None) -> str:
    """One line about a device: an Xid, an amdgpu RAS line of a block, or an Ascend event.

    Raises:
        BadInput: an Xid that is no number.
    """
    address = device.bus_address
    if device.model.vendor == "nvidia":
        if code is not None and not str(code).isdigit():
            raise BadInput("code", f"{code!r} is no Xid", "write a number such as 79")
        number = 79 if code is None else int(code)
        words = _XID_WORDS.get(number, "pid=4711, name=ffmpeg, Ch 00000008")
        return f"NVRM: Xid (PCI:{address.rsplit('.', 1)[0]}): {number}, {words}"
    if device.model.vendor == "amd":
        block = "umc" if code is None else str(code)
        return f"amdgpu {address}: amdgpu: 1 uncorrectable hardware errors detected in {block} block"
    event = "80E01801" if code is None else str(code).removeprefix("0x").upper()
    return (
        f"devdrv_device_driver {address}: [ascend] device fault, dev_id={device.slot}, event code 0x{event}"
    )


def lost(device: Device) -> str:
    """The line of a device that does not answer on its bus any more."""
    if device.model.vendor == "amd":
        return f"amdgpu {device.bus_address}: amdgpu: device lost from bus!"
    return complaint(device, "79" if device.model.vendor == "nvidia" else "80E0020B")
