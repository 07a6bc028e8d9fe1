"""What a request to a resource does: from a parsed target and a body to a status and a JSON body.

No HTTP in here beyond status codes; `server` does that.
"""

from __future__ import annotations

import base64
import copy
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from services.simulator.api.eviction import bind, evict
from services.simulator.api.patch import json_patch, merge_patch, strategic_patch
from services.simulator.api.resources import NAMESPACES, PODS
from services.simulator.api.selectors import matches_all, parse_fields, parse_labels
from services.simulator.api.shapes import shaped
from services.simulator.api.status import ApiError, bad_request, expired, success
from services.simulator.api.views import to_stored, to_view
from services.simulator.api.watch import Selection, WatchRequest

if TYPE_CHECKING:
    from collections.abc import Mapping

    from services.simulator.api.request import Target
    from services.simulator.api.resources import Resource
    from services.simulator.api.store import Store

Json = dict[str, Any]
Reply = tuple[int, Json]

JSON_PATCH: Final = "application/json-patch+json"
MERGE_PATCH: Final = "application/merge-patch+json"
STRATEGIC_PATCH: Final = "application/strategic-merge-patch+json"
_SCALE: Final = ("autoscaling/v1", "Scale")


@dataclass(frozen=True, slots=True)
class Call:
    """One request to a target."""

    verb: str
    target: Target
    query: Mapping[str, str]
    body: Any = None
    content_type: str = ""

    @property
    def dry_run(self) -> bool:
        """Nothing is to be stored."""
        return self.query.get("dryRun") == "All"


def handle(store: Store, call: Call) -> Reply:
    """Carry out anything but a watch.

    Raises:
        ApiError: with the `Status` that a kube-apiserver would answer.
    """
    if call.target.subresource:
        return _subresource(store, call)
    match call.verb:
        case "get":
            return 200, _shown(call, _stored(store, call))
        case "list":
            return 200, _list(store, call)
        case "create":
            return _create(store, call)
        case "update":
            return 200, _shown(call, _update(store, call, _object(call)))
        case "patch":
            return 200, _shown(call, _patched(store, call))
        case "delete":
            return _delete(store, call)
        case "deletecollection":
            return 200, _delete_collection(store, call)
        case _:
            raise _not_allowed()


def watch_request(call: Call, *, bookmark_s: float) -> WatchRequest:
    """A watch as asked for in the query.

    Raises:
        ApiError: 400, a number or selector that does not parse.
    """
    query = call.query
    version = query.get("resourceVersion", "")
    initial = query.get("sendInitialEvents", "").lower() == "true"
    if initial and query.get("resourceVersionMatch") != "NotOlderThan":
        raise bad_request(
            "sendInitialEvents requires resourceVersionMatch=NotOlderThan", "resourceVersionMatch"
        )
    bookmarks = query.get("allowWatchBookmarks", "").lower() in ("true", "1")
    timeout_s = _number(query, "timeoutSeconds")
    return WatchRequest(
        resource=call.target.view.resource,
        selection=selection(call),
        revision=None
        if initial or version in ("", "0")
        else _number({"resourceVersion": version}, "resourceVersion"),
        timeout_s=float(timeout_s) if timeout_s else None,
        bookmark_s=bookmark_s if bookmarks else None,
        initial_end=initial and bookmarks,
    )


def selection(call: Call) -> Selection:
    """The objects that the query's selectors show.

    Raises:
        ApiError: 400, a selector does not parse.
    """
    labels = parse_labels(call.query.get("labelSelector", ""))
    fields = parse_fields(call.query.get("fieldSelector", ""), call.target.view.resource.kind)
    name = call.target.name
    return Selection(
        call.target.namespace,
        lambda body: (
            (not name or body["metadata"]["name"] == name)
            and matches_all(labels, body["metadata"].get("labels"))
            and fields(body)
        ),
    )


def _stored(store: Store, call: Call) -> Json:
    target = call.target
    if target.view.resource.namespaced and not target.namespace:
        raise _not_allowed()
    return store.get(target.view.resource, target.namespace, target.name)


def _shown(call: Call, body: Json) -> Json:
    return to_view(call.target.view, body)


def _object(call: Call) -> Json:
    """The body as an object of the target's kind.

    Raises:
        ApiError: 400, with the field.
    """
    body, view = call.body, call.target.view
    if not isinstance(body, dict):
        raise bad_request("must be an object", "body")
    for name, expected in (("apiVersion", view.api_version), ("kind", view.resource.kind)):
        if body.get(name, expected) != expected:
            raise bad_request(f"{body[name]!r} does not match the expected {expected!r}", name)
    return to_stored(view, _shaped(call, body))


