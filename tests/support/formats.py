"""Every format on every storage backend: cases for one contract that all of them keep."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import cordwood
from cordwood.config.loading import RecordFormat
from cordwood.disk.direct import DirectFiles
from cordwood.disk.files import Files, join, read_file
from cordwood.disk.memory import MemoryFiles
from cordwood.disk.posix import PosixFiles
from cordwood.formats.format import Format
from cordwood.formats.registry import FORMATS
from cordwood.records import Header, Record
from support.disks import image
from support.logs import DATA, Image, TickingClock, disk_of

BACKENDS: Mapping[str, Callable[[], Files]] = {
    "memory": MemoryFiles,
    "posix": PosixFiles,
    "direct": DirectFiles,
}
#: Several segments of a few records each, in any format.
SMALL: Mapping[str, str] = {
    "segment.bytes": "400",
    "index.interval.bytes": "100",
    "cordwood.index.interval.records": "3",
}
TOPIC = "t"
#: The first time of any record.
BEGAN_MS = 1_700_000_000_000


@dataclass
class Case:
    """A log with one topic of one format on one backend, and what it must hold."""

    format: Format
    backend: str
    files: Files
    root: str
    settings: Mapping[str, str] = field(default_factory=dict)
    ticks: int = 0

    def __str__(self) -> str:
        return f"{self.format.name} on {self.backend}"

    def open(self, *, read_only: bool = False, sync: str | None = None) -> cordwood.Log:
        """Open the log. On a real disk appends are synced by rolls and by close, unless told otherwise."""
        clock = TickingClock(self.ticks)
        self.ticks += 1000
        if sync is None and self.backend != "memory" and not read_only:
            sync = "never"
        return cordwood.open(self.root, files=self.files, clock=clock, read_only=read_only, sync=sync)

    def topic(self, log: cordwood.Log, **settings: str) -> cordwood.Topic:
        """Return the topic, created with SMALL and these settings, underscores for dots."""
        own = {name.replace("_", "."): text for name, text in settings.items()}
        return log.topic(TOPIC, config={**SMALL, **own, "cordwood.format": self.format.name})

    def row(self, number: int, size: int = 8) -> tuple[bytes | None, bytes | None, tuple[Header, ...], int]:
        """Return a row with everything that the format can hold, a different one for each number."""
        holds = self.format.holds
        key = (None, b"", b"k%d" % (number % 5))[number % 3] if holds.keys else None
        value: bytes | None = b"%d" % number + b"." * (size * (number % 4))
        if number % 7 == 3:
            value = None if holds.null_values else b""
        headers: tuple[Header, ...] = ()
        if holds.headers and number % 2:
            # Only in the native format a header may be a name and nothing else.
            empty = b"" if self.format.record_per_frame else None
            headers = (("name", b"%d" % number), ("né", empty), ("", b""))
        # Now and then a producer's clock steps back.
        return key, value, headers, BEGAN_MS + number * 10 - (25 if number % 6 == 5 else 0)

    def record(self, number: int, size: int = 8) -> Record:
        """Return the record that `row` is to become at the offset of its number."""
        key, value, headers, timestamp = self.row(number, size)
        return Record(number, timestamp, key, value, headers)

    def fill(self, topic: cordwood.Topic, start: int, stop: int) -> None:
        """Append the rows of [start, stop), some alone and some together."""
        while start < stop:
            together = min(1 + start % 3, stop - start)
            topic.append_many([self.row(start + i) for i in range(together)], partition=0)
            start += together

    def expected(self, stop: int, start: int = 0) -> list[Record]:
        return [self.record(number) for number in range(start, stop)]

    @property
    def segments(self) -> str:
        return join(self.root, "topics", TOPIC, "0", "segments")

    def names(self) -> list[str]:
        return sorted(self.files.list(self.segments))

    def path(self, name: str) -> str:
        return join(self.segments, name)

    def read(self, name: str) -> bytes:
        return read_file(self.files, self.path(name))

    def image(self) -> Image:
        return image(self.files, self.root)

    def copy(self, changed: Mapping[str, bytes | None] | None = None) -> Case:
        """Return the same in memory, with other contents of some files: what a disk could have become."""
        return Case(self.format, "memory", disk_of(self.image(), changed), self.root, ticks=self.ticks)

    @property
    def authoritative(self) -> tuple[str, ...]:
        """The suffixes of files that hold what cannot be derived."""
        return ("log",) if self.format.sidecar is None else ("log", self.format.sidecar.suffix)

    @property
    def derived(self) -> tuple[str, ...]:
        dense = self.format.sidecar is not None and self.format.sidecar.is_index
        return ("timeidx",) if dense else ("idx", "timeidx")

    def appended_alike(self, topic: cordwood.Topic) -> Record:
        """Append one more record, read it back and return it."""
        end = topic.log_end_offset(0)
        placed = topic.append(b"one more", partition=0, timestamp=BEGAN_MS + 3_000_000)
        assert placed.offset == end
        (found,) = topic.read(0, end)
        assert found == Record(end, BEGAN_MS + 3_000_000, None, b"one more")
        return found


def backend_works(name: str, directory: Path) -> bool:
    """Return whether the disk under *directory* lets this backend open files."""
    files = BACKENDS[name]()
    if name == "memory":
        return True
    try:
        files.open(str(directory / "probe"), "create").close()
    except OSError:
        return False
    files.unlink(str(directory / "probe"))
    return True


def every_case(directory: Path, backends: tuple[str, ...] = tuple(BACKENDS)) -> Iterator[Case]:
    """Yield a case without a log for each format on each backend that works here."""
    for backend in backends:
        if not backend_works(backend, directory):
            print(f"{backend}: does not work on this disk")
            continue
        for name, format_ in FORMATS.items():
            root = DATA if backend == "memory" else str(directory / backend / name)
            yield Case(format_, backend, BACKENDS[backend](), root)


def over_every_case(
    *backends: str, where: Callable[[Format], bool] = lambda _: True
) -> Callable[[Callable[[Case], Any]], Callable[[Path], None]]:
    """Make a check of one case a test of all, which says how many there were, and which one failed."""

    def decorate(check: Callable[[Case], Any]) -> Callable[[Path], None]:
        @functools.wraps(check)
        def test(tmp_path: Path) -> None:
            cases = [case for case in every_case(tmp_path, backends or tuple(BACKENDS)) if where(case.format)]
            for case in cases:
                try:
                    check(case)
                except Exception as error:
                    raise AssertionError(f"{case}: {type(error).__name__}: {error}") from error
            formats, disks = {case.format.name for case in cases}, {case.backend for case in cases}
            print(f"{len(cases)} cases: {len(formats)} formats on {', '.join(sorted(disks))}")
            assert len(cases) == len(formats) * len(disks) > 0

        # pytest asks for arguments by the signature, which must not be that of the check.
        del test.__wrapped__
        return test

    return decorate


assert set(FORMATS) == set(RecordFormat.__args__)  # type: ignore[attr-defined]
