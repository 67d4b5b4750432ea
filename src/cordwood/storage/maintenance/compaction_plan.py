"""Decide what to compact: the segments, where the dirty part begins, and which segments are merged. Pure.

Compaction keeps the last record of each key and drops those before it; offsets stay as they are. Only sealed
segments take part. The part of the log below the *cleaned offset* was compacted before: no two of its records
have the same key. Records above it are *dirty*.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cordwood.config import TopicConfig
from cordwood.index import NO_TIMESTAMP
from cordwood.storage.log import SealedInfo, age_from


@dataclass(frozen=True, slots=True)
class CompactionPlan:
    """Segments to compact, oldest first, all before ``end``; keys are collected from ``dirty_from`` on."""

    segments: tuple[SealedInfo, ...]
    dirty_from: int
    reason: str

    @property
    def end(self) -> int:
        """The offset after the last segment."""
        return self.segments[-1].next_offset


def plan_compaction(
    sealed: Sequence[SealedInfo],
    cleaned_offset: int,
    config: TopicConfig,
    now_ms: int,
    *,
    force: bool = False,
) -> CompactionPlan | None:
    """Return the segments to compact now, None without any. With *force*, all dirty segments are compacted.

    The plan ends before the first segment younger than ``min.compaction.lag.ms``.
    """
    taking_part = []
    for info in sealed:
        if config.min_compaction_lag_ms:
            newest = age_from(info, config)
            if newest == NO_TIMESTAMP or now_ms - newest < config.min_compaction_lag_ms:
                break
        taking_part.append(info)
    if not taking_part:
        return None
    dirty = [info for info in taking_part if info.next_offset > cleaned_offset]
    reason = _reason(taking_part, dirty, config, now_ms, force=force)
    if reason is None:
        return None
    return CompactionPlan(tuple(taking_part), max(cleaned_offset, taking_part[0].base), reason)


def _reason(
    taking_part: Sequence[SealedInfo],
    dirty: Sequence[SealedInfo],
    config: TopicConfig,
    now_ms: int,
    *,
    force: bool,
) -> str | None:
    if any(is_tombstone_due(info, config, now_ms) for info in taking_part):
        return "tombstones have been kept for delete.retention.ms"
    if not dirty:
        return None
    if force:
        return "asked for"
    share = sum(info.size for info in dirty) / max(sum(info.size for info in taking_part), 1)
    if share > config.min_cleanable_dirty_ratio:
        return f"{share:.0%} of it was never compacted"
    opened_ms = dirty[0].opened_ms
    if opened_ms != NO_TIMESTAMP and now_ms - opened_ms > config.max_compaction_lag_ms:
        return "records are older than max.compaction.lag.ms"
    return None


def group_segments(
    plan: CompactionPlan, cleaned_up_to: int, config: TopicConfig, now_ms: int
) -> list[tuple[SealedInfo, ...]]:
    """Return the segments of *plan* below *cleaned_up_to* in groups, each of which becomes one segment.

    The old sizes of a group add up to no more than the size limit of a segment. A segment whose tombstones
    wait for removal is not merged: merged with others, it would have to wait for the youngest of them, each
    time.
    """
    groups: list[list[SealedInfo]] = []
    size, alone = 0, True
    for info in plan.segments:
        if info.base >= cleaned_up_to:
            break
        waits = info.tombstones_since_ms != NO_TIMESTAMP and not is_tombstone_due(info, config, now_ms)
        if not groups or alone or waits or size + info.size > config.roll_bytes:
            groups.append([])
            size = 0
        groups[-1].append(info)
        size, alone = size + info.size, waits
    return [tuple(group) for group in groups]


def is_tombstone_due(info: SealedInfo, config: TopicConfig, now_ms: int) -> bool:
    """Return whether tombstones of a segment have had nothing to delete for ``delete.retention.ms``."""
    since = info.tombstones_since_ms
    return since != NO_TIMESTAMP and now_ms - since >= config.delete_retention_ms
