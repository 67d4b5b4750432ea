"""``meta/checkpoint.json``: the ends of all partitions, for people and tools. No decision depends on it."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable
from threading import Lock
from typing import Any

import msgspec

from cordwood.disk import Files, join, read_file, write_atomically
from cordwood.host import Clock
from cordwood.storage.log import PartitionLog

Entries = dict[tuple[str, int], dict[str, Any]]
"""The entry of each partition by its topic and number."""


class Summary:
    """Writes `checkpoint.json` when something has changed. Every method may be called from any thread.

    The file is replaced atomically, and is durable when a method returns. Partitions that are not open keep
    the entry of their last writer.
    """

    def __init__(
        self,
        files: Files,
        data: str,
        clock: Clock,
        interval_ms: int,
        topics: Callable[[], Container[str]],
        logs: Callable[[], Iterable[PartitionLog]],
    ) -> None:
        """Summarize *logs*, the open ones, of *topics*, those that exist."""
        self._files = files
        self._data = data
        self._clock = clock
        self._interval_ns = interval_ms * 1_000_000
        self._topics = topics
        self._logs = logs
        self._lock = Lock()
        #: What the file has; None before it was read.
        self._written: Entries | None = None
        self._due_ns = clock.monotonic_ns() + self._interval_ns

    @property
    def is_due(self) -> bool:
        """Whether the interval since the last `save` is over. Reads no file."""
        return self._clock.monotonic_ns() >= self._due_ns

    def save(self) -> bool:
        """Write the file if an entry in it would change; return whether it was written.

        Raises:
            OSError: If it cannot be written. The file is as it was.
        """
        with self._lock:
            self._due_ns = self._clock.monotonic_ns() + self._interval_ns
            before = self._written
            if before is None:
                before = _read_entries(self._files, self._data)
            # Entries of deleted topics are dropped.
            topics = self._topics()
            kept = {key: entry for key, entry in (before or {}).items() if key[0] in topics}
            now = {(log.state.topic, log.state.partition): _entry(log) for log in self._logs()}
            entries = {**kept, **now}
            if entries == before:
                return False
            _write_entries(self._files, self._data, entries)
            self._written = entries
            return True


def create_summary(files: Files, data: str) -> None:
    """Write the summary of a directory without topics. Durable on return."""
    _write_entries(files, data, {})


def _entry(log: PartitionLog) -> dict[str, Any]:
    # The end is read as one value: an append in another thread may move it meanwhile.
    end = log.end
    return {
        "topic": log.state.topic,
        "partition": log.state.partition,
        "log_end_offset": end.next_offset,
        "active_segment_base_offset": end.segment.base,
        "active_segment_size_bytes": end.position,
        "last_flushed_offset": min(log.high_watermark, end.next_offset),
    }


def _write_entries(files: Files, data: str, entries: Entries) -> None:
    partitions = [entry for _, entry in sorted(entries.items())]
    summary = msgspec.json.format(msgspec.json.encode({"partitions": partitions}), indent=2)
    write_atomically(files, _path(data), summary)


def _read_entries(files: Files, data: str) -> Entries | None:
    """Return the entries of the file, None if it is missing or damaged: nothing depends on it."""
    try:
        summary = msgspec.json.decode(read_file(files, _path(data)))
        return {(entry["topic"], entry["partition"]): entry for entry in summary["partitions"]}
    except (FileNotFoundError, msgspec.MsgspecError, UnicodeDecodeError, KeyError, TypeError):
        return None


def _path(data: str) -> str:
    return join(data, "meta", "checkpoint.json")
