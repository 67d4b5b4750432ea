"""A data directory opened to read beside its writer: no lock, and no byte changed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from threading import Event
from typing import TypeVar

from cordwood.config import BrokerConfig, TopicConfig, topic_config
from cordwood.disk import Files
from cordwood.errors import LogClosed, NotADataDirectory, UnknownTopic
from cordwood.storage.log import OpenFiles, SegmentSource
from cordwood.storage.meta import (
    SHARED_TOPIC,
    Contents,
    TopicEntry,
    catalogue_state,
    check_regular_partition,
    check_regular_to_read,
    identity,
    is_shared,
    partition_directory,
    read_catalogue,
)
from cordwood.storage.readonly.partition import ReadOnlyPartition
from cordwood.storage.readonly.published import PublishedPartition
from cordwood.storage.readonly.shared import ReadOnlyShared, ReadOnlyVirtual
from cordwood.storage.sink import OpenIntents, look_at_once
from cordwood.tenancy import suggest

Result = TypeVar("Result")


class ReadOnlyDirectory:
    """A data directory opened to read, beside its writer. Any number of threads."""

    def __init__(
        self,
        files: Files,
        path: str,
        config: BrokerConfig,
        *,
        mapped: bool = True,
        verify: bool = True,
        segments: SegmentSource | None = None,
    ) -> None:
        """Read the directory's identity. Topics and partitions are read when they are asked for.

        Without *mapped* sealed segments are read in windows, for processes whose address space is limited;
        without *verify* checksums are not compared. *segments* is where sealed segments are read from; None
        for local files.

        Raises:
            NotADataDirectory: If *path* is none.
            MetadataDamaged: If its metadata cannot be read.
        """
        check_regular_to_read(files, path)
        if identity.is_first_boot(files, path):
            raise NotADataDirectory(path)
        self.path = path
        self.identity = identity.read_identity(files, path)
        self.files = files
        self._config = config
        self._open_files = OpenFiles(
            files, mapped=mapped, indexes_max=config.index_cache_segments, source=segments
        )
        self._verify = verify
        self._partitions: dict[tuple[str, int], PublishedPartition] = {}
        self._shared: ReadOnlyShared | None = None
        self._known_topics: tuple[object, Mapping[str, TopicEntry]] | None = None
        self._closed = Event()

    @property
    def topics(self) -> Mapping[str, TopicEntry]:
        """The topics there are now, by name."""
        self._check()
        # There may be very many topics, so the catalogue is only read again when it changed. Every entry
        # changes its size, and entries that a crash took away were never below the mark.
        state = catalogue_state(self.files, self.path)
        known = self._known_topics
        if known is None or known[0] != state:
            contents = Contents(read_catalogue(self.files, self.path)[0].entries)
            known = self._known_topics = state, contents.topics
        return known[1]

    @property
    def mapped_bytes(self) -> int:
        """The bytes of sealed segments that are mapped into memory now."""
        return self._open_files.mapped_bytes

    def config_of(self, overrides: Mapping[str, str]) -> TopicConfig:
        """Return the settings of a topic that sets *overrides* itself."""
        return topic_config(overrides, self._config)

    def readable(self, topic: str, partition: int, entry: TopicEntry | None = None) -> PublishedPartition:
        """Return a partition to read: the one of *entry*, if the caller just looked the topic up.

        Raises:
            UnknownTopic: If there is no such topic or partition.
        """
        self._check()
        found = self._partitions.get((topic, partition))
        if found is None or (entry is not None and found.topic_id != entry.id):
            entry = self._entry(topic, partition, entry)
            found = self._virtual(entry, partition) if is_shared(entry) else self._own(entry, partition)
            self._partitions[topic, partition] = found
        return found

    def virtual(self, topic: str, partition: int) -> ReadOnlyVirtual:
        """Return a partition of a topic in the shared log; see `readable`."""
        return self._virtual(self._entry(topic, partition), partition)

    def _virtual(self, entry: TopicEntry, partition: int) -> ReadOnlyVirtual:
        return ReadOnlyVirtual(self.shared(), entry, partition, self.config_of(entry.config))

    def _own(self, entry: TopicEntry, partition: int) -> ReadOnlyPartition:
        directory = partition_directory(self.path, entry.name, partition)
        check_regular_partition(self.files, directory)
        config = self.config_of(entry.config)
        return ReadOnlyPartition(
            self._open_files,
            directory,
            entry,
            partition,
            config.stored_bytes_max,
            self._closed,
            verify=self._verify,
            rechecks=config.verify == "every",
        )

    def look_at_once(self, look: Callable[[], Result]) -> tuple[Result, OpenIntents]:
        """Return the result of *look*, which reads ends of partitions, and the offsets to cut them at.

        The ends then have a batch of the Spark sink in all partitions or in none; see `look_at_once` of the
        sink. A read of one partition needs none of this: it may show a batch that is still being published.
        """
        self._check()
        return look_at_once(self.files, self.path, look)

    def _entry(self, topic: str, partition: int, known: TopicEntry | None = None) -> TopicEntry:
        entry = known or self.topics.get(topic)
        if entry is None:
            raise UnknownTopic.named(topic, suggestion=suggest(topic, self.topics))
        if not 0 <= partition < entry.partitions:
            raise UnknownTopic(f"there is no partition {partition} of a topic {topic}")
        return entry

    def shared(self) -> ReadOnlyShared:
        """Return the shared log.

        Raises:
            UnknownTopic: If no topic was ever kept in it.
        """
        if self._shared is None:
            log = self._own(self._entry(SHARED_TOPIC, 0), 0)
            self._shared = ReadOnlyShared(log)
        return self._shared

    @property
    def is_closed(self) -> bool:
        """Whether `close` was called."""
        return self._closed.is_set()

    def close(self) -> None:
        """End every wait for records. Later calls raise LogClosed. Idempotent."""
        self._closed.set()

    def _check(self) -> None:
        if self._closed.is_set():
            raise LogClosed(f"{self.path} is closed")
