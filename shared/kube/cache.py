"""What a watch has told, kept and indexed.

    pods = PodCache()
    async for change in pods.follow(kube.watch_pods(keep=...)):
        ...                                     # the cache stands as of this change
    pods.on_node("worker-3")

The watch lists, resumes, and lists again after 410 and now and then unasked (`shared.kube.watching`), so a
cache is never wrong for good; it is only ever late. What cannot be undone is decided by a live look.
"""

from __future__ import annotations

from contextlib import aclosing
from typing import TYPE_CHECKING, Generic, TypeVar

from shared.kube.models import Change, ChangeKind, Node, Pod

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Iterator, Mapping

T = TypeVar("T", Pod, Node)


class _Cache(Generic[T]):
    """Objects by uid, and by whatever they are asked for."""

    def __init__(self, indexes: Mapping[str, Callable[[T], str]]) -> None:
        self._items: dict[str, T] = {}
        self._by: dict[str, tuple[Callable[[T], str], _Index[T]]] = {
            name: (of, _Index()) for name, of in indexes.items()
        }
        self.synced = False
        """Everything that stood at the first list is here."""

    def __len__(self) -> int:
        return len(self._items)

    def __iter__(self) -> Iterator[T]:
        """A copy: what is done with the items may change the cache."""
        return iter(tuple(self._items.values()))

    def get(self, uid: str) -> T | None:
        """One object by uid."""
        return self._items.get(uid)

    async def follow(self, changes: AsyncGenerator[Change[T], None]) -> AsyncGenerator[Change[T], None]:
        """Take every change of a watch, and tell it on."""
        async with aclosing(changes):
            async for change in changes:
                self.take(change)
                yield change

    def take(self, change: Change[T]) -> None:
        """One change."""
        item = change.item
        if item is None:
            self.synced = self.synced or change.kind is ChangeKind.SYNCED
            return
        before = self._items.pop(item.uid, None)
        for of, index in self._by.values():
            was, now = of(before) if before is not None else "", of(item)
            if change.kind is ChangeKind.DELETED or was != now:
                index.drop(was, item.uid)
            if change.kind is not ChangeKind.DELETED:
                index.put(now, item.uid, item)
        if change.kind is not ChangeKind.DELETED:
            self._items[item.uid] = item

    def _found(self, index: str, value: str) -> tuple[T, ...]:
        return self._by[index][1].get(value)


class _Index(Generic[T]):
    """Objects by one of their values; an empty value is not indexed."""

    def __init__(self) -> None:
        self._items: dict[str, dict[str, T]] = {}

    def get(self, value: str) -> tuple[T, ...]:
        return tuple(self._items.get(value, {}).values())

    def put(self, value: str, uid: str, item: T) -> None:
        if value:
            self._items.setdefault(value, {})[uid] = item

    def drop(self, value: str, uid: str) -> None:
        items = self._items.get(value)
        if items is None:
            return
        items.pop(uid, None)
        if not items:
            del self._items[value]


class PodCache(_Cache[Pod]):
    """Pods by uid, node, namespace and owner."""

    def __init__(self) -> None:
        super().__init__(
            {
                "node": lambda pod: pod.node,
                "namespace": lambda pod: pod.namespace,
                "owner": lambda pod: "" if pod.owner is None else pod.owner.uid,
            }
        )

    def on_node(self, node: str) -> tuple[Pod, ...]:
        """Pods bound to a node."""
        return self._found("node", node)

    def in_namespace(self, namespace: str) -> tuple[Pod, ...]:
        """Pods of a namespace."""
        return self._found("namespace", namespace)

    def owned_by(self, uid: str) -> tuple[Pod, ...]:
        """Pods of one ReplicaSet, Job, ... by its uid."""
        return self._found("owner", uid)


class NodeCache(_Cache[Node]):
    """Nodes by uid and name."""

    def __init__(self) -> None:
        super().__init__({"name": lambda node: node.name})

    def named(self, name: str) -> Node | None:
        """One node by name; while one takes the place of another, the later."""
        found = self._found("name", name)
        return found[-1] if found else None
