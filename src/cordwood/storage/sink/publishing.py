"""Publish staged shares: all records of a batch exactly once, also across crashes.

Publishing writes one synced **intent** and then executes it. The intent names the shares in their order and
the offset at which each partition takes them. Before the intent, no record of the batch is in the log. After
it, the batch is published: now, or at the next open of the directory before any other append. The journal of
a query, ``meta/sink/<query>.json``, holds an open intent and the highest published batch: a batch that is not
above it is not published again.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from threading import Lock
from typing import Protocol

import msgspec

from cordwood.config import TopicConfig
from cordwood.disk import Files, as_storage_error, join, parent, read_metadata, write_metadata
from cordwood.errors import (
    CordwoodError,
    DirectoryRefused,
    DiskFull,
    FrameError,
    LogFailed,
    MetadataDamaged,
    RecordRefused,
    StorageError,
    UnknownTopic,
)
from cordwood.formats import BATCH, EVERY_FORMAT, BatchTerms, Format, FrameSlot, ReceivedFrame
from cordwood.storage.log import LogContext, WritablePartition, terms_of
from cordwood.storage.meta import Catalogue, Lifecycle, check_stored_number, check_stored_place
from cordwood.storage.sink.staging import (
    ADOPT_BYTES,
    Section,
    Share,
    ShareWriter,
    StagedTarget,
    check_whole,
    collect,
    collect_abandoned,
    is_share_name,
    query_key,
    read_frames,
    share_path,
)

#: Free space in bytes required besides the published bytes, so that space cannot run out after the intent.
SPACE_LEFT = 16 << 20
NOTHING_PUBLISHED = -1
#: Shares staged this long ago belong to a query that will not publish them.
ABANDONED_MS = 7 * 24 * 3_600_000
JOURNAL_VERSION = 1


class PlannedAppend(msgspec.Struct, frozen=True):
    """The offset at which a partition gets the records of a batch."""

    topic: str
    topic_id: str
    partition: int
    base_offset: int


class Intent(msgspec.Struct, frozen=True):
    """A batch that counts as published once this is synced."""

    batch: int
    shares: tuple[Share, ...]
    places: tuple[PlannedAppend, ...]


class Journal(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a query: its highest published batch, and the batch being published."""

    format: int = JOURNAL_VERSION
    query: str
    published: int = NOTHING_PUBLISHED
    intent: Intent | None = None


_DECODER = msgspec.json.Decoder(Journal)


class PartitionSource(Protocol):
    """Finds the partitions that batches are appended to."""

    def writable(self, topic: str, partition: int) -> WritablePartition:
        """Return the log of a partition to append to, created on its first use."""


class SettingsSource(Protocol):
    """Knows the settings of topics."""

    def config_of(self, overrides: Mapping[str, str]) -> TopicConfig:
        """Return the settings of a topic that sets *overrides* itself."""


