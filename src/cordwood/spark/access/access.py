"""The interface for reading records from a data directory or a broker."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol

from cordwood.kafka_client.settings import with_certificates
from cordwood.spark.client import KAFKA
from cordwood.spark.options import LogLocation

if TYPE_CHECKING:
    import pyarrow as pa

    from cordwood.index import AbortedEntry
    from cordwood.spark.access.gathering import Gathered, Gathering

#: Sentinel for values that a broker does not report; matches any value.
UNKNOWN_ID, UNKNOWN_EPOCH = "", -1


class Ends(NamedTuple):
    """The first offset of a partition, and the offset after its last readable one.

    The end is the last stable offset if only committed records are read, else the high watermark.
    ``epoch`` is its leader epoch, which each truncation increases, and ``epoch_start`` the offset of the last
    one.
    """

    start: int
    end: int
    epoch: int = UNKNOWN_EPOCH
    epoch_start: int = 0


@dataclass(frozen=True)
class TopicState:
    """A topic at one moment. A topic that was deleted and created again has another id."""

    topic_id: str
    partitions: Mapping[int, Ends]

    @property
    def epoch(self) -> int:
        """The sum of the partitions' leader epochs: a truncation changes it."""
        epochs = [ends.epoch for ends in self.partitions.values()]
        return UNKNOWN_EPOCH if UNKNOWN_EPOCH in epochs else sum(epochs)


class Piece(NamedTuple):
    """A range of offsets to read, with the topic id and epoch at planning.

    ``aborted`` are the transactions whose records in the range are not read.
    """

    topic: str
    partition: int
    start: int
    end: int
    topic_id: str = UNKNOWN_ID
    epoch: int = UNKNOWN_EPOCH
    aborted: tuple[AbortedEntry, ...] = ()


class Measure(NamedTuple):
    """The estimated size of a range, and the offsets at which to split it into tasks; none if small."""

    bytes: int
    cuts: Sequence[int] = ()


class Access(Protocol):
    """The queries of a driver and the reads of a task. One thread; the opener closes it."""

    def topics(self, names: Collection[str] | None = None) -> Mapping[str, int]:
        """Return all topics, or those of *names* that exist, with their numbers of partitions."""

    def standing(self, topic: str, partitions: tuple[int, ...] | None) -> TopicState | None:
        """Return the state of a topic, for all or some of its partitions; None if there is no such topic.

        Raises:
            UnknownTopic: If one of the partitions does not exist.
        """

    def standings(self, wanted: Mapping[str, tuple[int, ...] | None]) -> dict[str, TopicState]:
        """Return the states of many topics; missing topics are left out."""

    def offsets_at(self, times: Mapping[tuple[str, int], int]) -> dict[tuple[str, int], int | None]:
        """Return the offset of the first record at or after the time given for each partition.

        Times are in milliseconds. None means that a partition has no such record.
        """

    def measure(self, pieces: Sequence[Piece]) -> list[Measure]:
        """Return the estimated size of each of *pieces* and where to split it.

        Only the balance of tasks depends on it.
        """

    def gather(
        self, pieces: Sequence[Piece], *, fail_on_data_loss: bool
    ) -> tuple[list[Piece], Gathering | None]:
        """Return the *pieces* to read one by one, and the others as one gathering, None without any.

        Topics in the shared log are read together. All *pieces* were planned with the states that this access
        returned.

        Raises:
            RecordsLost: If some are gone and loss must fail; otherwise they are left out.
        """

    def with_aborted(self, pieces: Sequence[Piece | Gathered]) -> list[Piece | Gathered]:
        """Return *pieces* with the aborted transactions in them, if only committed records are read.

        The driver calls it once the work of each task is known, so that a task needs no more than its pieces.
        """

    def read(
        self, pieces: Sequence[Piece | Gathered], schema: pa.Schema, *, fail_on_data_loss: bool
    ) -> Iterator[pa.RecordBatch]:
        """Yield the records of *pieces* as batches of *schema*, in bounded memory.

        Only committed ones, if the place says so: then *pieces* come from `with_aborted`. No two of *pieces*
        are of the same partition. The records of a partition are in order; different partitions may be
        interleaved.

        Raises:
            RecordsLost: If some are gone and loss must fail; otherwise they are skipped.
            CorruptRange: If records are damaged.
        """

    def commit(self, group_id: str, offsets: Mapping[tuple[str, int], int]) -> None:
        """Commit the offsets of a group, for people and for retention; never moves back."""

    def close(self) -> None:
        """Close."""


def open_access(place: LogLocation, *, verify: bool, chain: bool = False, task: bool = False) -> Access:
    """Open access to the records at *place*, in the driver or in a *task*.

    With *chain*, for a data directory only, every frame is compared with its leaf.

    Raises:
        StorageError: If there is no data directory, or it is not visible to this process.
        ConfigError: If the Kafka client refuses a setting.
    """
    if place.path is not None:
        from cordwood.spark.access.path import PathAccess

        return PathAccess(place.path, verify=verify, committed=place.committed, chain=chain, task=task)
    from cordwood.spark.access.broker import SECONDS_MAX, BrokerAccess

    seconds = place.answer_seconds or SECONDS_MAX
    return BrokerAccess(
        with_certificates(place.client, prefix=KAFKA),
        verify=verify,
        committed=place.committed,
        seconds=seconds,
    )
