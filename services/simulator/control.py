"""The simulator's own routes, beside the Kubernetes API: what to break, and what is true.

    GET  /simulator/v1/state            nodes, devices, kubelets with resources, ids and pods
    GET  /simulator/v1/load             utilisation of every engine by node, and what every pod feels
    POST /simulator/v1/device-faults    {node, device, kind, ...}, see `DeviceFault`
    POST /simulator/v1/kubelet          {node, action: restart | reboot, down_s}
    POST /simulator/v1/load             {namespace, deployment, workload_load} or {namespace, pod, load}

`/simulator/v1/faults` and `/access-log` are the API server's own.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import orjson
import structlog
from aiohttp import web
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from services.simulator import sampling
from services.simulator.api.resources import DEPLOYMENTS, PODS
from services.simulator.api.status import ApiError
from services.simulator.hardware import Condition
from shared.errors import BadInput
from shared.events.parts import FATAL, TRANSIENT
from shared.vendors import kernel_lines

if TYPE_CHECKING:
    from collections.abc import Callable

    from services.simulator.cluster import Cluster
    from services.simulator.trees import HostTree

log = structlog.get_logger(__name__)

BodyT = TypeVar("BodyT", bound=BaseModel)


class _Body(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class DeviceFault(_Body):
    """Something happens to a device.

    `line` (or `xid`) a kernel line and, unless `condition` says otherwise, what its class in the fault
    catalogue does to work: a fatal one kills the device, a transient one slows it, others do nothing; `ecc`
    counters that grow; `hang`, `fail` the vendor's tool; `lost` the device is off its bus, by line and tool;
    `remove`, `replace` the board; `condition` only what work feels; `heal` everything is well again.
    """

    node: str
    device: str = Field(description="device key, bus address or slot number")
    kind: Literal["line", "xid", "ecc", "hang", "fail", "lost", "remove", "replace", "condition", "heal"]
    code: int | str | None = Field(default=None, description="Xid, RAS block or event code of a line")
    text: str | None = Field(default=None, description="the whole kernel line instead")
    condition: Condition | None = None
    count: int = Field(default=1, ge=1, le=1_000_000, description="uncorrectable errors to add")
    correctable: int = Field(default=0, ge=0)
    serial: str | None = Field(default=None, description="of the device that replaces")
    times: int = Field(default=1, ge=1, le=100, description="how often it happens")
    every_s: float = Field(default=1.0, ge=0, le=600)


class KubeletAction(_Body):
    """Something happens to a kubelet, or to its whole machine."""

    node: str
    action: Literal["restart", "reboot"]
    down_s: float = Field(default=0.0, ge=0, le=600)


class LoadChange(_Body):
    """A workload, or one pod, offers another load from now on."""

    namespace: str
    deployment: str | None = None
    pod: str | None = None
    workload_load: float | None = Field(default=None, ge=0, allow_inf_nan=False)
    load: float | None = Field(default=None, ge=0, allow_inf_nan=False)


class Control:
    """Handlers over one cluster; what repeats goes on in tasks that `close` ends."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._tasks: set[asyncio.Task[None]] = set()
        router = cluster.api.router
        router.add_get("/simulator/v1/state", self._state)
        router.add_get("/simulator/v1/load", self._load)
        router.add_post("/simulator/v1/device-faults", self._break)
        router.add_post("/simulator/v1/kubelet", self._act)
        router.add_post("/simulator/v1/load", self._change_load)

    async def close(self) -> None:
        """End what still repeats."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    async def _state(self, request: web.Request) -> web.StreamResponse:  # noqa: ARG002 - a handler's shape
        return _reply(200, self._cluster.snapshot())

    async def _load(self, request: web.Request) -> web.StreamResponse:  # noqa: ARG002 - a handler's shape
        # An engine of a dead device has no finite utilisation, and JSON no word for that but null.
        return _reply(200, self._cluster.loads())

    async def _break(self, request: web.Request) -> web.StreamResponse:
        try:
            fault = await _read(request, DeviceFault)
            tree = self._cluster.tree(fault.node)
            strike(tree, fault)
        except BadInput as wrong:
            return _refusal(wrong)
        if fault.times > 1:
            task = asyncio.create_task(_repeat(tree, fault), name=f"fault {fault.node}/{fault.device}")
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        return _reply(202 if fault.times > 1 else 200, fault.model_dump(mode="json", exclude_none=True))

    async def _act(self, request: web.Request) -> web.StreamResponse:
        try:
            asked = await _read(request, KubeletAction)
            if asked.action == "reboot":
                await self._cluster.reboot(asked.node, down_s=asked.down_s)
            else:
                await self._cluster.kubelet(asked.node).restart(down_s=asked.down_s)
        except BadInput as wrong:
            return _refusal(wrong)
        return _reply(200, self._cluster.kubelet(asked.node).snapshot())

    async def _change_load(self, request: web.Request) -> web.StreamResponse:
        try:
            asked = await _read(request, LoadChange)
            resource, name, key, value = _target(asked)
            self._cluster.api.store.modify(
                resource,
                asked.namespace,
                name,
                lambda body: body["metadata"].setdefault("annotations", {}).update({key: str(value)}),
            )
        except BadInput as wrong:
            return _refusal(wrong)
        except ApiError as error:
            return _reply(error.code, error.body())
        return _reply(200, asked.model_dump(mode="json", exclude_none=True))


def strike(tree: HostTree, fault: DeviceFault) -> None:
    """Let one thing happen to a device.

    Raises:
        BadInput: the node has no such device, or the code does not suit its vendor.
    """
    name = fault.device
    condition = fault.condition
    if fault.kind in {"line", "xid"}:
        line = tree.fault_line(name, fault.code, fault.text)
        condition = condition or _felt(line)
    elif fault.kind == "hang":
        condition = condition or "degraded"
    actions: dict[str, Callable[[], object]] = {
        "ecc": lambda: tree.count_errors(name, correctable=fault.correctable, uncorrectable=fault.count),
        "hang": lambda: tree.hang(name),
        "fail": lambda: tree.fail(name),
        "lost": lambda: tree.lose(name),
        "remove": lambda: tree.remove(name),
        "replace": lambda: tree.replace(name, serial=fault.serial),
        "heal": lambda: tree.heal(name),
    }
    if fault.kind in actions:
        actions[fault.kind]()
    if condition is not None:
        tree.condition(name, condition)


def _felt(line: str) -> Condition | None:
    evidence = kernel_lines.parse(line)
    if evidence is None:
        return None
    return {FATAL: "dead", TRANSIENT: "degraded"}.get(evidence.fault.fault_class)  # type: ignore[return-value]


async def _repeat(tree: HostTree, fault: DeviceFault) -> None:
    for _ in range(fault.times - 1):
        await asyncio.sleep(fault.every_s)
        try:
            strike(tree, fault)
        except BadInput as wrong:
            log.info("fault no longer applies", reason=str(wrong))
            return


def _target(asked: LoadChange) -> tuple[Any, str, str, float]:
    if asked.deployment is not None and asked.workload_load is not None:
        return DEPLOYMENTS, asked.deployment, sampling.WORKLOAD_LOAD, asked.workload_load
    if asked.pod is not None and asked.load is not None:
        return PODS, asked.pod, sampling.LOAD, asked.load
    raise BadInput("body", "names no load", "give deployment and workload_load, or pod and load")


async def _read(request: web.Request, shape: type[BodyT]) -> BodyT:
    try:
        return shape.model_validate_json(await request.read())
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        field = ".".join(str(part) for part in first["loc"]) or "body"
        raise BadInput(field, first["msg"], f"send a {shape.__name__} as JSON") from error


def _reply(status: int, body: Any) -> web.Response:
    return web.Response(status=status, body=orjson.dumps(body), content_type="application/json")


def _refusal(wrong: BadInput) -> web.Response:
    return _reply(400, {"error": str(wrong), "field": wrong.field, "fix": wrong.fix})