class Publisher:
    """Stages and publishes the batches of all queries, one at a time. Callable from any thread."""

    def __init__(
        self,
        context: LogContext,
        data: str,
        catalogue: Catalogue,
        settings: SettingsSource,
        partitions: PartitionSource,
        lifecycle: Lifecycle,
    ) -> None:
        self._files = context.files
        self._clock = context.clock
        self._data = data
        self._catalogue = catalogue
        self._settings = settings
        self._partitions = partitions
        self._lifecycle = lifecycle
        self._guard = Lock()

    # --- staging ----------------------------------------------------------------------------------

    def stage(self, query: str, batch: int, task: str) -> ShareWriter:
        """Return a writer for the records that one task has of a query's batch, to be published later."""
        self._lifecycle.check_open()
        return ShareWriter(self._files, self._data, query, batch, task, self._clock.now_ms(), BATCH)

    def promised(self, query: str) -> int:
        """Return the highest batch of *query* that is published or will be, -1 if none is."""
        self._lifecycle.check_open()
        return promised(self._files, self._data, query)

    # --- publishing -------------------------------------------------------------------------------

    def publish(self, query: str, batch: int, shares: Sequence[Share], *, remember: bool = True) -> bool:
        """Append *shares*, in their order, unless this or a later batch of *query* was published before.

        Returns whether it was published now. Durable on return. Without *remember*, the journal is removed
        afterwards: for a query that is never retried.

        Raises:
            UnknownTopic: If a topic does not exist or was created again. Nothing was published.
            RecordRefused: If a share differs from what its task staged. Nothing was published.
            DiskFull: Nothing was published; publishing works again once there is space.
            LogFailed: The next open of the directory may or may not publish the batch.
        """
        self._lifecycle.check_open()
        with self._guard:
            # Again: the directory may have been closed while other batches were published.
            self._lifecycle.check_open()
            try:
                return self._publish_once(query, batch, shares, remember)
            except OSError as error:
                raise as_storage_error(error, "publishing a batch") from error

    def _publish_once(self, query: str, batch: int, shares: Sequence[Share], remember: bool) -> bool:
        journal = read_journal(self._files, self._data, query)
        if journal.intent is not None:
            # An earlier attempt failed after its intent; its partitions accept no other appends until it is
            # finished.
            journal = self._finish(journal, journal.intent)
        if batch <= journal.published:
            collect(self._files, self._data, query, batch)
            return False
        targets = self._check(query, batch, shares)
        if targets:
            self._publish(journal, batch, shares, targets, remember)
        elif remember:
            self._write(msgspec.structs.replace(journal, published=batch))
        collect(self._files, self._data, query, batch)
        return True

    def _check(self, query: str, batch: int, shares: Sequence[Share]) -> list[StagedTarget]:
        """Check every frame; return the partitions that get records, in a fixed order."""
        targets: set[StagedTarget] = set()
        size = 0
        if len({share.name for share in shares}) < len(shares):
            raise RecordRefused("a share is named twice")
        for share in shares:
            path = share_path(self._data, query, batch, share.name)
            for section in share.sections:
                found = self._count_records(path, section)
                if found != section.records:
                    raise RecordRefused(f"{path}: has {found} records, but {section.records} were staged")
                if found:
                    targets.add(section.target)
                size += section.size
            check_whole(self._files, path, share)
        if size and self._files.free_bytes(self._data) < size + SPACE_LEFT:
            raise DiskFull(f"{self._data}: no space left for {size} bytes")
        return sorted(targets)

    def _count_records(self, path: str, section: Section) -> int:
        """Return how many records a section has, all of whose frames the topic can hold as they are."""
        config = self._config_of(section.target)
        format_ = EVERY_FORMAT[config.format]
        # Tasks have compressed as the topic asks for; what they have is taken as it is.
        terms = terms_of(config, self._clock.now_ms())._replace(codec=None)
        found = 0
        for frame in read_frames(self._files, path, section, BATCH, config.stored_bytes_max):
            before = bytes(frame)
            try:
                received = format_.receive(memoryview(frame), terms)
                _check_holds(format_, received, config)
            except FrameError as error:
                raise RecordRefused(f"{path}: {error}") from None
            # An adopted file is not read again, so neither of these could be handled.
            if received.stamp is not None or frame != before:
                raise RecordRefused(f"{path}: has a frame that no task stages")
            found += received.record_count
        return found

    def _config_of(self, target: StagedTarget) -> TopicConfig:
        entry = self._catalogue.contents.topics.get(target.topic)
        if entry is None or entry.id != target.topic_id:
            raise UnknownTopic(f"topic {target.topic} was deleted since its records were staged")
        if not 0 <= target.partition < entry.partitions:
            raise UnknownTopic(f"topic {target.topic} has no partition {target.partition}")
        return self._settings.config_of(entry.config)

    def _publish(
        self,
        journal: Journal,
        batch: int,
        shares: Sequence[Share],
        targets: Sequence[StagedTarget],
        remember: bool,
    ) -> None:
        logs = {target: self._partitions.writable(target.topic, target.partition) for target in targets}
        with contextlib.ExitStack() as stack:
            for target, log in logs.items():
                stack.enter_context(log.held())
                if log.state.topic_id != target.topic_id:
                    raise UnknownTopic(f"topic {target.topic} is another one now")
                # Earlier records must be on the device before the intent assigns the next offsets.
                log.commit()
            places = tuple(PlannedAppend(*target, log.log_end_offset) for target, log in logs.items())
            intent = Intent(batch, tuple(shares), places)
            journal = msgspec.structs.replace(journal, intent=intent)
            try:
                self._write(journal)
            except DiskFull:
                raise
            except StorageError as error:
                # The intent may be on disk at the next open.
                raise _block_appends(journal.query, batch, logs.values(), error) from error
            try:
                self._append(journal.query, intent, logs)
                self._close(journal, batch, remember=remember)
            except BaseException as error:
                # After any exception, including Ctrl-C: the offsets are reserved by the intent and must not
                # be given to other records.
                stuck = _block_appends(journal.query, batch, logs.values(), error)
                if isinstance(error, Exception):
                    raise stuck from error
                raise

    # --- after the intent -------------------------------------------------------------------------

    def _append(self, query: str, intent: Intent, logs: Mapping[StagedTarget, WritablePartition]) -> None:
        """Append what is not there yet of a batch that has an intent. Durable on return."""
        for place in intent.places:
            target = StagedTarget(place.topic, place.topic_id, place.partition)
            log = logs.get(target)
            if log is None:
                # The topic was deleted, so its records are not needed.
                continue
            offset = place.base_offset
            for share in intent.shares:
                for section in share.sections:
                    if section.target == target:
                        path = share_path(self._data, query, intent.batch, share.name)
                        self._append_section(log, path, share, section, offset)
                        offset += section.records
            log.commit()

    def _append_section(
        self, log: WritablePartition, path: str, share: Share, section: Section, offset: int
    ) -> None:
        """Append the frames of a section that the log does not have yet; the section begins at *offset*."""
        end = offset + section.records
        if log.log_end_offset >= end:
            return
        config = log.config
        format_ = log.format
        whole = len(share.sections) == 1 and section.size >= ADOPT_BYTES and not format_.record_per_frame
        if whole and log.log_end_offset == offset and config.message_timestamp_type == "CreateTime":
            log.adopt(path, section.size)
            return
        for frame in read_frames(self._files, path, section, BATCH, config.stored_bytes_max):
            received = format_.receive(memoryview(frame), BatchTerms(config.stored_bytes_max))
            after = offset + received.record_count
            if offset < log.log_end_offset < after and format_.record_per_frame:
                # A crash happened inside this batch: its first records are in the log already.
                left = received.records[log.log_end_offset - offset :]
                received = received._replace(records=left, record_count=len(left))
                offset = log.log_end_offset
            if offset == log.log_end_offset:
                log.append_received(received)
            offset = after
        if log.log_end_offset != end:
            raise StorageError(f"{path}: the log ends at {log.log_end_offset}, not at {end}")

    def _close(self, journal: Journal, batch: int, *, remember: bool) -> Journal:
        closed = Journal(query=journal.query, published=batch)
        if remember or journal.published != NOTHING_PUBLISHED:
            self._write(closed)
        else:
            path = journal_path(self._data, journal.query)
            try:
                self._files.unlink(path)
                self._files.sync_directory(parent(path))
            except OSError as error:
                raise as_storage_error(error, "closing a batch") from error
        return closed

    # --- opening ----------------------------------------------------------------------------------

    def finish_all(self) -> dict[tuple[str, int], StorageError]:
        """Finish batches that a crash interrupted after their intent; call it before any append.

        Returns the partitions for which this failed, with the reason; they must refuse appends.
        """
        refused: dict[tuple[str, int], StorageError] = {}
        for journal in self._journals():
            if journal.intent is None:
                collect(self._files, self._data, journal.query, journal.published)
                continue
            try:
                self._finish(journal, journal.intent)
            except CordwoodError as error:
                reason = f"batch {journal.intent.batch} of {journal.query} cannot be published: {error}"
                for place in journal.intent.places:
                    refused[place.topic, place.partition] = StorageError(reason)
            else:
                collect(self._files, self._data, journal.query, journal.intent.batch)
        return refused

    def abandoned_before_ms(self) -> int:
        """Return the time before which a staged batch counts as abandoned now."""
        return self._clock.now_ms() - ABANDONED_MS

    def collect_abandoned(self) -> int:
        """Remove shares that are abandoned, except those of an open intent; return how many."""
        self._lifecycle.check_open()
        before_ms = self.abandoned_before_ms()
        with self._guard:
            self._lifecycle.check_open()
            try:
                keep = {query_key(each.query) for each in self._journals() if each.intent is not None}
                return collect_abandoned(self._files, self._data, before_ms, keep)
            except OSError as error:
                raise as_storage_error(error, "collecting shares") from error

    def _journals(self) -> Iterator[Journal]:
        for path in journal_paths(self._files, self._data):
            yield decode_journal(self._files, path)

    def _finish(self, journal: Journal, intent: Intent) -> Journal:
        """Publish a batch that has an intent already."""
        topics, logs = self._catalogue.contents.topics, {}
        for place in intent.places:
            entry = topics.get(place.topic)
            if entry is not None and entry.id == place.topic_id:
                target = StagedTarget(place.topic, place.topic_id, place.partition)
                logs[target] = self._partitions.writable(place.topic, place.partition)
        with contextlib.ExitStack() as stack:
            for log in logs.values():
                stack.enter_context(log.held())
            self._append(journal.query, intent, logs)
            # The value of *remember* is not stored; keeping the journal does no harm.
            return self._close(journal, intent.batch, remember=True)

    # --- the journal ------------------------------------------------------------------------------

    def check_invariants(self, journal: Journal) -> None:
        """Check a journal that is about to be written.

        Raises:
            AssertionError: If it cannot be right: a fault of this code.
        """
        intent = journal.intent
        assert journal.published >= NOTHING_PUBLISHED, "a batch that cannot be"
        if intent is not None:
            assert intent.batch > journal.published, "a batch would be published twice"
            assert all(place.base_offset >= 0 for place in intent.places), "a negative offset is promised"
            places = {(place.topic, place.partition) for place in intent.places}
            assert len(places) == len(intent.places), "a partition is promised two places"

    def _write(self, journal: Journal) -> None:
        self.check_invariants(journal)
        path = journal_path(self._data, journal.query)
        try:
            self._files.make_directories(parent(path))
            # Its creator may have been killed before the name was synced.
            self._files.sync_directory(parent(parent(path)))
            write_metadata(self._files, path, journal)
        except OSError as error:
            raise as_storage_error(error, "publishing a batch") from error


