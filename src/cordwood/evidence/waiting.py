"""Wait until the chains on disk have leaves for every record that was synced when the call began.

The process that writes a directory adds leaves in the background and syncs them some seconds later. A process
beside it, which signs a checkpoint of the leaves on disk, waits for that instead of leaving records out.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

from cordwood.disk import Files
from cordwood.errors import EvidenceMissing, UnknownTopic
from cordwood.evidence.checkpoints import chained_topics
from cordwood.evidence.places import OpenedDirectory, Path, opened
from cordwood.host import Clock, SystemClock
from cordwood.storage.chain import read_head
from cordwood.wording import counted

#: How often the chains on disk are looked at.
POLL_SECONDS = 0.2


class _SyncedEnd(NamedTuple):
    """The end of a partition with records when the wait began, and its leader epoch then."""

    topic: str
    topic_id: str
    partition: int
    epoch: int
    high_watermark: int


def wait_for_leaves(
    path: Path,
    topic: str | None = None,
    *,
    seconds: float,
    files: Files | None = None,
    clock: Clock | None = None,
    pause: Callable[[float], object] = time.sleep,
) -> None:
    """Wait until every offset that is synced now has its leaf on disk, of *topic* or of every topic.

    Topics that keep no chain are left out. Changes nothing and takes no lock. *pause* is called with the
    seconds to the next look.

    Raises:
        EvidenceMissing: If leaves are missing after *seconds*; says how many offsets have none. Or if *topic*
            keeps no chain, or no topic does.
        UnknownTopic: If there is no such topic.
    """
    clock = SystemClock() if clock is None else clock
    deadline_ns = clock.monotonic_ns() + round(seconds * 1e9)
    with opened(path, files) as place:
        ends = list(_synced_ends(place, topic))
        while behind := {end: count for end in ends if (count := _offsets_behind(place, end)) is not None}:
            left_seconds = (deadline_ns - clock.monotonic_ns()) / 1e9
            if left_seconds <= 0:
                raise EvidenceMissing(_sentence(behind, seconds))
            pause(min(POLL_SECONDS, left_seconds))
            # A chain that has come far enough once needs no second look.
            ends = list(behind)


def _synced_ends(place: OpenedDirectory, topic: str | None) -> Iterator[_SyncedEnd]:
    """Yield the ends of all partitions that have records."""
    directory = place.directory
    for name in chained_topics(directory, topic):
        entry = directory.topics[name]
        for partition in range(entry.partitions):
            log = directory.readable(name, partition, entry)
            found = log.published()
            end = found.high_watermark
            if found.log_start_offset < end:
                yield _SyncedEnd(name, entry.id, partition, found.leader_epoch, end)


def _offsets_behind(place: OpenedDirectory, end: _SyncedEnd) -> int | None:
    """Return how many offsets below *end* have no leaf on disk; None if the chain there covers all of them.

    It is 0 if the chain does not state a truncation yet and covers all that this left.
    """
    directory = place.directory
    entry = directory.topics.get(end.topic)
    if entry is None or entry.id != end.topic_id:
        return None
    try:
        published = directory.readable(end.topic, end.partition, entry).published()
    except UnknownTopic:
        # It was deleted meanwhile.
        return None
    start, epochs = published.log_start_offset, published.epochs
    head = read_head(place.files, place.partition_path(end.topic, end.partition))
    # Offsets that a truncation has removed since will not get leaves any more.
    wanted = min([end.high_watermark, *(first for first, epoch in epochs if epoch > end.epoch)])
    if head is not None and head.leader_epoch < end.epoch:
        cut = min((first for first, epoch in epochs if epoch > head.leader_epoch), default=wanted)
        return max(wanted - min(cut, head.next_offset), 0)
    missing = wanted - (start if head is None else head.next_offset)
    return missing if missing > 0 else None


def _sentence(behind: dict[_SyncedEnd, int], seconds: float) -> str:
    first, count = next(iter(behind)), sum(behind.values())
    which = f"partition {first.partition} of topic {first.topic}"
    if len(behind) > 1:
        which = f"{len(behind)} partitions, {which} among them,"
    what = f"{counted(count, 'offset')} of {which} {'has' if count == 1 else 'have'} no leaves on disk yet"
    if not count:
        what = f"a truncation of {which} is not in the chain on disk yet"
    return f"nothing was signed: {what}, after {seconds:g} seconds"
