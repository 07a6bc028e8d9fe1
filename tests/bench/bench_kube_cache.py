"""Memory of a process with ten thousand pods in its watch cache: `python -m tests.bench.bench_kube_cache`.

The pods look like those of real clusters (last-applied annotation, probes, conditions, container states), a
tenth of them Jobs' with labels of their own. They come over HTTP from a simulated API server next door,
in pages, and are listed a second time after a 410. Each figure is of a fresh process that has loaded what the
guardian loads (and the simulator); beside it, what keeping the JSON would cost.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import subprocess
import sys
import time
from contextlib import aclosing
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import aiohttp
import orjson

from services.guardian.picture import kept
from services.simulator.api.resources import NAMESPACES, PODS
from services.simulator.api.server import ApiServer
from shared.kube.cache import PodCache
from shared.kube.client import connect
from shared.kube.models import ChangeKind

KEEP = kept("media.example.com")
_REACH_MIB = 120
_PER_OWNER = 10
_NODES = 500


def body(number: int) -> dict[str, Any]:
    """A pod as a cluster has it."""
    owner, job = number // _PER_OWNER, number % 10 == 0
    app = f"transcode-{owner % 300}"
    labels = {
        "app.kubernetes.io/name": app,
        "app.kubernetes.io/instance": f"tenant-{owner % 40}",
        "media.example.com/tier": "batch" if job else "online",
        "pod-template-hash": f"{owner:010x}",
    }
    if job:
        labels["batch.kubernetes.io/controller-uid"] = f"00000000-0000-4000-8000-{number:012d}"
    container: dict[str, Any] = {
        "name": "main",
        "image": f"images.invalid/media/{app}:1.{owner}@sha256:{owner:064x}",
        "args": ["--preset", "slow", "--input", f"rtmp://ingest-{owner}.media.svc/live", "--gop", "48"],
        "env": [{"name": f"SETTING_{each}", "value": f"value-{each}-{owner}"} for each in range(12)],
        "ports": [{"containerPort": 8080, "name": "http", "protocol": "TCP"}],
        "livenessProbe": {"httpGet": {"path": "/healthz", "port": "http"}, "periodSeconds": 10},
        "readinessProbe": {"httpGet": {"path": "/readyz", "port": "http"}, "periodSeconds": 5},
        "resources": {
            "requests": {"cpu": "500m", "memory": "1Gi", "media.example.com/nvenc": "1"},
            "limits": {"memory": "2Gi", "media.example.com/nvenc": "1"},
        },
        "volumeMounts": [
            {"mountPath": "/var/run/secrets/kubernetes.io/serviceaccount", "name": "kube-api-access-x"}
        ],
    }
    spec = {"nodeName": f"worker-{number % _NODES}", "containers": [container], "priority": 1000}
    at = "2026-11-30T08:00:00Z"
    conditions = [
        {"type": name, "status": "True", "lastTransitionTime": at, "lastProbeTime": None}
        for name in ("PodReadyToStartContainers", "Initialized", "Ready", "ContainersReady", "PodScheduled")
    ]
    state = {"containerID": f"containerd://{number:064x}", "imageID": f"images.invalid@sha256:{owner:064x}"}
    return {
        "metadata": {
            "namespace": "media",
            "name": f"{app}-{owner:010x}-{number:05d}",
            "labels": labels,
            "annotations": {
                "sla/latency-p99-ms": "50",
                "kubectl.kubernetes.io/last-applied-configuration": orjson.dumps(spec).decode(),
            },
            "ownerReferences": [
                {
                    "apiVersion": "batch/v1" if job else "apps/v1",
                    "kind": "Job" if job else "ReplicaSet",
                    "name": f"{app}-{owner:010x}",
                    "uid": f"00000000-0000-4000-9000-{(number if job else owner):012d}",
                    "controller": True,
                }
            ],
        },
        "spec": spec,
        "status": {
            "phase": "Running",
            "podIP": f"10.1.{number // 250}.{number % 250}",
            "conditions": conditions,
            "containerStatuses": [{"name": "main", "ready": True, "restartCount": 0, **state}],
        },
    }


async def serve(count: int) -> None:
    """Be the API server until stopped; prints its address once all pods are there."""
    server = ApiServer(random=Random(1))  # noqa: S311 - uids of a simulation
    server.store.create(NAMESPACES, "", {"metadata": {"name": "media"}})
    for number in range(count):
        made = body(number)
        server.store.create(PODS, "media", made)
        name, status = made["metadata"]["name"], made["status"]
        server.store.modify(PODS, "media", name, partial(_set_status, status), subresource="status")
    url = await server.start()
    sys.stdout.write(f"{url}\n")
    sys.stdout.flush()
    await asyncio.Event().wait()


def _set_status(status: dict[str, Any], pod: dict[str, Any]) -> None:
    pod["status"] = status


def memory_mib() -> tuple[float, float]:
    """Resident set now and at its peak."""
    said = Path("/proc/self/status").read_text()
    now, peak = (int(said.split(f"{name}:")[1].split()[0]) / 1024 for name in ("VmRSS", "VmHWM"))
    return now, peak


async def cached(url: str, count: int) -> None:
    """Hold all pods as the guardian does; the first watch is told 410, so everything is listed twice."""
    async with aiohttp.ClientSession() as session:
        fault = {"verb": "watch", "path": "/pods", "status": 410, "times": 1}
        async with session.post(f"{url}/simulator/v1/faults", json=fault) as answer:
            answer.raise_for_status()
    importlib.import_module("services.guardian.service")
    before, _ = memory_mib()
    began_s, pods, lists = time.monotonic(), PodCache(), 0
    async with (
        connect(url) as kube,
        aclosing(pods.follow(kube.watch_pods(keep=kept("media.example.com")))) as changes,
    ):
        async for change in changes:
            if change.kind is ChangeKind.SYNCED:
                lists += 1
                now, peak = memory_mib()
                took_s = time.monotonic() - began_s
                _row(f"{len(pods)} pods, list {lists}", now, peak, f"after {took_s:.1f} s, idle {before:.1f}")
                if lists == 2:  # the one after the 410
                    break
    if len(pods) != count:
        raise SystemExit(f"{len(pods)} of {count} pods")


async def as_json(url: str, count: int) -> None:
    """Hold all pods as the JSON that the server sends."""
    pods: list[Any] = []
    token = ""
    async with aiohttp.ClientSession() as session:
        while len(pods) < count:
            query = {"limit": "500"} | ({"continue": token} if token else {})
            async with session.get(f"{url}/api/v1/pods", params=query) as answer:
                page = orjson.loads(await answer.read())
            pods += page["items"]
            token = page["metadata"].get("continue", "")
    _row(f"{len(pods)} pods as JSON", *memory_mib(), "")


def _row(what: str, now: float, peak: float, remark: str) -> None:
    sys.stdout.write(f"{what:<32} {now:7.1f} MiB, peak {peak:7.1f} MiB  {remark}\n")


def main() -> None:
    """Print the bench, or be one of its processes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=10_000, help="pods")
    parser.add_argument("--be", choices=("server", "cached", "json"), help=argparse.SUPPRESS)
    parser.add_argument("--url", default="", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.be:
        parts = {
            "server": lambda: serve(given.count),
            "cached": lambda: cached(given.url, given.count),
            "json": lambda: as_json(given.url, given.count),
        }
        asyncio.run(parts[given.be]())
        return
    this = [sys.executable, "-m", "tests.bench.bench_kube_cache", "--count", str(given.count)]
    with subprocess.Popen([*this, "--be", "server"], stdout=subprocess.PIPE, text=True) as server:
        try:
            url = server.stdout.readline().strip() if server.stdout else ""
            size = len(orjson.dumps(body(0))) / 1000
            sys.stdout.write(f"pods of {size:.1f} kB; reach: {_REACH_MIB} MiB resident with the cache\n")
            for each in ("cached", "json"):
                subprocess.run([*this, "--be", each, "--url", url], check=True)
        finally:
            server.kill()


if __name__ == "__main__":
    main()
