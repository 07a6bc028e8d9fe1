from typing import Any

import pytest

from services.console.demo.cluster import State

GPU = "nvidia-0000-3b-00-0"
SLOTS = [f"{GPU}-enc-0-s0", f"{GPU}-enc-0-s1"]


def state(*, gpu: bool, slots: bool, held: list[str]) -> State:
    def ids(all_: list[str], *, healthy: bool) -> dict[str, Any]:
        return {"healthy": all_ if healthy else [], "unhealthy": [] if healthy else all_}

    pod = {"namespace": "n", "name": "p", "uid": "u", "phase": "running", "devices": {"r": held}}
    resources = {"gpu": ids([GPU], healthy=gpu), "nvenc": ids(SLOTS, healthy=slots)}
    return State({"w": {"kubelet": {"resources": resources, "pods": [pod]}}})


@pytest.mark.parametrize(
    ("gpu", "slots", "held", "may"),
    [
        (True, True, [], True),
        (False, False, [], False),
        (False, True, [], False),
        (False, True, SLOTS[:1], True),
        (False, False, SLOTS[:1], False),
    ],
)
def test_a_device_is_back_when_all_of_it_may_be_given_or_some_of_it_is_held(
    *, gpu: bool, slots: bool, held: list[str], may: bool
) -> None:
    assert state(gpu=gpu, slots=slots, held=held).may_give("w", GPU) is may
