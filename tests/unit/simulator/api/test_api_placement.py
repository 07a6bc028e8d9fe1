from decimal import Decimal
from typing import Any

import pytest

from services.simulator.api.placement import choose, room_of, tolerates


def node(name: str, capacity: dict[str, str] | None = None, **spec: Any) -> dict[str, Any]:
    return {
        "metadata": {"name": name, "labels": {"zone": name[-1]}},
        "spec": spec,
        "status": {"allocatable": capacity or {"media.example.com/nvenc": "2"}},
    }


def pod(asks: dict[str, str] | None = None, **spec: Any) -> dict[str, Any]:
    return {"spec": {"containers": [{"name": "c", "resources": {"limits": asks or {}}}], **spec}}


ONE = {"media.example.com/nvenc": "1"}


def test_the_node_with_the_most_left_over_is_chosen() -> None:
    full, free = room_of(node("a")), room_of(node("b"))
    full.take({"media.example.com/nvenc": Decimal(1)}, 1)
    assert choose(pod(ONE), [full, free]) == ("b", "")


def test_equal_nodes_take_turns_by_their_pods() -> None:
    rooms = [room_of(node("a")), room_of(node("b"))]
    rooms[0].take({}, 1)
    assert choose(pod(), rooms)[0] == "b"


def test_what_no_node_has_is_said_with_numbers() -> None:
    rooms = [room_of(node("a")), room_of(node("b", unschedulable=True))]
    assert choose(pod({"media.example.com/nvdec": "1"}), rooms) == (
        None,
        "0/2 nodes are available: 1 Insufficient media.example.com/nvdec, 1 node(s) were unschedulable.",
    )
    assert choose(pod(), []) == (None, "0/0 nodes are available: no nodes.")


def test_a_node_without_room_for_pods_takes_none() -> None:
    assert (
        choose(pod(), [room_of(node("a", {"pods": "0"}))])[1] == "0/1 nodes are available: 1 Too many pods."
    )


ELSEWHERE = {"matchExpressions": [{"key": "zone", "operator": "NotIn", "values": ["a"]}]}
AFFINITY = {
    "nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [ELSEWHERE]}}
}


@pytest.mark.parametrize(
    "spec", [{"nodeSelector": {"zone": "x"}}, {"nodeName": "other"}, {"affinity": AFFINITY}]
)
def test_a_pod_that_wants_another_node_waits(spec: dict[str, Any]) -> None:
    assert choose(pod(**spec), [room_of(node("a"))])[0] is None


def test_required_affinity_can_name_the_node() -> None:
    fields = [{"key": "metadata.name", "operator": "In", "values": ["b"]}]
    terms = {"nodeSelectorTerms": [{"matchFields": fields}]}
    wanted = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}
    assert choose(pod(affinity=wanted), [room_of(node("a")), room_of(node("b"))])[0] == "b"


def test_a_node_that_is_not_ready_takes_none() -> None:
    body = node("a")
    body["status"]["conditions"] = [{"type": "Ready", "status": "Unknown"}]
    assert choose(pod(), [room_of(body)])[0] is None


TAINT = {"key": "media.example.com/device-quarantine", "value": "x", "effect": "NoSchedule"}


@pytest.mark.parametrize(
    ("toleration", "tolerated"),
    [
        ({"operator": "Exists"}, True),
        ({"key": TAINT["key"], "operator": "Exists"}, True),
        ({"key": TAINT["key"], "value": "x"}, True),
        ({"key": TAINT["key"], "value": "y"}, False),
        ({"key": TAINT["key"], "operator": "Exists", "effect": "NoExecute"}, False),
        ({"key": "other", "operator": "Exists"}, False),
        ({"value": "x"}, False),
    ],
)
def test_a_toleration_matches_key_value_and_effect(toleration: dict[str, str], tolerated: bool) -> None:  # noqa: FBT001
    assert tolerates([toleration], TAINT) is tolerated
    chosen = choose(pod(tolerations=[toleration]), [room_of(node("a", taints=[TAINT]))])[0]
    assert (chosen == "a") is tolerated


def test_a_taint_that_only_prefers_keeps_nobody_out() -> None:
    assert choose(pod(), [room_of(node("a", taints=[TAINT | {"effect": "PreferNoSchedule"}]))])[0] == "a"
