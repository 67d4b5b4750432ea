"""Shares: records of a query's batch, encoded and synced beside the log, not yet part of it.

Each task stages what it has in ``tmp/sink/<query>/<batch>/``. Whoever owns the directory then publishes the
shares of a batch together, see `publishing`. Frames count their offsets from 0 in each section of a share;
they get their own when they are published.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
from collections.abc import Collection, Iterator
from typing import NamedTuple

import msgspec

from cordwood.errors import RecordRefused
from cordwood.formats.format import Format
from cordwood.formats.native import BatchFormat
from cordwood.storage.files import File, Files, join, parent, write_all
from cordwood.storage.store import as_storage_error

#: A section this large has a file of its own, which becomes a segment by being renamed.
ADOPT_BYTES = 32 << 20
#: … and a file does not grow beyond this, so that segments stay of a usual size.
FILE_BYTES_MAX = 256 << 20
#: How much a task holds in memory before the largest section goes to a file.
HELD_BYTES_MAX = 96 << 20
_NAME = re.compile(r"\d{1,19}-[A-Za-z0-9-]{1,120}\.share")


class Target(NamedTuple):
    """The partition that records are for; a topic of the same name with another id is another one."""

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
    def target(self) -> Target:
        """The partition they are for."""
        return Target(self.topic, self.topic_id, self.partition)


class Share(msgspec.Struct, frozen=True):
    """A staged file, synced, and what is in it."""

    name: str
    sections: tuple[Section, ...]


def query_key(query: str) -> str:
    """Return what a query is called in file names, whatever characters are in its own."""
    return hashlib.sha256(query.encode()).hexdigest()[:32]


def query_directory(data: str, query: str) -> str:
    """Return where the batches of a query are staged."""
    return join(data, "tmp", "sink", query_key(query))


def batch_directory(data: str, query: str, batch: int) -> str:
    """Return where the shares of a batch are staged."""
    return join(query_directory(data, query), str(batch))


def share_path(data: str, query: str, batch: int, name: str) -> str:
    """Return where a share is. The name may have come from anywhere.

    Raises:
        RecordRefused: If it is not the name of a share.
    """
    if not _NAME.fullmatch(name):
        raise RecordRefused(f"{name!r} is not the name of a share")
    return join(batch_directory(data, query, batch), name)


class ShareWriter:
    """Stages the frames of one task. One user at a time.

    Small sections share one file. A large one has a file of its own, since that can become a segment by
    being renamed.
    """

    def __init__(
        self, files: Files, data: str, query: str, batch: int, task: str, now_ms: int, format_: BatchFormat
    ) -> None:
        """Write nothing yet. *task* is what tells one attempt at one task from all others."""
        self._files = files
        self._data = data
        self._query, self._batch = query, batch
        self._task, self._now_ms = task, now_ms
        self._format = format_
        self._held: dict[Target, _Section] = {}
        self._held_bytes = 0
        self._open: dict[Target, _OwnFile] = {}
        self._shares: list[Share] = []
        self._names: list[str] = []

    def append(self, target: Target, frame: bytearray) -> None:
        """Stage a frame for *target*, behind those before it.

        Raises:
            DiskFull, StorageError: Nothing of this task is of use any more; `discard` it.
        """
        own = self._open.get(target)
        section = own.section if own is not None else self._held.setdefault(target, _Section(target))
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

    def finish(self) -> tuple[Share, ...]:
        """Sync everything, names included, and return the shares in the order they are to be published.

        Raises:
            DiskFull, StorageError: As `append` does.
        """
        for own in list(self._open.values()):
            self._end(own)
        if self._held:
            self._write_held()
        if self._shares:
            self._sync_names()
        return tuple(self._shares)

    def discard(self) -> None:
        """Remove what was staged, as far as that works; what stays is collected later."""
        for own in self._open.values():
            own.file.close()
        for name in self._names:
            with contextlib.suppress(OSError):
                self._files.unlink(share_path(self._data, self._query, self._batch, name))

    def _spill(self, section: _Section) -> None:
        """Give a section that is held in memory a file of its own."""
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
        self._held = {}

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
        """Sync every directory on the way: another task may have made it and not synced its name yet."""
        tmp = join(self._data, "tmp")
        query = query_directory(self._data, self._query)
        batch = batch_directory(self._data, self._query, self._batch)
        try:
            for directory in (batch, query, join(tmp, "sink"), tmp, self._data):
                self._files.sync_directory(directory)
        except OSError as error:
            raise as_storage_error(error, "staging") from error


class _Section:
    """Frames for one partition, in memory or on their way to a file."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self.frames: list[bytearray] = []
        self.size = 0
        self.records = 0

    def placed_at(self, position: int) -> Section:
        topic, topic_id, partition = self.target
        return Section(topic, topic_id, partition, position, self.size, self.records)


class _OwnFile:
    """A file that one section has to itself."""

    def __init__(self, name: str, file: File, section: _Section) -> None:
        self.name = name
        self.file = file
        self.section = section
        self.written = 0


def read_frames(
    files: Files, path: str, section: Section, format_: Format, size_max: int
) -> Iterator[bytearray]:
    """Yield the frames of a section, each in a buffer of its own. Nothing but their sizes is checked.

    Raises:
        RecordRefused: If the share is not there, or does not hold what the section says.
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
    """Refuse a share that would be adopted and has more in it than its one section.

    Raises:
        RecordRefused: If that is so.
    """
    if len(share.sections) == 1 and share.sections[0].size >= ADOPT_BYTES:
        section = share.sections[0]
        with contextlib.closing(files.open(path, "read")) as file:
            if section.position or file.size() != section.size:
                raise RecordRefused(f"{path}: has more than the {section.size} bytes that were staged")


def collect(files: Files, data: str, query: str, batch: int) -> None:
    """Remove what is staged of a query's batches up to *batch*, as far as that works."""
    directory = query_directory(data, query)
    with contextlib.suppress(OSError):
        for name in files.list(directory):
            if name.isdigit() and int(name) <= batch:
                _remove_batch(files, join(directory, name))
        if not files.list(directory):
            files.remove_directory(directory)


def collect_abandoned(files: Files, data: str, before_ms: int, keep: Collection[str]) -> int:
    """Remove shares that were staged before *before_ms* and never published; return how many.

    Those of the queries whose keys *keep* has stay.
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


def _remove_batch(files: Files, directory: str) -> None:
    for name in files.list(directory):
        files.unlink(join(directory, name))
    files.remove_directory(directory)
