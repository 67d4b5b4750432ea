"""Read a log and compare each frame with its leaf before returning it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Protocol

from cordwood.disk import Files, as_storage_error
from cordwood.errors import CorruptRange
from cordwood.storage.log import Fetched, FrameRun
from cordwood.verify import ReadFrame, SliceCompare, WithoutLeaf

__all__ = ["ComparedPartition", "ReadSource", "WithoutLeaf", "followed_to"]

#: How many times a read is repeated if the log changes during it.
_TRIES = 5


class PartitionReads(Protocol):
    """The read interface of a partition."""

    def read(
        self, offset: int, max_bytes: int, stop: int | None = None, *, committed: bool = False
    ) -> Fetched:
        """Return whole frames from the one that holds *offset* on."""


class ReadSource:
    """A partition to read from, without comparison. Must be closed."""

    #: Whether every frame is compared with its leaf.
    compares = False

    def __init__(self, log: PartitionReads) -> None:
        self._log = log

    def close(self) -> None:
        """Close opened files."""

    def read(
        self, offset: int, max_bytes: int, stop: int | None = None, *, committed: bool = False
    ) -> Fetched:
        """Return whole frames from the one that holds *offset* on; see `View.read` and `read_committed`."""
        return self._log.read(offset, max_bytes, stop, committed=committed)


class ComparedPartition(ReadSource):
    """A partition whose frames are compared while they are read, also beside its writer. One thread."""

    compares = True

    def __init__(self, files: Files, directory: str, topic: str, partition: int, log: PartitionReads) -> None:
        """Take the partition in *directory*, which *log* reads."""
        super().__init__(log)
        self._place = (files, directory, topic, partition)
        self._compare: SliceCompare | None = None

    def close(self) -> None:
        """Close the chain's files."""
        if self._compare is not None:
            self._compare.close()

    def read(
        self, offset: int, max_bytes: int, stop: int | None = None, *, committed: bool = False
    ) -> Fetched:
        """Return frames of the log; those below *stop* match their leaves.

        Raises:
            CorruptRange: If a frame is not what was appended.
            WithoutLeaf: If one has no leaf.
            MetadataDamaged: If the chain's metadata cannot be used.
        """
        for tries_left in reversed(range(_TRIES)):
            fetched = super().read(offset, max_bytes, stop, committed=committed)
            try:
                self._check(fetched, fetched.high_watermark if stop is None else stop)
                break
            except (CorruptRange, WithoutLeaf):
                # A compaction or truncation may have happened between reading the log and reading the chain.
                if not self._reopened() or not tries_left:
                    raise
        return fetched

    def _check(self, fetched: Fetched, stop: int) -> None:
        try:
            if self._compare is None:
                self._compare = SliceCompare(*self._place)
            for run in fetched.runs:
                self._compare.check(_frames(run), stop)
        except OSError as error:
            raise as_storage_error(error, "reading the chain") from error

    def _reopened(self) -> bool:
        """Reopen the chain; return whether it or the log has changed."""
        before, self._compare = self._compare, SliceCompare(*self._place)
        assert before is not None
        before.close()
        return before.is_outdated_by(self._compare)


def followed_to(files: Files, directory: str, topic: str, partition: int) -> int | None:
    """Return the first offset that has no leaf yet, None without a chain.

    Raises:
        MetadataDamaged: If the chain cannot be used.
    """
    with contextlib.closing(SliceCompare(files, directory, topic, partition)) as compare:
        return compare.followed


def _frames(run: FrameRun) -> Iterator[ReadFrame]:
    table, buffer = run.table, memoryview(run.buffer)
    last_end = table.position(run.first) + len(run.data)
    for number in range(run.first, run.last + 1):
        start = table.position(number)
        end = table.position(number + 1) if number < run.last else last_end
        offsets = table.base_offset(number), table.next_offset(number)
        yield ReadFrame(run.start + start, *offsets, buffer[start:end])
