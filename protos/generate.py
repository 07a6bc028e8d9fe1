"""Generates the typed Python code beside every .proto of this folder.

Two ways in, one mechanism: ``python protos/generate.py`` for a checkout, and the build hook that hatchling
runs for a wheel or an editable install. What is up to date is left alone, and a new file replaces the old
one by rename, so that a program importing the package meanwhile never reads half a module.
"""

from __future__ import annotations

import importlib
import shutil
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

HERE = Path(__file__).resolve().parent
SUFFIXES = ("_pb2.py", "_pb2.pyi", "_pb2_grpc.py", "_pb2_grpc.pyi")
"""What comes out of one .proto: messages and services, each as code and as type stub."""


def outputs(proto: Path) -> list[Path]:
    """The generated files of one .proto, whether they exist or not."""
    return [proto.with_name(proto.stem + suffix) for suffix in SUFFIXES]


def stale(folder: Path = HERE) -> list[Path]:
    """The .proto files whose generated code is missing or older than they, or than this generator."""
    generator_ns = Path(__file__).stat().st_mtime_ns
    found = []
    for proto in sorted(folder.glob("*.proto")):
        newest_ns = max(proto.stat().st_mtime_ns, generator_ns)
        if any(not out.exists() or out.stat().st_mtime_ns < newest_ns for out in outputs(proto)):
            found.append(proto)
    return found


def generate(folder: Path = HERE) -> list[Path]:
    """Bring the generated code up to date.

    Args:
        folder: the package folder that holds the .proto files; its name is the import package.

    Returns:
        The .proto files that were compiled; empty when nothing had changed.

    Raises:
        SystemExit: a compiler or a plugin of it is missing, or a .proto is wrong; says which.
    """
    todo = stale(folder)
    if not todo:
        return []
    try:
        # Here and not above: what is up to date needs no compiler.
        protoc = importlib.import_module("grpc_tools.protoc")
    except ImportError as error:
        raise SystemExit("protos: grpcio-tools is missing; pip install grpcio-tools") from error
    with tempfile.TemporaryDirectory(dir=folder, prefix=".generated-") as scratch:
        arguments = [
            "protoc",
            f"--proto_path={folder.parent}",
            *(f"--{kind}_out={scratch}" for kind in ("python", "grpc_python")),
            *(f"--{kind}_out=quiet:{scratch}" for kind in ("mypy", "mypy_grpc")),
            *(f"--plugin=protoc-gen-{kind}={_plugin(kind)}" for kind in ("mypy", "mypy_grpc")),
            *(str(proto) for proto in todo),
        ]
        if protoc.main(arguments) != 0:
            raise SystemExit(f"protos: cannot compile {', '.join(p.name for p in todo)}; see the lines above")
        for proto in todo:
            for out in outputs(proto):
                Path(scratch, folder.name, out.name).replace(out)
    return todo


def _plugin(kind: str) -> str:
    """The path of a compiler plugin of mypy-protobuf, of this interpreter's environment first."""
    name = f"protoc-gen-{kind}"
    found = shutil.which(name, path=sysconfig.get_path("scripts")) or shutil.which(name)
    if found is None:
        raise SystemExit(f"protos: {name} is missing; install it with: pip install mypy-protobuf")
    return found


class CustomBuildHook(BuildHookInterface[Any]):
    """Runs the generator for a wheel or an editable install; a source archive carries no generated code."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:  # noqa: ARG002 - hatchling's signature
        """Generate, and name the results as artifacts, which git ignores and a wheel must have."""
        if self.target_name != "wheel":
            return
        folder = Path(self.root, "protos")
        generate(folder)
        build_data["artifacts"].extend(f"/protos/*{suffix}" for suffix in SUFFIXES)


if __name__ == "__main__":
    compiled = generate()
    sys.stdout.write(f"protos: {', '.join(p.name for p in compiled) or 'up to date'}\n")
