"""Where everything of a lab lies, and its addresses.

A lab has a short name; its folder, bridge and cgroups carry it, so several labs can be up at once. All
addresses are of one /16 that the machine does not use.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path

FIRST, LAST = 213, 253  # second byte of the /16s tried, 10.213/16 first


@dataclass(frozen=True, slots=True)
class Layout:
    """Folders and addresses of one lab."""

    name: str
    block: int
    """The lab's network is 10.<block>.0.0/16; its etcd listens on 127.<block>.0.1."""

    @classmethod
    def folder(cls, name: str) -> Path:
        """The one folder of a lab. Short: paths of sockets end at 107 bytes."""
        return Path(os.environ.get("MEDIAFLEET_LAB_DIR", "/var/tmp")) / f"mf-{name}"  # noqa: S108 - kept over reboots on purpose

    @classmethod
    def read(cls, name: str) -> Layout | None:
        """The layout that a lab was started with."""
        try:
            return cls(name, json.loads((cls.folder(name) / "lab.json").read_text())["block"])
        except FileNotFoundError:
            return None

    def write(self) -> None:
        """Remember it for whoever takes the lab down."""
        self.root.mkdir(parents=True, exist_ok=True)
        (self.root / "lab.json").write_text(json.dumps({"block": self.block}))

    @property
    def root(self) -> Path:
        """The lab's folder."""
        return self.folder(self.name)

    @property
    def certificates(self) -> Path:
        """Keys and certificates, and the kubeconfigs made of them."""
        return self.root / "pki"

    @property
    def kubeconfig(self) -> Path:
        """For people and tests: cluster-admin."""
        return self.root / "kubeconfig"

    @property
    def daemons(self) -> Path:
        """Logs and process ids."""
        return self.root / "log"

    @property
    def bridge(self) -> str:
        """Its network device, and its cgroup."""
        return f"mf-{self.name}"

    @property
    def gateway(self) -> str:
        """The machine itself, as nodes see it."""
        return f"10.{self.block}.0.1"

    @property
    def services(self) -> str:
        """Addresses of Services."""
        return f"10.{self.block}.240.0/20"

    @property
    def api_address(self) -> str:
        """First of the Service addresses, that of `kubernetes.default`: the API server listens on it."""
        return f"10.{self.block}.240.1"

    @property
    def dns_address(self) -> str:
        """A Service address, too: that of the cluster's DNS."""
        return f"10.{self.block}.240.10"

    @property
    def api_url(self) -> str:
        """Where the API server answers."""
        return f"https://{self.api_address}:443"

    @property
    def etcd(self) -> str:
        """A loopback address of this lab's own."""
        return f"127.{self.block}.0.1"

    def node_address(self, index: int) -> str:
        """Address of a node, counted from 1."""
        return f"10.{self.block}.0.{10 + index}"

    def pods(self, index: int) -> str:
        """Addresses of a node's pods."""
        return f"10.{self.block}.{index}.0/24"