def _check_holds(format_: Format, received: ReceivedFrame, config: TopicConfig) -> None:
    """Refuse records that a format cannot store: after the intent it would be too late.

    Raises:
        RecordRefused, FrameTooLarge: If the format cannot store it.
    """
    if format_.record_per_frame:
        append_time = 1 if config.message_timestamp_type == "LogAppendTime" else None
        format_.place(received, FrameSlot(0, 0, append_time, config.stored_bytes_max))


def _block_appends(
    query: str, batch: int, logs: Iterable[WritablePartition], error: BaseException
) -> LogFailed:
    """Let the partitions take nothing more: what comes next in them is promised to the batch."""
    reason = f"batch {batch} of {query} could not be published: {error}"
    for log in logs:
        log.fail(reason)
    return LogFailed(f"{reason}; it will be when the directory is opened again")


def journal_path(data: str, query: str) -> str:
    """Return the path of the journal of a query."""
    return join(data, "meta", "sink", f"{query_key(query)}.json")


def read_journal(files: Files, data: str, query: str) -> Journal:
    """Return the journal of a query; an empty one if it has no batches.

    Raises:
        MetadataDamaged: If it cannot be read or belongs to another query.
    """
    path = journal_path(data, query)
    return decode_journal(files, path) if files.exists(path) else Journal(query=query)


