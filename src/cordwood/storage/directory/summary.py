"""``meta/checkpoint.json``: the ends of all partitions, for people and tools. No decision depends on it."""

from __future__ import annotations

from collections.abc import Container, Iterable
from typing import Any

import msgspec

from cordwood.disk import Files, join, read_file, write_atomically
from cordwood.storage.log import PartitionLog


def write_summary(files: Files, data: str, topics: Container[str], logs: Iterable[PartitionLog]) -> None:
    """Write the ends of *logs*, and keep what was written before of other partitions of *topics*.

    Raises:
        OSError: If it cannot be written.
    """
    now: dict[tuple[str, int], dict[str, Any]] = {
        (log.state.topic, log.state.partition): {
            "topic": log.state.topic,
            "partition": log.state.partition,
            "log_end_offset": log.log_end_offset,
            "active_segment_base_offset": log.state.active_base,
            "active_segment_size_bytes": log.active_size,
            "last_flushed_offset": log.high_watermark,
        }
        for log in logs
    }
    # Entries of deleted topics are dropped.
    before = {key: entry for key, entry in _written_before(files, data).items() if key[0] in topics}
    partitions = [entry for _, entry in sorted({**before, **now}.items())]
    summary = msgspec.json.format(msgspec.json.encode({"partitions": partitions}), indent=2)
    write_atomically(files, _path(data), summary)


def _written_before(files: Files, data: str) -> dict[tuple[str, int], dict[str, Any]]:
    """Return the entries of the last summary: a partition that was not opened since has not changed."""
    try:
        summary = msgspec.json.decode(read_file(files, _path(data)))
        return {(entry["topic"], entry["partition"]): entry for entry in summary["partitions"]}
    except (FileNotFoundError, msgspec.MsgspecError, UnicodeDecodeError, KeyError, TypeError):
        return {}


def _path(data: str) -> str:
    return join(data, "meta", "checkpoint.json")
