"""Requests to the API server over kubernetes_asyncio's configuration and REST client, without its models.

kubernetes_asyncio's package ``__init__`` files import some 900 generated model modules, 65 MB that nobody
here uses (we read JSON into the narrow models of `models`). So its configuration, kubeconfig and REST modules
are loaded below package objects of our own, and those are taken out of ``sys.modules`` again: whoever imports
kubernetes_asyncio afterwards gets the whole of it.

Every request has a deadline. When the server throttles the whole client (429 by priority and fairness),
everything waits for its Retry-After.
"""

from __future__ import annotations

import asyncio
import importlib
import importlib.machinery
import importlib.util
import os
import re
import sys
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

import orjson

from shared.errors import Permanent, Refused, Temporary
from shared.kube.port import StaleWrite

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

_ROOT = "kubernetes_asyncio"
_SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount/token")
_READ_BUFFER_BYTES = 1 << 21
"""A watch's line holds a whole object: etcd allows 1.5 MiB (kubernetes_asyncio takes the same)."""
_MAX_CONNECTIONS = 64
"""Watches hold one each; the rest bounds how many requests are in flight."""
_THROTTLE_DEFAULT_S = 1.0
"""Wait after a 429 that names no time (the API server's own default is 1 s)."""


@dataclass(frozen=True, slots=True)
class _Library:
    """The parts of kubernetes_asyncio that are used."""

    configuration: Any
    rest: Any
    kube_config: Any
    incluster: Any
    config_exception: type[Exception]


_loaded: list[_Library] = []


def _library() -> _Library:
    if not _loaded:
        _loaded.append(_load_library())
    return _loaded[0]


def _load_library() -> _Library:
    """Import the wanted modules below bare packages, then forget the bare packages."""
    spec = importlib.util.find_spec(_ROOT)
    if spec is None or not spec.submodule_search_locations:
        raise Refused("kubernetes_asyncio is not installed: pip install 'mediafleet[cluster]'")
    where = Path(next(iter(spec.submodule_search_locations)))
    before = {name: module for name, module in sys.modules.items() if _ours(name)}
    for name in before:
        del sys.modules[name]
    try:
        for name, path in (
            (_ROOT, where),
            (f"{_ROOT}.client", where / "client"),
            (f"{_ROOT}.config", where / "config"),
        ):
            bare = ModuleType(name)
            bare.__path__ = [str(path)]
            bare.__spec__ = importlib.machinery.ModuleSpec(name, None, is_package=True)
            sys.modules[name] = bare
        configuration = importlib.import_module(f"{_ROOT}.client.configuration").Configuration
        client = sys.modules[f"{_ROOT}.client"]
        client.Configuration = configuration  # type: ignore[attr-defined] # what the config modules import from it
        client.ApiClient = object  # type: ignore[attr-defined] # named by them, never made here
        exception = importlib.import_module(f"{_ROOT}.config.config_exception").ConfigException
        return _Library(
            configuration=configuration,
            rest=importlib.import_module(f"{_ROOT}.client.rest").RESTClientObject,
            kube_config=importlib.import_module(f"{_ROOT}.config.kube_config").load_kube_config,
            incluster=importlib.import_module(f"{_ROOT}.config.incluster_config").load_incluster_config,
            config_exception=exception,
        )
    finally:
        for name in [name for name in sys.modules if _ours(name)]:
            del sys.modules[name]
        sys.modules.update(before)


def _ignore_proxies(rest: Any) -> None:
    """Go to a plain URL directly: HTTP_PROXY is for the internet, and often set without NO_PROXY."""
    import aiohttp  # noqa: PLC0415 - comes with kubernetes_asyncio, which only cluster services install

    trusting = rest.pool_manager
    rest.pool_manager = aiohttp.ClientSession(connector=trusting.connector, read_bufsize=_READ_BUFFER_BYTES)
    trusting.detach()


def _in_cluster() -> bool:
    return "KUBERNETES_SERVICE_HOST" in os.environ and _SERVICE_ACCOUNT.exists()


def _ours(name: str) -> bool:
    return name == _ROOT or name.startswith(f"{_ROOT}.")


@dataclass(frozen=True, slots=True)
class Answer:
    """A response: its status, the JSON body (an empty dict where there is none) and Retry-After."""

    status: int
    body: dict[str, Any]
    retry_after_s: float | None = None

    @property
    def ok(self) -> bool:
        """The request was accepted."""
        return 200 <= self.status < 300  # noqa: PLR2004 - HTTP's own classes

    @property
    def message(self) -> str:
        """What the server said about it."""
        return str(self.body.get("message") or f"HTTP {self.status}")

    @property
    def causes(self) -> list[dict[str, Any]]:
        """The Status' causes: a field, a reason and a message each."""
        return list((self.body.get("details") or {}).get("causes") or ())


