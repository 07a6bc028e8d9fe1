from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.bridge.identity import Checkpointed, Listed, Sighting, owners, parse_checkpoint
from shared.errors import BadInput
from tests.unit.bridge.devices import DOMAIN, NVENC, owner, pod, sighting

ID = "nvidia-0000-3b-00-0-enc-0-s0"


def checkpoint(ids: Any, **changes: Any) -> str:
    entry = {"PodUID": "uid-a", "ContainerName": "main", "ResourceName": NVENC, "DeviceIDs": ids}
    data = {"PodDeviceEntries": [entry | changes], "RegisteredDevices": {NVENC: [ID]}}
    return json.dumps({"Data": data, "Checksum": 1, "BootID": "b"})


@pytest.mark.parametrize("ids", [{"0": [ID]}, {"-1": [ID]}, [ID], {"0": None, "1": [ID]}])
def test_both_shapes_of_a_checkpoint_are_read(ids: Any) -> None:
    assert parse_checkpoint(checkpoint(ids)) == (Checkpointed("uid-a", "main", NVENC, ID),)


@pytest.mark.parametrize("text", ['{"Data": {"PodDeviceEntries": null}}', checkpoint(None), checkpoint({})])
def test_a_checkpoint_without_entries_holds_nothing(text: str) -> None:
    assert parse_checkpoint(text) == ()


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ("", "checkpoint"),
        ('{"Data": ', "checkpoint"),
        ("[]", "checkpoint.Data"),
        ('{"Data": 3}', "checkpoint.Data"),
        ('{"Data": {"PodDeviceEntries": {}}}', "Data.PodDeviceEntries"),
        (checkpoint({"0": [ID]}, PodUID=None), "Data.PodDeviceEntries.0.PodUID"),
        (checkpoint("x"), "Data.PodDeviceEntries.0.DeviceIDs"),
        (checkpoint({"0": [7]}), "Data.PodDeviceEntries.0.DeviceIDs"),
        (checkpoint({"0": 7}), "Data.PodDeviceEntries.0.DeviceIDs"),
    ],
)
def test_a_broken_checkpoint_names_the_field(text: str, field: str) -> None:
    with pytest.raises(BadInput) as caught:
        parse_checkpoint(text)
    assert caught.value.field == field


JUNK = st.recursive(
    st.none() | st.integers() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)
NAMES = ("PodUID", "ContainerName", "ResourceName", "DeviceIDs")
ENTRY = st.fixed_dictionaries({name: st.text(max_size=3) | JUNK for name in NAMES})


@given(ENTRY | JUNK)
def test_nothing_that_a_checkpoint_may_hold_breaks_its_reader(entries: Any) -> None:
    try:
        parse_checkpoint(json.dumps({"Data": {"PodDeviceEntries": [entries]}}))
    except BadInput:
        return


def test_name_and_uid_are_joined_by_resource_id_and_container() -> None:
    assert owners(sighting((pod("a"), NVENC, ID)), DOMAIN) == {(NVENC, ID): owner(pod("a"))}


def test_resources_of_others_are_none_of_ours() -> None:
    assert owners(sighting((pod("a"), "nvidia.com/gpu", "GPU-1")), DOMAIN) == {}


def test_pod_resources_that_cannot_be_read_say_nothing() -> None:
    assert owners(Sighting(None, ()), DOMAIN) is None


def test_a_uid_that_the_checkpoint_lacks_or_doubts_stays_unknown() -> None:
    listed = (Listed("live", "a", "main", NVENC, ID),)
    twice = (Checkpointed("uid-a", "main", NVENC, ID), Checkpointed("uid-old", "main", NVENC, ID))
    for records in ((), None, twice, (Checkpointed("uid-a", "other", NVENC, ID),)):
        found = owners(Sighting(listed, records), DOMAIN)
        assert found is not None
        assert found[NVENC, ID].pod is None


def test_an_init_container_in_the_checkpoint_does_not_hide_the_pod() -> None:
    listed = (Listed("live", "a", "main", NVENC, ID),)
    records = (Checkpointed("uid-a", "init", NVENC, ID), Checkpointed("uid-a", "main", NVENC, ID))
    assert owners(Sighting(listed, records), DOMAIN) == {(NVENC, ID): owner(pod("a"))}


def test_of_a_finished_pod_and_its_successor_the_checkpoint_knows_who_is_alive() -> None:
    listed = (Listed("live", "old", "job", NVENC, ID), Listed("live", "a", "main", NVENC, ID))
    alive = owners(Sighting(listed, (Checkpointed("uid-a", "main", NVENC, ID),)), DOMAIN)
    assert alive == {(NVENC, ID): owner(pod("a"))}
    same = (Listed("live", "old", "main", NVENC, ID), Listed("live", "a", "main", NVENC, ID))
    doubt = owners(Sighting(same, (Checkpointed("uid-a", "main", NVENC, ID),)), DOMAIN)
    assert doubt is not None
    assert doubt[NVENC, ID].disputed
