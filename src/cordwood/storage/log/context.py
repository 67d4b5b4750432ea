"""What all partition logs of a data directory share."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from cordwood.disk import Files, Reserve
from cordwood.errors import LogFailed
from cordwood.host import Clock
from cordwood.storage.log.file_cache import OpenFiles
from cordwood.storage.log.reading import GrowthWatch
from cordwood.telemetry import Telemetry

if TYPE_CHECKING:
    from cordwood.storage.log.partition_log import PartitionLog


class RemoteAcks(Protocol):
    """A place beside the disk that acknowledgements may wait for. Any thread may call any method."""

    def let_topic_wait(self, directory: str, *, waits: bool) -> None:
        """Let syncs of the records of the topic in *directory* wait for that place, or no longer."""

    def waits_in(self, directory: str) -> bool:
        """Return whether a sync of the records of the partition in *directory* waits for that place."""

    def exempt(self) -> AbstractContextManager[None]:
        """Let no sync of this thread wait; `LogCore.begin_sync` uses it."""

    def waiting_for_now(self) -> Callable[[], None]:
        """Return a call that returns once what is durable by now is there too; SyncFailed if it never is."""


@dataclass(frozen=True, slots=True)
class LogContext:
    """The objects that all partition logs of a data directory share."""

    files: Files
    open_files: OpenFiles
    clock: Clock
    telemetry: Telemetry
    check_alive: Callable[[], None]
    """Raises LogClosed in a forked child, which must not touch its parent's files."""
    before_change: Callable[[], None]
    """Called before anything on disk changes: the directory is not cleanly closed any more."""
    reserve: Reserve
    """Space for what frees space; appends are refused while it is given back."""
    urgently: Callable[[], AbstractContextManager[None]] = nullcontext
    """The context for work that finishes a committed change: it may use the reserve."""
    failed: Callable[[LogFailed], None] = lambda error: None
    """Told of each log that takes no more, in the thread that found out."""
    producer_expiration_ms: Callable[[], int] = lambda: 24 * 3_600_000
    """How long an idempotent producer that sends nothing is known; it may change at run time."""
    growth: GrowthWatch = field(default_factory=GrowthWatch)
    """Told of each partition that has more to read, or was failed or closed."""
    remote: RemoteAcks | None = None
    """Where records of topics with ``cordwood.remote.acks`` have to be before they are acknowledged."""
    takeover: int = 0
    """The newest takeover of the directory from another machine; see `read_takeover`."""
    changed: set[PartitionLog] = field(default_factory=set)
    """Logs that have a chain, and something that it does not have yet. Any thread adds and takes."""
    unhashed: set[PartitionLog] = field(default_factory=set)
    """Logs that may have sealed segments without a SHA-256. Any thread adds and takes."""
