import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.simulator.api.patch import json_patch, merge_patch, strategic_patch
from services.simulator.api.status import ApiError

JSON: Any = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


@pytest.mark.parametrize(
    ("body", "operations", "patched"),
    [
        ({}, [{"op": "add", "path": "/a", "value": 1}], {"a": 1}),
        ({"a": [1, 3]}, [{"op": "add", "path": "/a/1", "value": 2}], {"a": [1, 2, 3]}),
        ({"a": [1]}, [{"op": "add", "path": "/a/-", "value": 2}], {"a": [1, 2]}),
        ({"a": [1]}, [{"op": "replace", "path": "/a/0", "value": 2}], {"a": [2]}),
        ({"a": 1, "b": 2}, [{"op": "remove", "path": "/a"}], {"b": 2}),
        ({"a": [1, 2]}, [{"op": "remove", "path": "/a/0"}], {"a": [2]}),
        ({"a": 1}, [{"op": "move", "from": "/a", "path": "/b"}], {"b": 1}),
        ({"a": 1}, [{"op": "copy", "from": "/a", "path": "/b"}], {"a": 1, "b": 1}),
        ({"a/b": 1, "c~d": 2}, [{"op": "remove", "path": "/a~1b"}, {"op": "remove", "path": "/c~0d"}], {}),
        ({"a": 1}, [{"op": "test", "path": "/a", "value": 1}], {"a": 1}),
        ({}, [{"op": "test", "path": "/a", "value": None}], {}),
        ({"a": 1}, [{"op": "replace", "path": "", "value": {"b": 1}}], {"b": 1}),
    ],
)
def test_json_patch_follows_rfc_6902(body: Any, operations: Any, patched: Any) -> None:
    assert json_patch(copy.deepcopy(body), operations) == patched


@pytest.mark.parametrize(
    ("operations", "code"),
    [
        ({}, 400),
        ([1], 400),
        ([{"path": "/a"}], 400),
        ([{"op": "add", "path": "/a"}], 400),
        ([{"op": "add", "value": 1}], 400),
        ([{"op": "launch", "path": "/a", "value": 1}], 400),
        ([{"op": "copy", "path": "/a"}], 400),
        ([{"op": "add", "path": "a", "value": 1}], 422),
        ([{"op": "replace", "path": "/z", "value": 1}], 422),
        ([{"op": "remove", "path": "/z"}], 422),
        ([{"op": "add", "path": "/l/7", "value": 1}], 422),
        ([{"op": "add", "path": "/l/01", "value": 1}], 422),
        ([{"op": "add", "path": "/a/b", "value": 1}], 422),
        ([{"op": "test", "path": "/a", "value": True}], 422),
    ],
)
def test_an_operation_that_does_not_apply_is_refused(operations: Any, code: int) -> None:
    with pytest.raises(ApiError) as refused:
        json_patch({"a": 1, "l": [1]}, operations)
    assert refused.value.code == code


@given(body=JSON, patch=JSON)
def test_a_merge_patch_applied_twice_changes_nothing_more(body: Any, patch: Any) -> None:
    once = merge_patch(copy.deepcopy(body), patch)
    assert merge_patch(copy.deepcopy(once), patch) == once


@given(body=JSON, patch=JSON)
def test_patching_never_changes_what_was_passed(body: Any, patch: Any) -> None:
    before = copy.deepcopy(body)
    merge_patch(body, patch)
    strategic_patch(body, patch)
    assert body == before


def test_null_removes_and_objects_merge() -> None:
    assert merge_patch({"a": {"b": 1, "c": 2}, "l": [1]}, {"a": {"b": None}, "l": [2]}) == {
        "a": {"c": 2},
        "l": [2],
    }


def test_lists_with_a_merge_key_merge_by_it() -> None:
    body = {"conditions": [{"type": "Ready", "status": "False", "reason": "x"}], "args": ["a"]}
    patch = {
        "conditions": [{"type": "Ready", "status": "True"}, {"type": "New", "status": "True"}],
        "args": ["b"],
    }
    assert strategic_patch(body, patch) == {
        "conditions": [{"type": "Ready", "status": "True", "reason": "x"}, {"type": "New", "status": "True"}],
        "args": ["b"],
    }


def test_directives_delete_replace_and_keep() -> None:
    conditions = {"conditions": [{"type": "Ready", "status": "True"}, {"type": "Disk", "status": "False"}]}
    assert strategic_patch(conditions, {"conditions": [{"type": "Ready", "$patch": "delete"}]}) == {
        "conditions": conditions["conditions"][1:]
    }
    new = {"type": "Memory", "status": "False"}
    assert strategic_patch(conditions, {"conditions": [new, {"$patch": "replace"}]}) == {"conditions": [new]}
    assert strategic_patch({"a": 1}, {"$patch": "replace", "b": 2}) == {"b": 2}
    assert strategic_patch({"a": 1, "b": 1}, {"$retainKeys": ["b"], "b": 2}) == {"b": 2}
    assert strategic_patch({"x": ["a", "b"]}, {"$deleteFromPrimitiveList/x": ["a"]}) == {"x": ["b"]}
    assert strategic_patch({"finalizers": ["a"]}, {"finalizers": ["a", "b"]}) == {"finalizers": ["a", "b"]}
