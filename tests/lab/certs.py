"""Keys, certificates and kubeconfigs, made with the openssl command on each start (P-256, valid a month)."""

from __future__ import annotations

import asyncio
import base64
import json
from dataclasses import dataclass
from pathlib import Path

from tests.lab.layout import Layout
from tests.lab.system import run

_PLAIN = "[req]\ndistinguished_name = dn\n[dn]\n"  # without the system's defaults, which add CA:TRUE
_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "30")


@dataclass(frozen=True, slots=True)
class Certificate:
    """A key and what the lab's authority says about it."""

    folder: Path
    name: str

    @property
    def crt(self) -> Path:
        """The certificate, PEM."""
        return self.folder / f"{self.name}.crt"

    @property
    def key(self) -> Path:
        """The private key, PEM."""
        return self.folder / f"{self.name}.key"


class Authority:
    """The lab's certificate authority."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._folder = layout.certificates
        self._config = self._folder / "openssl.cnf"
        self.ca = Certificate(self._folder, "ca")

    def of(self, name: str) -> Certificate:
        """Where a certificate lies."""
        return Certificate(self._folder, name)

    @property
    def service_account_key(self) -> Path:
        """What service account tokens are signed with."""
        return self._folder / "service-accounts.key"

    def kubeconfig(self, name: str) -> Path:
        """The kubeconfig of one of the lab's identities."""
        return self._folder / f"{name}.kubeconfig"

    async def make(self, nodes: dict[str, str]) -> None:
        """Make all of them; `nodes` is name to address."""
        self._folder.mkdir(parents=True, exist_ok=True)
        self._config.write_text(_PLAIN)
        layout = self._layout
        await self._request(
            self.ca,
            f"/CN=mf-{layout.name}",
            "-addext",
            "basicConstraints=critical,CA:TRUE",
            "-addext",
            "keyUsage=critical,keyCertSign,cRLSign",
        )
        server = (
            "DNS:kubernetes,DNS:kubernetes.default,DNS:kubernetes.default.svc,"
            f"DNS:kubernetes.default.svc.cluster.local,DNS:localhost,IP:127.0.0.1,"
            f"IP:{layout.api_address},IP:{layout.gateway}"
        )
        async with asyncio.TaskGroup() as group:
            for name, subject in {
                "admin": "/O=system:masters/CN=lab-admin",
                "controller-manager": "/CN=system:kube-controller-manager",
                "scheduler": "/CN=system:kube-scheduler",
                "kube-proxy": "/CN=system:kube-proxy",
                "apiserver-to-kubelet": "/O=system:masters/CN=kube-apiserver",
                **{each: f"/O=system:nodes/CN=system:node:{each}" for each in nodes},
            }.items():
                group.create_task(self._client(name, subject))
            group.create_task(self._serving("apiserver", server))
            for name, address in nodes.items():
                group.create_task(self._serving(f"{name}-serving", f"DNS:{name},IP:{address}"))
            group.create_task(
                run(
                    "openssl",
                    *("ecparam", "-genkey", "-noout", "-name", "prime256v1"),
                    *("-out", self.service_account_key),
                )
            )

    async def _client(self, name: str, subject: str) -> None:
        made = await self._signed(name, subject, "-addext", "extendedKeyUsage=clientAuth")
        self.kubeconfig(name).write_text(self._kubeconfig(made))
        if name == "admin":
            self._layout.kubeconfig.write_text(self._kubeconfig(made))
            self._layout.kubeconfig.chmod(0o600)

    async def _serving(self, name: str, names: str) -> None:
        usage = ("-addext", "extendedKeyUsage=serverAuth", "-addext", f"subjectAltName={names}")
        await self._signed(name, f"/CN={name}", *usage)

    async def _signed(self, name: str, subject: str, *extensions: str) -> Certificate:
        made = self.of(name)
        await self._request(
            made,
            subject,
            *("-CA", str(self.ca.crt), "-CAkey", str(self.ca.key)),
            *("-addext", "keyUsage=critical,digitalSignature"),
            *extensions,
        )
        return made

    async def _request(self, made: Certificate, subject: str, *more: str) -> None:
        files = ("-config", self._config, "-keyout", made.key, "-out", made.crt)
        await run("openssl", "req", "-x509", *_KEY, *files, "-subj", subject, *more)

    def _kubeconfig(self, made: Certificate) -> str:
        def data(path: Path) -> str:
            return base64.b64encode(path.read_bytes()).decode()

        name = f"mf-{self._layout.name}"
        cluster = {"server": self._layout.api_url, "certificate-authority-data": data(self.ca.crt)}
        user = {"client-certificate-data": data(made.crt), "client-key-data": data(made.key)}
        document = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": name, "cluster": cluster}],
            "users": [{"name": made.name, "user": user}],
            "contexts": [{"name": name, "context": {"cluster": name, "user": made.name}}],
            "current-context": name,
        }
        return json.dumps(document, indent=1)
