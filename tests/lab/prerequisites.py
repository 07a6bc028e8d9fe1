"""What the lab needs of the machine, each missing thing in one line that says what to install."""

from __future__ import annotations

import os
import platform
import shutil
from pathlib import Path

from tests.lab import cgroups
from tests.lab.system import LabError

_COMMANDS = {
    "runc": "runc",
    "ip": "iproute2",
    "iptables": "iptables",
    "openssl": "openssl",
    "nsenter": "util-linux",
    "unshare": "util-linux",
    "mount": "mount",
}
_CAP_SYS_ADMIN, _CAP_NET_ADMIN = 21, 12


def problems() -> list[str]:
    """What is in the way, one line each; empty when the lab can start."""
    found = []
    if platform.system() != "Linux":
        return ["the lab needs Linux"]
    if os.geteuid() != 0:
        return ["the lab makes namespaces, mounts and cgroups: run it as root"]
    for command, package in _COMMANDS.items():
        if shutil.which(command, path=search_path()) is None:
            found.append(f"{command} is missing: apt-get install {package}")
    if not Path("/bin/busybox").exists():
        found.append("busybox is missing: apt-get install busybox-static")
    effective = next(
        int(line.split()[1], 16)
        for line in Path("/proc/self/status").read_text().splitlines()
        if line.startswith("CapEff:")
    )
    for bit, name in ((_CAP_SYS_ADMIN, "CAP_SYS_ADMIN"), (_CAP_NET_ADMIN, "CAP_NET_ADMIN")):
        if not effective >> bit & 1:
            found.append(f"root lacks {name} here: run in a privileged container or on the machine itself")
    try:
        cgroups.hierarchies()
    except LabError as error:
        found.append(str(error))
    return found


def search_path() -> str:
    """PATH with the folders of system tools, which an ordinary one may lack."""
    return f"{os.environ.get('PATH', os.defpath)}:/usr/local/sbin:/usr/sbin:/sbin:/usr/bin:/bin"
