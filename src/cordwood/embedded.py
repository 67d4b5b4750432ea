"""The library without a server: `open`, `Log`, `Topic`."""

from __future__ import annotations

import contextlib
import os
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import count
from threading import Event, Lock, Thread
from types import TracebackType
from typing import Any, NamedTuple, TypeVar

from cordwood.broker.partitioner import partition_for_key
from cordwood.broker.topics import Topics
from cordwood.clock import Clock, SystemClock
from cordwood.config import TOPIC_SETTINGS, BrokerConfig, TopicConfig, load_broker_config
from cordwood.errors import (
    DirectoryLocked,
    InvalidSetting,
    LogClosed,
    OffsetOutOfRange,
    RecordRefused,
    TopicMismatch,
    UnknownTopic,
)
from cordwood.records import Header, OffsetRange, Record
from cordwood.scan import Readable, Scan, check_columns
from cordwood.setting_kinds import SyncPolicy, text_of
from cordwood.storage.catalogue import TopicEntry
from cordwood.storage.data_directory import DataDirectory, Opening, partition_directory
from cordwood.storage.files import Files
from cordwood.storage.maintenance import MaintenanceReport, Planned
from cordwood.storage.memory_files import MemoryFiles
from cordwood.storage.partition_log import Appended, PartitionLog, TruncationReport
from cordwood.storage.posix_files import PosixFiles
from cordwood.storage.read_only import ReadOnlyDirectory
from cordwood.storage.recovery import RecoveryReport
from cordwood.storage.snapshots import Snapshots
from cordwood.storage.store import as_storage_error
from cordwood.storage.virtual_log import AnyLog

READ_BYTES_MIN, READ_BYTES_MAX = 64 << 10, 1 << 20
#: How often a directory that another process writes is looked at.
LOCK_POLL_SECONDS = 0.02
#: A chain is behind its log for so long at most, the time that following takes aside.
FOLLOW_SECONDS = 0.5
Row = Sequence[Any]
Result = TypeVar("Result")


class Placement(NamedTuple):
    """Where a record was put."""

    partition: int
    offset: int


def open(  # noqa: A001 - the library is used as cordwood.open
    path: str | os.PathLike[str],
    *,
    read_only: bool = False,
    sync: str | None = None,
    create: bool = True,
    files: Files | None = None,
    clock: Clock | None = None,
) -> Log:
    """Open the data directory at *path*, or a log in memory with ``":memory:"``.

    *sync* says when an append is durable, for topics that do not say it themselves: ``each`` (on return,
    the default), ``every:N`` records, ``ms:T`` milliseconds, or ``never``. With *read_only* nothing is
    locked or changed, and it works beside a live writer. *create* makes a directory that is not there.

    Raises:
        DirectoryLocked: If another process writes it; says which.
        DirectoryRefused: If it is not a data directory, or one of a newer version.
        MetadataDamaged: If what says which topics there are cannot be read; it is never taken for empty.
    """
    config = _broker_config(sync)
    if files is None:
        files = MemoryFiles() if os.fspath(path) == ":memory:" else PosixFiles()
    data = "/memory" if os.fspath(path) == ":memory:" else os.path.abspath(path)
    if read_only:
        return Log(_opened(lambda: ReadOnlyDirectory(files, data, config), data))
    opening = Opening(files, data, config, create=create, clock=clock or SystemClock())
    log = Log(_opened(lambda: DataDirectory(opening), data))
    if isinstance(files, PosixFiles) and clock is None:
        # Whoever brings files or a clock wants every step of it at a time of their own.
        log._follow_always()
    return log


def _opened(make: Callable[[], DataDirectory | ReadOnlyDirectory], data: str) -> Any:
    """Return what *make* opens; what the operating system refuses becomes an error of ours."""
    try:
        return make()
    except OSError as error:
        raise as_storage_error(error, "opening the data directory") from error


def open_when_free(make: Callable[[], Result], seconds: float) -> Result:
    """Return what *make* opens, after waiting up to *seconds* for a writer that is soon done.

    Raises:
        DirectoryLocked: If it is not, or listens somewhere: then whatever is wanted can be had there.
    """
    deadline = time.monotonic() + seconds
    while True:
        try:
            return make()
        except DirectoryLocked as error:
            if error.address is not None or time.monotonic() >= deadline:
                raise
            time.sleep(LOCK_POLL_SECONDS)


