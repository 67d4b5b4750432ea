"""Reading a log with each frame compared with its leaf, before anybody sees what is in it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Protocol

from cordwood.errors import CorruptRange
from cordwood.storage.files import Files
from cordwood.storage.reading import FrameRun
from cordwood.storage.store import as_storage_error
from cordwood.storage.verify.slices import ReadFrame, SliceCompare, WithoutLeaf
from cordwood.storage.view import Fetched

__all__ = ["ComparedPartition", "ReadSource", "WithoutLeaf", "followed_to"]

#: How often what changes under the reader is read again.
_TRIES = 5


class Readable(Protocol):
    """What is read of a partition."""

    def read(self, offset: int, max_bytes: int, stop: int | None = None) -> Fetched:
        """Return whole frames from the one that holds *offset* on."""


class ReadSource:
    """A partition to read from, as it is. To be closed."""

    def __init__(self, log: Readable) -> None:
        self._log = log

    def close(self) -> None:
        """Let go of what was opened."""

    def read(self, offset: int, max_bytes: int, stop: int | None = None) -> Fetched:
        """Return whole frames from the one that holds *offset* on; see `View.read`."""
        return self._log.read(offset, max_bytes, stop)


class ComparedPartition(ReadSource):
    """A partition beside its writer, whose frames are compared as they are read. One thread."""

    def __init__(self, files: Files, directory: str, topic: str, partition: int, log: Readable) -> None:
        """Take the partition in *directory*, which *log* reads."""
        super().__init__(log)
        self._place = (files, directory, topic, partition)
        self._compare: SliceCompare | None = None

    def close(self) -> None:
        """Let go of the chain's files."""
        if self._compare is not None:
            self._compare.close()

    def read(self, offset: int, max_bytes: int, stop: int | None = None) -> Fetched:
        """Return what the log has, all of it below *stop* as its leaves say.

        Raises:
            CorruptRange: If a frame is not what was appended.
            WithoutLeaf: If one has no leaf.
            MetadataDamaged: If what says which leaves there are cannot be used.
        """
        for tries_left in reversed(range(_TRIES)):
            fetched = super().read(offset, max_bytes, stop)
            try:
                self._check(fetched, fetched.high_watermark if stop is None else stop)
                break
            except (CorruptRange, WithoutLeaf):
                # Compaction or a truncation may have come between what was read and what it is compared with.
                if not self._renewed() or not tries_left:
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

    def _renewed(self) -> bool:
        """Look at the chain again, and return whether it or the log had changed."""
        before, self._compare = self._compare, SliceCompare(*self._place)
        assert before is not None
        before.close()
        return before.is_outdated_by(self._compare)


def followed_to(files: Files, directory: str, topic: str, partition: int) -> int | None:
    """Return the offset from which on frames have no leaves yet, None without a chain.

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
