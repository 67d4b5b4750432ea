"""Import a directory of another system as a topic, completely or not at all.

There are three ways. A topic in the native format: everything is read, checked and encoded beside the log
first; then the topic is created, and the written files become its segments by renaming. A topic in the format
of the source: its frames are read and checked once, then the topic is created, and they are appended byte for
byte. Rafka's log into the shared log: its records are appended in their order, which may be those of several
topics.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain

from cordwood import tenancy
from cordwood.config import TopicConfig
from cordwood.disk import Files, as_storage_error, join, remove_tree
from cordwood.errors import CordwoodError, InvalidSetting, TopicExists
from cordwood.formats import EVERY_FORMAT, Encoded, Format
from cordwood.interchange import frame, kafka, kimberlite, laminarmq, rafka, rustlog
from cordwood.interchange.directories import NewFile
from cordwood.interchange.frames import BatchFrame, dense, frames_of
from cordwood.interchange.intervals import INDEX_INTERVAL as DEFAULT_INTERVAL
from cordwood.interchange.intervals import IndexedSegment, interval_of
from cordwood.interchange.kept import KeptPartition, NewSegment, chunks
from cordwood.interchange.losses import Losses
from cordwood.interchange.publishing import ImportedTopic, created
from cordwood.records import Progress, Record
from cordwood.storage.directory import SUFFIX, Beginning, DataDirectory
from cordwood.storage.meta import check_topic_name

#: The largest size of a segment in bytes, so that it has a usual size.
SEGMENT_BYTES = 256 << 20
INITIAL_OFFSET = "cordwood.initial.offset"
PRECISION = "cordwood.timestamp.precision"
INDEX_INTERVAL = "cordwood.export.index.interval"
TIME_INDEX = "cordwood.export.time.index"
#: The systems whose record format a topic can have.
KEPT_SYSTEMS = ("rustlog", "kimberlite", "laminarmq", "frame")


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

    Offsets and timestamps are kept if the source has them. If *config* sets ``cordwood.format`` to the
    system, frames and segments are kept byte for byte. Everything is checked before the topic is created;
    *unique* names the temporary files. Records without a time get *now_ms*. *progress* is called with the
    number of processed bytes.

    Raises:
        TopicExists: If there is a topic of that name.
        RecordRefused: If the name is not allowed, or the format cannot hold the records as they are.
        DirectoryRefused: If the source is not a directory of that system.
        FrameError: If the source is damaged; names file and position.
        ConfigError: If a setting is invalid.
    """
    settings = _check_target(files, directory, topic, config or {})
    if source.system == "rafka" and settings.storage == "shared":
        work = _SharedImport(files, directory, source, [topic], config or {}, progress)
        return work.run()[0]
    if settings.format not in ("batch", source.system):
        keeps = f", or with cordwood.format={source.system}" if source.system in KEPT_SYSTEMS else ""
        raise CordwoodError(f"an import makes a topic in the native format, without cordwood.format{keeps}")
    if settings.timestamp_order != "any":
        expected = "any: an import keeps the timestamps that it finds; change it after the import"
        raise InvalidSetting("cordwood.timestamp.order", settings.timestamp_order, expected)
    losses = Losses()
    if settings.format != "batch":
        return _import_kept(files, directory, source, topic, settings, config or {}, losses, progress)
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


def import_shared_topics(
    files: Files,
    directory: DataDirectory,
    source: ImportSource,
    topics: Sequence[str],
    *,
    config: Mapping[str, str] | None = None,
    progress: Progress = lambda size: None,
) -> tuple[ImportReport, ...]:
    """Create *topics* from one log of Rafka, all or none, in the shared log, in the order of the source.

    *config* must set ``cordwood.storage=shared``. Each name must be the one of a topic there, of the org
    behind it. Durable on return; raises as `import_topic`.
    """
    for topic in topics:
        settings = _check_target(files, directory, topic, config or {})
        if source.system != "rafka" or settings.storage != "shared":
            raise CordwoodError(
                "several topics are imported together only from a log of Rafka into the shared log, with "
                "cordwood.storage=shared: otherwise import one after the other"
            )
    return _SharedImport(files, directory, source, topics, config or {}, progress).run()


