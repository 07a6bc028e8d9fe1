"""Discovery without a bus or a cluster: a file tree and captures in, unified devices and problems out.

`python -m services.discovery.offline --root DIR` prints the devices as one JSON array, problems on stderr.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Final

import orjson

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


def main(arguments: Sequence[str] | None = None) -> int:
    """Print what is found; 0 well, 2 on bad input."""
    parser_ = argparse.ArgumentParser(prog="python -m services.discovery.offline", description=__doc__)
    parser_.add_argument("--root", type=Path, required=True, help="root of the host's files")
    parser_.add_argument("--node", default="localhost", help="name of the node")
    parser_.add_argument(
        "--capture", action="append", default=[], help=f"KIND=FILE; KIND is {', '.join(KINDS)}"
    )
    given = parser_.parse_args(arguments)
    try:
        found = discover(given.root, given.node, [_capture(each) for each in given.capture])
    except BadInput as error:
        sys.stderr.write(f"mediafleet discover: {error}\n")
        return 2
    for problem in found.problems:
        sys.stderr.write(f"mediafleet discover: {problem}\n")
    devices = [device.model_dump(mode="json", by_alias=True) for device in found.devices]
    sys.stdout.write(orjson.dumps(devices).decode() + "\n")
    return 0


def _capture(text: str) -> tuple[str, Path]:
    kind, equals, path = text.partition("=")
    if not (kind and equals and path):
        raise BadInput("--capture", f"{text!r} is no KIND=FILE", f"write e.g. {next(iter(KINDS))}=smi.xml")
    return kind, Path(path)


if __name__ == "__main__":
    sys.exit(main())