@dataclass(slots=True)
class Transport:
    """An open connection pool to one API server."""

    configuration: Any
    rest: Any
    timeout_s: float
    user_agent: str
    _not_before_s: float = field(default=0.0)

    @classmethod
    async def open(cls, url: str | None, *, timeout_s: float, user_agent: str) -> Transport:
        """Connect to a plain ``url``; without one in-cluster, or by kubeconfig.

        Raises:
            Refused: there is no usable configuration; the message says what to set.
        """
        library = _library()
        configuration = library.configuration()
        configuration.connection_pool_maxsize = _MAX_CONNECTIONS
        if url:
            configuration.host = url.rstrip("/")
        else:
            try:
                if _in_cluster():
                    library.incluster(client_configuration=configuration)
                else:
                    # Named here, because the library reads the variable only once, when it is imported.
                    named = os.environ.get("KUBECONFIG")
                    await library.kube_config(config_file=named, client_configuration=configuration)
            except (library.config_exception, OSError) as error:
                raise Refused(
                    f"no Kubernetes API: {error}; set MEDIAFLEET_KUBE_URL or KUBECONFIG, or run in a cluster"
                ) from error
        rest = library.rest(configuration)
        if url:
            _ignore_proxies(rest)
        return cls(configuration, rest, timeout_s, user_agent)

    async def close(self) -> None:
        """Close every connection."""
        await self.rest.close()

    async def request(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: Any = None,
        content_type: str = "application/json",
        timeout_s: float | None = None,
    ) -> Answer:
        """One request within its deadline; any HTTP status is an answer.

        Raises:
            Temporary: no answer in time, or no connection.
        """
        import aiohttp  # noqa: PLC0415 - comes with kubernetes_asyncio, which only cluster services install

        limit_s = timeout_s or self.timeout_s
        try:
            async with asyncio.timeout(limit_s):
                await self._wait_while_throttled()
                response = await self._send(method, path, query, body, content_type)
                async with response:
                    raw = await response.read()
        except TimeoutError as error:
            raise Temporary(f"{method} {path}: no answer from the API server within {limit_s:g} s") from error
        except (aiohttp.ClientError, OSError) as error:
            raise Temporary(f"{method} {path}: the API server cannot be reached: {error}") from error
        answer = Answer(
            response.status, _json_object(raw), _retry_after_s(response.headers.get("Retry-After"))
        )
        if answer.status == 429 and not answer.causes:  # noqa: PLR2004 - Too Many Requests
            wait_s = answer.retry_after_s or _THROTTLE_DEFAULT_S
            self._not_before_s = max(self._not_before_s, asyncio.get_running_loop().time() + wait_s)
        return answer

    async def lines(self, path: str, query: Mapping[str, str], *, silence_s: float) -> AsyncIterator[bytes]:
        """The lines of a watch.

        Raises:
            Temporary: it could not be opened, broke, or stayed silent for ``silence_s``.
        """
        import aiohttp  # noqa: PLC0415 - as above

        try:
            async with asyncio.timeout(self.timeout_s):
                await self._wait_while_throttled()
                response = await self._send("GET", path, query, None, "application/json")
            async with response:
                if response.status != 200:  # noqa: PLR2004 - OK
                    async with asyncio.timeout(self.timeout_s):
                        raw = await response.read()
                    raise_for(
                        Answer(
                            response.status,
                            _json_object(raw),
                            _retry_after_s(response.headers.get("Retry-After")),
                        ),
                        f"watch {path}",
                    )
                while True:
                    async with asyncio.timeout(silence_s):
                        line = await response.content.readline()
                    if not line:
                        return
                    yield line
        except TimeoutError as error:
            raise Temporary(f"watch {path}: silent for too long") from error
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise Temporary(f"watch {path}: broken: {error}") from error

    async def _send(
        self, method: str, path: str, query: Mapping[str, str] | None, body: Any, content_type: str
    ) -> Any:
        headers = {"Accept": "application/json", "Content-Type": content_type, "User-Agent": self.user_agent}
        for auth in (await self.configuration.auth_settings()).values():
            headers[auth["key"]] = auth["value"]
        url = f"{self.configuration.host}{path}"
        if query:
            url = f"{url}?{urlencode(query)}"
        return await self.rest.request(method, url, headers=headers, body=body, _preload_content=False)

    async def _wait_while_throttled(self) -> None:
        wait_s = self._not_before_s - asyncio.get_running_loop().time()
        if wait_s > 0:
            await asyncio.sleep(wait_s)


class Expired(Temporary):
    """The resourceVersion or continue token is too old: list again."""


def raise_for(answer: Answer, what: str) -> None:
    """Map a refused request to our errors; an accepted one passes.

    Raises:
        StaleWrite: 409, another writer was first.
        Expired: 410.
        Temporary: 408, 429 and 5xx: later.
        Permanent: anything else: the request is wrong or not allowed.
    """
    if answer.ok:
        return
    said = f"{what}: {answer.status} {answer.message}"
    match answer.status:
        case 409:
            raise StaleWrite(said, delay_s=0.05)
        case 410:
            raise Expired(said, delay_s=0.0)
        case 408 | 429 | 500 | 502 | 503 | 504:
            raise Temporary(said, delay_s=answer.retry_after_s or 1.0)
        case 401 | 403:
            raise Permanent(f"{said}; grant this service account the verb in its ClusterRole")
        case _:
            fields = [str(cause["field"]) for cause in answer.causes if cause.get("field")]
            raise Permanent(said, field=fields[0] if fields else "")


def _json_object(raw: bytes) -> dict[str, Any]:
    try:
        parsed = orjson.loads(raw)
    except ValueError:
        return {"message": raw[:500].decode("utf-8", "replace").strip()} if raw else {}
    return parsed if isinstance(parsed, dict) else {"message": str(parsed)[:500]}


def _retry_after_s(header: str | None) -> float | None:
    """Seconds form only: the API server sends no dates."""
    return float(header) if header and re.fullmatch(r"[0-9]{1,6}", header) else None