def _check_target(
    files: Files, directory: DataDirectory, topic: str, config: Mapping[str, str]
) -> TopicConfig:
    check_topic_name(topic)
    if topic in directory.topics:
        raise TopicExists(topic)
    directory.topics.check_no_collision(topic)
    return directory.config_of(config)


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
            records = rustlog.read_partitions(files, where, losses, topic=topic)
        case "kimberlite":
            records = kimberlite.read_partitions(files, where, losses, tenant=source.tenant)
        case "laminarmq":
            records = laminarmq.read_partitions(files, where, losses, now_ms=now_ms)
        case "rafka":
            records = rafka.read_partitions(
                files, where, losses, topic=topic, now_ms=now_ms, org=source.tenant
            )
        case "frame":
            records = frame.read_partitions(files, where, losses, topic=topic)
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


def _publish(
    files: Files, directory: DataDirectory, topic: str, staged: list[_StagedFiles], config: Mapping[str, str]
) -> None:
    """Create the topic and adopt the files. If that fails, the topic is removed."""
    initial = min((each.initial for each in staged), default=0)
    count = max((each.partition for each in staged), default=0) + 1
    with created(files, directory, {topic: ImportedTopic(count, _beginning_at(config, initial))}):
        for partition in staged:
            if not partition.files:
                continue
            log = directory.partitions.writable(topic, partition.partition)
            for path, size in partition.files:
                log.adopt(path, size)
            if partition.start > initial:
                log.advance_log_start(partition.start)


def _beginning_at(config: Mapping[str, str], initial: int) -> dict[str, str]:
    return {**config, INITIAL_OFFSET: str(initial)} if initial else dict(config)


# --- byte for byte ----------------------------------------------------------------------------------------


def _import_kept(
    files: Files,
    directory: DataDirectory,
    source: ImportSource,
    topic: str,
    settings: TopicConfig,
    config: Mapping[str, str],
    losses: Losses,
    progress: Progress,
) -> ImportReport:
    """Create a topic in the format of the source, with the frames and segments of the source."""
    where, org = source.directory, tenancy.split(topic).org
    match source.system:
        case "rustlog":
            found = rustlog.read_frames(files, where, losses, topic=topic)
        case "laminarmq":
            found = laminarmq.read_frames(files, where, losses)
        case "frame":
            found = frame.read_frames(files, where, losses, topic=topic)
        case _:
            found = kimberlite.read_frames(files, where, losses, topic=topic, tenant=org)
    kept = [_KeptLog(number, found[number], settings, org) for number in sorted(found)]
    for each in kept:
        each.check()
    starts = [each.start for each in kept if each.start is not None]
    initial = settings.initial_offset if INITIAL_OFFSET in config else min(starts, default=0)
    if starts and min(starts) < initial:
        raise CordwoodError(f"{INITIAL_OFFSET} is {initial}, and there are records from {min(starts)} on")
    count = max(found, default=0) + 1
    if EVERY_FORMAT[settings.format].holds.microseconds:
        config = {PRECISION: "us", **config}
    config = {**_index_settings(files, source, topic, kept, losses), **config}
    # Losses were counted while the source was checked, and the source is read again.
    lines, done = losses.lines(), 0
    try:
        with created(files, directory, {topic: ImportedTopic(count, _beginning_at(config, initial))}):
            for each in kept:
                for size in each.append(directory, topic):
                    done += size
                    progress(done)
    except OSError as error:
        raise as_storage_error(error, "importing") from error
    divided = sum(each.divided for each in kept)
    if divided:
        lines += (f"segments larger than the settings of the topic allow, which were divided: {divided}",)
    return ImportReport(topic, source.system, tuple(each.report() for each in kept), lines)


def _index_settings(
    files: Files, source: ImportSource, topic: str, kept: Sequence[_KeptLog], losses: Losses
) -> dict[str, str]:
    """Return the settings with which an export of the topic has the indexes of the source."""
    where = source.directory
    match source.system:
        case "rustlog":
            found, times = rustlog.read_indexes(files, where, topic=topic), True
        case "frame":
            found = frame.read_indexes(files, where, topic=topic)
            times = frame.has_time_indexes(files, where, topic=topic)
        case _:
            return {}
    interval = interval_of(
        IndexedSegment(base, count, found[each.number].get(base, ()))
        for each in kept
        for base, count in each.counts.items()
    )
    if interval is None:
        losses.add("indexes with a distance between entries that changes, which an export makes anew")
    settings = {} if interval in (None, DEFAULT_INTERVAL) else {INDEX_INTERVAL: str(interval)}
    return settings if times else {**settings, TIME_INDEX: "false"}


