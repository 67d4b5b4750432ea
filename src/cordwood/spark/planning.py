"""Deciding what to read: offsets from what the user said, pieces for tasks, shares of a trigger. Pure."""

from __future__ import annotations

import heapq
import re
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import TypeAlias

from cordwood.errors import ConfigError, UnknownTopic
from cordwood.spark.access import Ends, Piece
from cordwood.spark.options import EARLIEST, LATEST, Limit, Subscription

#: A task reads at most about this much of a directory; two pieces of half of it come of a little more.
PIECE_BYTES_MAX = 128 << 20

Partition: TypeAlias = tuple[str, int]
OffsetAt: TypeAlias = Callable[[str, int, int], int | None]


def subscribed(subscription: Subscription, there: Mapping[str, int]) -> dict[str, tuple[int, ...] | None]:
    """Return the topics to read out of those that are *there*, and which partitions if not all.

    Raises:
        UnknownTopic: If one that is named does not exist.
    """
    if subscription.kind == "subscribePattern":
        pattern = re.compile(subscription.pattern)
        # Internal topics are named or not read, as Kafka's clients have it.
        found = [name for name in sorted(there) if not name.startswith("__") and pattern.search(name)]
        return dict.fromkeys(found)
    wanted: dict[str, tuple[int, ...] | None] = dict.fromkeys(sorted(subscription.topics))
    for topic, number in subscription.partitions:
        wanted[topic] = (*(wanted.get(topic) or ()), number)
    for topic, numbers in wanted.items():
        if topic not in there:
            raise UnknownTopic(f"there is no topic {topic}")
        beyond = [number for number in numbers or () if number >= there[topic]]
        if beyond:
            raise UnknownTopic(f"topic {topic} has {there[topic]} partitions, and no partition {beyond[0]}")
    return wanted


def find_offsets(
    limit: Limit, ends: Mapping[Partition, Ends], offset_at: OffsetAt, *, latest_without_match: bool
) -> dict[Partition, int]:
    """Return the offset that *limit* means in each partition of *ends*.

    Raises:
        ConfigError: If it leaves a partition out, names another, lies beyond the end, or names a time after
            the last record though *latest_without_match* is not set.
    """
    if limit.each is not None:
        _check_same(limit, ends)
    found = {}
    for (topic, number), there in ends.items():
        said = limit.everywhere if limit.each is None else limit.each[topic, number]
        assert said is not None
        where = f"partition {number} of topic {topic}"
        if limit.timed:
            at = offset_at(topic, number, said)
            if at is None and not latest_without_match:
                raise ConfigError(
                    limit.option, f"{limit.option}: {where} has no record at or after timestamp {said}"
                )
            # A record may have come after the ends were taken.
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
    """Return the work of the tasks: each range cut at its offsets, at most so large, at least so many.

    In the order of *pieces*; a range without records is none.
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
    """Raise *counts*, the parts of each piece, until there are *at_least* so many: the largest first."""
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


def _even_parts(piece: Piece, count: int) -> list[Piece]:
    size = piece.end - piece.start
    borders = [piece.start + size * i // count for i in range(count + 1)]
    return [piece._replace(start=a, end=b) for a, b in pairwise(borders)]


def share_out(limit: int, available: Mapping[Partition, int]) -> dict[Partition, int]:
    """Return how many offsets each partition gives to a trigger of *limit*, by what is *available* in each.

    Exactly *limit* if there are so many. Each that has any gives one at least, so that none starves; only if
    *limit* is less than those, it is exceeded by as much.
    """
    waiting = {partition: size for partition, size in available.items() if size > 0}
    total = sum(waiting.values())
    shares = dict.fromkeys(available, 0)
    if total <= limit:
        return shares | waiting
    for partition, size in waiting.items():
        shares[partition] = max(limit * size // total, 1)
    # Rounding leaves some over, or took too many for those that had less than one.
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
    """Return whether a trigger runs: enough has come, or it has waited long enough."""
    return min_offsets is None or available >= min_offsets or waited_ms >= max_delay_ms
