"""The API server's HTTP face.

    server = ApiServer(clock=SystemClock())
    url = await server.start("127.0.0.1", 0)

Below ``/simulator/v1`` it is not Kubernetes any more: the access log and the faults; `router` takes more of
that kind from whoever builds the simulator.
"""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any, Final

import orjson
from aiohttp import web

from services.simulator.api.access_log import BODY_LIMIT, AccessLog
from services.simulator.api.discovery import discovery
from services.simulator.api.faults import Faults, fault_from
from services.simulator.api.handlers import Call, handle, watch_request
from services.simulator.api.request import Target, parse_path
from services.simulator.api.resources import NAMESPACES
from services.simulator.api.status import ApiError, bad_request
from services.simulator.api.store import Store
from services.simulator.api.views import to_view
from services.simulator.api.watch import follow
from shared.clock import SystemClock

if TYPE_CHECKING:
    from random import Random

    from services.simulator.api.faults import Fault
    from shared.clock import Clock

_BODY_BYTES: Final = 3 * 1024 * 1024
"""The real server's limit for a request's body."""
_NAMESPACES: Final = ("default", "kube-system", "kube-public", "kube-node-lease")
_STOP_S: Final = 1.0
"""How long open requests may take to end at stop; watches are ended at once."""


class ApiServer:
    """A kube-apiserver in this process.

    Attributes:
        store: the objects; writes here are seen by every watch.
        access_log: every request.
        url: where it listens; empty before `start`.
        faults: inject with ``faults.inject(Fault(verb="create", path="eviction", status=500))``.
        router: routes of the simulator's own, to be added before `start`.
    """

    def __init__(
        self,
        *,
        clock: Clock | None = None,
        random: Random | None = None,
        history: int = 2_000,
        bookmark_s: float = 10.0,
    ) -> None:
        """Args: history: changes kept per resource; bookmark_s: a quiet watch gets a bookmark this often."""
        self.clock = clock or SystemClock()
        self.store = Store(self.clock, random=random, history=history)
        self.access_log = AccessLog(self.clock)
        self.faults = Faults()
        self.url = ""
        self._bookmark_s = bookmark_s
        self._stopping = asyncio.Event()
        self._runner: web.AppRunner | None = None
        self._app = web.Application(client_max_size=_BODY_BYTES)
        self.router = self._app.router
        for name in _NAMESPACES:
            self.store.create(NAMESPACES, "", {"metadata": {"name": name}})

    async def start(self, host: str = "127.0.0.1", port: int = 0) -> str:
        """Listen, on a free port when ``port`` is 0; gives the URL."""
        self.router.add_get("/simulator/v1/access-log", self._serve_access_log)
        self.router.add_get("/simulator/v1/faults", self._serve_faults)
        self.router.add_post("/simulator/v1/faults", self._inject_fault)
        self.router.add_delete("/simulator/v1/faults", self._clear_faults)
        self.router.add_route("*", "/{path:.*}", self._serve)
        runner = web.AppRunner(
            self._app, access_log=None, shutdown_timeout=_STOP_S, handler_cancellation=True
        )
        await runner.setup()
        site = web.TCPSite(runner, host, port)
        await site.start()
        self._runner = runner
        bound = runner.addresses[0]
        self.url = f"http://{bound[0]}:{bound[1]}"
        return self.url

    async def stop(self) -> None:
        """End every watch and close."""
        self._stopping.set()
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    # --- Kubernetes -----------------------------------------------------------------------------------------

    async def _serve(self, request: web.Request) -> web.StreamResponse:
        arrived_s, arrived_at = self.clock.monotonic(), self.clock.now().isoformat()
        target = parse_path(request.path)
        verb = target.verb(request.method, request.query) if target else request.method.lower()
        raw = b""

        def log(status: int) -> None:
            self.access_log.add(
                verb=verb,
                method=request.method,
                path=request.path,
                query=request.query_string,
                status=status,
                user_agent=request.headers.get("User-Agent", ""),
                arrived_s=arrived_s,
                arrived_at=arrived_at,
                body=raw[:BODY_LIMIT].decode("utf-8", "replace"),
            )

        fault = self.faults.take(verb, request.method, request.path)
        try:
            raw = await request.read()
            if fault is not None:
                await self._strike(fault)
            if target is None:
                found = discovery(request.path)
                if found is None or request.method != "GET":
                    log(404)
                    return _refusal(
                        ApiError(404, "NotFound", "the server could not find the requested resource")
                    )
                log(200)
                return web.Response(text=found) if isinstance(found, str) else _reply(200, found)
            call = _call(verb, target, request, raw)
            if verb == "watch":
                return await self._watch(request, call, log)
            status, body = handle(self.store, call)
            if fault is not None and fault.after and fault.status:
                raise fault.error()
        except ApiError as error:
            log(error.code)
            return _refusal(error)
        except web.HTTPRequestEntityTooLarge:
            log(413)
            return _refusal(
                ApiError(413, "RequestEntityTooLarge", f"Request entity too large: limit is {_BODY_BYTES}")
            )
        except asyncio.CancelledError:
            log(499)
            raise
        log(status)
        return _reply(status, body)

    async def _strike(self, fault: Fault) -> None:
        if fault.hang_s:
            try:
                async with asyncio.timeout(fault.hang_s):
                    await self._stopping.wait()
            except TimeoutError:
                pass  # the hang is over
        if fault.status and not fault.after:
            raise fault.error()

    async def _watch(self, request: web.Request, call: Call, log: Any) -> web.StreamResponse:
        wanted = watch_request(call, bookmark_s=self._bookmark_s)
        response = web.StreamResponse(
            headers={"Content-Type": "application/json", "Cache-Control": "no-cache, private"}
        )
        await response.prepare(request)
        log(200)
        sender = asyncio.create_task(self._send_events(response, call, wanted), name=f"watch {request.path}")
        stopping = asyncio.create_task(self._stopping.wait(), name="watch stop")
        try:
            await asyncio.wait((sender, stopping), return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (sender, stopping):
                task.cancel()
            await asyncio.gather(sender, stopping, return_exceptions=True)
        return response

    async def _send_events(self, response: web.StreamResponse, call: Call, wanted: Any) -> None:
        view = call.target.view
        try:
            async for kind, body in follow(self.store, wanted):
                shown = body if kind == "BOOKMARK" else to_view(view, body)
                await response.write(orjson.dumps({"type": kind, "object": shown}) + b"\n")
        except ApiError as error:
            await response.write(orjson.dumps({"type": "ERROR", "object": error.body()}) + b"\n")
        except ConnectionError:
            return  # the client went away
        await response.write_eof()

    # --- the simulator's own --------------------------------------------------------------------------------

    async def _serve_access_log(self, request: web.Request) -> web.Response:
        since = request.query.get("since", "0")
        if not since.isdigit():
            return _refusal(bad_request(f"{since!r} is not a number", "since"))
        entries = [access.to_json() for access in self.access_log.since(int(since))]
        return _reply(200, {"entries": entries, "next": self.access_log.count})

    async def _serve_faults(self, request: web.Request) -> web.Response:  # noqa: ARG002 - a handler's shape
        return _reply(200, {"faults": [fault.to_json() for fault in self.faults.waiting()]})

    async def _inject_fault(self, request: web.Request) -> web.Response:
        try:
            fault = self.faults.inject(fault_from(_json(await request.read())))
        except ApiError as error:
            return _refusal(error)
        return _reply(201, fault.to_json())

    async def _clear_faults(self, request: web.Request) -> web.Response:  # noqa: ARG002 - as above
        self.faults.clear()
        return _reply(200, {"faults": []})


def _call(verb: str, target: Target, request: web.Request, raw: bytes) -> Call:
    content_type = request.content_type if raw or request.method == "PATCH" else ""
    body = None
    if raw:
        if request.method in ("POST", "PUT") and "json" not in content_type:
            message = (
                f"the body of the request was in an unknown format ({content_type}): send application/json"
            )
            raise ApiError(415, "UnsupportedMediaType", message)
        body = _json(raw)
    elif request.method in ("POST", "PUT", "PATCH"):
        raise bad_request("is empty", "body")
    return Call(verb, target, request.query, body, content_type)


def _json(raw: bytes) -> Any:
    try:
        return json.loads(raw, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise bad_request(f"is not JSON: {error}", "body") from error


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def _reply(status: int, body: Any) -> web.Response:
    return web.Response(status=status, body=orjson.dumps(body), content_type="application/json")


def _refusal(error: ApiError) -> web.Response:
    response = _reply(error.code, error.body())
    if error.retry_after_s is not None:
        response.headers["Retry-After"] = str(error.retry_after_s)
    return response
