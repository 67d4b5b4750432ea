"""Reading the ends of several partitions beside their writer, so that no batch is seen in some of them only.

A batch comes into view of such readers partition by partition, as the marks move. Its journal has an open
intent all the time: from before the first mark moves until after the last one. So a reader that reads the
journals before and after the ends knows the batches that it may have seen in part, and their first offsets.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple, TypeVar

from cordwood.disk import Files
from cordwood.errors import MetadataDamaged, StorageError
from cordwood.storage.sink.journal import Journal, decode_journal, journal_paths
from cordwood.storage.sink.staging import StagedTarget

Result = TypeVar("Result")
#: How often ends are read again because whole batches were published meanwhile.
_TRIES = 64


class OpenIntents(NamedTuple):
    """The batches that are being published: the first offset that each partition gets for one of them."""

    offsets: Mapping[StagedTarget, int]

    def end_before(self, topic: str, topic_id: str, partition: int, end: int) -> int:
        """Return *end* of a partition, or the first offset of an open intent if that is lower."""
        return min(end, self.offsets.get(StagedTarget(topic, topic_id, partition), end))


NO_INTENTS = OpenIntents({})


def look_at_once(files: Files, data: str, look: Callable[[], Result]) -> tuple[Result, OpenIntents]:
    """Return the result of *look*, which reads ends of partitions, and the offsets that they must not pass.

    Cut at these, the ends of all partitions have a batch completely or not at all. *look* is called again if
    a batch was published meanwhile from its intent to its end.

    Raises:
        MetadataDamaged: If a journal cannot be read.
        StorageError: If batches are published faster than *look* returns.
    """
    before = _read(files, data)
    for _ in range(_TRIES):
        found = look()
        after = _read(files, data)
        if _is_all_known(before, after):
            return found, _open_in(before, after)
        before = after
    raise StorageError(f"{data}: batches are published faster than the ends of partitions can be read")


def _read(files: Files, data: str) -> list[Journal]:
    """Return the journals of all queries, the newest publication last."""
    while True:
        paths, found = journal_paths(files, data), list[Journal]()
        for path in paths:
            try:
                found.append(decode_journal(files, path))
            except MetadataDamaged:
                if files.exists(path):
                    raise
                # Removed after a newer publication, whose journal may be missing in the list.
                break
        else:
            return sorted(found, key=lambda journal: journal.number)


def _is_all_known(before: list[Journal], after: list[Journal]) -> bool:
    """Return whether each publication that was under way between the two has an intent in one of them.

    There is one at a time, and each has the next number.
    """
    first = before[-1].number if before else 0
    last = after[-1].number if after else 0
    return last == first or (last == first + 1 and after[-1].intent is not None)


def _open_in(*looks: list[Journal]) -> OpenIntents:
    """Return the lowest offsets that the open intents promise."""
    offsets: dict[StagedTarget, int] = {}
    for intent in (journal.intent for journals in looks for journal in journals):
        for place in () if intent is None else intent.places:
            target = StagedTarget(place.topic, place.topic_id, place.partition)
            offsets[target] = min(place.base_offset, offsets.get(target, place.base_offset))
    return OpenIntents(offsets)
