"""Carry staged records to the owner of the log: over a shared disk, or by its address.

One protocol with two carriers. By path, tasks write shares into the data directory and the driver publishes
them, itself or through the server that holds the directory. By address, tasks send frames to a staging topic
and the driver sends the command. Other brokers have no such command: records are sent directly to their
topics, at least once.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from cordwood.broker import StagedFrames
from cordwood.config import load_broker_config
from cordwood.disk import Files, as_storage_error, files_of
from cordwood.embedded import open_when_free
from cordwood.errors import DirectoryLocked, DirectoryRefused, StorageError, UnknownTopic
from cordwood.formats import BATCH
from cordwood.host import SystemClock, process
from cordwood.kafka_client.settings import with_certificates
from cordwood.spark.client import KAFKA, settings_of_server
from cordwood.spark.options import LogLocation
from cordwood.spark.sink.encoding import Destination
from cordwood.storage.directory import DataDirectory, Opening
from cordwood.storage.log import codec_of
from cordwood.storage.readonly import ReadOnlyDirectory
from cordwood.storage.sink import Share, ShareWriter, StagedTarget, collect, promised, share_path
from cordwood.tenancy import suggest

#: How many seconds to wait for a directory locked by a writer without an address: another query's commit is
#: short.
LOCKED_SECONDS = 30.0


@dataclass(frozen=True)
class StagedTask:
    """The staged records of a task, with either carrier; empty if it had no rows."""

    shares: tuple[Share, ...] = ()
    sent: StagedFrames | None = None


class Stage(Protocol):
    """The target of one task's frames. One user."""

    def append(self, target: StagedTarget, frame: bytearray) -> None:
        """Add a frame."""

    def finish(self) -> StagedTask:
        """Make all frames durable and return what was staged."""

    def discard(self) -> None:
        """Remove the frames, as far as possible."""


class Carrier(Protocol):
    """A connection to the log, for the driver or a task. One thread; the opener closes it."""

    def check_rights(self, topic: str | None) -> None:
        """Check that the client may write to the topic, if it exists, or to any.

        On the driver, before there are tasks: those that are not allowed would be tried again and again.

        Raises:
            NotAllowed: If it may not.
        """

    def ensure_topic(self, topic: str) -> bool:
        """Create the topic if it is missing; return whether it was created."""

    def remove_unused(self, topic: str) -> None:
        """Remove the topic if it never had records."""

    def destination(self, topic: str) -> Destination:
        """Return the data needed to encode records for a topic.

        Raises:
            UnknownTopic: If there is none.
        """

    def stage(self, query: str, batch: int, task: str) -> Stage:
        """Return the stage for a task's frames."""

    def publish(self, query: str, batch: int, staged: Sequence[StagedTask], *, remember: bool) -> None:
        """Append the staged records of all tasks, in order, exactly once."""

    def abandon(self, query: str, batch: int, staged: Sequence[StagedTask], *, remember: bool) -> None:
        """Remove the staged records, unless they are or will be published."""

    def close(self) -> None:
        """Close."""


def open_carrier(place: LogLocation, *, task: bool = False) -> Carrier:
    """Open a carrier to the log at *place*.

    Raises:
        StorageError: If there is no data directory, or it is not visible to this task.
    """
    if place.path is not None:
        return PathCarrier(place.path, task=task)
    from cordwood.spark.sink.address_carrier import open_address

    return open_address(with_certificates(place.client, prefix=KAFKA))


