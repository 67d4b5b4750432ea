"""Import a directory of another system as a topic, completely or not at all.

Everything is read, checked and encoded beside the log first. Only then is the topic created, and the written
files become its segments by renaming. A killed process leaves a note: the next import of that name removes
the incomplete topic and starts again.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain

import msgspec

from cordwood.config import TopicConfig
from cordwood.disk import Files, as_storage_error, join, read_metadata, remove_tree, write_metadata
from cordwood.errors import CordwoodError, TopicExists
from cordwood.host import process
from cordwood.interchange import frame, kafka, kimberlite, laminarmq, rafka, rustlog
from cordwood.interchange.directories import NewFile
from cordwood.interchange.frames import BatchFrame, dense, frames_of
from cordwood.interchange.losses import Losses
from cordwood.records import Progress, Record
from cordwood.storage.directory import SUFFIX, DataDirectory
from cordwood.storage.meta import check_topic_name, named_by

#: The largest size of a segment in bytes, so that it has a usual size.
SEGMENT_BYTES = 256 << 20
INITIAL_OFFSET = "cordwood.initial.offset"


@dataclass(frozen=True)
class ImportSource:
    """The source of records. ``tenant`` selects one if a log has several."""

    system: str
    directory: str
    tenant: int | None = None


@dataclass(frozen=True, slots=True)
class ImportedPartition:
    """The offsets [start, end) of a partition, some of which may have no record."""

    partition: int
    start_offset: int
    end_offset: int
    records: int


@dataclass(frozen=True, slots=True)
class ImportReport:
    """The result of an import, and a line for each kind of lost detail."""

    topic: str
    system: str
    partitions: tuple[ImportedPartition, ...]
    not_kept: tuple[str, ...]

    @property
    def records(self) -> int:
        """The number of records in all partitions."""
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
    """Create *topic* from a directory of another system. Durable on return.

    Offsets and timestamps are kept if the source has them. Everything is checked before the topic is created;
    *unique* names the temporary files. Records without a time get *now_ms*. *progress* is called with the
    number of processed bytes.

    Raises:
        TopicExists: If there is a topic of that name.
        RecordRefused: If the name is not allowed.
        DirectoryRefused: If the source is not a directory of that system.
        FrameError: If the source is damaged; names file and position.
        ConfigError: If a setting is invalid.
    """
    check_topic_name(topic)
    _remove_unfinished(files, directory, topic)
    if topic in directory.topics:
        raise TopicExists(topic)
    directory.topics.check_no_collision(topic)
    settings = directory.config_of(config or {})
    if settings.format != "batch":
        raise CordwoodError("an import makes a topic in the native format: leave cordwood.format out")
    losses = Losses()
    # The next open removes leftovers of a crash there, like those of a deleted topic.
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
) -> dict[int, Iterator[BatchFrame]]:
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
                f"there is no importer for {source.system}; there is one for {', '.join(IMPORT_SYSTEMS)}"
            )
    return {number: frames_of(each, size_max) for number, each in records.items()}


IMPORT_SYSTEMS = ("rustlog", "kimberlite", "laminarmq", "rafka", "frame", "kafka")


# --- beside the log ---------------------------------------------------------------------------------------


@dataclass
class _StagedFiles:
    """The staged files of one partition, and their content."""

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
    incoming: Mapping[int, Iterator[BatchFrame]],
    settings: TopicConfig,
    config: Mapping[str, str],
    progress: Progress,
) -> list[_StagedFiles]:
    """Write the frames of each partition to its own files, synced."""
    begun = {number: (next(frames, None), frames) for number, frames in incoming.items()}
    starts = [first.base_offset for first, _ in begun.values() if first is not None]
    initial = settings.initial_offset if INITIAL_OFFSET in config else min(starts, default=0)
    if starts and min(starts) < initial:
        raise CordwoodError(f"{INITIAL_OFFSET} is {initial}, and there are records from {min(starts)} on")
    staged, done = [], 0
    for number, (first, frames) in sorted(begun.items()):
        start = initial if first is None else first.base_offset
        partition = _StagedFiles(number, start, start, initial=initial)
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

    def __init__(self, files: Files, place: str, partition: _StagedFiles, size_max: int) -> None:
        self._files = files
        self._place = place
        self._partition = partition
        self._size_max = size_max
        self._open: tuple[str, NewFile] | None = None

    def append(self, frame: BatchFrame) -> None:
        """Append a frame, to a new file if the last one is full."""
        if self._open is not None and self._open[1].size + len(frame.data) > self._size_max:
            self.close()
        if self._open is None:
            path = join(self._place, f"{self._partition.partition}-{len(self._partition.files)}.frames")
            self._open = path, NewFile(self._files.open(path, "create"))
        self._open[1].append(frame.data)
        self._partition.records += frame.records
        self._partition.end = frame.next_offset

    def close(self) -> None:
        """Sync and close the open file."""
        assert self._open is not None
        path, file = self._open
        file.close()
        self._partition.files.append((path, file.size))
        self._open = None


# --- into the log -----------------------------------------------------------------------------------------


class _Unfinished(msgspec.Struct, frozen=True):
    """The note of a running import: the id of its incomplete topic."""

    topic_id: str


_UNFINISHED = msgspec.json.Decoder(_Unfinished)


def _note_path(directory: DataDirectory, topic: str) -> str:
    short = hashlib.sha256(topic.encode()).hexdigest()[:32]
    return join(directory.path, "tmp", named_by(f"import-{topic}", f"import-{short}", ".json"))


def _remove_unfinished(files: Files, directory: DataDirectory, topic: str) -> None:
    """Remove the incomplete topic of a killed import."""
    path = _note_path(directory, topic)
    if not files.exists(path):
        return
    entry = directory.topics.get(topic)
    if entry is not None and read_metadata(files, path, _UNFINISHED).topic_id == entry.id:
        directory.topics.delete(topic)
    files.unlink(path)


def _publish(
    files: Files, directory: DataDirectory, topic: str, staged: list[_StagedFiles], config: Mapping[str, str]
) -> None:
    """Create the topic and adopt the files. If that fails, the topic is removed."""
    initial = min((each.initial for each in staged), default=0)
    settings = dict(config)
    if initial:
        settings[INITIAL_OFFSET] = str(initial)
    count = max((each.partition for each in staged), default=0) + 1
    topic_id, note = process.new_id(), _note_path(directory, topic)
    write_metadata(files, note, _Unfinished(topic_id))
    entry = directory.topics.create(topic, topic_id, count, settings)
    try:
        for partition in staged:
            if not partition.files:
                continue
            log = directory.partitions.writable(topic, partition.partition)
            for path, size in partition.files:
                log.adopt(path, size)
            if partition.start > initial:
                log.advance_log_start(partition.start)
    except BaseException:
        with contextlib.suppress(CordwoodError):
            if directory.topics.get(topic) == entry:
                directory.topics.delete(topic)
                files.unlink(note)
        raise
    files.unlink(note)
    files.sync_directory(join(directory.path, "tmp"))
