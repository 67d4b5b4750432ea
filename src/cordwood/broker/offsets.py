"""Finding offsets: the ends of a partition, and the record at a time."""

from __future__ import annotations

from typing import NamedTuple

from cordwood.storage.log import Partition

#: What Kafka's clients ask for in place of a timestamp.
LATEST, EARLIEST, NEWEST, EARLIEST_LOCAL, LATEST_TIERED, EARLIEST_PENDING = -1, -2, -3, -4, -5, -6
_NOTHING = -1


class Position(NamedTuple):
    """A place in a partition; all are -1 where there is none."""

    offset: int
    timestamp: int = _NOTHING
    #: The leader epoch of the record there, or of the next one that is appended.
    leader_epoch: int = _NOTHING


def find_offset(log: Partition, timestamp: int) -> Position:
    """Return the place that *timestamp*, in milliseconds or one of the constants here, stands for.

    Nothing is ever tiered, so the local start is the start and the tiered end is nowhere.

    Raises:
        ValueError: If *timestamp* is negative and none of the constants.
        CorruptRange: If the records there are not what was written.
    """
    match timestamp:
        case -1:  # LATEST
            return Position(log.high_watermark)
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
    return Position(_NOTHING) if found is None else Position(*found)