class _KeptLog:
    """One partition of a source whose frames are kept."""

    def __init__(self, number: int, partition: KeptPartition, settings: TopicConfig, org: int) -> None:
        self.number = number
        self._partition = partition
        self._settings = settings
        self._format: Format = EVERY_FORMAT[settings.format].for_partition(number, org)
        self._segments = 0
        self._records = 0
        #: How many records each segment has, by its base.
        self.counts: dict[int, int] = {}
        #: The first offset, None if the source says none.
        self.start: int | None = None
        #: How many segments there are besides those of the source.
        self.divided = 0

    def check(self) -> None:
        """Read and check all frames; raises as `chunks` does."""
        base = 0
        for item in self._chunks():
            if isinstance(item, NewSegment):
                self._segments += 1
                self.start = item.base if self.start is None else self.start
                base = item.base
                self.counts[base] = 0
            else:
                self._records += len(item.sizes)
                self.counts[base] += len(item.sizes)

    def append(self, directory: DataDirectory, topic: str) -> Iterator[int]:
        """Append all frames to the partition, which has none yet; yield the bytes of each append. Durable."""
        if self.start is None:
            return
        begin = Beginning(self.start, self._partition.before)
        log = directory.partitions.create_at(topic, self.number, begin)
        for item in self._chunks():
            if isinstance(item, NewSegment):
                log.roll()
                continue
            encoded: Encoded = item
            log.append_made(lambda slot, encoded=encoded: encoded)  # type: ignore[misc]
            yield len(encoded.data)
        log.commit()
        self.divided = len(log.state.sealed) + 1 - self._segments

    def report(self) -> ImportedPartition:
        start = self.start or 0
        return ImportedPartition(self.number, start, start + self._records, self._records)

    def _chunks(self) -> Iterator[NewSegment | Encoded]:
        settings = self._settings
        return chunks(self._format, self._partition, settings.max_message_bytes, settings.stored_bytes_max)


# --- the shared log ---------------------------------------------------------------------------------------


class _SharedImport:
    """The import of topics of a log of Rafka into the shared log."""

    def __init__(
        self,
        files: Files,
        directory: DataDirectory,
        source: ImportSource,
        topics: Sequence[str],
        config: Mapping[str, str],
        progress: Progress,
    ) -> None:
        self._files, self._directory = files, directory
        self._config, self._progress = config, progress
        self._source = rafka.SharedSource(files, source.directory, topics, source.tenant)

    def run(self) -> tuple[ImportReport, ...]:
        """Check the log, create the topics and append their records. Durable on return."""
        losses, source = {topic: Losses() for topic in self._source.topics}, self._source
        counts: dict[tuple[str, int], int] = {}
        for each in source.records():
            key = each.topic, each.partition
            counts[key] = counts.get(key, 0) + 1
            losses[each.topic].add(rafka.NO_TIMES)
        new = {
            topic: ImportedTopic(max(partitions, default=0) + 1, self._config)
            for topic, partitions in source.topics.items()
        }
        try:
            with created(self._files, self._directory, new):
                self._append()
        except OSError as error:
            raise as_storage_error(error, "importing") from error
        first = self._directory.config_of(self._config).initial_offset
        return tuple(
            ImportReport(
                topic,
                "rafka",
                tuple(
                    ImportedPartition(number, first, first + counts[topic, number], counts[topic, number])
                    for number in sorted(partitions)
                ),
                losses[topic].lines() + source.unnamed,
            )
            for topic, partitions in source.topics.items()
        )

    def _append(self) -> None:
        done, partitions = 0, self._directory.partitions
        used = None
        for run in rafka.runs(self._source.records()):
            used = partitions.writable(run.topic, run.partition)
            used.append([(None, value) for value in run.values])
            done += sum(map(len, run.values))
            self._progress(done)
        if used is not None:
            # All of them are in one log, which is synced as a whole.
            used.commit()
