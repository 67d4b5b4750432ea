"""`open` a data directory, or wait until another process has closed it."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Literal, TypeVar

from cordwood.config import BrokerConfig, SyncPolicy, load_broker_config
from cordwood.disk import RESERVE_BYTES, Files, MemoryFiles, PosixFiles, as_storage_error, files_of
from cordwood.embedded.log import Log
from cordwood.errors import (
    CordwoodError,
    DirectoryLocked,
    InvalidSetting,
    OwnerFenced,
)
from cordwood.host import Clock, Host, SystemClock
from cordwood.storage.directory import DataDirectory, Opening
from cordwood.storage.meta import local_path
from cordwood.storage.readonly import ReadOnlyDirectory

if TYPE_CHECKING:
    from cordwood.bucket import ObjectStore, ShippedDirectory

#: How often a directory that another process writes is looked at.
LOCK_POLL_SECONDS = 0.02
Result = TypeVar("Result")


def open(  # noqa: A001 - the library is used as cordwood.open
    path: str | os.PathLike[str],
    *,
    read_only: bool = False,
    sync: str | None = None,
    index_cache: int | Literal["all", "none"] | None = None,
    create: bool = True,
    bucket: str | ObjectStore | None = None,
    files: Files | None = None,
    clock: Clock | None = None,
) -> Log:
    """Open the data directory at *path*, or a log in memory with ``":memory:"``.

    *sync* says when an append is durable, for topics that do not say it themselves: ``each`` (on return,
    the default), ``every:N`` records, ``ms:T`` milliseconds, or ``never``. *index_cache* is the number of
    sealed segments whose indexes stay in memory: ``all``, ``none`` or a number. *read_only* locks and changes
    nothing, and works beside a live writer. *create* makes a directory that is not there. *bucket* is the URL
    that the log is shipped to while it is open: see docs/bucket.md.

    Raises:
        DirectoryLocked: If another process writes it; says which.
        DirectoryRefused: If it is not a data directory, or one of a newer version.
        MetadataDamaged: If what says which topics there are cannot be read; it is never taken for empty.
        ResourcesExhausted: If there are no file handles or threads left.
        BucketError: If the bucket cannot be used, or has the log of another directory.
    """
    config = _config_of(sync, index_cache)
    memory = os.fspath(path) == ":memory:"
    data = "/memory" if memory else os.path.abspath(local_path(os.fspath(path)))
    if files is None:
        files = MemoryFiles() if memory else files_of(data, config)
    mapped = config.io != "direct"
    if read_only:
        return Log(beside=_opened(lambda: ReadOnlyDirectory(files, data, config, mapped=mapped)), clock=clock)
    host = Host(clock or SystemClock())
    opening = Opening(
        files,
        data,
        config,
        create=create,
        mapped=mapped,
        reserve_bytes=RESERVE_BYTES if isinstance(files, PosixFiles) else 0,
        clock=host.clock,
    )
    opened: list[DataDirectory] = []
    shipped = None if bucket is None else _shipped(bucket, opening, host, opened)
    directory = _opened(lambda: DataDirectory(opening if shipped is None else shipped.opening))
    opened.append(directory)
    log = Log(directory, clock=clock, shipped=shipped)
    try:
        if shipped is not None:
            shipped.start(directory.identity)
        log._recover_transactions(is_clean=directory.lifecycle.is_clean)
        if isinstance(files, PosixFiles) and clock is None:
            # A caller that brings files or a clock decides itself when each step is done.
            log._follow_always()
    except BaseException:
        log.close()
        raise
    return log


def _shipped(
    bucket: str | ObjectStore, opening: Opening, host: Host, opened: Sequence[DataDirectory]
) -> ShippedDirectory:
    # Imported here: few logs have a bucket.
    from cordwood.bucket import ShippedDirectory

    def fail(error: CordwoodError) -> None:
        if isinstance(error, OwnerFenced):
            for directory in opened:
                directory.partitions.fail(str(error))

    return ShippedDirectory(bucket, opening, host, fail)


def _opened(make: Callable[[], Result]) -> Result:
    """Return the result of *make*; convert errors of the operating system to Cordwood's."""
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


def _config_of(sync: str | None, index_cache: int | str | None) -> BrokerConfig:
    config, _ = load_broker_config()
    if index_cache is not None:
        named = {"all": -1, "none": 0}
        segments = named.get(index_cache) if isinstance(index_cache, str) else max(index_cache, -1)
        if segments is None or (segments < 0 and index_cache != "all") or isinstance(index_cache, bool):
            raise InvalidSetting("index_cache", index_cache, "all, none or a number of segments")
        config = replace(config, index_cache_segments=segments)
    if sync is None:
        return config
    try:
        policy = SyncPolicy.parse(sync)
    except ValueError:
        raise InvalidSetting("sync", sync, "each, every:N, ms:T or never") from None
    return replace(config, topic_defaults=replace(config.topic_defaults, sync=policy))
