"""The one door through which staged shares come into the log: all of a batch, once, whatever crashes.

Publishing is one synced **intent** and what follows from it. The intent names the shares in their order and
the offset at which each partition takes them. Before it a batch is nowhere; after it the batch is
published, if not now then when the directory is opened next, before anything else is appended. The journal
of a query, ``meta/sink/<query>.json``, holds an open intent and the highest batch that was published: what is
not above that is not published again.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from threading import Lock

import msgspec

from cordwood.config import TopicConfig
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
from cordwood.formats.format import Format, ReceivedFrame
from cordwood.storage.catalogue import TopicEntry
from cordwood.storage.files import Files, join, parent
from cordwood.storage.metadata import read_metadata, write_metadata
from cordwood.storage.staging import (
    ADOPT_BYTES,
    Section,
    Share,
    Target,
    check_whole,
    collect,
    collect_abandoned,
    query_key,
    read_frames,
    share_path,
)
from cordwood.storage.store import as_storage_error
from cordwood.storage.virtual_log import AnyLog

#: Space that must be left beside what is published, so that it cannot run out after the intent.
SPACE_LEFT = 16 << 20
NOTHING_PUBLISHED = -1
JOURNAL_VERSION = 1


class Place(msgspec.Struct, frozen=True):
    """The offset at which a partition takes the records of a batch."""

    topic: str
    topic_id: str
    partition: int
    base_offset: int


class Intent(msgspec.Struct, frozen=True):
    """A batch that is published from the moment this is synced."""

    batch: int
    shares: tuple[Share, ...]
    places: tuple[Place, ...]


class Journal(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a query: the highest batch published, and one that is being published."""

    format: int = JOURNAL_VERSION
    query: str
    published: int = NOTHING_PUBLISHED
    intent: Intent | None = None


_DECODER = msgspec.json.Decoder(Journal)


