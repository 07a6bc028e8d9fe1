"""etcd, API server, controller-manager, scheduler and DNS, on the machine; and a small client of the API."""

from __future__ import annotations

import asyncio
import json
import ssl
from functools import cached_property
from http.client import HTTPException, HTTPSConnection
from typing import Any

from tests.lab import build
from tests.lab.certs import Authority
from tests.lab.layout import Layout
from tests.lab.system import Daemon, LabError, until

CLUSTER_DOMAIN = "cluster.local"
READY_S = 60.0
_ETCD_READY_S = 20.0


class ApiServer:
    """The API server as a daemon that tests stop and start, and requests to it as cluster-admin."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._authority = Authority(layout)
        self.daemon = Daemon("kube-apiserver", layout.daemons)
        self.url = layout.api_url

    async def start(self) -> None:
        """Start it and wait until it is ready."""
        await self.launch()
        await self.ready()

    async def launch(self) -> None:
        """Start it."""
        of, layout = self._authority.of, self._layout
        key = self._authority.service_account_key
        await self.daemon.start(
            build.path("kube-apiserver"),
            f"--etcd-servers=http://{layout.etcd}:2379",
            f"--bind-address={layout.api_address}",
            f"--advertise-address={layout.api_address}",
            "--secure-port=443",
            f"--client-ca-file={self._authority.ca.crt}",
            f"--tls-cert-file={of('apiserver').crt}",
            f"--tls-private-key-file={of('apiserver').key}",
            f"--service-account-key-file={key}",
            f"--service-account-signing-key-file={key}",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--kubelet-client-certificate={of('apiserver-to-kubelet').crt}",
            f"--kubelet-client-key={of('apiserver-to-kubelet').key}",
            f"--kubelet-certificate-authority={self._authority.ca.crt}",
            "--kubelet-preferred-address-types=InternalIP",
            "--authorization-mode=Node,RBAC",
            "--enable-admission-plugins=NodeRestriction",
            f"--service-cluster-ip-range={layout.services}",
            "--allow-privileged=true",
            # It would take its own endpoint away when it stops; kube-proxy would then refuse its address to
            # the whole node, and nobody could learn that it is back.
            "--endpoint-reconciler-type=none",
            "--shutdown-delay-duration=0s",
        )

    async def ready(self) -> None:
        """Wait until it says that it is ready."""
        late = f"the API server is not ready after {READY_S:.0f} s, see {self.daemon.log}"
        await until(self._answers, timeout_s=READY_S, otherwise=late)

    async def _answers(self) -> bool:
        if not self.daemon.pid:
            raise LabError(f"the API server ended: {self.daemon.last_words(1)}")
        try:
            return (await self.request("GET", "/readyz"))[0] == 200
        except OSError:
            return False

    async def announce(self) -> None:
        """Say once for all where the Service `kubernetes` leads."""
        body = {
            "metadata": {"name": "kubernetes", "labels": {"kubernetes.io/service-name": "kubernetes"}},
            "addressType": "IPv4",
            "endpoints": [{"addresses": [self._layout.api_address], "conditions": {"ready": True}}],
            "ports": [{"name": "https", "port": 443}],
        }
        path = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices"

        async def there() -> bool:
            return (await self.request("POST", path, body))[0] in (201, 409)

        await until(
            there, timeout_s=READY_S, otherwise=f"the API server takes no endpoint, see {self.daemon.log}"
        )

    async def stop(self) -> None:
        """Stop it; whoever watches is cut off. It would wait for them much longer."""
        await self.daemon.stop(patience_s=1)

    async def request(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        """One request; the status and the answer, parsed where it is JSON. `OSError` when it is not there."""
        return await asyncio.to_thread(self._request, method, path, body)

    def _request(self, method: str, path: str, body: Any) -> tuple[int, Any]:
        headers = {"Content-Type": f"application/{'merge-patch+' if method == 'PATCH' else ''}json"}
        connection = HTTPSConnection(self._layout.api_address, timeout=10, context=self._trust)
        try:
            connection.request(method, path, None if body is None else json.dumps(body), headers)
            answer = connection.getresponse()
            text = answer.read().decode()
        except HTTPException as error:
            raise ConnectionError(f"the API server broke off: {error!r}") from error
        finally:
            connection.close()
        parsed = answer.headers.get_content_type() == "application/json"
        return answer.status, json.loads(text) if parsed else text

    @cached_property
    def _trust(self) -> ssl.SSLContext:
        admin = self._authority.of("admin")
        trust = ssl.create_default_context(cafile=str(self._authority.ca.crt))
        trust.load_cert_chain(admin.crt, admin.key)
        return trust


class ControlPlane:
    """Everything that is not a node."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._authority = Authority(layout)
        self.api = ApiServer(layout)
        self.etcd = Daemon("etcd", layout.daemons)
        self.controllers = Daemon("kube-controller-manager", layout.daemons)
        self.scheduler = Daemon("kube-scheduler", layout.daemons)
        self.dns = Daemon("coredns", layout.daemons)

    async def start_etcd(self) -> None:
        """Start etcd; needs no certificate, it listens on a loopback address."""
        address = self._layout.etcd
        await self.etcd.start(
            build.path("etcd"),
            "--name=lab",
            f"--data-dir={self._layout.root / 'etcd'}",
            "--unsafe-no-fsync",
            f"--listen-client-urls=http://{address}:2379",
            f"--advertise-client-urls=http://{address}:2379",
            f"--listen-peer-urls=http://{address}:2380",
            f"--initial-advertise-peer-urls=http://{address}:2380",
            f"--initial-cluster=lab=http://{address}:2380",
            "--log-level=warn",
        )
        late = f"etcd is not ready, see {self.etcd.log}"
        await until(self._etcd_listens, timeout_s=_ETCD_READY_S, otherwise=late)

    async def _etcd_listens(self) -> bool:
        if not self.etcd.pid:
            raise LabError(f"etcd ended: {self.etcd.last_words(1)}")
        try:
            _, writer = await asyncio.open_connection(self._layout.etcd, 2379)
        except OSError:
            return False
        writer.close()
        await writer.wait_closed()
        return True

    async def start_controllers(self) -> None:
        """Start controller-manager and scheduler; the API server must be there."""
        gateway = f"--bind-address={self._layout.gateway}"

        def identity(name: str) -> list[str]:
            file = self._authority.kubeconfig(name)
            return [f"--{use}kubeconfig={file}" for use in ("", "authentication-", "authorization-")]

        await self.controllers.start(
            build.path("kube-controller-manager"),
            *identity("controller-manager"),
            gateway,
            "--leader-elect=false",
            "--use-service-account-credentials=true",
            f"--service-account-private-key-file={self._authority.service_account_key}",
            f"--root-ca-file={self._authority.ca.crt}",
            # A fifth of the default patience with a node that is cut off; see the kubelets' leases.
            "--node-monitor-period=1s",
            "--node-monitor-grace-period=10s",
            "--kube-api-qps=200",
            "--kube-api-burst=400",
        )
        await self.scheduler.start(
            build.path("kube-scheduler"),
            *identity("scheduler"),
            gateway,
            "--leader-elect=false",
            "--kube-api-qps=500",
            "--kube-api-burst=1000",
        )

    async def start_dns(self) -> None:
        """Start DNS for the names of Services and pods; other names do not exist."""
        corefile = self._layout.root / "Corefile"
        corefile.write_text(
            ".:53 {\n"
            f"    bind {self._layout.dns_address}\n"
            "    errors\n"
            f"    kubernetes {CLUSTER_DOMAIN} {{\n"
            f"        kubeconfig {self._authority.kubeconfig('admin')}\n"
            "    }\n"
            "}\n"
        )
        await self.dns.start(build.path("coredns"), "-conf", corefile)

    async def stop(self) -> None:
        """Stop all of it, those that talk to the API first."""
        await asyncio.gather(self.controllers.stop(), self.scheduler.stop(), self.dns.stop())
        await self.api.stop()
        await self.etcd.stop()
