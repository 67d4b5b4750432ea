"""A directory of another system becomes a topic: all of it, or nothing.

Everything is read, checked and encoded beside the log first. Only then is the topic made, and the files that
were written become its segments by being renamed. A process that is killed meanwhile leaves a note of it: the
next import of that name removes what there is of the topic and begins again.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain

import msgspec

from cordwood import process
from cordwood.config import TopicConfig
from cordwood.errors import CordwoodError, TopicExists
from cordwood.interchange import frame, kafka, kimberlite, laminarmq, rafka, rustlog
from cordwood.interchange.directories import NewFile
from cordwood.interchange.frames import Frame, dense, frames_of
from cordwood.interchange.losses import Losses
from cordwood.records import Record
from cordwood.storage.data_directory import DataDirectory, check_topic_name
from cordwood.storage.deletion import SUFFIX, remove_tree
from cordwood.storage.files import Files, join
from cordwood.storage.metadata import read_metadata, write_metadata
from cordwood.storage.store import as_storage_error

#: A segment is not made larger than this, so that it stays of a usual size.
SEGMENT_BYTES = 256 << 20
INITIAL_OFFSET = "cordwood.initial.offset"

Progress = Callable[[int], None]
"""Told how many bytes are done by now."""


@dataclass(frozen=True)
class ImportSource:
    """Where records come from. ``tenant`` says whose, where a log has those of several."""

    system: str
    directory: str
    tenant: int | None = None


@dataclass(frozen=True, slots=True)
class ImportedPartition:
    """What a partition got: offsets [start, end), some of which may have no record."""

    partition: int
    start_offset: int
    end_offset: int
    records: int


@dataclass(frozen=True, slots=True)
class ImportReport:
    """What was imported, and what of the source could not be kept, a line each."""

    topic: str
    system: str
    partitions: tuple[ImportedPartition, ...]
    not_kept: tuple[str, ...]

    @property
    def records(self) -> int:
        """How many records there are in all partitions."""
        return sum(each.records for each in self.partitions)


def import_topic(
    files: Files,
    directory: DataDirectory,
    source: ImportSource,
    topic: str,
    *,
    unique: str,
    now_ms: int,
    config: Mapping[str, str] | None = None,
    progress: Progress = lambda size: None,
) -> ImportReport:
    """Make *topic* of the records in a directory of another system. Durable on return.

    Offsets and timestamps are kept where the source has them. Whatever is refused is refused before the topic
    is made; *unique* names what is written meanwhile. Records that have no time get *now_ms*. *progress* is
    told how many bytes are taken by now.

    Raises:
        TopicExists: If there is a topic of that name.
        RecordRefused: If the name is not allowed.
        DirectoryRefused: If the source is not a directory of that system.
        FrameError: If the source is not as it should be; names file and position.
        ConfigError: If a setting does not fit.
    """
    check_topic_name(topic)
    _remove_unfinished(files, directory, topic)
    if topic in directory.topics:
        raise TopicExists(topic)
    settings = directory.config_of(config or {})
    if settings.format != "batch":
        raise CordwoodError("an import makes a topic in the native format: leave cordwood.format out")
    losses = Losses()
    # What a crash leaves there goes at the next open, as what is left of a deleted topic does.
    place = join(directory.path, "tmp", f"import-{unique}{SUFFIX}")
    try:
        files.make_directories(place)
        incoming = _incoming(files, source, topic, settings.max_message_bytes, now_ms, losses)
        staged = _stage(files, place, incoming, settings, config or {}, progress)
        _publish(files, directory, topic, staged, config or {})
    except OSError as error:
        raise as_storage_error(error, "importing") from error
    finally:
        with contextlib.suppress(OSError):
            remove_tree(files, place)
    partitions = tuple(each.report for each in staged)
    return ImportReport(topic, source.system, partitions, losses.lines())


# --- the systems ----------------------------------------------------------------------------------------


def _incoming(
    files: Files, source: ImportSource, topic: str, size_max: int, now_ms: int, losses: Losses
) -> dict[int, Iterator[Frame]]:
    """Return the frames of each partition."""
    where, records = source.directory, dict[int, Iterator[Record]]()
    match source.system:
        case "kafka":
            return kafka.read_partitions(files, where, losses, topic=topic)
        case "rustlog":
            records = rustlog.read_partitions(files, where, losses)
        case "kimberlite":
            records = kimberlite.read_partitions(files, where, losses, tenant=source.tenant)
        case "laminarmq":
            records = laminarmq.read_partitions(files, where, losses, now_ms=now_ms)
        case "rafka":
            records = rafka.read_partitions(
                files, where, losses, topic=topic, now_ms=now_ms, org=source.tenant
            )
        case "frame":
            records = frame.read_partitions(files, where, losses)
        case _:
            raise CordwoodError(
                f"there is no importer for {source.system}; there is one for {', '.join(SYSTEMS)}"
            )
    return {number: frames_of(each, size_max) for number, each in records.items()}


SYSTEMS = ("rustlog", "kimberlite", "laminarmq", "rafka", "frame", "kafka")


# --- beside the log ---------------------------------------------------------------------------------------


@dataclass
class _Staged:
    """What was written for one partition: files of frames, and what is in them."""

    partition: int
    start: int
    end: int
    records: int = 0
    initial: int = 0
    files: list[tuple[str, int]] = field(default_factory=list)

    @property
    def report(self) -> ImportedPartition:
        return ImportedPartition(self.partition, self.start, self.end, self.records)


def _stage(
    files: Files,
    place: str,
    incoming: Mapping[int, Iterator[Frame]],
    settings: TopicConfig,
    config: Mapping[str, str],
    progress: Progress,
) -> list[_Staged]:
    """Write the frames of all partitions to files of their own, synced."""
    begun = {number: (next(frames, None), frames) for number, frames in incoming.items()}
    starts = [first.base_offset for first, _ in begun.values() if first is not None]
    initial = settings.initial_offset if INITIAL_OFFSET in config else min(starts, default=0)
    if starts and min(starts) < initial:
        raise CordwoodError(f"{INITIAL_OFFSET} is {initial}, and there are records from {min(starts)} on")
    staged, done = [], 0
    for number, (first, frames) in sorted(begun.items()):
        start = initial if first is None else first.base_offset
        partition = _Staged(number, start, start, initial=initial)
        if first is not None:
            writer = _FrameFiles(files, place, partition, min(settings.segment_bytes, SEGMENT_BYTES))
            for each in dense(chain([first], frames), initial):
                writer.append(each)
                done += len(each.data)
                progress(done)
            writer.close()
        staged.append(partition)
    files.sync_directory(place)
    return staged


class _FrameFiles:
    """The files of one partition, one open at a time."""

    def __init__(self, files: Files, place: str, partition: _Staged, size_max: int) -> None:
        self._files = files
        self._place = place
        self._partition = partition
        self._size_max = size_max
        self._open: tuple[str, NewFile] | None = None

    def append(self, frame: Frame) -> None:
        """Append a frame, to a new file where the last one is full."""
        if self._open is not None and self._open[1].size + len(frame.data) > self._size_max:
            self.close()
        if self._open is None:
            path = join(self._place, f"{self._partition.partition}-{len(self._partition.files)}.frames")
            self._open = path, NewFile(self._files.open(path, "create"))
        self._open[1].append(frame.data)
        self._partition.records += frame.records
        self._partition.end = frame.next_offset

    def close(self) -> None:
        """Sync and close the file that is open."""
        assert self._open is not None
        path, file = self._open
        file.close()
        self._partition.files.append((path, file.size))
        self._open = None


# --- into the log -----------------------------------------------------------------------------------------


class _Unfinished(msgspec.Struct, frozen=True):
    """The note of an import that is under way: the id of the topic that is not whole yet."""

    topic_id: str


_UNFINISHED = msgspec.json.Decoder(_Unfinished)


def _note_path(directory: DataDirectory, topic: str) -> str:
    return join(directory.path, "tmp", f"import-{topic}.json")


def _remove_unfinished(files: Files, directory: DataDirectory, topic: str) -> None:
    """Remove a topic that an import was killed over."""
    path = _note_path(directory, topic)
    if not files.exists(path):
        return
    entry = directory.topics.get(topic)
    if entry is not None and read_metadata(files, path, _UNFINISHED).topic_id == entry.id:
        directory.delete_topic(topic)
    files.unlink(path)


def _publish(
    files: Files, directory: DataDirectory, topic: str, staged: list[_Staged], config: Mapping[str, str]
) -> None:
    """Make the topic, and let it adopt the files. Where that fails the topic goes again."""
    initial = min((each.initial for each in staged), default=0)
    settings = dict(config)
    if initial:
        settings[INITIAL_OFFSET] = str(initial)
    count = max((each.partition for each in staged), default=0) + 1
    topic_id, note = process.new_id(), _note_path(directory, topic)
    write_metadata(files, note, _Unfinished(topic_id))
    entry = directory.create_topic(topic, topic_id, count, settings)
    try:
        for partition in staged:
            if not partition.files:
                continue
            log = directory.partition(topic, partition.partition)
            for path, size in partition.files:
                log.adopt(path, size)
            if partition.start > initial:
                log.advance_log_start(partition.start)
    except BaseException:
        with contextlib.suppress(CordwoodError):
            if directory.topics.get(topic) == entry:
                directory.delete_topic(topic)
                files.unlink(note)
        raise
    files.unlink(note)
    files.sync_directory(join(directory.path, "tmp"))