class Publisher:
    """Publishes the batches of all queries, one at a time. Callable from any thread.

    *find* gives the log of a partition, *topics* what there is, *config_of* a topic's settings.
    """

    def __init__(
        self,
        files: Files,
        data: str,
        find: Callable[[str, int], AnyLog],
        topics: Callable[[], Mapping[str, TopicEntry]],
        config_of: Callable[[Mapping[str, str]], TopicConfig],
        formats: Mapping[str, Format],
        check_open: Callable[[], None],
    ) -> None:
        self._files = files
        self._data = data
        self._find = find
        self._topics = topics
        self._config_of = config_of
        self._formats = formats
        # Whatever format a topic has, what tasks stage are batches.
        self._staged = formats["batch"]
        self._check_open = check_open
        self._guard = Lock()

    # --- publishing -------------------------------------------------------------------------------

    def publish(self, query: str, batch: int, shares: Sequence[Share], *, remember: bool = True) -> bool:
        """Append *shares*, in their order, unless this or a later batch of *query* was published before.

        Returns whether it was published now. Durable on return. Without *remember* nothing is kept of
        the query afterwards: for one that has no second try.

        Raises:
            UnknownTopic: If a topic is not there, or another one by now. Nothing was published.
            RecordRefused: If a share is not what its task staged. Nothing was published.
            DiskFull: Nothing was published; works again once there is space.
            LogFailed: It may be published when the directory is opened next, or not.
        """
        with self._guard:
            # Again, now that those before are done: the directory may be closed by now.
            self._check_open()
            try:
                return self._publish_once(query, batch, shares, remember)
            except OSError as error:
                raise as_storage_error(error, "publishing a batch") from error

    def _publish_once(self, query: str, batch: int, shares: Sequence[Share], remember: bool) -> bool:
        journal = read_journal(self._files, self._data, query)
        if journal.intent is not None:
            # An earlier try failed on the way; its partitions take nothing else meanwhile.
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

    def _check(self, query: str, batch: int, shares: Sequence[Share]) -> list[Target]:
        """Return the partitions that get records, always in one order, after a look at every frame."""
        targets: set[Target] = set()
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
        config = self._settings(section.target)
        format_ = self._formats[config.format]
        keyed = config.cleanup_policy != "delete"
        found = 0
        for frame in read_frames(self._files, path, section, self._staged, config.stored_bytes_max):
            before = bytes(frame)
            try:
                received = format_.receive(memoryview(frame), size_max=config.max_message_bytes, keyed=keyed)
                _check_holds(format_, received, config)
            except FrameError as error:
                raise RecordRefused(f"{path}: {error}") from None
            # Neither would survive the renaming of a file that is never opened again.
            if received.stamp is not None or frame != before:
                raise RecordRefused(f"{path}: has a frame that no task stages")
            found += received.record_count
        return found

    def _settings(self, target: Target) -> TopicConfig:
        entry = self._topics().get(target.topic)
        if entry is None or entry.id != target.topic_id:
            raise UnknownTopic(f"topic {target.topic} was deleted since its records were staged")
        if not 0 <= target.partition < entry.partitions:
            raise UnknownTopic(f"topic {target.topic} has no partition {target.partition}")
        return self._config_of(entry.config)

    def _publish(
        self,
        journal: Journal,
        batch: int,
        shares: Sequence[Share],
        targets: Sequence[Target],
        remember: bool,
    ) -> None:
        logs = {target: self._find(target.topic, target.partition) for target in targets}
        with contextlib.ExitStack() as stack:
            for target, log in logs.items():
                stack.enter_context(log.held())
                if log.state.topic_id != target.topic_id:
                    raise UnknownTopic(f"topic {target.topic} is another one now")
                # What lies below must be on the device before the intent says what comes next.
                log.commit()
            places = tuple(Place(*target, log.log_end_offset) for target, log in logs.items())
            intent = Intent(batch, tuple(shares), places)
            journal = msgspec.structs.replace(journal, intent=intent)
            try:
                self._write(journal)
            except DiskFull:
                raise
            except StorageError as error:
                # It may be there for whoever opens the directory next.
                raise _stuck(journal.query, batch, logs.values(), error) from error
            try:
                self._append(journal.query, intent, logs)
                self._close(journal, batch, remember=remember)
            except BaseException as error:
                # Whatever it was, Ctrl-C included: the offsets are promised, and must not go to others.
                stuck = _stuck(journal.query, batch, logs.values(), error)
                if isinstance(error, Exception):
                    raise stuck from error
                raise

    # --- after the intent -------------------------------------------------------------------------

    def _append(self, query: str, intent: Intent, logs: Mapping[Target, AnyLog]) -> None:
        """Append what is not there yet of a batch that has an intent. Durable on return."""
        for place in intent.places:
            target = Target(place.topic, place.topic_id, place.partition)
            log = logs.get(target)
            if log is None:
                # Deleted since: nobody can tell the difference.
                continue
            offset = place.base_offset
            for share in intent.shares:
                for section in share.sections:
                    if section.target == target:
                        path = share_path(self._data, query, intent.batch, share.name)
                        self._append_section(log, path, share, section, offset)
                        offset += section.records
            log.commit()

    def _append_section(self, log: AnyLog, path: str, share: Share, section: Section, offset: int) -> None:
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
        for frame in read_frames(self._files, path, section, self._staged, config.stored_bytes_max):
            received = format_.receive(memoryview(frame), size_max=config.stored_bytes_max)
            after = offset + received.record_count
            if offset < log.log_end_offset < after and format_.record_per_frame:
                # A crash came between the records of a batch: the first ones of them are there.
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
        """Publish what a crash left between its intent and its end; call it before anything is appended.

        Returns the partitions for which that did not work, with the reason: nothing may be appended there.
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

    def collect_abandoned(self, before_ms: int) -> int:
        """Remove shares that were staged before *before_ms*, but for those of an open intent."""
        with self._guard:
            self._check_open()
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
        topics, logs = self._topics(), {}
        for place in intent.places:
            entry = topics.get(place.topic)
            if entry is not None and entry.id == place.topic_id:
                target = Target(place.topic, place.topic_id, place.partition)
                logs[target] = self._find(place.topic, place.partition)
        with contextlib.ExitStack() as stack:
            for log in logs.values():
                stack.enter_context(log.held())
            self._append(journal.query, intent, logs)
            # Whether it was to be remembered is not known any more; remembering it does no harm.
            return self._close(journal, intent.batch, remember=True)

    # --- the journal ------------------------------------------------------------------------------

    def _write(self, journal: Journal) -> None:
        path = journal_path(self._data, journal.query)
        try:
            self._files.make_directories(parent(path))
            # Whoever made it may have been killed before its name was synced.
            self._files.sync_directory(parent(parent(path)))
            write_metadata(self._files, path, journal)
        except OSError as error:
            raise as_storage_error(error, "publishing a batch") from error


def _check_holds(format_: Format, received: ReceivedFrame, config: TopicConfig) -> None:
    """Refuse what a format cannot hold: after the intent it is too late to find that out.

    Raises:
        RecordRefused, FrameTooLarge: If it cannot.
    """
    if format_.record_per_frame:
        append_time = 1 if config.message_timestamp_type == "LogAppendTime" else None
        format_.place(
            received,
            base_offset=0,
            leader_epoch=0,
            append_timestamp=append_time,
            size_max=config.stored_bytes_max,
        )


def _stuck(query: str, batch: int, logs: Iterable[AnyLog], error: BaseException) -> LogFailed:
    """Let the partitions take nothing more: what comes next in them is promised to the batch."""
    reason = f"batch {batch} of {query} could not be published: {error}"
    for log in logs:
        log.fail(reason)
    return LogFailed(f"{reason}; it will be when the directory is opened again")


def journal_path(data: str, query: str) -> str:
    """Return where the journal of a query is."""
    return join(data, "meta", "sink", f"{query_key(query)}.json")


def read_journal(files: Files, data: str, query: str) -> Journal:
    """Return what is known of a query; the journal of one without batches says that there are none.

    Raises:
        MetadataDamaged: If it cannot be read, or is that of another query.
    """
    path = journal_path(data, query)
    if not files.exists(path):
        return Journal(query=query)
    journal = decode_journal(files, path)
    if journal.query != query:
        raise MetadataDamaged(path, f"is the journal of {journal.query}")
    return journal


def journal_paths(files: Files, data: str) -> list[str]:
    """Return where the journals of all queries are."""
    directory = join(data, "meta", "sink")
    names = files.list(directory) if files.exists(directory) else []
    return [join(directory, name) for name in names if name.endswith(".json")]


def decode_journal(files: Files, path: str) -> Journal:
    """Return what the journal at *path* says.

    Raises:
        MetadataDamaged: If it cannot be read.
        DirectoryRefused: If a newer version of Cordwood wrote it.
    """
    journal = read_metadata(files, path, _DECODER)
    if journal.format > JOURNAL_VERSION:
        raise DirectoryRefused(
            f"{path} has format {journal.format}; this version reads up to {JOURNAL_VERSION}"
        )
    return journal


def promised(files: Files, data: str, query: str) -> int:
    """Return the highest batch of *query* that is published, or will be because it has an intent."""
    journal = read_journal(files, data, query)
    return journal.published if journal.intent is None else max(journal.published, journal.intent.batch)
