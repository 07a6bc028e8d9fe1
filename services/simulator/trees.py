"""A node's host directory: what discovery and bridge see of one machine.

    sys/bus/pci/devices/<bus address>/   vendor, device, class, NUMA node, link, driver
    sys/class/{drm,npu}/                 the kernel's names, linked to the PCI devices
    proc, etc                            boot id, kernel, distribution, driver version
    usr/bin/<vendor tool>                a shell script that prints a capture lying beside it
    dev/kmsg                             a regular file that grows, in the record form of /dev/kmsg
    dev/...                              device nodes, as empty files

Every change is one atomic rename or one append, so a reader never sees half of it.
"""

from __future__ import annotations

import os
import shutil
import time
from dataclasses import replace
from pathlib import Path

from services.simulator import device_files, vendor_tools
from services.simulator.complaints import complaint, lost
from services.simulator.hardware import (
    KERNEL_DRIVERS,
    Condition,
    Device,
    NodeSpec,
    Vendor,
    device_in,
    invented,
)
from shared.devices.keys import device_key, normalise_bus_address
from shared.errors import BadInput

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
        line = text or complaint(self.device(name), code)
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

    def lose(self, name: str) -> None:
        """The device does not answer on its bus any more: the driver says so, and its tool cannot ask it."""
        self.kernel_line(lost(self.device(name)))
        self.fail(name)
        self.condition(name, "dead")

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
        driver = KERNEL_DRIVERS[vendor]
        model = next(device.model for device in self.devices if device.model.vendor == vendor)
        (self.root / "sys/bus/pci/drivers" / driver).mkdir(parents=True, exist_ok=True)
        self._write(f"sys/module/{driver}/version", f"{model.driver}\n")
        if vendor == "nvidia":
            line = (
                f"NVRM version: NVIDIA UNIX x86_64 Kernel Module  {model.driver}  Tue Jan  6 12:00:00 2026\n"
            )
            self._write("proc/driver/nvidia/version", line)
        for name in device_files.COMMON_NODES[vendor]:
            self._write(f"dev/{name}", "")
        tool = self.root / "usr/bin" / vendor_tools.TOOLS[vendor]
        (tool.parent / f"{tool.name}.d").mkdir(exist_ok=True)
        self._write(f"usr/bin/{tool.name}", vendor_tools.SCRIPT)
        tool.chmod(0o755)

    def _pci(self, device: Device) -> Path:
        return self.root / "sys/bus/pci/devices" / device.bus_address

    def _plug(self, device: Device) -> None:
        # Filled aside and renamed, so that a scan never meets a device with half of its attributes.
        aside = self.root / "run" / f"{device.bus_address}.new"
        aside.mkdir(parents=True)
        for name, value in device_files.pci_attributes(device).items():
            (aside / name).write_text(f"{value}\n", encoding="utf-8")
        (aside / "driver").symlink_to(f"../../drivers/{KERNEL_DRIVERS[device.model.vendor]}")
        aside.rename(self._pci(device))
        for kernel_name, attributes in device_files.class_entries(device).items():
            folder = self.root / "sys/class" / kernel_name
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "device").symlink_to(f"../../../bus/pci/devices/{device.bus_address}")
            for name, value in attributes.items():
                (folder / name).write_text(f"{value}\n", encoding="utf-8")
        for node in device_files.nodes(device):
            self._write(f"dev/{node}", "")

    def _unplug(self, device: Device) -> None:
        gone = self.root / "run" / f"{device.bus_address}.gone"
        self._pci(device).rename(gone)
        shutil.rmtree(gone)
        for kernel_name in device_files.class_entries(device):
            shutil.rmtree(self.root / "sys/class" / kernel_name)
        for node in device_files.nodes(device):
            (self.root / "dev" / node).unlink()

    def _refresh(self) -> None:
        """Write what the tools and counters say now."""
        for vendor in {device.model.vendor for device in self.devices}:
            present = [device for device in self.devices if device.present and device.model.vendor == vendor]
            answers = vendor_tools.answers(vendor, present, hanging=self._hanging, failing=self._failing)
            folder = f"usr/bin/{vendor_tools.TOOLS[vendor]}.d"
            for name, text in answers.items():
                self._write(f"{folder}/{name}", text)
            for path in (self.root / folder).iterdir():
                if path.name not in answers:
                    path.unlink()
        for device in self.devices:
            # amdgpu counts memory errors in sysfs; rocm-smi's general listing leaves them out.
            if device.present and device.model.vendor == "amd":
                counts = f"ue: {device.uncorrectable}\nce: {device.correctable}\n"
                self._write(f"sys/bus/pci/devices/{device.bus_address}/ras/umc_err_count", counts)

    def _write(self, relative: str, text: str) -> None:
        path = self.root / relative
        path.parent.mkdir(parents=True, exist_ok=True)
        aside = path.with_name(f".{path.name}.new")
        aside.write_text(text, encoding="utf-8")
        aside.replace(path)


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
