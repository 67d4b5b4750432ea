"""Publish staged shares: all records of a batch exactly once, also across crashes.

Publishing writes one synced **intent** and then executes it. The intent names the shares in their order and
the offset at which each partition takes them. Before the intent, no record of the batch is in the log. After
it, the batch is published: now, or at the next open of the directory before any other append. The journal of
a query, ``meta/sink/<query>.json``, holds an open intent and the highest published batch: a batch that is not
above it is not published again.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from threading import Lock
from typing import Protocol, TypeVar

import msgspec

from cordwood.config import TopicConfig
from cordwood.disk import as_storage_error, parent, write_metadata
from cordwood.errors import (
    CordwoodError,
    DiskFull,
    FrameError,
    LogFailed,
    RecordRefused,
    StorageError,
    UnknownTopic,
)
from cordwood.formats import BATCH, EVERY_FORMAT, BatchTerms, Format, FrameSlot, ReceivedFrame
from cordwood.kernels import INT64_MIN
from cordwood.storage.log import LogContext, VisibilityHold, WritablePartition, ordered_times, terms_of
from cordwood.storage.meta import Catalogue, Lifecycle
from cordwood.storage.sink.journal import (
    NOTHING_PUBLISHED,
    Intent,
    Journal,
    PlannedAppend,
    decode_journal,
    journal_path,
    journal_paths,
    promised,
    read_journal,
)
from cordwood.storage.sink.staging import (
    ADOPT_BYTES,
    Section,
    Share,
    ShareWriter,
    StagedTarget,
    check_whole,
    collect,
    collect_abandoned,
    query_key,
    read_frames,
    share_path,
)

Result = TypeVar("Result")
#: Free space in bytes required besides the published bytes, so that space cannot run out after the intent.
SPACE_LEFT = 16 << 20
#: Shares staged this long ago belong to a query that will not publish them.
ABANDONED_MS = 7 * 24 * 3_600_000


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
        #: Counts how often a batch came into view; odd while one does.
        self._shows = 0
        #: The number of the newest publication, and the journal that is there for it alone; see `_count`.
        self._number = 0
        self._numbered: str | None = None
        self._counted = False

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

        Returns whether it was published now. Durable on return. Without *remember*, for a query that is
        never retried, its journal says nothing of it afterwards, and goes with the next publication.

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
        if not self._counted:
            # After a clean close there was nothing to finish at the open.
            self._count()
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
        if config.timestamp_order == "refuse":
            # The order is known only when the records are appended, and then they are promised already.
            raise RecordRefused(
                f"topic {section.target.topic} has cordwood.timestamp.order=refuse: "
                "staged records cannot be refused one by one; set it to lift or any"
            )
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
            self._number += 1
            journal = msgspec.structs.replace(journal, intent=intent, number=self._number)
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
        """Append what is not there yet of a batch that has an intent, then show it. Durable on return.

        Readers see all of it from one moment on, or nothing: if this fails, not before the next open.
        """
        hold = VisibilityHold()
        for log in logs.values():
            log.hold_back(hold)
        for place in intent.places:
            target = StagedTarget(place.topic, place.topic_id, place.partition)
            into = logs.get(target)
            # Without a log the topic was deleted, so its records are not needed.
            offset = place.base_offset
            for share in () if into is None else intent.shares:
                for section in share.sections:
                    if into is not None and section.target == target:
                        path = share_path(self._data, query, intent.batch, share.name)
                        self._append_section(into, path, share, section, offset)
                        offset += section.records
        for log in logs.values():
            log.commit()
        self._show(hold, logs.values())

    def _show(self, hold: VisibilityHold, logs: Iterable[WritablePartition]) -> None:
        """End *hold*: readers see the batch in all of *logs*, where it is durable."""
        # Odd while it happens, for `look_at_once`.
        self._shows += 1
        hold.end()
        self._shows += 1
        for log in logs:
            log.show_held_back()

    def look_at_once(self, look: Callable[[], Result]) -> Result:
        """Return the result of *look*, which reads ends of partitions: they have a batch whole or not at all.

        *look* is called again if a batch came into view meanwhile. Takes no lock and never waits for a disk.
        """
        while True:
            before = self._shows
            found = look()
            if self._shows == before and not before & 1:
                return found

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
        as_they_are = config.message_timestamp_type == "CreateTime" and config.timestamp_order == "any"
        if whole and log.log_end_offset == offset and as_they_are:
            log.adopt(path, section.size)
            return
        for frame in read_frames(self._files, path, section, BATCH, config.stored_bytes_max):
            microseconds = config.timestamp_precision == "us"
            terms = BatchTerms(config.stored_bytes_max, microseconds=microseconds)
            received = format_.receive(memoryview(frame), terms)
            after = offset + received.record_count
            if offset < log.log_end_offset < after and format_.record_per_frame:
                # A crash happened inside this batch: its first records are in the log already.
                left = received.records[log.log_end_offset - offset :]
                received = received._replace(records=left, record_count=len(left))
                offset = log.log_end_offset
            if offset == log.log_end_offset:
                log.append_received(received, promised=True)
            offset = after
        if log.log_end_offset != end:
            raise StorageError(f"{path}: the log ends at {log.log_end_offset}, not at {end}")

    def _close(self, journal: Journal, batch: int, *, remember: bool) -> Journal:
        if not remember and journal.published == NOTHING_PUBLISHED:
            batch = NOTHING_PUBLISHED
        closed = Journal(query=journal.query, number=journal.number, published=batch)
        self._write(closed)
        path = journal_path(self._data, closed.query)
        if self._numbered != path:
            self._drop_numbered()
        self._numbered = path if closed.remembers_nothing else None
        return closed

    def _drop_numbered(self) -> None:
        """Remove the journal that was there for the number of the publication before this one.

        Until then readers beside this process learn from it that there was one. If it stays, the next open
        removes it.
        """
        if self._numbered is not None:
            with contextlib.suppress(OSError):
                self._files.unlink(self._numbered)
            self._numbered = None

    # --- opening ----------------------------------------------------------------------------------

    def finish_all(self) -> dict[tuple[str, int], StorageError]:
        """Finish batches that a crash interrupted after their intent; call it before any append.

        Returns the partitions for which this failed, with the reason; they must refuse appends.
        """
        refused: dict[tuple[str, int], StorageError] = {}
        for journal in self._count():
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

    def _count(self) -> list[Journal]:
        """Return all journals, and learn from them the number of the newest publication.

        Those that are there for an older number alone are removed: a crash left them.
        """
        journals = sorted(self._journals(), key=lambda journal: journal.number)
        self._number = journals[-1].number if journals else 0
        for journal in journals:
            if journal.remembers_nothing:
                self._numbered = journal_path(self._data, journal.query)
                if journal.number < self._number:
                    self._drop_numbered()
        self._counted = True
        return journals

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
            # A reader beside this process may know the intent by its number; what it shows now is new.
            self._number += 1
            journal = msgspec.structs.replace(journal, number=self._number)
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
        assert journal.number <= self._number, "a publication that is not counted"
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
    if config.timestamp_order == "lift":
        # Without a floor, lifted timestamps differ most from each other, and the batch is largest.
        times = ordered_times(format_.times(received), INT64_MIN, "lift")
        lifted = received if times is None else format_.with_times(received, times)
        if len(lifted.data) > config.stored_bytes_max:
            size, limit = len(lifted.data), config.stored_bytes_max
            raise RecordRefused(f"a batch has {size} bytes with lifted timestamps, of at most {limit}")
    if format_.record_per_frame:
        append_time = 1 if config.message_timestamp_type == "LogAppendTime" else None
        now_us = 1_000 if config.timestamp_precision == "us" and format_.holds.microseconds else None
        format_.place(received, FrameSlot(0, 0, append_time, config.stored_bytes_max, now_us=now_us))


def _block_appends(
    query: str, batch: int, logs: Iterable[WritablePartition], error: BaseException
) -> LogFailed:
    """Let the partitions take nothing more: what comes next in them is promised to the batch."""
    reason = f"batch {batch} of {query} could not be published: {error}"
    for log in logs:
        log.fail(reason)
    return LogFailed(f"{reason}; it will be when the directory is opened again")
