"""Decide which segments retention deletes, each with its reason. Pure.

Whole sealed segments are deleted, oldest first; never the active one, nor records that consumers cannot read
yet or that a group still needs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from cordwood.config import TopicConfig
from cordwood.errors import InvalidSetting
from cordwood.index import NO_TIMESTAMP
from cordwood.storage.log import SealedInfo, age_from


@dataclass(frozen=True, slots=True)
class Expiry:
    """A segment that retention deletes, and why."""

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

    The first kept segment ends the list, so the rest has no holes. *needed_from* is the first offset that a
    consumer group has not read yet.
    """
    if "delete" not in config.cleanup_policy:
        return []
    total = active_bytes + sum(info.size for info in sealed)
    found: list[Expiry] = []
    for info in sealed:
        reason = lapse_reason(age_from(info, config), info.size, total, config, now_ms)
        needed = needed_from is not None and info.next_offset > needed_from
        if reason is None or needed or info.next_offset > high_watermark:
            break
        found.append(Expiry(info.base, info.next_offset, info.size, reason))
        total -= info.size
    return found


def by_age_only(config: TopicConfig, older_than_ms: int) -> TopicConfig:
    """Return *config* with retention by age alone, of *older_than_ms* milliseconds.

    Raises:
        InvalidSetting: If that is negative, or the topic is compacted only: its records do not expire.
    """
    if older_than_ms < 0:
        raise InvalidSetting("older_than_ms", older_than_ms, "a whole number of milliseconds from 0")
    if "delete" not in config.cleanup_policy:
        raise InvalidSetting("cleanup.policy", config.cleanup_policy, "one with delete")
    return replace(config, retention_ms=older_than_ms, retention_bytes=-1)


def lapse_reason(newest: int, size: int, total_bytes: int, config: TopicConfig, now_ms: int) -> str | None:
    """Return why data has expired, None if it has not.

    The data takes *size* of *total_bytes*, and its newest record ages since *newest*; NO_TIMESTAMP if that is
    unknown, and then the data does not expire by age.
    """
    if config.retention_ms >= 0 and newest != NO_TIMESTAMP and now_ms - newest > config.retention_ms:
        return f"its newest record is {now_ms - newest} ms old, and retention.ms is {config.retention_ms}"
    if config.retention_bytes >= 0 and total_bytes - size >= config.retention_bytes:
        left = total_bytes - size
        return f"{left} bytes remain without it, and retention.bytes is {config.retention_bytes}"
    return None
