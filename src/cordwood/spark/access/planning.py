"""Decide what to read: offsets from the user's options, pieces for tasks, limits of a trigger. Pure."""

from __future__ import annotations

import heapq
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import TypeAlias

from cordwood.errors import ConfigError, UnknownTopic
from cordwood.spark.access.access import Ends, Piece
from cordwood.spark.options import EARLIEST, LATEST, Limit, Subscription
from cordwood.tenancy import suggest

#: A task reads at most about this many bytes; a range that is a little larger becomes two of half the size.
PIECE_BYTES_MAX = 128 << 20
#: Reading a range costs as much as this many bytes before its first record, as Spark counts for a file
#: (spark.sql.files.openCostInBytes).
RANGE_BYTES = 4 << 20
#: Small ranges share tasks only as far as this many tasks remain: Spark does not tell a Python source how
#: many cores there are.
TASKS_MIN = 16

Partition: TypeAlias = tuple[str, int]
OffsetsAt: TypeAlias = Callable[[Mapping[Partition, int]], Mapping[Partition, int | None]]
"""Maps a time for each partition to its first offset at or after that time; see `Access.offsets_at`."""


def named_topics(subscription: Subscription) -> set[str] | None:
    """Return the topics that *subscription* names, None if it is a pattern."""
    if subscription.kind == "subscribePattern":
        return None
    return {*subscription.topics, *(topic for topic, _ in subscription.partitions)}


def subscribed(subscription: Subscription, there: Mapping[str, int]) -> dict[str, tuple[int, ...] | None]:
    """Return the topics to read among the existing ones *there*, and their partitions if not all.

    Raises:
        UnknownTopic: If one that is named does not exist.
    """
    if subscription.kind == "subscribePattern":
        pattern = re.compile(subscription.pattern)
        # Internal topics are read only if they are named, as in Kafka's clients.
        found = [name for name in sorted(there) if not name.startswith("__") and pattern.search(name)]
        return dict.fromkeys(found)
    wanted: dict[str, tuple[int, ...] | None] = dict.fromkeys(sorted(subscription.topics))
    for topic, number in subscription.partitions:
        wanted[topic] = (*(wanted.get(topic) or ()), number)
    for topic, numbers in wanted.items():
        if topic not in there:
            raise UnknownTopic.named(topic, suggestion=suggest(topic, there))
        beyond = [number for number in numbers or () if number >= there[topic]]
        if beyond:
            raise UnknownTopic(f"topic {topic} has {there[topic]} partitions, and no partition {beyond[0]}")
    return wanted


def left_of(subscription: Subscription, there: Mapping[str, int]) -> Subscription:
    """Return *subscription* without the topics and partitions that do not exist in *there*."""
    return replace(
        subscription,
        topics=tuple(topic for topic in subscription.topics if topic in there),
        partitions=tuple(each for each in subscription.partitions if each[1] < there.get(each[0], 0)),
    )


def find_offsets(
    limit: Limit, ends: Mapping[Partition, Ends], offsets_at: OffsetsAt, *, latest_without_match: bool
) -> dict[Partition, int]:
    """Return the offset that *limit* means in each partition of *ends*.

    Raises:
        ConfigError: If it omits a partition, names a missing one, is beyond the end, or names a time after
            the last record without *latest_without_match*.
    """
    if limit.each is not None:
        _check_same(limit, ends)
    told = {place: limit.everywhere if limit.each is None else limit.each[place] for place in ends}
    wanted = {place: said for place, said in told.items() if said is not None}
    assert wanted.keys() == ends.keys()
    at_times = offsets_at(wanted) if limit.timed else {}
    found = {}
    for (topic, number), there in ends.items():
        said = wanted[topic, number]
        where = f"partition {number} of topic {topic}"
        if limit.timed:
            at = at_times[topic, number]
            if at is None and not latest_without_match:
                raise ConfigError(
                    limit.option, f"{limit.option}: {where} has no record at or after timestamp {said}"
                )
            # A record may have been appended after the ends were read.
            found[topic, number] = there.end if at is None else min(at, there.end)
        elif said > there.end:
            raise ConfigError(
                limit.option,
                f"{limit.option}: {where} has offsets {there.start} up to {there.end}, "
                f"and {said} is past the end",
            )
        else:
            found[topic, number] = {EARLIEST: there.start, LATEST: there.end}.get(said, said)
    return found


def _check_same(limit: Limit, ends: Mapping[Partition, Ends]) -> None:
    assert limit.each is not None
    for name, missing in (
        ("leaves out", ends.keys() - limit.each.keys()),
        ("names what is not read:", limit.each.keys() - ends.keys()),
    ):
        if missing:
            topic, number = min(missing)
            raise ConfigError(limit.option, f"{limit.option} {name} partition {number} of topic {topic}")