def _broker_config(sync: str | None) -> BrokerConfig:
    config, _ = load_broker_config()
    if sync is None:
        return config
    try:
        policy = SyncPolicy.parse(sync)
    except ValueError:
        raise InvalidSetting("sync", sync, "each, every:N, ms:T or never") from None
    return replace(config, topic_defaults=replace(config.topic_defaults, sync=policy))


class Log:
    """An open data directory. May be used from many threads; dead in a forked child."""

    def __init__(self, directory: DataDirectory | ReadOnlyDirectory) -> None:
        self._directory = directory
        self._repeated: dict[str, _Repeated] = {}
        self._repeated_guard = Lock()
        self._topics: Topics | None = None

    def __enter__(self) -> Log:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def topics(self) -> list[str]:
        """The names of all topics, sorted."""
        return sorted(self._directory.topics)

    @property
    def reports(self) -> list[RecoveryReport]:
        """What recovery found and did in the partitions opened so far."""
        return list(self._writable().reports)

    def topic(
        self, name: str, partitions: int | None = None, config: Mapping[str, str] | None = None
    ) -> Topic:
        """Return the topic *name*, created if it is missing: with one partition unless told otherwise.

        Of an existing topic, what is given must be as stored.

        Raises:
            TopicMismatch: If the topic exists with another number of partitions or another setting.
            UnknownTopic: If it does not exist and the log is read-only.
        """
        entry = self._directory.topics.get(name)
        if entry is None:
            if partitions is not None and partitions < 1:
                raise InvalidSetting("partitions", partitions, "at least 1")
            directory = self._writable(f"there is no topic {name}")
            topic_id = str(uuid.uuid4())
            entry = directory.create_topic(name, topic_id, partitions or 1, config or {})
        else:
            _check_as_stored(entry, partitions, config or {}, self._directory)
        return Topic(self, entry)

    # --- topics as a whole ------------------------------------------------------------------------

    def entry(self, name: str) -> TopicEntry:
        """Return what the catalogue says of a topic: its id, partitions and own settings.

        Raises:
            UnknownTopic: If there is none of that name.
        """
        found = self._directory.topics.get(name)
        if found is None:
            raise UnknownTopic(f"there is no topic {name}")
        return found

    def config_of(self, name: str) -> TopicConfig:
        """Return the settings of a topic, its own and those it has from elsewhere. Raises as `entry`."""
        return self._directory.config_of(self.entry(name).config)

    def create_topic(
        self, name: str, partitions: int | None = None, config: Mapping[str, str] | None = None
    ) -> Topic:
        """Create a topic that is not there yet, with ``num.partitions`` unless told. Durable on return.

        Raises:
            TopicExists: If it is there.
            RecordRefused, ConfigError: If its name or a setting is not allowed.
        """
        return Topic(self, self._changing().create(name, partitions, config))

    def alter_topic(
        self, name: str, *, partitions: int | None = None, config: Mapping[str, str] | None = None
    ) -> None:
        """Give a topic more partitions, or other settings in place of all its own. Durable on return.

        Raises:
            UnknownTopic: If there is none of that name.
            ConfigError: If the number or a setting does not fit, or cannot be changed any more.
        """
        topics = self._changing()
        if partitions is not None:
            # Asked first, so that both are changed or neither.
            topics.add_partitions(name, partitions, validate_only=config is not None)
        if config is not None:
            topics.alter(name, config)
            if partitions is not None:
                topics.add_partitions(name, partitions)

    def delete_topic(self, name: str) -> None:
        """Delete a topic and everything in it. Durable on return.

        What groups have committed of it stays in the topic of `offsets_topic`.

        Raises:
            UnknownTopic: If there is none of that name.
        """
        self._changing().delete(name)

    def offsets_topic(self) -> Topic:
        """Return the internal topic that consumer groups commit to, created if it is missing."""
        return Topic(self, self._changing().ensure_internal())

    def _changing(self) -> Topics:
        if self._topics is None:
            self._topics = Topics(self._writable(), _broker_config(None))
        return self._topics

    def scan(
        self,
        topic: str,
        partition: int | None = None,
        *,
        start: int | None = None,
        stop: int | None = None,
        columns: Sequence[str] | None = None,
        since: int | None = None,
        until: int | None = None,
    ) -> Scan:
        """Return the records of *topic* as columns for pyarrow, pandas, polars and DuckDB, read lazily.

        One *partition* or all of them; offsets from *start* up to *stop*, of every partition scanned;
        timestamps (milliseconds) from *since* up to *until*; *columns* out of key, value, topic,
        partition, offset, timestamp, timestampType and headers, all but headers by default.

        Raises:
            UnknownTopic: If there is no such topic or partition.
            RecordRefused: If a column does not exist.
            OffsetOutOfRange: When reading, if *start* is outside of what a partition holds.
        """
        entry = self._directory.topics.get(topic)
        if entry is None:
            raise UnknownTopic(f"there is no topic {topic}")
        if partition is not None:
            self._readable(topic, partition)
        numbers = tuple(range(entry.partitions)) if partition is None else (partition,)
        return Scan(topic, numbers, self._readable, start, stop, check_columns(columns), since, until)

    def maintain(self, *, force: bool = False) -> MaintenanceReport:
        """Run one pass of retention and compaction now and return what it did; see `DataDirectory.maintain`.

        With *force* topics are compacted however little there is to compact.
        """
        return self._writable().maintain(force=force)

    def plan_upkeep(self, *, force: bool = False) -> list[Planned]:
        """Return what `maintain` would do now, of a log that is open to read only. Changes nothing."""
        if isinstance(self._directory, DataDirectory):
            raise LogClosed("what upkeep would do is planned on a log that is open to read only")
        now_ms, directory = SystemClock().now_ms(), self._directory
        return [
            directory.readable(name, number, entry).plan_upkeep(
                directory.config_of(entry.config), now_ms, force=force
            )
            for name, entry in sorted(directory.topics.items())
            for number in range(entry.partitions)
        ]

    def close(self) -> None:
        """Make everything durable and let go. Idempotent.

        Raises:
            LogFailed: If a partition failed, now or before.
        """
        with self._repeated_guard:
            repeated, self._repeated = self._repeated, {}
        for each in repeated.values():
            each.stop()
        self._directory.close()

    def _writable(self, otherwise: str = "the log is open to read only") -> DataDirectory:
        if isinstance(self._directory, DataDirectory):
            return self._directory
        raise UnknownTopic(otherwise) if otherwise.startswith("there is no") else LogClosed(otherwise)

    def _readable(self, topic: str, partition: int) -> Readable:
        """Return what there is to read of a partition."""
        return self._directory.readable(topic, partition)

    def _flush_within(self, milliseconds: int) -> None:
        """Start the thread that keeps the promise of ``ms:T``, once per T."""
        name = f"sync-{milliseconds}ms"
        if name not in self._repeated:
            with self._repeated_guard:
                if name not in self._repeated:
                    self._repeated[name] = _Repeated(milliseconds / 1000, name, self._commit_late)

    def _commit_late(self) -> None:
        """Commit every partition that promises to do so some time after an append."""
        for log in self._writable().open_partitions():
            if log.config.sync.mode == "ms" and log.failure is None:
                log.commit_quietly()

    def _follow_changed(self) -> None:
        """Bring chains up to date. What cannot be is tried again, and said by whoever needs them."""
        if self._writable().is_chain_behind:
            self._writable().follow_changed()

    def _follow_always(self) -> None:
        """Start the thread that brings chains up to date."""
        self._repeated["chains"] = _Repeated(FOLLOW_SECONDS, "chains", self._follow_changed)


