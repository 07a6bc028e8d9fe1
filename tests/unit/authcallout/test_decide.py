"""Who a token speaks for."""

from __future__ import annotations

from typing import Any

import pytest

from services.authcallout.decide import Agent, Tenant, identify
from shared.errors import Permanent

OURS = "mediafleet"
AGENTS = ("discovery", "bridge")


def claims(account: str = "bridge", namespace: str = OURS, **bound: Any) -> dict[str, Any]:
    return {
        "sub": f"system:serviceaccount:{namespace}:{account}",
        "kubernetes.io": {
            "namespace": namespace,
            "serviceaccount": {"name": account, "uid": "1"},
            "pod": {"name": f"{account}-x", "uid": "2"},
            "node": {"name": "worker-3", "uid": "3"},
            **bound,
        },
    }


def test_an_agent_is_the_service_of_its_account_on_the_node_of_its_pod() -> None:
    assert identify(claims(), namespace=OURS, agents=AGENTS) == Agent("bridge", "worker-3", "bridge-x")


def test_an_account_of_another_namespace_may_measure_that_namespace() -> None:
    found = identify(claims("encoder", "live", node=None), namespace=OURS, agents=AGENTS)
    assert found == Tenant("live", "encoder")


def test_an_agents_name_in_another_namespace_is_no_agent() -> None:
    assert identify(claims("bridge", "live"), namespace=OURS, agents=AGENTS) == Tenant("live", "bridge")


@pytest.mark.parametrize(
    ("given", "field", "why"),
    [
        ({"sub": "alice"}, "kubernetes.io", "of no service account"),
        ({"kubernetes.io": "x", "sub": "s"}, "kubernetes.io", "of no service account"),
        (claims(namespace=""), "kubernetes.io.namespace", "names no namespace"),
        (claims(serviceaccount={}), "kubernetes.io.serviceaccount.name", "names no serviceaccount"),
        (claims(pod=None), "kubernetes.io.pod.name", "projected into a pod"),
        (claims(node={"name": ""}), "kubernetes.io.node.name", "names no node"),
        (claims(node={"name": 3}), "kubernetes.io.node.name", "names no node"),
        (claims() | {"sub": "system:serviceaccount:mediafleet:discovery"}, "sub", "differ"),
        (claims("manager"), "sub", "has a key of its own"),
    ],
)
def test_what_a_token_lacks_is_said(given: dict[str, Any], field: str, why: str) -> None:
    with pytest.raises(Permanent, match=why) as refused:
        identify(given, namespace=OURS, agents=AGENTS)
    assert refused.value.field == field
