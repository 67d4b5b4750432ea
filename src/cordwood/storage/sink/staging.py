"""Shares: encoded and synced records of a query's batch that are not part of the log yet.

Each task stages its records in ``tmp/sink/<query>/<batch>/``. The owner of the directory then publishes all
shares of a batch together, see `publishing`. Offsets count from 0 in each section of a share; publishing
assigns the final ones.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
from collections.abc import Collection, Iterator
from typing import NamedTuple

import msgspec

from cordwood.disk import File, Files, as_storage_error, join, parent, remove_tree, write_all
from cordwood.errors import RecordRefused
from cordwood.formats import BatchFormat, Format

#: A section of this many bytes gets its own file, which a rename turns into a segment.
ADOPT_BYTES = 32 << 20
#: Such a file does not grow beyond this many bytes, so that segments keep a usual size.
FILE_BYTES_MAX = 256 << 20
#: The bytes a task holds in memory before the largest section is written to a file.
HELD_BYTES_MAX = 96 << 20
_NAME = re.compile(r"[0-9]{1,19}-[A-Za-z0-9-]{1,120}\.share")


class StagedTarget(NamedTuple):
    """The partition that records are for. A topic of the same name with another id does not match."""

    topic: str
    topic_id: str
    partition: int


class Section(msgspec.Struct, frozen=True):
    """Frames for one partition, back to back from ``position`` of a share on."""

    topic: str
    topic_id: str
    partition: int
    position: int
    size: int
    records: int

    @property
    def target(self) -> StagedTarget:
        """The partition they are for."""
        return StagedTarget(self.topic, self.topic_id, self.partition)


class Share(msgspec.Struct, frozen=True):
    """A staged file, synced, and what is in it."""

    name: str
    sections: tuple[Section, ...]


def query_key(query: str) -> str:
    """Return the form of a query's name that is safe in file names."""
    return hashlib.sha256(query.encode()).hexdigest()[:32]


def query_directory(data: str, query: str) -> str:
    """Return the directory in which batches of a query are staged."""
    return join(data, "tmp", "sink", query_key(query))


def batch_directory(data: str, query: str, batch: int) -> str:
    """Return the directory in which shares of a batch are staged."""
    return join(query_directory(data, query), str(batch))


def is_share_name(name: str) -> bool:
    """Return whether *name* is a valid file name of a share."""
    return _NAME.fullmatch(name) is not None


def share_path(data: str, query: str, batch: int, name: str) -> str:
    """Return the path of a share. The name may be untrusted.

    Raises:
        RecordRefused: If it is not the name of a share.
    """
    if not is_share_name(name):
        raise RecordRefused(f"{name!r} is not the name of a share")
    return join(batch_directory(data, query, batch), name)


class ShareWriter:
    """Stages the frames of one task. One user at a time.

    Small sections share one file. A large one has its own file, which a rename can turn into a segment.
    """

    def __init__(
        self, files: Files, data: str, query: str, batch: int, task: str, now_ms: int, format_: BatchFormat
    ) -> None:
        """Write nothing yet. *task* identifies one attempt at one task."""
        self._files = files
        self._data = data
        self._query, self._batch = query, batch
        self._task, self._now_ms = task, now_ms
        self._format = format_
        self._held: dict[StagedTarget, _OpenSection] = {}
        self._held_bytes = 0
        self._open: dict[StagedTarget, _OwnFile] = {}
        self._shares: list[Share] = []
        self._names: list[str] = []

    def append(self, target: StagedTarget, frame: bytearray) -> None:
        """Stage a frame for *target* after its earlier frames.

        Raises:
            DiskFull, StorageError: The shares of this task are unusable; call `discard`.
        """
        own = self._open.get(target)
        section = own.section if own is not None else self._held.setdefault(target, _OpenSection(target))
        _, next_offset = self._format.renumber(frame, section.records, 0)
        section.records = next_offset
        section.size += len(frame)
        if own is not None:
            self._write(own, frame)
            return
        section.frames.append(frame)
        self._held_bytes += len(frame)
        if section.size >= ADOPT_BYTES:
            self._spill(section)
        elif self._held_bytes > HELD_BYTES_MAX:
            self._spill(max(self._held.values(), key=lambda held: held.size))
        self.check_invariants(target)

    def check_invariants(self, changed: StagedTarget) -> None:
        """Check the counts, and the section of the target *changed*. Takes constant time.

        Raises:
            AssertionError: If they cannot be right: a fault of this code.
        """
        assert bool(self._held) == bool(self._held_bytes), "frames in memory and their bytes do not agree"
        assert self._held_bytes <= HELD_BYTES_MAX, "too much is held in memory"
        assert changed not in self._held or changed not in self._open, "a section is held and in a file"
        assert len(self._shares) + len(self._open) <= len(self._names), "a file without a name"

    def finish(self) -> tuple[Share, ...]:
        """Sync everything, names included, and return the shares in the order of publication.

        Raises:
            DiskFull, StorageError: As `append` does.
        """
        for own in list(self._open.values()):
            self._end(own)
        if self._held:
            self._write_held()
        if self._shares:
            self._sync_names()
        assert not self._open, "a file was not finished"
        assert not self._held_bytes, "frames were left in memory"
        return tuple(self._shares)

    def discard(self) -> None:
        """Remove the staged files as far as possible; the rest is collected later."""
        for own in self._open.values():
            own.file.close()
        for name in self._names:
            with contextlib.suppress(OSError):
                self._files.unlink(share_path(self._data, self._query, self._batch, name))

    def _spill(self, section: _OpenSection) -> None:
        """Move a section from memory to its own file."""
        del self._held[section.target]
        self._held_bytes -= section.size
        name = self._new_name()
        own = self._open[section.target] = _OwnFile(name, self._create(name), section)
        frames, section.frames = section.frames, []
        for frame in frames:
            self._write(own, frame)

    def _write(self, own: _OwnFile, frame: bytearray) -> None:
        try:
            write_all(own.file, own.written, frame)
        except OSError as error:
            raise as_storage_error(error, "staging") from error
        own.written += len(frame)
        if own.written >= FILE_BYTES_MAX:
            self._end(own)

    def _end(self, own: _OwnFile) -> None:
        del self._open[own.section.target]
        with contextlib.closing(own.file):
            self._sync(own.file)
        self._shares.append(Share(own.name, (own.section.placed_at(0),)))

    def _write_held(self) -> None:
        name = self._new_name()
        sections = []
        with contextlib.closing(self._create(name)) as file:
            position = 0
            for section in self._held.values():
                sections.append(section.placed_at(position))
                for frame in section.frames:
                    try:
                        write_all(file, position, frame)
                    except OSError as error:
                        raise as_storage_error(error, "staging") from error
                    position += len(frame)
            self._shares.append(Share(name, tuple(sections)))
            self._sync(file)
        self._held, self._held_bytes = {}, 0

    def _new_name(self) -> str:
        name = f"{self._now_ms}-{self._task}-{len(self._names) + 1}.share"
        self._names.append(name)
        return name

    def _create(self, name: str) -> File:
        path = share_path(self._data, self._query, self._batch, name)
        try:
            self._files.make_directories(parent(path))
            return self._files.open(path, "create")
        except OSError as error:
            raise as_storage_error(error, "staging") from error

    def _sync(self, file: File) -> None:
        try:
            file.sync()
        except OSError as error:
            raise as_storage_error(error, "staging") from error

    def _sync_names(self) -> None:
        """Sync every directory of the path: another task may have created one and not synced its name yet."""
        tmp = join(self._data, "tmp")
        query = query_directory(self._data, self._query)
        batch = batch_directory(self._data, self._query, self._batch)
        try:
            for directory in (batch, query, join(tmp, "sink"), tmp, self._data):
                self._files.sync_directory(directory)
        except OSError as error:
            raise as_storage_error(error, "staging") from error


