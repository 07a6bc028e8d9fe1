"""A node: a container runtime and a real kubelet in mount, network and process namespaces of their own.

The kubelet's device-plugin folder is fixed (/var/lib/kubelet/device-plugins), therefore the mount namespace:
inside, a folder of the node is bound over /var/lib/kubelet and another over /run; outside, tests use those
folders. The kernel settings that a kubelet insists on are shown to it by bound files, so the machine's own
stay as they are; a node's boot id is such a file too, and changes when the node is booted again.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import sys
import uuid
from pathlib import Path
from typing import Any

from tests.lab import build, image, network
from tests.lab.certs import Authority
from tests.lab.control_plane import CLUSTER_DOMAIN
from tests.lab.layout import Layout
from tests.lab.prerequisites import search_path
from tests.lab.system import Daemon, LabError, run, until

_DEVICES = ("null", "zero", "full", "random", "urandom", "tty", "kmsg")
_SETTINGS = {  # what the kubelet sets where it differs: pkg/kubelet/cm/container_manager_linux.go
    "vm/overcommit_memory": "1",
    "vm/panic_on_oom": "0",
    "kernel/panic": "10",
    "kernel/panic_on_oops": "1",
    "kernel/keys/root_maxkeys": "1000000",
    "kernel/keys/root_maxbytes": "25000000",
}


class Node:
    """One node of a lab."""

    def __init__(self, layout: Layout, index: int) -> None:
        self.layout = layout
        self.index = index
        self.name = f"worker-{index}"
        self.address = layout.node_address(index)
        self.host_root = layout.root / self.name
        """The node's `/` for what a device plugin needs: var/lib/kubelet, var/run/cdi, dev."""
        self.root = self.host_root / "var/lib/kubelet"
        """What the node has as /var/lib/kubelet: device-plugins, pod-resources."""
        self.init = Daemon(self.name, layout.daemons)
        self.containerd = Daemon(f"{self.name}-containerd", layout.daemons)
        self.kubelet = Daemon(f"{self.name}-kubelet", layout.daemons)
        self.proxy = Daemon(f"{self.name}-kube-proxy", layout.daemons)
        self._authority = Authority(layout)
        self._system = layout.root / f"{self.name}.d"

    @property
    def _runtime_socket(self) -> Path:
        return self.host_root / "run/containerd.sock"

    @property
    def logs(self) -> Path:
        """Logs of pods (/var/log/pods of the node)."""
        return self._system / "log/pods"

    def _inside(self) -> list[str]:
        pid = self.init.pid
        if not pid:
            raise LabError(f"{self.name} is not up")
        return ["nsenter", "--target", str(pid), "--mount", "--net", "--pid"]

    async def run(self, *argv: str | Path, timeout_s: float = 60) -> str:
        """Run a command on the node."""
        return await run(*self._inside(), *argv, timeout_s=timeout_s)

    # Up

    async def boot(self, others: list[int]) -> None:
        """Namespaces, cable, container runtime, images: everything but the kubelet, which needs the API."""
        for each in (self.root / "device-plugins", self.root / "pod-resources", self.host_root / "run/cdi"):
            each.mkdir(parents=True, exist_ok=True)
        for name in ("log/pods", "log/containers", "cni-state", "net.d", "containerd", "settings", "certs"):
            (self._system / name).mkdir(parents=True, exist_ok=True)
        if not (self.host_root / "var/run").exists():
            (self.host_root / "var/run").symlink_to("../run")
        await self._start_init()
        await network.join(self.layout, self.index, self.init.pid, others)
        await self._start_containerd()
        await self.import_image(image_archive(self.layout))

    async def _start_init(self) -> None:
        ready = self._system / "ready"
        ready.unlink(missing_ok=True)
        binds = {
            "/dev": str(self._devices()),
            "/run": str(self.host_root / "run"),
            "/var/lib/kubelet": str(self.root),
            "/var/lib/cni": str(self._system / "cni-state"),
            "/var/log": str(self._system / "log"),
            **self._shown_settings(),
        }
        (self._system / "resolv.conf").write_text(f"nameserver {self.layout.dns_address}\n")
        order = {
            "binds": binds,
            "write": {"/proc/sys/net/ipv4/ip_forward": "1"},
            "ready": str(ready),
        }
        own = ("--mount", "--net", "--pid", "--fork", "--kill-child", "--propagation", "private")
        script = Path(__file__).with_name("node_init.py")
        await self.init.start(
            "unshare", *own, sys.executable, "-I", "-S", script, json.dumps(order), nested=True
        )
        await until(
            lambda: ready.exists() or not self.init.pid,
            timeout_s=20,
            otherwise=f"{self.name} does not come up: {self.init.last_words()}",
        )
        if not ready.exists():
            raise LabError(f"{self.name} does not come up: {self.init.last_words()}")

    def _devices(self) -> Path:
        """The node's own /dev, where tests may make more: those of the machine are not its business."""
        folder = self.host_root / "dev"
        for name in ("pts", "shm", "mqueue"):
            (folder / name).mkdir(parents=True, exist_ok=True)
        for name in _DEVICES:
            if not (folder / name).exists():
                machine = Path("/dev") / name
                os.mknod(folder / name, machine.stat().st_mode, machine.stat().st_rdev)
                (folder / name).chmod(0o666)
        for number, name in enumerate(("stdin", "stdout", "stderr")):
            (folder / name).unlink(missing_ok=True)
            (folder / name).symlink_to(f"/proc/self/fd/{number}")
        return folder

    def _shown_settings(self) -> dict[str, str]:
        """Files to bind over kernel settings, by the setting's path."""
        shown = {Path("/proc/sys") / each: text for each, text in _SETTINGS.items()}
        shown[Path("/proc/sys/kernel/random/boot_id")] = f"{uuid.uuid4()}\n"
        binds = {}
        for setting, text in shown.items():
            if setting.exists():
                file = self._system / "settings" / setting.name
                file.write_text(text)
                binds[str(setting)] = str(file)
        return binds

    async def _start_containerd(self) -> None:
        config = self._system / "containerd.toml"
        config.write_text(_containerd_config(self._system, self._runtime_socket))
        network_config = {
            "cniVersion": "1.0.0",
            "name": "lab",
            "plugins": [
                {
                    "type": "bridge",
                    "bridge": "cni0",
                    "isGateway": True,
                    "ipam": {
                        "type": "host-local",
                        "dataDir": "/run/cni-addresses",  # forgotten when the node is booted again
                        "ranges": [[{"subnet": self.layout.pods(self.index)}]],
                        "routes": [{"dst": "0.0.0.0/0"}],
                    },
                }
            ],
        }
        (self._system / "net.d/10-lab.conflist").write_text(json.dumps(network_config))
        self._runtime_socket.unlink(missing_ok=True)
        environment = {**os.environ, "PATH": search_path()}
        program = build.path("containerd")
        await self.containerd.start(
            *self._inside(), program, "--config", config, env=environment, nested=True
        )
        await until(
            lambda: self._runtime_socket.exists() or not self.containerd.pid,
            timeout_s=20,
            otherwise=f"containerd of {self.name} is not ready: {self.containerd.last_words()}",
        )

    async def start_kubelet(self) -> None:
        """Start the kubelet; it registers the node by itself."""
        config = self._system / "kubelet.json"
        config.write_text(json.dumps(self._kubelet_config(), indent=1))
        await self.kubelet.start(
            *self._inside(),
            build.path("kubelet"),
            f"--config={config}",
            f"--kubeconfig={self._authority.kubeconfig(self.name)}",
            f"--hostname-override={self.name}",
            f"--node-ip={self.address}",
            "--root-dir=/var/lib/kubelet",
            f"--cert-dir={self._system / 'certs'}",
            "--v=2",
            env={**os.environ, "PATH": search_path()},
            nested=True,
        )

    async def start_proxy(self) -> None:
        """Start kube-proxy, which makes the addresses of Services work on the node."""
        config = self._system / "kube-proxy.json"
        off = {"maxPerCore": 0, "min": 0, "tcpEstablishedTimeout": "0s", "tcpCloseWaitTimeout": "0s"}
        document = {
            "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
            "kind": "KubeProxyConfiguration",
            "clientConnection": {"kubeconfig": str(self._authority.kubeconfig("kube-proxy"))},
            "hostnameOverride": self.name,
            "mode": "iptables",
            # So that answers within one node come back through it, whether bridges are filtered or not.
            "iptables": {"masqueradeAll": True, "minSyncPeriod": "0s"},
            "conntrack": off,  # those settings belong to the machine
        }
        config.write_text(json.dumps(document, indent=1))
        environment = {**os.environ, "PATH": search_path()}
        program = build.path("kube-proxy")
        await self.proxy.start(*self._inside(), program, f"--config={config}", env=environment, nested=True)

    def _kubelet_config(self) -> dict[str, Any]:
        serving = self._authority.of(f"{self.name}-serving")
        return {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "authentication": {
                "anonymous": {"enabled": False},
                "webhook": {"enabled": True},
                "x509": {"clientCAFile": str(self._authority.ca.crt)},
            },
            "authorization": {"mode": "Webhook"},
            "tlsCertFile": str(serving.crt),
            "tlsPrivateKeyFile": str(serving.key),
            "cgroupDriver": "cgroupfs",
            "cgroupRoot": f"/{self.layout.bridge}/{self.name}",
            "failCgroupV1": False,
            "failSwapOn": False,
            "oomScoreAdj": 0,  # lowering it takes CAP_SYS_RESOURCE
            "maxOpenFiles": 20000,  # so does raising the hard limit
            "containerRuntimeEndpoint": f"unix://{self._runtime_socket}",
            "podLogsDir": str(self.logs),
            "resolvConf": str(self._system / "resolv.conf"),
            "clusterDomain": CLUSTER_DOMAIN,
            "clusterDNS": [self.layout.dns_address],
            "nodeStatusUpdateFrequency": "1s",
            "nodeLeaseDurationSeconds": 8,  # renewed each quarter of it
            "registerNode": True,
            # The disk and memory of the machine are shared with everything else on it.
            "evictionHard": {"memory.available": "0%", "nodefs.available": "0%", "imagefs.available": "0%"},
            "imageGCHighThresholdPercent": 100,
            "imageGCLowThresholdPercent": 99,
        }

    # What tests do to it

    async def import_image(self, archive: Path) -> None:
        """Load an image archive (OCI or docker) into the node's runtime."""
        await run(
            build.path("ctr"),
            *("--address", self._runtime_socket, "--namespace", "k8s.io"),
            *("images", "import", "--local", "--snapshotter", snapshotter(self.layout.root), archive),
            timeout_s=300,
        )

    async def kill_kubelet(self) -> None:
        """SIGKILL; pods go on running."""
        await self.kubelet.stop(by=signal.SIGKILL)

    async def restart_kubelet(self) -> None:
        """Stop it as an init system would, and start it."""
        await self.kubelet.stop(patience_s=10)
        await self.start_kubelet()

    async def kill(self) -> None:
        """Power off: everything on the node is gone at once, its files stay."""
        await self.init.stop(by=signal.SIGKILL)
        for each in (self.kubelet, self.proxy, self.containerd):
            await each.stop()

    async def reboot(self, others: list[int]) -> None:
        """Power off and on: a new boot id, an empty /run, pods to be started again."""
        await self.kill()
        shutil.rmtree(self.host_root / "run", ignore_errors=True)
        await self.boot(others)
        await self.start_kubelet()
        await self.start_proxy()

    async def cut_network(self) -> None:
        """Pull the cable."""
        await network.set_cable(self.layout, self.index, up=False)

    async def heal_network(self) -> None:
        """Plug it in again."""
        await network.set_cable(self.layout, self.index, up=True)


