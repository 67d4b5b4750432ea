"""Leader epochs: which one a partition is in, where each ends, and whether a client knows the current one.

A partition of one broker never gets another leader. Its epoch grows when its log is truncated or restored,
which happens while no broker runs, so an epoch that was read once holds for the life of a broker.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

from cordwood.errors import CordwoodError, LeaderEpochFenced, LeaderEpochUnknown
from cordwood.storage.directory import DirectoryPartitions
from cordwood.storage.log import Epoch
from cordwood.storage.meta import TopicEntry

#: Stands for an epoch that is not known, on the wire as here.
NO_EPOCH = -1


def check_leader_epoch(given: int, current: int) -> None:
    """Refuse a request of a client that takes *given* for the leader epoch; `NO_EPOCH` fits any.

    Raises:
        LeaderEpochFenced: If it is an older one: the log may have been truncated since the client asked.
        LeaderEpochUnknown: If it is a newer one.
    """
    if given in (NO_EPOCH, current):
        return
    if given < current:
        raise LeaderEpochFenced(given, current)
    raise LeaderEpochUnknown(given, current)


def epoch_at(epochs: Sequence[Epoch], offset: int) -> int:
    """Return the epoch that the record at *offset* was appended under. *epochs* are oldest first."""
    return epochs[max(bisect_right(epochs, offset, key=lambda each: each.start_offset) - 1, 0)].epoch


def epoch_end(epochs: Sequence[Epoch], epoch: int, end_offset: int) -> tuple[int, int]:
    """Return the largest epoch not above *epoch* that has records, and the offset after its last one.

    As in Kafka, both are -1 for an epoch later than any there was, and an epoch before the first one in
    *epochs* ends where that begins. *end_offset* is where the last epoch ends so far.
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
        # By the id of the topic. Most topics have the same epochs, which are kept once.
        self._known: dict[str, tuple[int, ...]] = {}
        self._kept: dict[tuple[int, ...], tuple[int, ...]] = {}

    def known(self, entry: TopicEntry) -> tuple[int, ...] | None:
        """Return the epochs of a topic's partitions if they were read before. Never blocks."""
        known = self._known.get(entry.id)
        return known if known is not None and len(known) == entry.partitions else None

    def find(self, entry: TopicEntry) -> tuple[int, ...]:
        """Return the epochs of a topic's partitions, `NO_EPOCH` for one that cannot be read. May block."""
        known = self.known(entry)
        if known is not None:
            return known
        found = tuple(self._read(entry.name, partition) for partition in range(entry.partitions))
        found = self._kept.setdefault(found, found)
        if NO_EPOCH not in found:
            self._known[entry.id] = found
        return found

    def _read(self, topic: str, partition: int) -> int:
        try:
            return self._partitions.leader_epoch(topic, partition)
        except CordwoodError:
            # Damaged, or deleted meanwhile. Requests for the partition itself say so.
            return NO_EPOCH

    def forget(self, entry: TopicEntry) -> None:
        """Drop what was read of a topic that is deleted."""
        self._known.pop(entry.id, None)
