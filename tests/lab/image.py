"""A container image made here: Debian's static busybox and nothing else, packed as an OCI archive.

It is the pause image of the lab's nodes and the image of test pods; nothing is ever pulled.
"""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from pathlib import Path

from tests.lab.system import LabError

PAUSE = "lab.example.com/pause:1"
BUSYBOX = "lab.example.com/busybox:1"
_BUSYBOX = Path("/bin/busybox")
_APPLETS = (
    *("sh", "cat", "sleep", "ls", "env", "echo", "true", "false", "test", "id", "mount", "wget", "nc", "ip"),
    *("grep", "dd", "stat", "readlink", "tail", "kill"),
)
_WAIT = "trap 'exit 0' TERM INT; while :; do sleep 3600 & wait $!; done"
_MANIFEST = "application/vnd.oci.image.manifest.v1+json"


def _add(archive: tarfile.TarFile, name: str, data: bytes, *, mode: int = 0o644) -> None:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = len(data), mode
    archive.addfile(entry, io.BytesIO(data))


def _layer(files: dict[str, bytes]) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for name in ("bin", "dev", "etc", "proc", "sys", "tmp"):
            folder = tarfile.TarInfo(name)
            folder.type, folder.mode = tarfile.DIRTYPE, 0o1777 if name == "tmp" else 0o755
            archive.addfile(folder)
        for name, data in files.items():
            _add(archive, name, data, mode=0o755 if name.startswith("bin/") else 0o644)
        for name in _APPLETS:
            link = tarfile.TarInfo(f"bin/{name}")
            link.type, link.linkname = tarfile.SYMTYPE, "busybox"
            archive.addfile(link)
    return packed.getvalue()


def pack(target: Path, *, architecture: str = "amd64") -> Path:
    """Write the archive that `ctr images import` reads (image-spec, image-layout.md)."""
    try:
        busybox = _BUSYBOX.read_bytes()
    except FileNotFoundError:
        raise LabError("busybox is missing: apt-get install busybox-static") from None
    layer = _layer(
        {
            "bin/busybox": busybox,
            "etc/passwd": b"root:x:0:0:root:/:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/sh\n",
            "etc/group": b"root:x:0:\nnogroup:x:65534:\n",
        }
    )
    blobs: dict[str, bytes] = {}

    def blob(data: bytes, kind: str) -> dict[str, object]:
        digest = hashlib.sha256(data).hexdigest()
        blobs[digest] = data
        return {"mediaType": kind, "digest": f"sha256:{digest}", "size": len(data)}

    layers = [blob(layer, "application/vnd.oci.image.layer.v1.tar")]
    config = {
        "architecture": architecture,
        "os": "linux",
        "config": {"Env": ["PATH=/bin"], "Cmd": ["/bin/sh", "-c", _WAIT]},
        "rootfs": {"type": "layers", "diff_ids": [layers[0]["digest"]]},
    }
    manifest = {
        "schemaVersion": 2,
        "mediaType": _MANIFEST,
        "config": blob(json.dumps(config).encode(), "application/vnd.oci.image.config.v1+json"),
        "layers": layers,
    }
    described = blob(json.dumps(manifest).encode(), _MANIFEST)
    index = {
        "schemaVersion": 2,
        "manifests": [
            {**described, "annotations": {"io.containerd.image.name": name}} for name in (PAUSE, BUSYBOX)
        ],
    }
    with tarfile.open(target, "w") as archive:
        _add(archive, "oci-layout", b'{"imageLayoutVersion":"1.0.0"}')
        _add(archive, "index.json", json.dumps(index).encode())
        for digest, data in blobs.items():
            _add(archive, f"blobs/sha256/{digest}", data)
    return target
