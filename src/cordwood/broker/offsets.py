"""Lookup of offsets: the ends of a partition, and records by timestamp."""

from __future__ import annotations

from typing import NamedTuple

from cordwood.storage.log import Partition

#: Kafka's special values in place of a timestamp.
LATEST, EARLIEST, NEWEST, EARLIEST_LOCAL, LATEST_TIERED, EARLIEST_PENDING = -1, -2, -3, -4, -5, -6
_NOTHING = -1


class Position(NamedTuple):
    """A position in a partition; all fields are -1 if there is none."""

    offset: int
    timestamp: int = _NOTHING
    #: The leader epoch of the record at the offset, or of the next appended record.
    leader_epoch: int = _NOTHING


def find_offset(log: Partition, timestamp: int, *, committed: bool = False) -> Position:
    """Return the position for *timestamp*, in milliseconds or one of the constants of this module.

    With *committed*, the partition ends at the last stable offset. There is no tiered storage, so the local
    start is the start, and there is no tiered end.

    Raises:
        ValueError: If *timestamp* is negative and not one of the constants.
        CorruptRange: If the records at the position are corrupt.
    """
    match timestamp:
        case -1:  # LATEST
            return Position(log.last_stable_offset if committed else log.high_watermark)
        case -2 | -4:  # EARLIEST, EARLIEST_LOCAL
            return Position(log.log_start_offset)
        case -3:  # NEWEST
            found = log.newest()
        case -5 | -6:  # LATEST_TIERED, EARLIEST_PENDING
            found = None
        case _ if timestamp >= 0:
            found = log.offset_at(timestamp)
        case _:
            raise ValueError(f"no such time: {timestamp}")
    if found is None or (committed and found[0] >= log.last_stable_offset):
        return Position(_NOTHING)
    return Position(*found)
