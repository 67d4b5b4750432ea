"""Values by prefix: finds every stored prefix of a name, in time that others do not add to."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from typing import Generic, TypeVar

Value = TypeVar("Value")


class _PrefixNode(Generic[Value]):
    """A stored prefix; ``parent`` is the longest other one that it begins with."""

    __slots__ = ("parent", "prefix", "size", "value")

    def __init__(self, prefix: str, value: Value, parent: _PrefixNode[Value] | None) -> None:
        self.prefix = prefix
        self.size = len(prefix)
        self.value = value
        self.parent = parent


class Prefixes(Generic[Value]):
    """A map from prefixes to values.

    A lookup is one binary search and a walk from the longest matching prefix to shorter ones.
    """

    __slots__ = ("_nodes", "_sorted")

    def __init__(self) -> None:
        self._sorted: list[str] = []
        self._nodes: dict[str, _PrefixNode[Value]] = {}

    def __len__(self) -> int:
        return len(self._sorted)

    def items(self) -> Iterator[tuple[str, Value]]:
        """Iterate over the prefixes in order, with their values."""
        for prefix in self._sorted:
            yield prefix, self._nodes[prefix].value

    def get(self, prefix: str) -> Value | None:
        """Return the value of exactly this prefix, None if it is not stored."""
        node = self._nodes.get(prefix)
        return None if node is None else node.value

    def add(self, prefix: str, value: Value) -> None:
        """Store *value* under a prefix that is not stored yet."""
        assert prefix not in self._nodes
        node = _PrefixNode(prefix, value, self._longest(prefix))
        for longer in self._beginning_with(prefix):
            if longer.parent is node.parent:
                longer.parent = node
        self._sorted.insert(bisect_left(self._sorted, prefix), prefix)
        self._nodes[prefix] = node

    def remove(self, prefix: str) -> None:
        """Remove a stored prefix."""
        node = self._nodes.pop(prefix)
        del self._sorted[bisect_left(self._sorted, prefix)]
        for longer in self._beginning_with(prefix):
            if longer.parent is node:
                longer.parent = node.parent

    def matching(self, name: str) -> list[Value]:
        """Return the values of all prefixes of *name*, of the longest first."""
        found: list[Value] = []
        node = self._longest(name)
        while node is not None:
            found.append(node.value)
            node = node.parent
        return found

    def _longest(self, name: str) -> _PrefixNode[Value] | None:
        """Return the longest stored prefix of *name*."""
        index = bisect_right(self._sorted, name)
        if not index:
            return None
        # Everything in order between a prefix of the name and the name begins with that prefix, so all
        # prefixes of the name are this one or its ancestors.
        node: _PrefixNode[Value] | None = self._nodes[self._sorted[index - 1]]
        assert node is not None
        if not name.startswith(node.prefix):
            shared = shared_length(name, node.prefix)
            while node is not None and node.size > shared:
                node = node.parent
        return node

    def _beginning_with(self, prefix: str) -> list[_PrefixNode[Value]]:
        """Return the longer stored prefixes that begin with *prefix*."""
        found = []
        for index in range(bisect_right(self._sorted, prefix), len(self._sorted)):
            if not self._sorted[index].startswith(prefix):
                break
            found.append(self._nodes[self._sorted[index]])
        return found


def shared_length(one: str, other: str) -> int:
    """Return how many characters two texts have in common at their beginning."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one.startswith(other[:middle]):
            low = middle
        else:
            high = middle - 1
    return low
