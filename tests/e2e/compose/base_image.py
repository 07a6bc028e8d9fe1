"""What the image is built on where nothing can be pulled: Debian with Python, made by debootstrap once.

The tree is kept as an archive in the cache. It carries this machine's certificates, because a proxy between
it and the package index may have one of its own.
"""

from __future__ import annotations

import logging
import os
import shutil
import subprocess
import time
from pathlib import Path

from tests.e2e.compose.engine import CACHE, SYSTEM_PATH, Engine

PULLED = "python:3.11-slim"
_MADE = "mediafleet-e2e/base:bookworm"
_ARCHIVE = CACHE / "base-bookworm.tar"
_PACKAGES = ("python3", "python3-venv", "ca-certificates")
_CERTIFICATES = Path("etc/ssl/certs/ca-certificates.crt")
_WITHIN_S = 1200.0

log = logging.getLogger(__name__)


def why_not() -> str:
    """Why none can be made here; empty when one can, or was."""
    if _ARCHIVE.exists():
        return ""
    if os.geteuid() != 0:
        return f"there is no image {PULLED}, and making a base needs root"
    if shutil.which("debootstrap", path=SYSTEM_PATH) is None:
        return f"there is no image {PULLED}, and debootstrap is missing: apt-get install debootstrap"
    return ""


def base(engine: Engine) -> str:
    """The name of an image to build on, which the engine has then."""
    if engine.has_image(PULLED):
        return PULLED
    if not engine.has_image(_MADE):
        if not _ARCHIVE.exists():
            _make()
        certificates = f"ENV PIP_CERT=/{_CERTIFICATES}"
        engine.docker("import", "-c", certificates, "-", _MADE, timeout_s=300, stdin=_ARCHIVE)
    return _MADE


def _make() -> None:
    started = time.monotonic()
    log.info("making the base image, for some minutes")
    tree, packed = CACHE / "base.new", CACHE / "base.tar.new"
    shutil.rmtree(tree, ignore_errors=True)
    CACHE.mkdir(parents=True, exist_ok=True)
    environment = {**os.environ, "PATH": SYSTEM_PATH}
    include = f"--include={','.join(_PACKAGES)}"
    subprocess.run(
        ("debootstrap", "--variant=minbase", include, "bookworm", str(tree)),
        check=True,
        capture_output=True,
        timeout=_WITHIN_S,
        env=environment,
    )
    if (Path("/") / _CERTIFICATES).exists():
        shutil.copyfile(Path("/") / _CERTIFICATES, tree / _CERTIFICATES)
    leave_out = ("--exclude=./var/cache/apt/*", "--exclude=./var/lib/apt/lists/*")
    subprocess.run(("tar", "-C", str(tree), *leave_out, "-cf", str(packed), "."), check=True)
    packed.replace(_ARCHIVE)
    shutil.rmtree(tree)
    log.info("base image made in %.0f s", time.monotonic() - started)
