"""The vendors' tools as shell scripts, and the files from which they answer.

A script never changes. Beside it lies `<tool>.d/`: `all.capture`, one capture for every name by which the
tool takes a device, and marks: while `<name>.hang` is there the tool hangs when asked for that name, while
`<name>.fail` is there it fails with that text.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from services.simulator import captures

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from services.simulator.hardware import Device, Vendor

TOOLS: Final[dict[Vendor, str]] = {"nvidia": "nvidia-smi", "amd": "rocm-smi", "huawei": "npu-smi"}
_RENDER: Final[dict[Vendor, Callable[[Sequence[Device]], str]]] = {
    "nvidia": captures.nvidia_smi_xml,
    "amd": captures.rocm_smi_json,
    "huawei": captures.npu_smi_text,
}
SCRIPT: Final = """#!/bin/sh
# A simulated vendor tool: prints the capture that lies beside it for the device asked for, or for all.
answers="$0.d"
which=all
kind=
while [ $# -gt 0 ]; do
  case "$1" in
    -i|--id|-d) [ $# -gt 1 ] && shift; which="$1" ;;
    --id=*) which="${1#*=}" ;;
    -t) [ $# -gt 1 ] && shift; kind=".$1" ;;
  esac
  shift
done
if [ -e "$answers/$which.hang" ]; then exec sleep 3600; fi
if [ -e "$answers/$which.fail" ]; then cat "$answers/$which.fail" >&2; exit 9; fi
if [ -e "$answers/$which$kind.capture" ]; then exec cat "$answers/$which$kind.capture"; fi
echo "No devices were found" >&2
exit 6
"""


def answers(
    vendor: Vendor, present: Sequence[Device], *, hanging: Collection[int] = (), failing: Collection[int] = ()
) -> dict[str, str]:
    """Every file of a tool's directory, by name.

    Args:
        vendor: whose tool.
        present: the vendor's devices that are on the bus.
        hanging: slots whose device makes the tool hang, also when it is asked for all.
        failing: slots whose device makes it fail.
    """
    files = {"all.capture": _RENDER[vendor](present)}
    for device in present:
        names = _selectors(device)
        files |= {f"{name}.capture": _RENDER[vendor]([device]) for name in names}
        if vendor == "huawei":
            board, ecc = captures.npu_smi_board_text(device), captures.npu_smi_ecc_text(device)
            files |= {f"{name}.board.capture": board for name in names}
            files |= {f"{name}.ecc.capture": ecc for name in names}
        said = f"Unable to determine the device handle for {device.bus_address}: Unknown Error\n"
        for mark, slots in (("hang", hanging), ("fail", failing)):
            if device.slot in slots:
                files |= {f"{name}.{mark}": said for name in ("all", *names)}
    return files


def _selectors(device: Device) -> tuple[str, ...]:
    """The names by which the vendor's tool takes one device."""
    if device.model.vendor != "nvidia":
        return (str(device.slot),)
    return (str(device.slot), device.bus_address, f"0000{device.bus_address.upper()}", device.uuid)
