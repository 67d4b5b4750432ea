"""Reading from many partitions within one limit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from cordwood.errors import CordwoodError, OffsetOutOfRange
from cordwood.storage.view import Fetched


class Wanted(NamedTuple):
    """Records of a partition from an offset on, at most about so many bytes."""

    topic: str
    partition: int
    offset: int
    max_bytes: int


class Readable(Protocol):
    """A partition to read from."""

    @property
    def log_start_offset(self) -> int:
        """The first offset that can be read."""

    @property
    def high_watermark(self) -> int:
        """The first offset that cannot be read yet."""

    def read(self, offset: int, max_bytes: int) -> Fetched:
        """Return whole frames from *offset* on."""


@dataclass(frozen=True, slots=True)
class Got:
    """What came of one wish: frames as they stand in the file, or why there are none."""

    frames: tuple[memoryview, ...] = ()
    high_watermark: int = -1
    log_start_offset: int = -1
    error: Exception | None = None

    @property
    def size(self) -> int:
        """The bytes of the frames."""
        return sum(map(len, self.frames))


class Haul(NamedTuple):
    """What came of all wishes, in their order."""

    each: list[Got]
    size: int
    failed: bool


def read_all(find: Callable[[str, int], Readable], wishes: Sequence[Wanted], max_bytes: int) -> Haul:
    """Read what is wanted, in order, up to *max_bytes* altogether.

    The first frame there is comes whole, however large: a consumer would otherwise never get past it. One
    partition that cannot be read does not keep the others from being read.
    """
    each: list[Got] = []
    left, failed = max_bytes, False
    size = 0
    for wanted in wishes:
        got = _read(find, wanted, max(min(wanted.max_bytes, left), 0), whole_first=not size)
        each.append(got)
        failed = failed or got.error is not None
        size += got.size
        left -= got.size
    return Haul(each, size, failed)


def _read(find: Callable[[str, int], Readable], wanted: Wanted, max_bytes: int, *, whole_first: bool) -> Got:
    log: Readable | None = None
    try:
        log = find(wanted.topic, wanted.partition)
        start, end = log.log_start_offset, log.high_watermark
        if start <= wanted.offset <= end and (wanted.offset == end or (not max_bytes and not whole_first)):
            return Got((), end, start)
        fetched = log.read(wanted.offset, max_bytes)
    except OffsetOutOfRange as error:
        return Got((), error.end, error.start, error)
    except CordwoodError as error:
        if log is None:
            return Got(error=error)
        return Got((), log.high_watermark, log.log_start_offset, error)
    frames = tuple(run.data for run in fetched.runs)
    if frames and not whole_first and len(frames[0]) > max_bytes:
        frames = ()
    return Got(frames, fetched.high_watermark, fetched.log_start_offset)
