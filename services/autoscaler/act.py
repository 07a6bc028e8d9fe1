"""The autoscaler's hand: it looks first, writes with the version it saw, and never lowers what it lifts."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import datetime

import structlog

from services.autoscaler import lease
from services.autoscaler.decide import RESTORE
from services.autoscaler.policy import AutoscalerPolicy
from shared.errors import Permanent, Temporary
from shared.events import Payload
from shared.events.workload import ScaleApplied, ScaleExpired, ScaleOrdered, ScaleRefused
from shared.kube.models import Hpa
from shared.kube.port import Kube, StaleWrite

log = structlog.get_logger(__name__)

_Write = Callable[[ScaleOrdered], Awaitable[Payload]]
_TRIES = 3
"""Looks and writes before a busy object is left to the next try."""


class Scaler:
    """Carries out orders."""

    def __init__(self, kube: Kube, domain: str) -> None:
        """Args: domain: of the annotation, `media.example.com`."""
        self._kube = kube
        self.annotation = f"{domain}/{lease.KEY}"

    async def carry_out(
        self, order: ScaleOrdered, ordered_at: datetime, now: datetime, policy: AutoscalerPolicy
    ) -> Payload:
        """Do what was ordered and say what became of it.

        Raises:
            Temporary: no answer, or the object keeps changing.
        """
        if order.mode == RESTORE:
            try:
                return ScaleExpired(request_id=order.request_id, n=order.n, reason=await self._restore(order))
            except Permanent as error:
                # What was lent must come back: refused today, it may be allowed tomorrow.
                raise Temporary(f"cannot be given back yet: {error}", delay_s=5.0) from error
        if (now - ordered_at).total_seconds() > policy.order_within_s or now >= order.until:
            return _refused(order, "too late: the order could not be carried out in time")
        return await self._again(self._floor if order.hpa is not None else self._replicas, order)

    async def _again(self, write: _Write, order: ScaleOrdered) -> Payload:
        for _ in range(_TRIES - 1):
            try:
                return await write(order)
            except StaleWrite:
                continue
        return await write(order)

    async def _replicas(self, order: ScaleOrdered) -> Payload:
        of = order.workload
        found = await self._kube.workload(of.namespace, of.kind, of.name)
        if found is None or found.replicas is None:
            return _refused(order, f"{of.kind} {of.name} is gone")
        if any(_targets(hpa, order) for hpa in await self._kube.hpas(of.namespace)):
            return _refused(order, "an HPA targets it by now")
        if found.replicas < order.to:
            await self._kube.scale(
                of.namespace,
                of.kind,
                of.name,
                order.to,
                expected_resource_version=found.resource_version,
            )
        return _applied(order)

    async def _floor(self, order: ScaleOrdered) -> Payload:
        hpa = await self._hpa(order)
        if hpa is None:
            return _refused(order, f"HPA {order.hpa} is gone")
        if hpa.max_replicas < order.to:
            return _refused(order, f"HPA {order.hpa} allows only {hpa.max_replicas} by now")
        stands = lease.read(hpa.annotations.get(self.annotation))
        if stands is not None and stands.request == order.request_id:
            return _applied(order)
        if hpa.min_replicas < order.to:
            before = order.from_ if order.restore_to is None else order.restore_to
            made = lease.lease(before, order.to, order.until, order.request_id)
            await self._write_floor(hpa, order.to, made.text())
        return _applied(order)

    async def _restore(self, order: ScaleOrdered) -> str:
        """Give back what still is as it was set; what became of it."""
        for _ in range(_TRIES):
            try:
                if order.hpa is not None:
                    return await self._restore_floor(order)
                return await self._restore_replicas(order)
            except StaleWrite:
                continue
        raise Temporary("it keeps changing: looked at again later")

    async def _restore_floor(self, order: ScaleOrdered) -> str:
        hpa = await self._hpa(order)
        if hpa is None:
            return f"HPA {order.hpa} is gone"
        stands = lease.read(hpa.annotations.get(self.annotation))
        if hpa.min_replicas != order.from_:
            if hpa.min_replicas == order.to and (stands is None or stands.request == order.request_id):
                return "given back"
            if self.annotation in hpa.annotations:
                await self._write_floor(hpa, hpa.min_replicas, None)
            return f"left: somebody set minReplicas to {hpa.min_replicas} meanwhile"
        before = order.to if order.restore_to is None else order.restore_to
        last = order.to <= before
        made = None if last else lease.lease(before, order.to, order.until, order.request_id).text()
        await self._write_floor(hpa, order.to, made)
        return "given back"

    async def _restore_replicas(self, order: ScaleOrdered) -> str:
        of = order.workload
        found = await self._kube.workload(of.namespace, of.kind, of.name)
        if found is None or found.replicas is None:
            return f"{of.kind} {of.name} is gone"
        if any(_targets(hpa, order) for hpa in await self._kube.hpas(of.namespace)):
            return "left: an HPA targets it by now"
        if found.replicas == order.to:
            return "given back"
        if found.replicas != order.from_:
            return f"left: somebody scaled it to {found.replicas} meanwhile"
        await self._kube.scale(
            of.namespace, of.kind, of.name, order.to, expected_resource_version=found.resource_version
        )
        return "given back"

    async def _hpa(self, order: ScaleOrdered) -> Hpa | None:
        return next((h for h in await self._kube.hpas(order.workload.namespace) if h.name == order.hpa), None)

    async def _write_floor(self, hpa: Hpa, low: int, text: str | None) -> None:
        await self._kube.patch_hpa_min(
            hpa.namespace,
            hpa.name,
            low,
            {self.annotation: text},
            expected_resource_version=hpa.resource_version,
        )


def _targets(hpa: Hpa, order: ScaleOrdered) -> bool:
    return (hpa.target_kind, hpa.target_name) == (order.workload.kind, order.workload.name)


def _applied(order: ScaleOrdered) -> ScaleApplied:
    return ScaleApplied(
        request_id=order.request_id,
        n=order.n,
        workload=order.workload,
        from_=order.from_,
        to=order.to,
        mode=order.mode,
        by=order.by,
    )


def _refused(order: ScaleOrdered, reason: str) -> ScaleRefused:
    return ScaleRefused(request_id=order.request_id, n=order.n, reason=reason, by=order.by)
