"""Check the hash chain of a partition in Kimberlite's format over all its segments.

It reads the files directly, up to the synced end, so it may run beside a live writer. It reports the place of
a break, where the engine would only refuse to read.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass

from cordwood.disk import File, Files, read_published
from cordwood.errors import FrameError, FrameTooLarge, RecordRefused, TruncatedFrame
from cordwood.formats.per_record import NO_HASH, OVERHEAD, SIZE_MAX, KimberliteRecord, kimberlite
from cordwood.storage.log import (
    PartitionState,
    mark_path,
    newest_mark,
    read_state,
    segment_path,
    synced_bound,
)

#: How many times a break is checked again, because a concurrent writer may have caused it.
_SETTLING_TRIES = 8


@dataclass(frozen=True, slots=True)
class BrokenLink:
    """The first record that does not carry the hash of the one before."""

    path: str
    position: int
    offset: int
    expected: bytes
    actual: bytes

    def __str__(self) -> str:
        """Return the record, its place, the expected hash and the found one."""
        return (
            f"{self.path} at byte {self.position}: record {self.offset} should carry the hash "
            f"{self.expected.hex()} of the record before it, and carries {self.actual.hex()}"
        )


@dataclass(frozen=True, slots=True)
class ChainCheckResult:
    """The result of checking a chain.

    ``head`` is the hash of the last sound record, at ``end_offset - 1``. ``from_the_first`` is true if the
    check began with the log's first record or with a hash from the caller; otherwise earlier records were
    removed, and the first hash found is trusted. ``broken`` and ``invalid`` say why it ended early.
    """

    records: int
    start_offset: int
    end_offset: int
    head: bytes
    from_the_first: bool
    broken: BrokenLink | None = None
    invalid: FrameError | None = None

    @property
    def sound(self) -> bool:
        """Whether every record was complete, valid, of this stream, and had the hash of its predecessor."""
        return self.broken is None and self.invalid is None


def follow_chain(
    files: Files,
    directory: str,
    *,
    start: tuple[int, bytes] | None = None,
    size_max: int = SIZE_MAX,
) -> ChainCheckResult:
    """Check the chain of the partition in *directory* up to its synced end, or to the first break.

    *start* is an offset and the hash of the record before it, as stored in a snapshot: the check begins
    there.

    Raises:
        MetadataDamaged: If the partition's metadata cannot be read.
        RecordRefused: If *start* is an offset that the partition does not have.
    """
    for _ in range(_SETTLING_TRIES):
        state = read_state(files, directory)
        followed = _ChainWalk(files, directory, state, start, size_max).follow()
        # A concurrent truncation or deletion looks like damage, so check again.
        if followed.sound or read_state(files, directory) == state:
            break
    return followed


class _ChainWalk:
    """One pass over the chain."""

    def __init__(
        self,
        files: Files,
        directory: str,
        state: PartitionState,
        start: tuple[int, bytes] | None,
        size_max: int,
    ) -> None:
        self._files, self._directory, self._state = files, directory, state
        self._start, self._size_max = start, size_max
        self._head = None if start is None else start[1]
        self._records = 0
        self._first = self._next = state.log_start_offset if start is None else start[0]
        self._from_the_first = start is not None

    def follow(self) -> ChainCheckResult:
        """Check the chain; see `follow_chain`."""
        path = ""
        try:
            for path, end in self._segments():
                try:
                    file = self._files.open(path, "read")
                except FileNotFoundError:
                    missing = TruncatedFrame(
                        position=0, expected=f"{end} bytes", found="no file", what="segment"
                    )
                    return self._report(invalid=missing.at(path, 0))
                with contextlib.closing(file):
                    broken = self._follow_segment(file, end)
                if broken is not None:
                    return self._report(broken=broken)
        except FrameError as error:
            return self._report(invalid=error if error.path else error.at(path, 0))
        return self._report()

    def _follow_segment(self, file: File, end: int) -> BrokenLink | None:
        position = 0
        while position < end:
            record, data = self._read(file, position, end)
            size = record.end
            if self._start is None or record.position >= self._start[0]:
                if self._records == 0:
                    self._begin(record)
                if record.prev_hash != self._head:
                    assert self._head is not None
                    return BrokenLink(file.path, position, record.position, self._head, record.prev_hash)
                self._head = record.hash(data)
                self._records += 1
                self._next = record.position + 1
            position += size
        return None

    def _begin(self, record: KimberliteRecord) -> None:
        """Store where the chain begins, and the hash it is expected to continue."""
        if self._start is not None and record.position != self._start[0]:
            raise RecordRefused(f"{self._directory} has no record {self._start[0]} to begin at")
        self._first = record.position
        if self._head is None:
            self._from_the_first = record.position == 0 or record.prev_hash == NO_HASH
            self._head = NO_HASH if self._from_the_first else record.prev_hash

    def _read(self, file: File, position: int, end: int) -> tuple[KimberliteRecord, bytes]:
        """Return the record at *position* and its bytes, without checking its link."""
        head = file.read_at(position, min(OVERHEAD, end - position))
        size = kimberlite.HEAD_SIZE + int.from_bytes(head[:4], "little")
        if size > self._size_max:
            limit = f"at most {self._size_max} bytes"
            raise FrameTooLarge(position=position, expected=limit, found=size, what="record", path=file.path)
        data = file.read_at(position, min(size, end - position))
        try:
            record = kimberlite.parse_record(data, size_max=self._size_max)
            kimberlite.check_stream(record, self._state.tenant, self._state.partition)
        except FrameError as error:
            raise error.at(file.path, position) from None
        return record, data

    def _segments(self) -> Iterator[tuple[str, int]]:
        """Yield the path of each segment to check, and the number of its synced bytes."""
        state = self._state
        marks, _ = read_published(self._files, mark_path(self._directory))
        synced = synced_bound(state, newest_mark(state, marks, self._directory))
        sizes = [(info.base, info.size, info.next_offset) for info in state.sealed]
        for base, size, next_offset in [*sizes, (synced.base, synced.position, synced.next_offset)]:
            if self._start is None or next_offset > self._start[0]:
                yield segment_path(self._directory, base, "log"), size

    def _report(
        self, *, broken: BrokenLink | None = None, invalid: FrameError | None = None
    ) -> ChainCheckResult:
        head = NO_HASH if self._head is None else self._head
        return ChainCheckResult(
            self._records, self._first, self._next, head, self._from_the_first, broken, invalid
        )
