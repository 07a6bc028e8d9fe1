"""The seam between vendors and the rest: what an adapter must do, and which one a vendor has."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from shared.devices.model import RawDevice, UnifiedDevice
from shared.vendors import amd, generic, huawei, nvidia
from shared.vendors.runtime import RuntimeSpec


class VendorAdapter(Protocol):
    """One vendor's knowledge. A module is an adapter as well as an object is."""

    def translate(self, raw: RawDevice, node: str) -> UnifiedDevice:
        """The unified form of a raw device; what the sources do not say is None.

        Raises:
            BadInput: the raw device cannot be identified; names the field.
        """
        ...

    def runtime_spec(self, device: UnifiedDevice, engines: Sequence[str], root: Path) -> RuntimeSpec:
        """What a container needs to use a device, or only the given engines of it.

        Args:
            device: the device given.
            engines: ids of the engines given; empty for a whole device.
            root: the host's root directory, to list only what exists.

        Raises:
            BadInput: an id is no engine of the device.
        """
        ...


_ADAPTERS: dict[str, VendorAdapter] = {"nvidia": nvidia, "amd": amd, "huawei": huawei}


def adapter_for(vendor: str) -> VendorAdapter:
    """The vendor's adapter; the generic one for a vendor without its own."""
    return _ADAPTERS.get(vendor, generic)


def translate(raw: RawDevice, node: str) -> UnifiedDevice:
    """Translate by the adapter of the device's vendor.

    Raises:
        BadInput: the raw device cannot be identified; names the field.
    """
    return adapter_for(raw.vendor).translate(raw, node)


def runtime_spec(device: UnifiedDevice, engines: Sequence[str], root: Path) -> RuntimeSpec:
    """What a container needs to use a device (see `VendorAdapter.runtime_spec`).

    Raises:
        BadInput: an id is no engine of the device.
    """
    return adapter_for(device.vendor).runtime_spec(device, engines, root)
