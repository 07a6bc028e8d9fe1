"""Discovery without a bus or a cluster: a file tree and captures in, unified devices and problems out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Final

from services.discovery.scan import Problem, merge, scan
from shared.devices.keys import check_node
from shared.devices.model import RawDevice, UnifiedDevice
from shared.errors import BadInput
from shared.vendors.adapter import translate

KINDS: Final = {
    "nvidia-smi-xml": "shared.vendors.captures.nvidia_smi_xml",
    "rocm-smi-json": "shared.vendors.captures.rocm_smi_json",
    "npu-smi-text": "shared.vendors.captures.npu_smi_text",
}
"""Kinds of captures, and the module that reads each; loaded only when asked for."""


@dataclass(frozen=True, slots=True)
class Discovered:
    """What was found.

    Attributes:
        devices: physical devices and their partitions, in order of address.
        problems: what could not be read or believed, in the tree and in the captures.
    """

    devices: tuple[UnifiedDevice, ...]
    problems: tuple[Problem, ...]


def parser(kind: str) -> Callable[[str | bytes], list[RawDevice]]:
    """The reader of a kind of capture.

    Raises:
        BadInput: there is no such kind.
    """
    if kind not in KINDS:
        raise BadInput("capture", f"{kind!r} is no kind of capture", f"use one of {', '.join(KINDS)}")
    parse: Callable[[str | bytes], list[RawDevice]] = import_module(KINDS[kind]).parse
    return parse


def discover(root: Path, node: str, captures: Sequence[tuple[str, Path]] = ()) -> Discovered:
    """Devices of a file tree, joined with what captures of vendor tools say.

    Args:
        root: the host's root directory, or a captured copy of one.
        node: name of the node; part of the uids.
        captures: kind and file of each.

    Raises:
        BadInput: the node's name, the root, or a capture is unusable; names the field. Devices that cannot be
            translated are problems, the others are still found.
    """
    check_node(node)
    if not root.is_dir():
        raise BadInput(
            "root", f"{str(root)!r} is no directory", "give a host's root or a captured copy of it"
        )
    found = scan(root)
    problems = list(found.problems)
    captured: list[RawDevice] = []
    for kind, path in captures:
        parse = parser(kind)
        try:
            content = path.read_bytes()
        except OSError as error:
            raise BadInput(
                "capture", f"{str(path)!r} cannot be read ({error.strerror})", "give a readable file"
            ) from error
        captured.extend(parse(content))
    problems.extend(Problem("capture", warning) for device in captured for warning in device.warnings)
    devices: list[UnifiedDevice] = []
    for raw in merge(found.devices, captured):
        try:
            devices.append(translate(raw, node))
        except BadInput as error:
            problems.append(Problem(f"{raw.vendor} {raw.bus_address}", str(error)))
    return Discovered(tuple(sorted(devices, key=lambda device: device.key)), tuple(problems))
