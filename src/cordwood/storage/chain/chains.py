"""Extend the chains of a data directory in the background, outside the append path.

The process that holds the directory's lock calls `Chains.follow` at any time. Leaves of frames that are still
in the log can be computed again, so they are synced from time to time, and always before the frames
themselves are removed.
"""

from __future__ import annotations

import contextlib
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from threading import RLock
from typing import Protocol

from cordwood.disk import Files, as_storage_error
from cordwood.errors import CordwoodError, LogClosed
from cordwood.storage.chain.files import ChainHead, KeptChain, read_head
from cordwood.storage.chain.follower import Follower
from cordwood.storage.chain.statements import keeps_evidence
from cordwood.storage.chain.writer import ChainWriter
from cordwood.storage.log import LogContext, Pace, PartitionLog, Segment, no_pace
from cordwood.storage.meta import Lifecycle
from cordwood.telemetry import CHAIN_LAG

#: The largest number of open chains, and the number of files that each of them has.
OPEN_MAX = 64
FILES_EACH = 4


class CompactionSigner(Protocol):
    """Signs a checkpoint of a chain when a compaction changes its log; see `CheckpointSigner`."""

    def sign_compaction(self, log: PartitionLog, chain: KeptChain) -> None:
        """Sign a checkpoint of *chain* as it is, and keep it. Durable on return."""


@contextlib.contextmanager
def kept_chain(files: Files, directory: str) -> Iterator[KeptChain | None]:
    """Open the chain of the partition in *directory* read-only; yield None if it has none."""
    head = read_head(files, directory)
    if head is None:
        yield None
        return
    with contextlib.closing(KeptChain(files, directory, head)) as chain:
        yield chain


