"""Leader epochs: the current epoch of a partition, the end of each epoch, and checks of clients' epochs.

The leader of a partition never changes. Its epoch increases when its log is truncated, restored or taken over
by another machine. A running broker truncates only on request, and then forgets the epoch that it has read
before. The epoch of a takeover is known when it starts, before the first append begins it on disk.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from threading import Lock

from cordwood.errors import CordwoodError, LeaderEpochFenced, LeaderEpochUnknown
from cordwood.storage.directory import DirectoryPartitions
from cordwood.storage.log import Epoch
from cordwood.storage.meta import TopicEntry

#: The value of an unknown epoch, also in the protocol.
NO_EPOCH = -1


def check_leader_epoch(given: int, current: int) -> None:
    """Check the leader epoch *given* by a client; `NO_EPOCH` is always accepted.

    Raises:
        LeaderEpochFenced: If *given* is older: the log may have been truncated since the client read it.
        LeaderEpochUnknown: If *given* is newer.
    """
    if given in (NO_EPOCH, current):
        return
    if given < current:
        raise LeaderEpochFenced(given, current)
    raise LeaderEpochUnknown(given, current)


def epoch_at(epochs: Sequence[Epoch], offset: int) -> int:
    """Return the epoch of the record at *offset*. *epochs* are oldest first."""
    return epochs[max(bisect_right(epochs, offset, key=lambda each: each.start_offset) - 1, 0)].epoch


def epoch_end(epochs: Sequence[Epoch], epoch: int, end_offset: int) -> tuple[int, int]:
    """Return the largest epoch not above *epoch* that has records, and the offset after its last record.

    As in Kafka, both are -1 for an epoch later than the last, and an epoch before the first one in *epochs*
    ends where that begins. *end_offset* is the current end of the last epoch.
    """
    if not 0 <= epoch <= epochs[-1].epoch:
        return NO_EPOCH, -1
    after = bisect_right(epochs, epoch, key=lambda each: each.epoch)
    end = epochs[after].start_offset if after < len(epochs) else end_offset
    return (epochs[after - 1].epoch if after else epoch), end


class LeaderEpochs:
    """The leader epochs of all partitions, read once each. From any thread."""

    def __init__(self, partitions: DirectoryPartitions) -> None:
        self._partitions = partitions
        # By the id of the topic. Most topics have equal epochs, which share one tuple.
        self._known: dict[str, tuple[int, ...]] = {}
        self._kept: dict[tuple[int, ...], tuple[int, ...]] = {}
        self._guard = Lock()
        #: Counts the calls of `forget`.
        self._forgotten = 0

    def known(self, entry: TopicEntry) -> tuple[int, ...] | None:
        """Return the epochs of a topic's partitions if they are cached, or None. Never blocks."""
        known = self._known.get(entry.id)
        return known if known is not None and len(known) == entry.partitions else None

    def find(self, entry: TopicEntry) -> tuple[int, ...]:
        """Return the epochs of a topic's partitions, `NO_EPOCH` for one that cannot be read. May block."""
        known = self.known(entry)
        if known is not None:
            return known
        forgotten = self._forgotten
        found = tuple(self._read(entry.name, partition) for partition in range(entry.partitions))
        found = self._kept.setdefault(found, found)
        with self._guard:
            # An epoch that was read before a truncation must not be kept after it.
            if NO_EPOCH not in found and forgotten == self._forgotten:
                self._known[entry.id] = found
        return found

    def _read(self, topic: str, partition: int) -> int:
        try:
            return self._partitions.leader_epoch(topic, partition)
        except CordwoodError:
            # Damaged, or deleted concurrently. Requests for the partition itself report it.
            return NO_EPOCH

    def forget(self, entry: TopicEntry) -> None:
        """Drop the cached epochs of a topic that was deleted or truncated."""
        with self._guard:
            self._forgotten += 1
            self._known.pop(entry.id, None)