class _OpenSection:
    """Frames for one partition, in memory or in a file."""

    def __init__(self, target: StagedTarget) -> None:
        self.target = target
        self.frames: list[bytearray] = []
        self.size = 0
        self.records = 0

    def placed_at(self, position: int) -> Section:
        topic, topic_id, partition = self.target
        return Section(topic, topic_id, partition, position, self.size, self.records)


class _OwnFile:
    """A file with exactly one section."""

    def __init__(self, name: str, file: File, section: _OpenSection) -> None:
        self.name = name
        self.file = file
        self.section = section
        self.written = 0


def read_frames(
    files: Files, path: str, section: Section, format_: Format, size_max: int
) -> Iterator[bytearray]:
    """Yield the frames of a section, each in its own buffer. Only their sizes are checked.

    Raises:
        RecordRefused: If the share is missing or does not contain the section.
    """
    position, end = section.position, section.position + section.size
    if min(position, section.size) < 0:
        raise RecordRefused(f"{path}: there is no section at {position} of {section.size} bytes")
    try:
        file = files.open(path, "read")
    except FileNotFoundError:
        raise RecordRefused(f"{path} is missing") from None
    with contextlib.closing(file):
        while position < end:
            head = file.read_at(position, format_.header_size)
            size = format_.frame_size(head) if len(head) == format_.header_size else None
            if size is None or size > min(size_max, end - position):
                raise RecordRefused(f"{path}: there is no frame of this section at {position}")
            frame = bytearray(size)
            if file.read_into(position, frame) < size:
                raise RecordRefused(f"{path}: ends in the frame at {position}")
            yield frame
            position += size


def check_whole(files: Files, path: str, share: Share) -> None:
    """Refuse to adopt a share that contains more than its one section.

    Raises:
        RecordRefused: If it contains more.
    """
    if len(share.sections) == 1 and share.sections[0].size >= ADOPT_BYTES:
        section = share.sections[0]
        with contextlib.closing(files.open(path, "read")) as file:
            if section.position or file.size() != section.size:
                raise RecordRefused(f"{path}: has more than the {section.size} bytes that were staged")


def collect(files: Files, data: str, query: str, batch: int) -> None:
    """Remove the shares of a query's batches up to *batch*, as far as possible."""
    directory = query_directory(data, query)
    with contextlib.suppress(OSError):
        for name in files.list(directory):
            if name.isascii() and name.isdigit() and int(name) <= batch:
                remove_tree(files, join(directory, name))
        if not files.list(directory):
            files.remove_directory(directory)


def collect_abandoned(files: Files, data: str, before_ms: int, keep: Collection[str]) -> int:
    """Remove shares that were staged before *before_ms* and never published; return their number.

    Shares of queries whose keys are in *keep* stay.
    """
    removed = 0
    sink = join(data, "tmp", "sink")
    for query in files.list(sink) if files.exists(sink) else ():
        if query in keep:
            continue
        for batch in files.list(join(sink, query)):
            directory = join(sink, query, batch)
            for name in files.list(directory):
                if _NAME.fullmatch(name) and int(name.partition("-")[0]) < before_ms:
                    files.unlink(join(directory, name))
                    removed += 1
            if not files.list(directory):
                files.remove_directory(directory)
        if not files.list(join(sink, query)):
            files.remove_directory(join(sink, query))
    return removed