def image_archive(layout: Layout) -> Path:
    """The lab's own image."""
    return layout.root / "image.tar"


async def pack_image(layout: Layout) -> None:
    """Pack it."""
    await asyncio.to_thread(image.pack, image_archive(layout))


def snapshotter(place: Path) -> str:
    """Overlay filesystems do not stack: on one of them, layers are copied."""
    found = os.path.realpath(place)
    best, kind = "", ""
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        left, _, right = line.partition(" - ")
        mounted = left.split()[4]
        if os.path.commonpath([mounted, found]) == mounted and len(mounted) >= len(best):
            best, kind = mounted, right.split()[0]
    return "native" if kind == "overlay" else "overlayfs"


def _containerd_config(system: Path, socket: Path) -> str:
    runc = shutil.which("runc", path=search_path())
    plugins = build.folder("containerd")
    cri = "plugins.'io.containerd.cri.v1"
    return f"""version = 3
root = "{system}/containerd"
state = "/run/containerd"
oom_score = 0

[grpc]
address = "{socket}"

[ttrpc]
address = "{socket}.ttrpc"

[{cri}.images']
snapshotter = "{snapshotter(system)}"

[{cri}.images'.pinned_images]
sandbox = "{image.PAUSE}"

[{cri}.runtime']
restrict_oom_score_adj = true
disable_apparmor = true
enable_cdi = true
cdi_spec_dirs = ["/etc/cdi", "/var/run/cdi"]
netns_mounts_under_state_dir = true

[{cri}.runtime'.cni]
bin_dirs = ["{plugins}"]
conf_dir = "{system}/net.d"

[{cri}.runtime'.containerd]
default_runtime_name = "runc"

[{cri}.runtime'.containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"
# Named, or the shim of the distribution's containerd would be found first: they do not understand each other.
runtime_path = "{build.path("containerd-shim-runc-v2")}"

[{cri}.runtime'.containerd.runtimes.runc.options]
BinaryName = "{runc}"
SystemdCgroup = false
"""
