"""What retention no longer keeps: decided here, each segment with its reason. Pure.

Whole sealed segments go, from the oldest on; never the active one, and nothing that consumers cannot read yet
or that somebody still waits for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cordwood.config import TopicConfig
from cordwood.index.time import NO_TIMESTAMP
from cordwood.storage.compaction import newest_ms
from cordwood.storage.partition_state import SealedInfo


@dataclass(frozen=True, slots=True)
class Expiry:
    """A segment that retention no longer keeps, and why."""

    base: int
    next_offset: int
    size: int
    reason: str


def expired_segments(
    sealed: Sequence[SealedInfo],
    config: TopicConfig,
    *,
    active_bytes: int,
    high_watermark: int,
    now_ms: int,
    needed_from: int | None = None,
) -> list[Expiry]:
    """Return the oldest sealed segments that *config* no longer keeps, each with its reason.

    The first one that is kept ends it, so what is left has no holes. *needed_from* is the first offset that
    somebody has not read yet.
    """
    if "delete" not in config.cleanup_policy:
        return []
    total = active_bytes + sum(info.size for info in sealed)
    found: list[Expiry] = []
    for info in sealed:
        reason = lapse_reason(newest_ms(info), info.size, total, config, now_ms)
        needed = needed_from is not None and info.next_offset > needed_from
        if reason is None or needed or info.next_offset > high_watermark:
            break
        found.append(Expiry(info.base, info.next_offset, info.size, reason))
        total -= info.size
    return found


def lapse_reason(newest: int, size: int, total_bytes: int, config: TopicConfig, now_ms: int) -> str | None:
    """Return why something is no longer kept, None if it is.

    It takes *size* of *total_bytes*, and the newest record in it is of *newest*.
    """
    # Nobody knows how old something is that has no times at all.
    if config.retention_ms >= 0 and newest != NO_TIMESTAMP and now_ms - newest > config.retention_ms:
        return f"its newest record is {now_ms - newest} ms old, and retention.ms is {config.retention_ms}"
    if config.retention_bytes >= 0 and total_bytes - size >= config.retention_bytes:
        left = total_bytes - size
        return f"{left} bytes remain without it, and retention.bytes is {config.retention_bytes}"
    return None


def must_seal(opened_ms: int, newest_timestamp: int, config: TopicConfig, now_ms: int) -> bool:
    """Return whether an active segment with records must be sealed for policies to take hold of it.

    Without this the records of a topic that nobody appends to any more would never age out.
    """
    if now_ms - opened_ms >= config.segment_ms:
        return True
    newest = newest_timestamp if newest_timestamp != NO_TIMESTAMP else opened_ms
    if "delete" in config.cleanup_policy and 0 <= config.retention_ms < now_ms - newest:
        return True
    return "compact" in config.cleanup_policy and now_ms - opened_ms > config.max_compaction_lag_ms