def _check_as_stored(
    entry: TopicEntry,
    partitions: int | None,
    config: Mapping[str, str],
    directory: DataDirectory | ReadOnlyDirectory,
) -> None:
    if partitions is not None and partitions != entry.partitions:
        raise TopicMismatch(entry.name, "partitions", entry.partitions, partitions)
    if not config:
        return
    stored, given = directory.config_of(entry.config), directory.config_of(config)
    for name in config:
        attribute = TOPIC_SETTINGS[name].attribute
        if getattr(stored, attribute) != getattr(given, attribute):
            texts = (text_of(getattr(settings, attribute)) for settings in (stored, given))
            raise TopicMismatch(entry.name, name, *texts)


class Topic:
    """Append to and read from one topic. May be used from many threads."""

    def __init__(self, log: Log, entry: TopicEntry) -> None:
        self._log = log
        self.name = entry.name
        self.partitions = entry.partitions
        self._turn = count()
        # A log that was opened once stays the same, and says itself when it is closed.
        self._logs: dict[int, AnyLog] = {}

    # --- appending --------------------------------------------------------------------------------

    def append(
        self,
        value: bytes | None,
        *,
        key: bytes | None = None,
        headers: Iterable[Header] = (),
        partition: int | None = None,
        timestamp: int | None = None,
        expected_offset: int | None = None,
    ) -> Placement:
        """Append one record and return where it was put, durable as the sync policy says.

        Without *partition* a key decides, as in Kafka; without either, partitions take turns.
        *timestamp* is milliseconds since the epoch, now if not given. A *value* of None is a tombstone.

        Raises:
            UnexpectedOffset: If *expected_offset* is given and not the next one. Nothing was stored.
            RecordRefused, FrameTooLarge: If the record cannot be held. Nothing was stored.
            DiskFull: Nothing was stored; works again once there is space.
            LogFailed: A sync failed; every later call says so too.
        """
        where = self._partition_for(key) if partition is None else partition
        try:
            row = (key, value, tuple(headers), timestamp)
        except TypeError:
            raise RecordRefused(f"headers must be (name, value) pairs, not {headers!r}") from None
        return Placement(where, self._append(where, [row], expected_offset))

    def append_many(self, rows: Iterable[Row], *, partition: int | None = None) -> list[Placement]:
        """Append ``(key, value[, headers[, timestamp]])`` rows: one frame and one sync per partition touched.

        Returns placements in the order of the rows. Each frame is stored whole or not at all.
        """
        rows = list(rows)
        if not rows:
            return []
        if partition is not None:
            base = self._append(partition, rows, None)
            return [Placement(partition, base + i) for i in range(len(rows))]
        shares: dict[int, list[Row]] = {}
        places: list[tuple[int, int]] = []
        turn = next(self._turn) % self.partitions
        for row in rows:
            # Keyless rows of one call stay together, in one frame.
            where = turn if row[0] is None else self._partition_for(row[0])
            share = shares.setdefault(where, [])
            places.append((where, len(share)))
            share.append(row)
        bases = {where: self._append(where, share, None) for where, share in shares.items()}
        return [Placement(where, bases[where] + i) for where, i in places]

    def append_stream(
        self,
        chunks: Iterable[bytes],
        *,
        key: bytes | None = None,
        headers: Iterable[Header] = (),
        max_bytes: int | None = None,
        partition: int | None = None,
        timestamp: int | None = None,
        expected_offset: int | None = None,
    ) -> Placement:
        """Append one record whose value comes in *chunks*, in constant memory, all or nothing.

        Other appends do not wait for the stream. It may be as long as the segment has room left, and half
        a segment more; *max_bytes* and ``max.message.bytes`` limit it further.

        Raises:
            StreamTooLong: The stream went on past its limit. Nothing was stored.
            Whatever *chunks* raises: nothing was stored.
        """
        where = self._partition_for(key) if partition is None else partition
        log = self._writable(where)
        limit = log.stream_bytes_max() if max_bytes is None else min(max_bytes, log.stream_bytes_max())
        spooled = self._log._writable().spool(str(uuid.uuid4()), chunks, limit)
        try:
            appended = log.append_stream(key, headers, timestamp, spooled, expected_offset)
        finally:
            spooled.close()
        self._settle(log, appended)
        return Placement(where, appended.base_offset)

    def _append(self, partition: int, rows: Sequence[Row], expected_offset: int | None) -> int:
        log = self._writable(partition)
        appended = log.append(rows, expected_offset)
        self._settle(log, appended)
        return appended.base_offset

    def _settle(self, log: AnyLog, appended: Appended) -> None:
        if log.config.sync.mode == "ms":
            self._log._flush_within(log.config.sync.amount)
        else:
            log.settle(appended)

    def _partition_for(self, key: bytes | None) -> int:
        if key is None:
            return next(self._turn) % self.partitions
        if not isinstance(key, bytes | bytearray | memoryview):
            raise RecordRefused(f"key must be bytes or None, not {type(key).__name__}")
        return partition_for_key(bytes(key), self.partitions)

    # --- reading ----------------------------------------------------------------------------------

    def read(
        self,
        partition: int = 0,
        start: int | None = None,
        stop: int | None = None,
        *,
        since: int | None = None,
        follow: bool = False,
    ) -> Iterator[Record]:
        """Return the records from *start* up to *stop*, or to the high watermark as it is now.

        *start* is the log start if not given, *since* the first record at or after a time (milliseconds)
        instead. With *follow* the iteration does not end: it waits for records to come, until *stop* or
        until the log is closed. A start in a gap begins at the next record; one at the high watermark
        gives nothing.

        Raises:
            OffsetOutOfRange: If *start* is below the log start or above the high watermark.
            CorruptRange: While reading, where records are not what was written.
        """
        log = self._log._readable(self.name, partition)
        low, end = log.log_start_offset, log.high_watermark
        if since is not None:
            found = log.offset_at(since)
            start = end if found is None else found[0]
        elif start is None:
            start = low
        if not low <= start <= end:
            raise OffsetOutOfRange(start, low, end)
        if follow:
            return _followed(lambda: self._log._readable(self.name, partition), start, stop)
        return _records(log, start, end if stop is None else min(stop, end))

    def offset_at(self, timestamp: int, partition: int = 0) -> int | None:
        """Return the offset of the first record at or after *timestamp* (milliseconds), exactly."""
        found = self._log._readable(self.name, partition).offset_at(timestamp)
        return None if found is None else found[0]

    def high_watermark(self, partition: int = 0) -> int:
        """Return the first offset that cannot be read yet."""
        return self._log._readable(self.name, partition).high_watermark

    def log_end_offset(self, partition: int = 0) -> int:
        """Return the offset the next record will get."""
        return self._log._readable(self.name, partition).log_end_offset

    def log_start_offset(self, partition: int = 0) -> int:
        """Return the first offset that can be read."""
        return self._log._readable(self.name, partition).log_start_offset

    def offsets(self, partition: int = 0) -> OffsetRange:
        """Return the offsets that can be read now: how many, whether one is among them, how far in."""
        log = self._log._readable(self.name, partition)
        return OffsetRange(log.log_start_offset, log.high_watermark)

    def size(self, partition: int = 0) -> int:
        """Return the bytes of a partition's segments."""
        return self._log._readable(self.name, partition).size()

    def snapshots(self, partition: int = 0) -> Snapshots:
        """Return the snapshots of what was derived from a partition's records; see `replay.replay`."""
        directory = self._log._directory
        return Snapshots(directory._files, partition_directory(directory.path, self.name, partition))

    # --- cutting ----------------------------------------------------------------------------------

    def truncate(self, partition: int, end_offset: int, *, force: bool = False) -> TruncationReport:
        """Drop every record of *partition* at or above *end_offset*. Durable on return.

        Raises:
            SignedFor: If a checkpoint signs for one of them, and *force* does not say that this is meant.
        """
        log = self._writable(partition)
        if not force and isinstance(log, PartitionLog):
            self._log._writable().check_not_signed_for(log, end_offset)
        return log.truncate(end_offset)

    def advance_log_start(self, partition: int, offset: int) -> None:
        """Make *offset* the first one that can be read. Durable on return."""
        self._writable(partition).advance_log_start(offset)

    def remove_expired(self) -> int:
        """Let go of what retention no longer keeps; return how many records that were. Durable on return."""
        directory, removed = self._log._writable(), 0
        for partition in range(self.partitions):
            log = directory.find_partition(self.name, partition)
            expired = None if log is None else directory.expire(log)
            removed += 0 if expired is None else expired.records
        return removed

    def roll(self, partition: int = 0) -> None:
        """Seal the active segment and go on in a new one. Durable on return."""
        self._writable(partition).roll()

    def _writable(self, partition: int) -> AnyLog:
        log = self._logs.get(partition)
        if log is None:
            log = self._logs[partition] = self._log._writable().partition(self.name, partition)
        return log