class PathCarrier:
    """A data directory on a disk that driver, tasks and owner share; see `Carrier`."""

    def __init__(self, path: str, *, task: bool = False, files: Files | None = None) -> None:
        self._path = path
        self._config, _ = load_broker_config()
        self._files = files or files_of(path, self._config)
        self._reading: ReadOnlyDirectory | None = None
        if task and not self._files.exists(path):
            raise DirectoryRefused(
                f"host {process.host()} cannot see {path}, which the driver writes: put it where "
                "every executor has it, or write by address with kafka.bootstrap.servers"
            )

    def check_rights(self, topic: str | None) -> None:
        """Do nothing: the file system says who may write."""

    def ensure_topic(self, topic: str) -> bool:
        """Create the topic if it is missing, through the server that holds the directory, if there is one."""
        if self._files.exists(self._path):
            with contextlib.suppress(DirectoryRefused):
                if topic in self._read().topics:
                    return False

        def create(directory: DataDirectory) -> None:
            directory.topics.create(topic, process.new_id(), self._config.num_partitions, {})

        holder = self._with_directory(create)
        if holder is None:
            return True
        with contextlib.closing(_by_address(holder)) as carrier:
            return carrier.ensure_topic(topic)

    def remove_unused(self, topic: str) -> None:
        """Remove the topic if it has no record, as the writer of the directory, or through its server."""

        def remove(directory: DataDirectory) -> None:
            entry = directory.topics.get(topic)
            if entry is None:
                return
            logs = (directory.partitions.find(topic, number) for number in range(entry.partitions))
            if all(log is None or log.log_end_offset == 0 for log in logs):
                directory.topics.delete(topic)

        holder = self._with_directory(remove)
        if holder is not None:
            with contextlib.closing(_by_address(holder)) as carrier:
                carrier.remove_unused(topic)

    def destination(self, topic: str) -> Destination:
        """Return the catalogue's data of a topic."""
        directory = self._read()
        entry = directory.topics.get(topic)
        if entry is None:
            raise UnknownTopic.named(topic, f"in {self._path}", suggest(topic, directory.topics))
        config = directory.config_of(entry.config)
        keyed = config.cleanup_policy != "delete"
        return Destination(
            topic, entry.id, entry.partitions, config.max_message_bytes, keyed, codec_of(config)
        )

    def stage(self, query: str, batch: int, task: str) -> Stage:
        """Return a writer of shares in the directory."""
        now_ms = SystemClock().now_ms()
        writer = ShareWriter(self._files, self._path, query, batch, task, now_ms, BATCH)
        return PathStage(writer)

    def publish(self, query: str, batch: int, staged: Sequence[StagedTask], *, remember: bool) -> None:
        """Publish as the writer of the directory, or through its server."""
        shares = [share for each in staged for share in each.shares]

        def publish(directory: DataDirectory) -> None:
            directory.publisher.publish(query, batch, shares, remember=remember)

        holder = self._with_directory(publish)
        if holder is not None:
            with contextlib.closing(_by_address(holder)) as carrier:
                carrier.publish(query, batch, staged, remember=remember)

    def abandon(self, query: str, batch: int, staged: Sequence[StagedTask], *, remember: bool) -> None:
        """Remove the shares of the tasks; other shares of the batch are removed when it is published."""
        if promised(self._files, self._path, query) >= batch:
            return
        for each in staged:
            for share in each.shares:
                with contextlib.suppress(OSError):
                    self._files.unlink(share_path(self._path, query, batch, share.name))
        if not remember:
            # No later batch has this name, so nothing else would remove it.
            collect(self._files, self._path, query, batch)

    def close(self) -> None:
        """Close."""
        if self._reading is not None:
            self._reading.close()

    def _read(self) -> ReadOnlyDirectory:
        if self._reading is None:
            try:
                self._reading = ReadOnlyDirectory(self._files, self._path, self._config, mapped=False)
            except OSError as error:
                raise as_storage_error(error, "opening the data directory") from error
        return self._reading

    def _with_directory(self, work: _Work) -> str | None:
        """Execute *work* as the writer of the directory, or return the address of its server.

        Raises:
            DirectoryLocked: If another writer without an address holds it.
        """
        opening = Opening(self._files, self._path, self._config, mapped=False)
        try:
            directory = open_when_free(lambda: DataDirectory(opening), LOCKED_SECONDS)
        except DirectoryLocked as error:
            if error.address is None:
                raise
            return error.address
        except OSError as error:
            raise as_storage_error(error, "opening the data directory") from error
        try:
            work(directory)
        finally:
            # An error of *work* is more important than an error of closing.
            with contextlib.suppress(StorageError):
                directory.close()
        return None


class _Work(Protocol):
    def __call__(self, directory: DataDirectory, /) -> None: ...


class PathStage:
    """Shares in the data directory; see `Stage`."""

    def __init__(self, writer: ShareWriter) -> None:
        self._writer = writer

    def append(self, target: StagedTarget, frame: bytearray) -> None:
        """Add a frame."""
        self._writer.append(target, frame)

    def finish(self) -> StagedTask:
        """Sync the shares."""
        return StagedTask(self._writer.finish())

    def discard(self) -> None:
        """Remove the shares."""
        self._writer.discard()


def _by_address(address: str) -> Carrier:
    from cordwood.spark.sink.address_carrier import AddressCarrier

    return AddressCarrier(settings_of_server(address))
