"""The chains of a data directory, which follow its logs off the path of appends.

Whoever has the directory's lock calls `Chains.follow` when it suits. Leaves of frames that are still in the
log can be made again, so they are made durable now and then, and before anything goes that they alone will
tell of.
"""

from __future__ import annotations

import contextlib
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from threading import Lock

from cordwood.clock import Clock
from cordwood.errors import StorageError
from cordwood.storage.chain_files import ChainHead, KeptChain, read_head
from cordwood.storage.chain_following import Follower
from cordwood.storage.chain_growing import GrowingChain
from cordwood.storage.files import Files
from cordwood.storage.partition_log import PartitionLog
from cordwood.storage.rewriting import Pace, no_pace
from cordwood.storage.segment import Segment
from cordwood.storage.store import as_storage_error

#: How many chains are kept open, of four files each.
OPEN_MAX = 64

Sign = Callable[[PartitionLog, KeptChain], None]
"""Signs for a chain as it is, and keeps the signature."""


@contextlib.contextmanager
def kept_chain(files: Files, directory: str) -> Iterator[KeptChain | None]:
    """Open the chain of the partition in *directory* to read, None if it has none. Changes nothing."""
    head = read_head(files, directory)
    if head is None:
        yield None
        return
    with contextlib.closing(KeptChain(files, directory, head)) as chain:
        yield chain


class Chains:
    """The chains of a data directory. Every method may be called from any thread; one at a time works."""

    def __init__(self, files: Files, clock: Clock, sign: Sign) -> None:
        self._files = files
        self._clock = clock
        self._sign = sign
        self._guard = Lock()
        self._followers: OrderedDict[PartitionLog, Follower] = OrderedDict()

    def follow(self, log: PartitionLog, pace: Pace = no_pace) -> int:
        """Add a leaf for every frame below the high watermark that has none; return how many were added.

        They are durable once `commit_due` has found them old enough.

        Raises:
            MetadataDamaged: If the chain's own files are missing or wrong, or it followed another log.
            StorageError: If the log or the disk refuses. What was committed of the chain stays.
        """
        with self._followed(log) as follower:
            return follower.run(pace)

    @property
    def is_uncommitted(self) -> bool:
        """Whether anything that was added is not durable yet."""
        return any(follower.is_uncommitted for follower in list(self._followers.values()))

    def commit_due(self) -> None:
        """Make durable what was added a few seconds ago. Raises as `follow`."""
        now_ns = self._clock.monotonic_ns()
        for log in [log for log, each in list(self._followers.items()) if each.is_commit_due(now_ns)]:
            with self._followed(log) as follower:
                follower.commit()

    def finish(self, logs: Iterable[PartitionLog]) -> None:
        """Follow *logs* to their ends and let go of everything. What cannot be followed now is so later."""
        for log in {*logs, *self._followers}:
            with contextlib.suppress(StorageError):
                self.commit(log)
        with self._guard:
            while self._followers:
                self._followers.popitem()[1].close()

    def commit(self, log: PartitionLog) -> int:
        """Do as `follow` does, and make all of it durable."""
        with self._followed(log) as follower:
            added = follower.run(no_pace)
            follower.commit()
            return added

    def exists(self, log: PartitionLog) -> bool:
        """Return whether a log has a chain already, switched on or not. Raises as `follow`."""
        try:
            return log in self._followers or read_head(self._files, log.directory) is not None
        except OSError as error:
            raise as_storage_error(error, "looking for a chain") from error

    def lag(self, log: PartitionLog) -> int:
        """Return how many offsets below the high watermark are not followed yet, as far as is known."""
        follower = self._followers.get(log)
        return log.high_watermark - (log.log_start_offset if follower is None else follower.next_offset)

    def note_removal(self, log: PartitionLog, end: int, reason: str) -> None:
        """Say that everything before *end* is let go and why, before it is. Durable on return."""
        with self._followed(log) as follower:
            follower.run(no_pace)
            follower.say_removed(end, reason)
            follower.commit()

    def note_compaction(self, log: PartitionLog, prepared: Segment) -> None:
        """Say what the segment is that will take the place of others, before it does. Signed, and durable.

        All that it takes the place of must have leaves.

        Raises:
            EvidenceRefused: If the log is not what was signed for before.
        """
        with self._followed(log) as follower:
            follower.say_compacted(prepared)
            follower.commit()
            with kept_chain(self._files, log.directory) as chain:
                assert chain is not None
                self._sign(log, chain)

    def forget(self, log: PartitionLog) -> None:
        """Let go of the files of a chain whose log goes."""
        with self._guard:
            follower = self._followers.pop(log, None)
            if follower is not None:
                follower.close()

    @contextlib.contextmanager
    def _followed(self, log: PartitionLog) -> Iterator[Follower]:
        with self._guard:
            try:
                follower = self._followers.get(log) or self._open(log)
                self._followers[log] = follower
                self._followers.move_to_end(log)
                while len(self._followers) > OPEN_MAX:
                    _, oldest = self._followers.popitem(last=False)
                    with contextlib.closing(oldest):
                        oldest.commit()
                yield follower
            except BaseException as error:
                # Whatever is half done there never happened.
                dropped = self._followers.pop(log, None)
                if dropped is not None:
                    dropped.close()
                if isinstance(error, OSError):
                    raise as_storage_error(error, "growing the chain") from error
                raise

    def _open(self, log: PartitionLog) -> Follower:
        state = log.state
        begin = ChainHead(
            topic_id=state.topic_id,
            first_offset=state.log_start_offset,
            next_offset=state.log_start_offset,
            leader_epoch=state.leader_epoch,
        )
        follower = Follower(self._clock, log, GrowingChain.open(self._files, log.directory, begin))
        try:
            follower.check_end()
        except BaseException:
            follower.close()
            raise
        return follower