def _shaped(call: Call, body: Json) -> Json:
    return shaped(body, custom=not call.target.view.resource.strategic)


def _create(store: Store, call: Call) -> Reply:
    target = call.target
    if target.name or (target.view.resource.namespaced and not target.namespace):
        raise _not_allowed()
    body = _object(call)
    namespace = (body.get("metadata") or {}).get("namespace")
    if namespace and target.namespace and namespace != target.namespace:
        raise bad_request(
            f"the namespace of the provided object ({namespace}) does not match the namespace of the request",
            "metadata.namespace",
        )
    created = store.create(target.view.resource, target.namespace, body, dry_run=call.dry_run)
    return 201, _shown(call, created)


def _update(store: Store, call: Call, body: Json) -> Json:
    target = call.target
    _stored(store, call)
    return store.replace(
        target.view.resource,
        target.namespace,
        target.name,
        body,
        subresource=target.subresource,
        dry_run=call.dry_run,
    )


def _patched(store: Store, call: Call) -> Json:
    stored = _shown(call, _stored(store, call))
    patched = _shaped(call, _apply_patch(call, copy.deepcopy(stored)))
    if patched.get("metadata", {}).get("name") != call.target.name:
        raise bad_request("the name of the object may not change", "metadata.name")
    return _update(store, call, to_stored(call.target.view, patched))


def _apply_patch(call: Call, body: Json) -> Json:
    kind = call.content_type
    if kind == JSON_PATCH:
        patched = json_patch(body, call.body)
    elif not isinstance(call.body, dict):
        raise bad_request("a merge patch is an object", "body")
    elif kind == MERGE_PATCH:
        patched = merge_patch(body, call.body)
    elif kind == STRATEGIC_PATCH and call.target.view.resource.strategic:
        patched = strategic_patch(body, call.body)
    else:
        message = (
            f"the body of the request was in an unknown format - accepted media types include: {JSON_PATCH}"
        )
        raise ApiError(415, "UnsupportedMediaType", f"{message}, {MERGE_PATCH}")
    if not isinstance(patched, dict):
        raise bad_request("the patch leaves no object", "body")
    return patched


def _options(call: Call) -> Json:
    options = shaped(call.body) if isinstance(call.body, dict) else {}
    for name in ("gracePeriodSeconds", "propagationPolicy"):
        if name in call.query:
            options[name] = call.query[name]
    grace = options.get("gracePeriodSeconds")
    if grace is not None:
        number = _number({"gracePeriodSeconds": str(grace)}, "gracePeriodSeconds")
        options["gracePeriodSeconds"] = number
    return options


def _delete(store: Store, call: Call) -> Reply:
    target, options = call.target, _options(call)
    _stored(store, call)
    dry_run = call.dry_run or "All" in (options.get("dryRun") or ())
    body, gone = store.delete(target.view.resource, target.namespace, target.name, options, dry_run=dry_run)
    if target.view.resource.returns_deleted or not gone:
        return 200, _shown(call, body)
    meta, resource = body["metadata"], target.view.resource
    details = {"name": meta["name"], "kind": resource.plural, "uid": meta["uid"]}
    return 200, success(details | ({"group": resource.group} if resource.group else {}))


def _delete_collection(store: Store, call: Call) -> Json:
    chosen, options = selection(call), _options(call)
    resource = call.target.view.resource
    found = [body for body in store.each(resource, call.target.namespace) if chosen.shows(body)]
    deleted = [
        store.delete(
            resource,
            body["metadata"].get("namespace", ""),
            body["metadata"]["name"],
            options,
            dry_run=call.dry_run,
        )[0]
        for body in found
    ]
    return _as_list(store, call, deleted)


def _as_list(store: Store, call: Call, items: list[Json]) -> Json:
    view = call.target.view
    return {
        "kind": f"{view.resource.kind}List",
        "apiVersion": view.api_version,
        "metadata": {"resourceVersion": str(store.revision)},
        "items": [to_view(view, body) for body in items],
    }


