"""A node's host directory: what discovery and bridge see of one machine.

    sys/bus/pci/devices/<bus address>/   vendor, device, class, NUMA node, link, driver
    sys/class/{drm,npu}/                 the kernel's names, linked to the PCI devices
    proc, etc                            boot id, kernel, distribution, driver version
    usr/bin/<vendor tool>                a shell script that prints a capture lying beside it
    dev/kmsg                             a regular file that grows, in the record form of /dev/kmsg
    dev/...                              device nodes, as empty files

Every change is one atomic rename or one append, so a reader never sees half of it. A tool finds its answers
in `<tool>.d/`: `all.capture`, one capture per device, and empty `hang` or `fail` marks beside them; the
script itself never changes.
"""

from __future__ import annotations

import os
import shutil
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from services.simulator import captures
from services.simulator.hardware import (
    KERNEL_DRIVERS,
    PCI_VENDORS,
    Condition,
    Device,
    NodeSpec,
    Vendor,
    device_in,
    invented,
)
from shared.devices.keys import device_key, normalise_bus_address
from shared.errors import BadInput

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

TOOLS: dict[Vendor, str] = {"nvidia": "nvidia-smi", "amd": "rocm-smi", "huawei": "npu-smi"}
_RENDER: dict[Vendor, Callable[[Sequence[Device]], str]] = {
    "nvidia": captures.nvidia_smi_xml,
    "amd": captures.rocm_smi_json,
    "huawei": captures.npu_smi_text,
}
_COMMON_NODES: dict[Vendor, tuple[str, ...]] = {
    "nvidia": ("nvidiactl", "nvidia-uvm", "nvidia-uvm-tools", "nvidia-modeset"),
    "amd": ("kfd",),
    "huawei": ("davinci_manager", "devmm_svm", "hisi_hdc"),
}
_DIRECTORIES = (
    "dev/dma_heap",
    "dev/dri",
    "etc",
    "proc/driver/nvidia",
    "proc/sys/kernel/random",
    "run",
    "sys/bus/pci/devices",
    "sys/bus/pci/drivers",
    "sys/class/accel",
    "sys/class/drm",
    "sys/class/npu",
    "usr/bin",
    "var/lib/kubelet/device-plugins",
    "var/lib/kubelet/pod-resources",
    "var/run/cdi",
)
_KERNEL = "6.8.0-48-generic"
_TOOL = """#!/bin/sh
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


class HostTree:
    """One node's directory, and the only writer of it."""

    def __init__(self, root: Path, spec: NodeSpec) -> None:
        self.root = root
        self.spec = spec
        self.devices: tuple[Device, ...] = spec.devices()
        self._generations = [0] * len(self.devices)
        self._hanging: set[int] = set()
        self._failing: set[int] = set()
        self._boots = 0
        self._records = 0
        self._booted_s = 0.0

    @property
    def boot_id(self) -> str:
        """The boot id as the kernel prints it, without the newline."""
        noise = invented("boot", self.spec.seed, self.spec.name, self._boots)
        return f"{noise[:8]}-{noise[8:12]}-4{noise[13:16]}-a{noise[17:20]}-{noise[20:32]}"

    def build(self) -> None:
        """Make the whole directory; what was there is replaced."""
        if self.root.exists():
            shutil.rmtree(self.root)
        for directory in _DIRECTORIES:
            (self.root / directory).mkdir(parents=True, exist_ok=True)
        self._write("proc/version", f"Linux version {_KERNEL} (builder@simulated) (gcc 13.2.0) #48 SMP\n")
        self._write("proc/sys/kernel/osrelease", f"{_KERNEL}\n")
        self._write(
            "etc/os-release",
            'PRETTY_NAME="Ubuntu 24.04.1 LTS"\nNAME="Ubuntu"\nVERSION_ID="24.04"\nID=ubuntu\n',
        )
        self._write("etc/hostname", f"{self.spec.name}\n")
        for name in ("dma_heap/system", "dma_heap/linux,cma", "null"):
            self._write(f"dev/{name}", "")
        for vendor in {device.model.vendor for device in self.devices}:
            self._install_driver(vendor)
        for device in self.devices:
            self._plug(device)
        self._boot()
        self._refresh()

    def device(self, name: str) -> Device:
        """The device named by key, bus address or slot number.

        Raises:
            BadInput: no slot of this node has that name.
        """
        for device in self.devices:
            names = {
                str(device.slot),
                device.bus_address,
                device_key(device.model.vendor, device.bus_address),
            }
            if name in names or (":" in name and normalise_bus_address(name) == device.bus_address):
                return device
        known = ", ".join(device_key(d.model.vendor, d.bus_address) for d in self.devices)
        raise BadInput("device", f"{name!r} is not on {self.spec.name}", f"write one of {known}")

    # what can happen to a device

    def kernel_line(self, text: str, *, level: int = 3) -> None:
        """Append one record to the kernel log; ``level`` 3 is an error, 4 a warning, 6 information."""
        self._records += 1
        since_boot_us = int((time.monotonic() - self._booted_s) * 1e6)
        record = f"{level},{self._records},{since_boot_us},-;{text}\n"
        with (self.root / "dev/kmsg").open("a", encoding="utf-8") as log:
            log.write(record)

    def fault_line(self, name: str, code: int | str | None = None, text: str | None = None) -> str:
        """A driver's complaint about a device: an Xid, an amdgpu RAS line, or an Ascend event; returns it.

        Raises:
            BadInput: an Xid that is no number.
        """
        line = text or _complaint(self.device(name), code)
        self.kernel_line(line)
        return line

    def condition(self, name: str, condition: Condition) -> None:
        """What work on the device feels, and what the tool's own verdict says where it has one."""
        device = self.device(name)
        hot = {"ok": 0, "degraded": 12, "dead": 31}[condition]
        self._put(replace(device, condition=condition, temperature_c=self._fresh(device).temperature_c + hot))

    def count_errors(self, name: str, *, correctable: int = 0, uncorrectable: int = 1) -> None:
        """Add to the memory error counters."""
        device = self.device(name)
        self._put(
            replace(
                device,
                correctable=device.correctable + correctable,
                uncorrectable=device.uncorrectable + uncorrectable,
                lifetime_correctable=device.lifetime_correctable + correctable,
                lifetime_uncorrectable=device.lifetime_uncorrectable + uncorrectable,
            )
        )

    def hang(self, name: str) -> None:
        """Let the vendor's tool hang when it touches the device (and so when it asks for all)."""
        self._hanging.add(self.device(name).slot)
        self._refresh()

    def fail(self, name: str) -> None:
        """Let the vendor's tool fail when it touches the device (and so when it asks for all)."""
        self._failing.add(self.device(name).slot)
        self._refresh()

    def remove(self, name: str) -> None:
        """Take the device off the bus."""
        device = self.device(name)
        if device.present:
            self._unplug(device)
            self._put(replace(device, present=False, condition="dead"))

    def replace(self, name: str, *, serial: str | None = None) -> Device:
        """Put another device of the same model into the slot; returns it."""
        old = self.device(name)
        if old.present:
            self._unplug(old)
        self._generations[old.slot] += 1
        new = device_in(self.spec, old.slot, generation=self._generations[old.slot], serial=serial)
        self._forgive(new)
        return new

    def heal(self, name: str) -> None:
        """The device is well again: back on the bus, volatile counters at zero, the tool answers."""
        device = self.device(name)
        self._forgive(
            replace(
                device,
                present=True,
                correctable=0,
                uncorrectable=0,
                condition="ok",
                temperature_c=self._fresh(device).temperature_c,
            )
        )

    def reboot(self) -> None:
        """Another boot id, an empty kernel log, volatile counters at zero; what is broken stays broken."""
        self._boots += 1
        self.devices = tuple(replace(device, correctable=0, uncorrectable=0) for device in self.devices)
        self._hanging.clear()
        # /var/run is a tmpfs.
        for spec in (self.root / "var/run/cdi").iterdir():
            spec.unlink()
        self._boot()
        self._refresh()

    # how it is written

    def _fresh(self, device: Device) -> Device:
        return device_in(self.spec, device.slot, generation=self._generations[device.slot])

    def _forgive(self, device: Device) -> None:
        if not (self._pci(device)).exists():
            self._plug(device)
        self._hanging.discard(device.slot)
        self._failing.discard(device.slot)
        self._put(device)

    def _put(self, device: Device) -> None:
        self.devices = tuple(device if old.slot == device.slot else old for old in self.devices)
        self._refresh()

    def _boot(self) -> None:
        self._booted_s = time.monotonic()
        self._records = 0
        self._write("dev/kmsg", "")
        self._write("proc/sys/kernel/random/boot_id", f"{self.boot_id}\n")
        self.kernel_line(f"Linux version {_KERNEL} (builder@simulated)", level=5)
        for device in self.devices:
            driver = KERNEL_DRIVERS[device.model.vendor]
            if device.present:
                self.kernel_line(f"{driver} {device.bus_address}: enabling device (0000 -> 0003)", level=6)

    def _install_driver(self, vendor: Vendor) -> None:
        driver, model = (
            KERNEL_DRIVERS[vendor],
            next(d.model for d in self.devices if d.model.vendor == vendor),
        )
        (self.root / "sys/bus/pci/drivers" / driver).mkdir(parents=True, exist_ok=True)
        self._write(f"sys/module/{driver}/version", f"{model.driver}\n")
        if vendor == "nvidia":
            line = (
                f"NVRM version: NVIDIA UNIX x86_64 Kernel Module  {model.driver}  Tue Jan  6 12:00:00 2026\n"
            )
            self._write("proc/driver/nvidia/version", line)
        for name in _COMMON_NODES[vendor]:
            self._write(f"dev/{name}", "")
        tool = self.root / "usr/bin" / TOOLS[vendor]
        (tool.parent / f"{tool.name}.d").mkdir(exist_ok=True)
        self._write(f"usr/bin/{tool.name}", _TOOL)
        tool.chmod(0o755)

    def _pci(self, device: Device) -> Path:
        return self.root / "sys/bus/pci/devices" / device.bus_address

    def _class_links(self, device: Device) -> dict[str, str]:
        """Kernel names of a device and its nodes under dev/: path under sys/class -> path under dev."""
        slot = device.slot
        return {
            "nvidia": {
                f"drm/card{slot}": f"dri/card{slot}",
                f"drm/renderD{128 + slot}": f"dri/renderD{128 + slot}",
            },
            "amd": {
                f"drm/card{slot}": f"dri/card{slot}",
                f"drm/renderD{128 + slot}": f"dri/renderD{128 + slot}",
            },
            "huawei": {f"npu/npu{slot}": f"davinci{slot}"},
        }[device.model.vendor]

    def _plug(self, device: Device) -> None:
        model, vendor = device.model, device.model.vendor
        attributes = {
            "vendor": f"0x{PCI_VENDORS[vendor]}",
            "device": f"0x{model.device_id}",
            "class": f"0x{model.pci_class}",
            "revision": "0xa1",
            "subsystem_vendor": f"0x{PCI_VENDORS[vendor]}",
            "subsystem_device": f"0x{model.subsystem}",
            "numa_node": str(device.numa_node),
            "current_link_speed": f"{model.link_speed_gts}.0 GT/s PCIe",
            "current_link_width": str(model.link_width),
            "max_link_speed": f"{model.link_speed_gts}.0 GT/s PCIe",
            "max_link_width": str(model.link_width),
            "enable": "1",
        }
        if vendor == "amd":
            attributes |= {
                "unique_id": device.uuid.removeprefix("0x"),
                "serial_number": device.serial,
                "mem_info_vram_total": str(model.memory_mib << 20),
            }
        # Filled aside and renamed, so that a scan never meets a device with half of its attributes.
        aside = self.root / "run" / f"{device.bus_address}.new"
        aside.mkdir(parents=True)
        for name, value in attributes.items():
            (aside / name).write_text(f"{value}\n", encoding="utf-8")
        (aside / "driver").symlink_to(f"../../drivers/{KERNEL_DRIVERS[vendor]}")
        aside.rename(self._pci(device))
        for kernel_name, node in self._class_links(device).items():
            folder = self.root / "sys/class" / kernel_name
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "device").symlink_to(f"../../../bus/pci/devices/{device.bus_address}")
            if vendor == "huawei":
                for name, value in (
                    ("model", model.name),
                    ("memory_total", str(model.memory_mib << 20)),
                    ("firmware_version", "7.5.0.1.129"),
                    ("numa_node", str(device.numa_node)),
                    ("serial", device.serial),
                ):
                    (folder / name).write_text(f"{value}\n", encoding="utf-8")
            self._write(f"dev/{node}", "")
        if vendor == "nvidia":
            self._write(f"dev/nvidia{device.slot}", "")

    def _unplug(self, device: Device) -> None:
        gone = self.root / "run" / f"{device.bus_address}.gone"
        self._pci(device).rename(gone)
        shutil.rmtree(gone)
        for kernel_name, node in self._class_links(device).items():
            shutil.rmtree(self.root / "sys/class" / kernel_name)
            (self.root / "dev" / node).unlink()
        if device.model.vendor == "nvidia":
            (self.root / f"dev/nvidia{device.slot}").unlink()

    def _refresh(self) -> None:
        """Write what the tools answer now."""
        for vendor in {device.model.vendor for device in self.devices}:
            present = [device for device in self.devices if device.present and device.model.vendor == vendor]
            folder = f"usr/bin/{TOOLS[vendor]}.d"
            answers = {"all.capture": _RENDER[vendor](present)}
            for device in present:
                answers |= self._answers_of(device)
            slots = {device.slot for device in present}
            for mark, marked in (("hang", self._hanging & slots), ("fail", self._failing & slots)):
                for device in present:
                    if device.slot in marked:
                        said = (
                            f"Unable to determine the device handle for {device.bus_address}: Unknown Error\n"
                        )
                        answers |= {f"{name}.{mark}": said for name in ("all", *_selectors(device))}
            for name, text in answers.items():
                self._write(f"{folder}/{name}", text)
            for path in (self.root / folder).iterdir():
                if path.name not in answers:
                    path.unlink()
        self._write_ras()

    def _write_ras(self) -> None:
        # amdgpu counts memory errors in sysfs; rocm-smi's general listing leaves them out.
        for device in self.devices:
            if device.present and device.model.vendor == "amd":
                counts = f"ue: {device.uncorrectable}\nce: {device.correctable}\n"
                self._write(f"sys/bus/pci/devices/{device.bus_address}/ras/umc_err_count", counts)

    def _answers_of(self, device: Device) -> dict[str, str]:
        answers = {f"{name}.capture": _RENDER[device.model.vendor]([device]) for name in _selectors(device)}
        if device.model.vendor == "huawei":
            for kind, text in (
                ("board", captures.npu_smi_board_text(device)),
                ("ecc", captures.npu_smi_ecc_text(device)),
            ):
                answers |= {f"{name}.{kind}.capture": text for name in _selectors(device)}
        for mark, marked in (("hang", self._hanging), ("fail", self._failing)):
            if device.slot in marked:
                said = f"Unable to determine the device handle for {device.bus_address}: Unknown Error\n"
                answers |= {f"{name}.{mark}": said for name in ("all", *_selectors(device))}
        return answers

    def _write(self, relative: str, text: str) -> None:
        path = self.root / relative
        path.parent.mkdir(parents=True, exist_ok=True)
        aside = path.with_name(f".{path.name}.new")
        aside.write_text(text, encoding="utf-8")
        aside.replace(path)


def _selectors(device: Device) -> tuple[str, ...]:
    """The names by which the vendor's tool takes one device."""
    if device.model.vendor != "nvidia":
        return (str(device.slot),)
    return (str(device.slot), device.bus_address, f"0000{device.bus_address.upper()}", device.uuid)


_XID_WORDS = {
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


def _complaint(device: Device, code: int | str | None) -> str:
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


def demo_root(base: Path, node: str) -> Path:
    """Where a node's directory lies below ``base``; checked against the length of socket paths.

    Raises:
        BadInput: sockets below it would be longer than the 107 bytes that AF_UNIX takes.
    """
    root = base / node
    longest = root / "var/lib/kubelet/device-plugins/mediafleet-nvenc-000.sock"
    if len(os.fsencode(longest)) > 107:  # noqa: PLR2004 - sockaddr_un.sun_path less its final zero
        raise BadInput("root", f"{root} is too long for unix sockets", "choose a shorter directory")
    return root
