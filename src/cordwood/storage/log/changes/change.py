"""The one shape of every change of the set of segments: lock, check, prepare files, commit, apply."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

from cordwood.errors import LogFailed, StorageError
from cordwood.storage.log.log_core import LogCore
from cordwood.storage.log.state import PartitionState


class SegmentChange(ABC):
    """One change of the set of segments of *log*. `make` runs it; nothing else calls the steps."""

    #: Names the change in errors: "rolling", "truncating".
    doing: ClassVar[str]

    def __init__(self, log: LogCore) -> None:
        self.log = log

    def make(self) -> bool:
        """Make the change, durable on return; return False if there was nothing to change.

        Until `partition.json` is written nothing has changed. After that the change has happened: what
        fails then is finished when the log is opened again, so the log fails.

        Raises:
            DiskFull: If there was no space to prepare it. Nothing has changed.
            LogFailed: If the disk failed.
        """
        log = self.log
        with log.lock, log.syncs.exclusively():
            log.check_change()
            try:
                if not self.prepare():
                    return False
                state = self.commit()
            except OSError as error:
                raise log.full_or_failed(error, self.doing) from error
            try:
                with log.context.urgently():
                    self.apply(state)
            except LogFailed:
                raise
            except (OSError, StorageError) as error:
                raise log.failed(f"{self.doing} failed after it was committed: {error}") from error
            assert log.state.sealed is state.sealed, "readers see other segments than were committed"
            log.check_invariants()
        return True

    @abstractmethod
    def prepare(self) -> bool:
        """Check that the change is possible, write its files and sync them; False if there is nothing to do.

        Raises:
            OSError: If the disk refused. Nothing has changed.
        """

    @abstractmethod
    def commit(self) -> PartitionState:
        """Write the state that has the change and return it. Durable on return. Raises as `prepare` does."""

    @abstractmethod
    def apply(self, state: PartitionState) -> None:
        """Make the rest of the disk, and the log in memory, agree with *state*, which is committed."""
