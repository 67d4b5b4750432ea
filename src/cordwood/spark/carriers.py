"""How what tasks stage reaches the owner of the log: over a disk they share with it, or by its address.

One protocol with two carriers. By path, tasks write shares into the data directory and the driver publishes
them, itself or through the server that holds the directory. By address, tasks send frames to a staging topic
and the driver sends the command. To a broker that is not ours there is no such command: records go
straight into their topics, at least once.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from cordwood import process
from cordwood.broker.sink import StagedFrames
from cordwood.clock import SystemClock
from cordwood.config import load_broker_config
from cordwood.embedded import open_when_free
from cordwood.errors import CordwoodError, DirectoryLocked, DirectoryRefused, StorageError, UnknownTopic
from cordwood.formats.registry import BATCH
from cordwood.spark.encoding import Destination
from cordwood.spark.options import Place
from cordwood.storage.data_directory import DataDirectory, Opening
from cordwood.storage.files import Files
from cordwood.storage.posix_files import PosixFiles
from cordwood.storage.publishing import promised
from cordwood.storage.read_only import ReadOnlyDirectory
from cordwood.storage.staging import Share, ShareWriter, Target, collect, share_path
from cordwood.storage.store import as_storage_error

#: How long a directory may be locked by a writer that says no address: another query's commit is short.
LOCKED_SECONDS = 30.0


@dataclass(frozen=True)
class Staged:
    """What a task staged, in either way; nothing if it had no rows."""

    shares: tuple[Share, ...] = ()
    sent: StagedFrames | None = None


class Stage(Protocol):
    """Where one task puts its frames. One user."""

    def append(self, target: Target, frame: bytearray) -> None:
        """Take a frame."""

    def finish(self) -> Staged:
        """Make everything durable and say what there is."""

    def discard(self) -> None:
        """Forget it, as far as that works."""


class Carrier(Protocol):
    """The way to the log, from the driver or from a task. One thread; closed by whoever opened it."""

    def ensure_topic(self, topic: str) -> None:
        """Create the topic if it is missing."""

    def destination(self, topic: str) -> Destination:
        """Return what must be known of a topic to encode for it.

        Raises:
            UnknownTopic: If there is none.
        """

    def stage(self, query: str, batch: int, task: str) -> Stage:
        """Return where a task puts its frames."""

    def publish(self, query: str, batch: int, staged: Sequence[Staged], *, remember: bool) -> None:
        """Append what the tasks staged, in their order, all of it, once."""

    def abandon(self, query: str, batch: int, staged: Sequence[Staged], *, remember: bool) -> None:
        """Remove what the tasks staged, unless it is published or will be."""

    def close(self) -> None:
        """Let go."""


def open_carrier(place: Place, *, task: bool = False) -> Carrier:
    """Return the way to the log at *place*.

    Raises:
        StorageError: If there is no data directory, or not for this task to see.
    """
    if place.path is not None:
        return PathCarrier(place.path, task=task)
    from cordwood.spark.address_carrier import open_address

    return open_address(place.client)


class PathCarrier:
    """A data directory on a disk that driver, tasks and owner share; see `Carrier`."""

    def __init__(self, path: str, *, task: bool = False, files: Files | None = None) -> None:
        self._path = path
        self._files = files or PosixFiles()
        self._config, _ = load_broker_config()
        self._reading: ReadOnlyDirectory | None = None
        if task and not self._files.exists(path):
            raise DirectoryRefused(
                f"host {process.host()} cannot see {path}, which the driver writes: put it where "
                "every executor has it, or write by address with kafka.bootstrap.servers"
            )

    def ensure_topic(self, topic: str) -> None:
        """Create the topic if it is missing, through the server that holds the directory if one does."""
        if self._files.exists(self._path):
            with contextlib.suppress(DirectoryRefused):
                if topic in self._read().topics:
                    return

        def create(directory: DataDirectory) -> None:
            directory.create_topic(topic, process.new_id(), self._config.num_partitions, {})

        holder = self._with_directory(create)
        if holder is not None:
            with contextlib.closing(_by_address(holder)) as carrier:
                carrier.ensure_topic(topic)

    def destination(self, topic: str) -> Destination:
        """Return what the catalogue says of a topic."""
        directory = self._read()
        entry = directory.topics.get(topic)
        if entry is None:
            raise UnknownTopic(f"there is no topic {topic} in {self._path}")
        config = directory.config_of(entry.config)
        keyed = config.cleanup_policy != "delete"
        return Destination(topic, entry.id, entry.partitions, config.max_message_bytes, keyed)

    def stage(self, query: str, batch: int, task: str) -> Stage:
        """Return a writer of shares in the directory."""
        now_ms = SystemClock().now_ms()
        writer = ShareWriter(self._files, self._path, query, batch, task, now_ms, BATCH)
        return PathStage(writer)

    def publish(self, query: str, batch: int, staged: Sequence[Staged], *, remember: bool) -> None:
        """Publish as the writer of the directory, or let the server that is do it."""
        shares = [share for each in staged for share in each.shares]

        def publish(directory: DataDirectory) -> None:
            directory.publish(query, batch, shares, remember=remember)

        holder = self._with_directory(publish)
        if holder is not None:
            with contextlib.closing(_by_address(holder)) as carrier:
                carrier.publish(query, batch, staged, remember=remember)

    def abandon(self, query: str, batch: int, staged: Sequence[Staged], *, remember: bool) -> None:
        """Remove the shares of the tasks; what others of the same batch left goes with its publication."""
        if promised(self._files, self._path, query) >= batch:
            return
        for each in staged:
            for share in each.shares:
                with contextlib.suppress(OSError):
                    self._files.unlink(share_path(self._path, query, batch, share.name))
        if not remember:
            # Nobody will publish under this name, so nobody else collects it.
            collect(self._files, self._path, query, batch)

    def close(self) -> None:
        """Let go."""
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
        """Do *work* as the writer of the directory, or return the address of the server that is.

        Raises:
            DirectoryLocked: If another writer holds it that does not listen anywhere.
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
            # What *work* says counts for more than how the directory closes.
            with contextlib.suppress(StorageError):
                directory.close()
        return None


class _Work(Protocol):
    def __call__(self, directory: DataDirectory, /) -> None: ...


class PathStage:
    """Shares in the data directory; see `Stage`."""

    def __init__(self, writer: ShareWriter) -> None:
        self._writer = writer

    def append(self, target: Target, frame: bytearray) -> None:
        """Take a frame."""
        self._writer.append(target, frame)

    def finish(self) -> Staged:
        """Sync the shares."""
        return Staged(self._writer.finish())

    def discard(self) -> None:
        """Remove the shares."""
        self._writer.discard()


def _by_address(address: str) -> Carrier:
    from cordwood.spark.address_carrier import AddressCarrier

    client: Mapping[str, str] = {"bootstrap.servers": address}
    try:
        return AddressCarrier(client)
    except ImportError as error:
        raise CordwoodError(
            f"the directory is served on {address}, and writing by address needs {error.name}: "
            "install cordwood[spark]"
        ) from error