def cut_pieces(
    pieces: Sequence[tuple[Piece, Sequence[int]]],
    min_partitions: int | None,
    max_records_per_partition: int | None,
) -> list[Piece]:
    """Return the work of the tasks: ranges split within the size limit and the minimum count.

    In the order of *pieces*; empty ranges are left out.
    """
    whole = []
    for piece, cuts in pieces:
        inner = [cut for cut in cuts if piece.start < cut < piece.end]
        borders = [piece.start, *inner, piece.end]
        for start, end in pairwise(borders):
            if start < end:
                whole.append(piece._replace(start=start, end=end))
    counts = [1] * len(whole)
    if max_records_per_partition is not None:
        counts = [-(-(piece.end - piece.start) // max_records_per_partition) for piece in whole]
    _add_parts(whole, counts, min_partitions or 0)
    return [part for piece, count in zip(whole, counts, strict=True) for part in _even_parts(piece, count)]


def _add_parts(whole: Sequence[Piece], counts: list[int], at_least: int) -> None:
    """Raise *counts*, the parts of each piece, until there are *at_least* parts, largest pieces first."""
    largest = [(-(piece.end - piece.start) / counts[i], i) for i, piece in enumerate(whole)]
    heapq.heapify(largest)
    for _ in range(at_least - sum(counts)):
        if not largest:
            return
        _, i = heapq.heappop(largest)
        size = whole[i].end - whole[i].start
        if counts[i] < size:
            counts[i] += 1
            heapq.heappush(largest, (-size / counts[i], i))


def even_cuts(piece: Piece, count: int) -> list[int]:
    """Return the offsets that split *piece* into *count* parts with about the same number of offsets."""
    size = piece.end - piece.start
    return [piece.start + size * i // count for i in range(1, count)]


def _even_parts(piece: Piece, count: int) -> list[Piece]:
    borders = [piece.start, *even_cuts(piece, count), piece.end]
    return [piece._replace(start=a, end=b) for a, b in pairwise(borders)]


def share_tasks(
    sized: Sequence[tuple[Piece, int]], min_partitions: int | None, max_records_per_partition: int | None
) -> list[list[Piece]]:
    """Return which pieces are read by one task, given the size in bytes of each.

    In the order of *sized*. A task has one piece, or several that together cost at most about
    `PIECE_BYTES_MAX` and hold at most *max_records_per_partition* offsets, of different partitions. There are
    no fewer tasks than `TASKS_MIN` and *min_partitions* as far as there are pieces.
    """
    at_least = max(TASKS_MIN, min_partitions or 0)
    costs = [size + RANGE_BYTES for _, size in sized]
    room = min(PIECE_BYTES_MAX, sum(costs) // at_least)
    tasks: list[list[Piece]] = []
    taken = offsets = 0
    for i, (piece, _) in enumerate(sized):
        count = piece.end - piece.start
        fits = (
            bool(tasks)
            and taken + costs[i] <= room
            and (max_records_per_partition is None or offsets + count <= max_records_per_partition)
            and tasks[-1][-1][:2] != piece[:2]
            and len(tasks) + len(sized) - i > at_least
        )
        if fits:
            tasks[-1].append(piece)
            taken, offsets = taken + costs[i], offsets + count
        else:
            tasks.append([piece])
            taken, offsets = costs[i], count
    return tasks


def share_out(limit: int, available: Mapping[Partition, int]) -> dict[Partition, int]:
    """Return the number of offsets of each partition in a trigger of *limit*, given those *available*.

    The sum is *limit* if enough are available. Each partition with any gives at least one, so that none
    starves; the limit is exceeded only if there are more such partitions.
    """
    waiting = {partition: size for partition, size in available.items() if size > 0}
    total = sum(waiting.values())
    shares = dict.fromkeys(available, 0)
    if total <= limit:
        return shares | waiting
    for partition, size in waiting.items():
        shares[partition] = max(limit * size // total, 1)
    # Correct rounding: some offsets are left, or the minimum of one took too many.
    by_size = sorted(waiting, key=lambda partition: (-waiting[partition], partition))
    left = limit - sum(shares.values())
    while left > 0:
        for partition in by_size:
            if left > 0 and shares[partition] < waiting[partition]:
                shares[partition] += 1
                left -= 1
    for partition in by_size:
        surplus = min(shares[partition] - 1, max(-left, 0))
        shares[partition] -= surplus
        left += surplus
    return shares


def is_due(available: int, min_offsets: int | None, waited_ms: int, max_delay_ms: int) -> bool:
    """Return whether a trigger runs: enough offsets are available, or it waited long enough."""
    return min_offsets is None or available >= min_offsets or waited_ms >= max_delay_ms