class Chains:
    """The chains of a data directory. Any thread may call any method; calls are serialized by a lock."""

    def __init__(
        self, context: LogContext, lifecycle: Lifecycle, signer: CompactionSigner, handles: int | None = None
    ) -> None:
        """Begin with no chain open.

        At most about *handles* files are open at a time; None means no limit besides `OPEN_MAX` chains.
        """
        self._open_max = OPEN_MAX if handles is None else max(1, min(OPEN_MAX, handles // FILES_EACH))
        # The log whose chain is in use now: it must not be closed while the guard is held.
        self._used: PartitionLog | None = None
        self._files = context.files
        self._clock = context.clock
        self._telemetry = context.telemetry
        # Logs whose leaves were dropped before they were durable are added to it here.
        self._changed = context.changed
        self._lifecycle = lifecycle
        self._signer = signer
        # Taken again by the thread that has it, where opening one chain makes it close others.
        self._guard = RLock()
        self._followers: OrderedDict[PartitionLog, Follower] = OrderedDict()

    def follow(self, log: PartitionLog, pace: Pace = no_pace) -> int:
        """Add a leaf for every frame below the high watermark that has none; return their number.

        `commit_due` makes them durable later.

        Raises:
            MetadataDamaged: If the chain's own files are missing or wrong, or it followed another log.
            StorageError: If the log or the disk refuses. Committed leaves stay.
        """
        with self._followed(log) as follower:
            return follower.run(pace)

    def follow_changed(self, pace: Pace = no_pace) -> dict[PartitionLog, CordwoodError]:
        """Follow every log that changed since the last call; return the logs that failed, and why.

        Logs that fail are followed again at the next call.

        Raises:
            LogClosed: If *pace* raises it, or the directory is closed. The next call follows the others.
        """
        self._lifecycle.check_open()
        changed, failures = self._changed, dict[PartitionLog, CordwoodError]()
        self._note_lag()
        # A copy: other threads add to the set and take from it meanwhile.
        for log in list(changed):
            changed.discard(log)
            try:
                if log.config.chain and not log.closed:
                    self.follow(log, pace)
            except LogClosed:
                if log.closed:
                    # Its topic was deleted meanwhile; the other logs are followed all the same.
                    continue
                changed.add(log)
                raise
            except CordwoodError as error:
                failures[log] = error
        failures.update(self.commit_due())
        changed.update(log for log in failures if not log.closed)
        self._note_lag()
        return failures

    def _note_lag(self) -> None:
        behind = sum(self.lag(log) for log in list(self._changed) if log.config.chain)
        self._telemetry.set(CHAIN_LAG, behind)

    @property
    def is_behind(self) -> bool:
        """Whether a chain may lack leaves of its log, or durable ones. Touches no file."""
        return bool(self._changed) or self._is_uncommitted

    @property
    def _is_uncommitted(self) -> bool:
        return any(follower.is_uncommitted for follower in list(self._followers.values()))

    def commit_due(self) -> dict[PartitionLog, CordwoodError]:
        """Sync leaves that were added a few seconds ago; return the logs that failed and why.

        Chains of failed logs are extended again from their last durable leaf.
        """
        now_ns, failures = self._clock.monotonic_ns(), dict[PartitionLog, CordwoodError]()
        for log in [log for log, each in list(self._followers.items()) if each.is_commit_due(now_ns)]:
            try:
                with self._followed(log) as follower:
                    follower.commit()
            except LogClosed:
                # The topic was deleted: there is no chain any more.
                self.forget(log)
            except CordwoodError as error:
                failures[log] = error
        return failures

    def close(self) -> None:
        """Follow every changed log to its end and close all files. The next open follows logs that fail."""
        behind = [log for log in list(self._changed) if log.config.chain]
        for log in {*behind, *list(self._followers)}:
            with contextlib.suppress(CordwoodError):
                self.commit(log)
        with self._guard:
            while self._followers:
                self._followers.popitem()[1].close()

    def commit(self, log: PartitionLog) -> int:
        """Call `follow` and make all leaves durable."""
        with self._followed(log) as follower:
            added = follower.run(no_pace)
            follower.commit()
            return added

    def exists(self, log: PartitionLog) -> bool:
        """Return whether a log has a chain already, even if its setting is off now. Raises as `follow`."""
        try:
            return log in self._followers or read_head(self._files, log.directory) is not None
        except OSError as error:
            raise as_storage_error(error, "looking for a chain") from error

    def lag(self, log: PartitionLog) -> int:
        """Return the number of offsets below the high watermark that have no leaf yet.

        An upper bound if the chain is not open.
        """
        follower = self._followers.get(log)
        return log.high_watermark - (log.log_start_offset if follower is None else follower.next_offset)

    def note_removal(self, log: PartitionLog, end: int, reason: str) -> None:
        """State that records before *end* will be removed, with the reason. Durable on return.

        Call it before the removal.
        """
        with self._followed(log) as follower:
            follower.run(no_pace)
            follower.keep_envelopes(end)
            follower.add_removal(end, reason)
            follower.commit()

    def rewritable(self, log: PartitionLog) -> list[tuple[int, int]] | None:
        """Return the offsets [start, end) of frames that compaction may rewrite; None means all of them."""
        if not keeps_evidence(log.state.topic):
            return None
        with self._followed(log) as follower:
            return follower.rewritable()

    def keep_lists_from(self, log: PartitionLog, start: int) -> None:
        """Keep the evidence that a truncation at *start* is about to remove. Durable on return.

        Compaction may have dropped records because one from *start* on has their key. Does nothing for a log
        that was never compacted, or has no chain.
        """
        generations = [info.generation for info in log.state.sealed]
        if not max([*generations, log.state.active_generation]) or not self.exists(log):
            return
        with self._followed(log) as follower:
            follower.run(no_pace)
            follower.add_lists_from(start)
            follower.commit()

    def expire_lists(self, log: PartitionLog, before_ms: int, reason: str) -> None:
        """Remove the lists that compactions kept before *before_ms*, after a signed statement says so."""
        with self._followed(log) as follower:
            if follower.expire_lists(before_ms, reason):
                follower.commit()
                with kept_chain(self._files, log.directory) as chain:
                    assert chain is not None
                    self._signer.sign_compaction(log, chain)
            # Also those that a crash kept from being removed.
            follower.drop_expired_lists()

    def note_compaction(
        self, log: PartitionLog, old: Sequence[Segment], prepared: Segment, *, evidence: bool = True
    ) -> None:
        """State that *prepared* replaces *old*, and keep lists of what it drops. Signed, durable on return.

        Call it before the swap. Without *evidence*, frames may be changed whose records cannot be listed.

        Raises:
            EvidenceRefused: If the log differs from an earlier signed checkpoint, or the records of a changed
                frame cannot be listed.
        """
        with self._followed(log) as follower:
            # The chain may have been closed since the plan was made, which dropped uncommitted leaves.
            follower.run(no_pace)
            follower.add_compaction(old, prepared, evidence=evidence and keeps_evidence(log.state.topic))
            follower.commit()
            with kept_chain(self._files, log.directory) as chain:
                assert chain is not None
                self._signer.sign_compaction(log, chain)

    def give_back(self, count: int) -> int:
        """Close the least recently used chains, about *count* files; return their number. Never blocks.

        Uncommitted leaves of a closed chain are computed again later.
        """
        if not self._guard.acquire(blocking=False):
            return 0
        try:
            given = 0
            for log in [log for log in self._followers if log is not self._used]:
                if given >= count:
                    break
                self._drop(log)
                given += FILES_EACH
            return given
        finally:
            self._guard.release()

    def forget(self, log: PartitionLog) -> None:
        """Close the chain's files because its log is closed or deleted."""
        with self._guard:
            follower = self._followers.pop(log, None)
            if follower is not None:
                follower.close()

    @contextlib.contextmanager
    def _followed(self, log: PartitionLog) -> Iterator[Follower]:
        """Lock the chain of *log* and open it if needed. Deletion of its topic waits in `forget`.

        Raises:
            LogClosed: If the log is closed. The files at its path may be those of another topic.
        """
        with self._guard:
            try:
                if log.closed:
                    raise LogClosed(f"{log.directory} is closed")
                self._used = log
                if log not in self._followers:
                    self._close_beyond(self._open_max - 1)
                    self._followers[log] = self._open(log)
                self._followers.move_to_end(log)
                yield self._followers[log]
            except BaseException as error:
                self._drop(log)
                if isinstance(error, OSError):
                    raise as_storage_error(error, "growing the chain") from error
                raise
            finally:
                self._used = None

    def _drop(self, log: PartitionLog) -> None:
        """Close the chain of *log*, with the guard held. Uncommitted leaves are lost."""
        dropped = self._followers.pop(log, None)
        if dropped is not None:
            dropped.close()
            if dropped.is_uncommitted and not log.closed:
                self._changed.add(log)

    def _close_beyond(self, count: int) -> None:
        """Commit and close the least recently used chains until *count* are open, with the guard held."""
        while len(self._followers) > count:
            log, oldest = next(iter(self._followers.items()))
            self._used, wanted = log, self._used
            # A chain that cannot be committed is extended again later; its error does not concern the
            # requested one.
            with contextlib.suppress(CordwoodError, OSError):
                oldest.commit()
            self._drop(log)
            self._used = wanted

    def _open(self, log: PartitionLog) -> Follower:
        state = log.state
        begin = ChainHead(
            topic_id=state.topic_id,
            first_offset=state.log_start_offset,
            next_offset=state.log_start_offset,
            leader_epoch=state.leader_epoch,
        )
        follower = Follower(self._clock, log, ChainWriter.open(self._files, log.directory, begin))
        try:
            follower.check_end()
        except BaseException:
            follower.close()
            raise
        return follower