def _list(store: Store, call: Call) -> Json:
    """A page of a list; later ones carry the first one's revision: a watch from there loses nothing."""
    version = _number(call.query, "resourceVersion")
    if version is not None and version > store.revision:
        store.check_watch(call.target.view.resource, version)
    chosen = selection(call)
    resource = call.target.view.resource
    bodies = [body for body in store.each(resource, call.target.namespace) if chosen.shows(body)]
    listed_at, after = _continued(store, resource, call.query.get("continue", ""))
    if after is not None:
        bodies = [b for b in bodies if (b["metadata"].get("namespace", ""), b["metadata"]["name"]) > after]
    limit = _number(call.query, "limit") or len(bodies)
    page = _as_list(store, call, bodies[:limit])
    page["metadata"]["resourceVersion"] = str(listed_at)
    if len(bodies) > limit:
        last = bodies[limit - 1]["metadata"]
        token = json.dumps([listed_at, last.get("namespace", ""), last["name"]])
        page["metadata"]["continue"] = base64.urlsafe_b64encode(token.encode()).decode()
        page["metadata"]["remainingItemCount"] = len(bodies) - limit
    return page


def _continued(store: Store, resource: Resource, token: str) -> tuple[int, tuple[str, str] | None]:
    if not token:
        return store.revision, None
    try:
        listed_at, namespace, name = json.loads(base64.urlsafe_b64decode(token))
    except ValueError as error:
        raise bad_request("continue key is not valid", "continue") from error
    if int(listed_at) < store.ring(resource).floor:
        raise expired("The provided continue parameter is too old to display a consistent list result.")
    return int(listed_at), (namespace, name)


# --- subresources -------------------------------------------------------------------------------------------


def _subresource(store: Store, call: Call) -> Reply:
    target, resource = call.target, call.target.view.resource
    stored = _stored(store, call)
    if target.subresource == "status" and (resource.status or resource is NAMESPACES):
        match call.verb:
            case "get":
                return 200, _shown(call, stored)
            case "update":
                return 200, _shown(call, _update(store, call, _object(call)))
            case "patch":
                return 200, _shown(call, _patched(store, call))
    if target.subresource == "scale" and resource.scale:
        return 200, _scale(store, call, stored)
    if resource is PODS and call.verb == "create":
        if not isinstance(call.body, dict):
            raise bad_request("must be an object", "body")
        if target.subresource == "eviction":
            return 201, evict(
                store, target.namespace, target.name, _shaped(call, call.body), dry_run=call.dry_run
            )
        if target.subresource == "binding":
            return 201, bind(
                store, target.namespace, target.name, _shaped(call, call.body), dry_run=call.dry_run
            )
    raise _not_found_here()


def _scale(store: Store, call: Call, stored: Json) -> Json:
    """The Scale of a workload; ``resourceVersion`` is the workload's own."""
    shown = _scale_of(stored)
    if call.verb == "get":
        return shown
    if call.verb == "update":
        wanted = call.body
    elif call.verb == "patch":
        wanted = _apply_patch(call, copy.deepcopy(shown))
    else:
        raise _not_allowed()
    if not isinstance(wanted, dict):
        raise bad_request("must be an object", "body")
    wanted = shaped({name: wanted.get(name) for name in ("metadata", "spec")})
    replicas = (wanted.get("spec") or {}).get("replicas", 0)
    if replicas < 0:
        raise bad_request(f"Invalid value: {replicas!r}: must be greater than or equal to 0", "spec.replicas")
    changed = copy.deepcopy(stored)
    changed["spec"]["replicas"] = replicas
    changed["metadata"]["resourceVersion"] = (wanted.get("metadata") or {}).get("resourceVersion", "")
    target = call.target
    written = store.replace(
        target.view.resource, target.namespace, target.name, changed, dry_run=call.dry_run
    )
    return _scale_of(written)


def _scale_of(body: Json) -> Json:
    meta, labels = body["metadata"], (body["spec"].get("selector") or {}).get("matchLabels") or {}
    kept = ("name", "namespace", "uid", "resourceVersion", "creationTimestamp")
    return {
        "apiVersion": _SCALE[0],
        "kind": _SCALE[1],
        "metadata": {name: meta[name] for name in kept},
        "spec": {"replicas": replicas} if (replicas := body["spec"].get("replicas", 1)) else {},
        "status": {
            "replicas": (body.get("status") or {}).get("replicas", 0),
            "selector": ",".join(f"{key}={value}" for key, value in sorted(labels.items())),
        },
    }


def _number(query: Mapping[str, str], name: str) -> int | None:
    text = query.get(name, "")
    if not text:
        return None
    if not text.isascii() or not text.isdigit() or len(text) > 18:  # noqa: PLR2004 - fits int64
        raise bad_request(f"Invalid value: {text!r}: must be a whole number", name)
    return int(text)


def _not_allowed() -> ApiError:
    return ApiError(
        405, "MethodNotAllowed", "the server does not allow this method on the requested resource"
    )


def _not_found_here() -> ApiError:
    return ApiError(404, "NotFound", "the server could not find the requested resource")
