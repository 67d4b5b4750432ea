"""The rows of one group that are being stored, and the replies that wait for them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from cordwood.broker.groups.actions import GroupReply
from cordwood.broker.groups.consumer import LaterRows
from cordwood.broker.groups.offsets_topic import OffsetsRow


@dataclass(slots=True)
class _Write:
    number: int
    keys: frozenset[bytes]
    replies: list[GroupReply]
    #: Whether an earlier write, which this one builds on, has failed since.
    in_vain: bool = False


class GroupWrites:
    """The writes of one group, which are stored in their order. Used by one thread.

    The state of the group is ahead of what is stored. So a reply also waits for the rows of earlier events,
    and if rows are not stored, the next write has all of their keys again, with their values of that time.
    """

    def __init__(self) -> None:
        self._queue: deque[_Write] = deque()
        self._number = 0
        self._lost: set[bytes] = set()

    @property
    def is_idle(self) -> bool:
        """Whether nothing is being stored or has to be."""
        return not self._queue and not self._lost

    def write(
        self,
        rows: Sequence[OffsetsRow],
        replies: Iterable[GroupReply],
        all_rows: Callable[[], Iterable[OffsetsRow]],
    ) -> tuple[int, Sequence[OffsetsRow]] | list[GroupReply]:
        """Return the number of a write and its rows, or the replies to send if there is nothing to store.

        *all_rows* returns the rows of the group as they are now.
        """
        if self._lost:
            rows = self.repaired(rows, all_rows)
            self._lost.clear()
        if rows:
            self._number += 1
            keys = rows.keys() if isinstance(rows, LaterRows) else frozenset(key for key, _ in rows)
            self._queue.append(_Write(self._number, keys, list(replies)))
            return self._number, rows
        if self._queue:
            self._queue[-1].replies += replies
            return []
        return list(replies)

    def repaired(
        self, rows: Sequence[OffsetsRow], all_rows: Callable[[], Iterable[OffsetsRow]]
    ) -> Sequence[OffsetsRow]:
        """Return *rows* after those that were not stored before."""
        if not self._lost:
            return rows
        known = dict(all_rows())
        return [*((key, known.get(key)) for key in sorted(self._lost)), *rows]

    def stored(self, number: int, *, failed: bool) -> tuple[list[GroupReply], bool]:
        """Take the result of a write; return its replies, and whether to send them or to refuse them."""
        write = self._queue.popleft()
        assert write.number == number, "writes of a group were stored in another order"
        if failed:
            self._lost |= write.keys
            for later in self._queue:
                later.in_vain = True
        return write.replies, not (failed or write.in_vain)

    def lost_tombstones(self, rows: Sequence[OffsetsRow]) -> list[OffsetsRow]:
        """Return *rows*, which delete the group, and tombstones of what was lost."""
        keys = {key for key, _ in rows}
        return [*rows, *((key, None) for key in sorted(self._lost - keys))]