def journal_paths(files: Files, data: str) -> list[str]:
    """Return the paths of the journals of all queries."""
    directory = join(data, "meta", "sink")
    names = files.list(directory) if files.exists(directory) else []
    return [join(directory, name) for name in names if name.endswith(".json")]


def decode_journal(files: Files, path: str) -> Journal:
    """Return the journal read from *path*.

    Raises:
        MetadataDamaged: If it cannot be read.
        DirectoryRefused: If a newer version of Cordwood wrote it.
    """
    journal = read_metadata(files, path, _DECODER)
    if journal.format > JOURNAL_VERSION:
        raise DirectoryRefused(
            f"{path} has format {journal.format}; this version reads up to {JOURNAL_VERSION}"
        )
    _check_names(path, journal)
    return journal


def _check_names(path: str, journal: Journal) -> None:
    """Refuse a journal of another query, or an intent with names that are unsafe in a path."""
    if not path.endswith(f"/{query_key(journal.query)}.json"):
        raise MetadataDamaged(path, f"is the journal of query {journal.query!a}, which has another name")
    intent = journal.intent
    if intent is None:
        return
    check_stored_number(path, "batch", intent.batch)
    for share in intent.shares:
        if not is_share_name(share.name):
            raise MetadataDamaged(path, f"{share.name[:300]!a} is not the name of a share")
        for section in share.sections:
            check_stored_place(path, *section.target)
    for place in intent.places:
        check_stored_place(path, place.topic, place.topic_id, place.partition)


def promised(files: Files, data: str, query: str) -> int:
    """Return the highest batch of *query* that is published or has an intent."""
    journal = read_journal(files, data, query)
    return journal.published if journal.intent is None else max(journal.published, journal.intent.batch)
