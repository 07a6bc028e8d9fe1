"""JSON patch (RFC 6902), merge patch (RFC 7396) and strategic merge patch for lists with a merge key.

All work on a deep copy that the caller passes, and give the patched object.
"""

from __future__ import annotations

import re
from typing import Any, Final

from services.simulator.api.status import ApiError, bad_request

_MERGE_KEYS: Final[dict[str, tuple[str, ...]]] = {
    "conditions": ("type",),
    "containers": ("name",),
    "initContainers": ("name",),
    "env": ("name",),
    "volumes": ("name",),
    "volumeMounts": ("mountPath",),
    "ports": ("containerPort", "port"),
    "ownerReferences": ("uid",),
    "addresses": ("type",),
    "imagePullSecrets": ("name",),
}
"""Merge keys by field name (k8s.io/api ``patchMergeKey``). A node's taints have none: one atomic list."""
_PRIMITIVE_SETS: Final = frozenset({"finalizers"})
_INDEX: Final = re.compile(r"0|[1-9][0-9]{0,8}", re.ASCII)


def json_patch(body: Any, operations: Any) -> Any:
    """Apply RFC 6902 operations.

    Raises:
        ApiError: 400, they are no list of operations; 422, one does not apply (a failed ``test`` too).
    """
    if not isinstance(operations, list):
        raise bad_request("a JSON patch is a list of operations", "body")
    for index, operation in enumerate(operations):
        where = f"[{index}]"
        if not isinstance(operation, dict) or not isinstance(operation.get("op"), str):
            raise bad_request("needs an op", where)
        if not isinstance(operation.get("path"), str):
            raise bad_request("needs a path", f"{where}.path")
        if operation["op"] in ("add", "replace", "test") and "value" not in operation:
            raise bad_request("needs a value", f"{where}.value")
        body = _apply(body, operation)
    return body


def merge_patch(body: Any, patch: Any) -> Any:
    """Apply RFC 7396: null removes, objects merge, everything else replaces."""
    if not isinstance(patch, dict):
        return patch
    merged = dict(body) if isinstance(body, dict) else {}
    for key, value in patch.items():
        if value is None:
            merged.pop(key, None)
        else:
            merged[key] = merge_patch(merged.get(key), value)
    return merged


def strategic_patch(body: Any, patch: Any, field: str = "") -> Any:
    """Merge like RFC 7396, but lists that have a merge key element by element.

    Knows ``$patch: replace`` and ``delete``, ``$retainKeys``, ``$setElementOrder`` (ignored) and
    ``$deleteFromPrimitiveList``.
    """
    if isinstance(patch, list):
        return _merge_lists(body if isinstance(body, list) else [], patch, field)
    if not isinstance(patch, dict):
        return patch
    if patch.get("$patch") == "replace":
        return {key: value for key, value in patch.items() if key != "$patch"}
    merged = dict(body) if isinstance(body, dict) else {}
    if isinstance(kept := patch.get("$retainKeys"), list):
        merged = {key: value for key, value in merged.items() if key in kept}
    for key, value in patch.items():
        if key.startswith("$deleteFromPrimitiveList/"):
            name = key.partition("/")[2]
            merged[name] = [entry for entry in merged.get(name) or () if entry not in value]
        elif key.startswith("$"):
            continue
        elif value is None:
            merged.pop(key, None)
        else:
            merged[key] = strategic_patch(merged.get(key), value, key)
    return merged


def _merge_lists(old: list[Any], patch: list[Any], field: str) -> list[Any]:
    if field in _PRIMITIVE_SETS:
        return old + [entry for entry in patch if entry not in old]
    keys = _MERGE_KEYS.get(field)
    if keys is None or not all(isinstance(entry, dict) for entry in [*old, *patch]):
        return patch
    if any(entry.get("$patch") == "replace" for entry in patch):
        return [entry for entry in patch if "$patch" not in entry]
    merged = list(old)
    for entry in patch:
        at = next((index for index, known in enumerate(merged) if _same(known, entry, keys)), None)
        if entry.get("$patch") == "delete":
            merged = [known for known in merged if not _same(known, entry, keys)]
        elif at is None:
            merged.append(strategic_patch({}, entry, ""))
        else:
            merged[at] = strategic_patch(merged[at], entry, "")
    return merged


def _same(known: dict[str, Any], entry: dict[str, Any], keys: tuple[str, ...]) -> bool:
    """Equal in the first merge key that the patch's entry has."""
    for key in keys:
        if key in entry:
            return bool(known.get(key) == entry[key])
    return False


def _apply(body: Any, operation: dict[str, Any]) -> Any:
    op, path = operation["op"], operation["path"]
    match op:
        case "add":
            return _put(body, path, operation["value"], insert=True)
        case "replace":
            _get(body, path)
            return _put(body, path, operation["value"], insert=False)
        case "remove":
            return _remove(body, path)
        case "test":
            if not _equal(_lookup(body, path), operation["value"]):
                raise _refused(f"testing value {path} failed: test failed")
            return body
        case "move" | "copy":
            source = operation.get("from")
            if not isinstance(source, str):
                raise bad_request("needs a from", f"{op}.from")
            value = _get(body, source)
            if op == "move":
                body = _remove(body, source)
            return _put(body, path, value, insert=True)
        case _:
            raise bad_request(f"unknown op {op!r}", "op")


def _tokens(path: str) -> list[str]:
    if not path:
        return []
    if not path.startswith("/"):
        raise _refused(f"path {path!r} does not start with /")
    return [token.replace("~1", "/").replace("~0", "~") for token in path[1:].split("/")]


def _get(body: Any, path: str) -> Any:
    for token in _tokens(path):
        if isinstance(body, dict) and token in body:
            body = body[token]
        elif isinstance(body, list) and _INDEX.fullmatch(token) and int(token) < len(body):
            body = body[int(token)]
        else:
            raise _refused(f"doc is missing path: {path}: missing value")
    return body


def _lookup(body: Any, path: str) -> Any:
    """For ``test``: a missing member counts as null, as in the server's library."""
    try:
        return _get(body, path)
    except ApiError:
        return None


def _parent(body: Any, path: str) -> tuple[Any, str]:
    head, _, _ = path.rpartition("/")
    return _get(body, head), _tokens(path)[-1]


def _put(body: Any, path: str, value: Any, *, insert: bool) -> Any:
    if not _tokens(path):
        return value
    parent, last = _parent(body, path)
    if isinstance(parent, dict):
        parent[last] = value
    elif isinstance(parent, list):
        if last == "-":
            parent.append(value)
        elif not _INDEX.fullmatch(last) or int(last) > len(parent):
            raise _refused(f"unable to access invalid index: {last}")
        elif insert:
            parent.insert(int(last), value)
        else:
            parent[int(last)] = value
    else:
        raise _refused(f"doc is missing path: {path}")
    return body


def _remove(body: Any, path: str) -> Any:
    _get(body, path)
    if not _tokens(path):
        return None
    parent, last = _parent(body, path)
    if isinstance(parent, dict):
        del parent[last]
    else:
        del parent[int(last)]
    return body


def _equal(left: Any, right: Any) -> bool:
    """JSON equality: true is not 1."""
    return type(left) is type(right) and bool(left == right)


def _refused(message: str) -> ApiError:
    """The real server says no more than this (``NewGenericServerResponse``); which path it was stays here."""
    error = ApiError(422, "Invalid", "the server rejected our request due to an error in our request")
    error.add_note(message)
    return error