def _records(log: Readable, start: int, stop: int) -> Iterator[Record]:
    # One record is read alone; a longer reading begins small and grows, so that a short one stays cheap.
    size = 1 if stop - start == 1 else READ_BYTES_MIN
    while start < stop:
        fetched = log.read(start, size)
        size = min(size * 4, READ_BYTES_MAX)
        for run in fetched.runs:
            for record in run.records():
                if start <= record.offset < stop:
                    yield record
        if fetched.next_offset <= start:
            return
        start = fetched.next_offset


def _followed(find: Callable[[], Readable], start: int, stop: int | None) -> Iterator[Record]:
    """Yield records as they come, waiting for each without asking over and over."""
    while stop is None or start < stop:
        try:
            end = find().wait_beyond(start)
            end = end if stop is None else min(stop, end)
            # Found anew, because a partition that was never used has become one that is.
            yield from _records(find(), start, end)
        except LogClosed:
            return
        start = end


class _Repeated:
    """A thread that does the same again and again, until the log is closed."""

    def __init__(self, seconds: float, name: str, call: Callable[[], object]) -> None:
        self._stopping = Event()
        self._seconds = seconds
        self._call = call
        self._thread = Thread(target=self._run, name=f"cordwood-{name}", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stopping.wait(self._seconds):
            # Closed, or a forked child: either way there is nothing left to do here.
            with contextlib.suppress(LogClosed):
                self._call()

    def stop(self) -> None:
        """End the thread; what is left is close's work."""
        self._stopping.set()
        self._thread.join()
