"""The manifests as the tests look at them: files as they lie there, overlays as kustomize builds them."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

Json = dict[str, Any]

ROOT = Path(__file__).parents[3]
DEPLOY = ROOT / "deploy"
NODE_SERVICES = ("bridge", "discovery")
CLUSTER_SERVICES = ("alerting", "autoscaler", "guardian", "manager", "remediation")
WORKLOADS = ("DaemonSet", "Deployment", "StatefulSet", "Job")


def files() -> list[Path]:
    return sorted(path for path in DEPLOY.rglob("*") if path.suffix in (".yaml", ".yml"))


@functools.cache
def kubectl() -> str | None:
    """kubectl from PATH, else the newest one that the lab built."""
    found = shutil.which("kubectl")
    if found:
        return found
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "mediafleet-lab"
    built = sorted(cache.glob("*/kubectl"), key=lambda path: path.stat().st_mtime)
    return str(built[-1]) if built else None


@functools.cache
def _built(directory: Path) -> str:
    program = kubectl()
    if program is None:
        pytest.skip("no kubectl to build kustomizations with (make lab builds one)")
    done = subprocess.run(
        [program, "kustomize", str(directory)], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def build(directory: Path | str) -> list[Json]:
    """Every object of a kustomization; a fresh copy each time."""
    return [each for each in yaml.safe_load_all(_built(DEPLOY / directory)) if each]


def of_kind(objects: list[Json], *kinds: str) -> list[Json]:
    return [each for each in objects if each["kind"] in kinds]


def named(objects: list[Json], kind: str, name: str) -> Json:
    (one,) = (each for each in of_kind(objects, kind) if each["metadata"]["name"] == name)
    return one


def pod_spec(workload: Json) -> Json:
    spec: Json = workload["spec"]["template"]["spec"]
    return spec


def containers(workload: Json) -> Iterator[Json]:
    spec = pod_spec(workload)
    yield from spec.get("initContainers") or ()
    yield from spec["containers"]


def our_workloads(objects: list[Json]) -> list[Json]:
    ours = (*NODE_SERVICES, *CLUSTER_SERVICES, "authcallout")
    return [each for each in of_kind(objects, "DaemonSet", "Deployment") if each["metadata"]["name"] in ours]
