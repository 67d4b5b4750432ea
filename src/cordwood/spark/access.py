"""What a source must know and do, wherever the records are: in a directory or behind an address."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol

from cordwood.spark.options import Place

if TYPE_CHECKING:
    import pyarrow as pa

    from cordwood.spark.gathering import Gathered, Gathering

#: What there is no telling of, by address: it agrees with everything.
UNKNOWN_ID, UNKNOWN_EPOCH = "", -1


class Ends(NamedTuple):
    """The first offset of a partition, and the one after its last that may be read.

    ``epoch`` is its leader epoch, which each truncation raises, and ``epoch_start`` where the last one cut.
    """

    start: int
    end: int
    epoch: int = UNKNOWN_EPOCH
    epoch_start: int = 0


@dataclass(frozen=True)
class Standing:
    """A topic at one moment. A topic made again under its name has another id."""

    topic_id: str
    partitions: Mapping[int, Ends]

    @property
    def epoch(self) -> int:
        """The sum of the partitions' leader epochs: one that is truncated moves it."""
        epochs = [ends.epoch for ends in self.partitions.values()]
        return UNKNOWN_EPOCH if UNKNOWN_EPOCH in epochs else sum(epochs)


class Piece(NamedTuple):
    """A range of offsets to read, and of which topic and epoch they were when that was planned."""

    topic: str
    partition: int
    start: int
    end: int
    topic_id: str = UNKNOWN_ID
    epoch: int = UNKNOWN_EPOCH


class Access(Protocol):
    """The questions of a driver, and the work of a task. One thread; closed by whoever opened it."""

    def topics(self) -> Mapping[str, int]:
        """Return the topics there are and their numbers of partitions."""

    def standing(self, topic: str, partitions: tuple[int, ...] | None) -> Standing | None:
        """Return where a topic stands, of all its partitions or only of some; None if there is no such topic.

        Raises:
            UnknownTopic: If one of the partitions does not exist.
        """

    def standings(self, wanted: Mapping[str, tuple[int, ...] | None]) -> dict[str, Standing]:
        """Return the same of many topics; one that does not exist is left out."""

    def offset_at(self, topic: str, partition: int, timestamp: int) -> int | None:
        """Return the offset of the first record at or after *timestamp* (milliseconds), None without one."""

    def cuts(self, topic: str, partition: int, start: int, end: int) -> list[int]:
        """Return the offsets where a range is best cut for tasks to share; none if it is small enough."""

    def gather(
        self, pieces: Sequence[Piece], *, fail_on_data_loss: bool
    ) -> tuple[list[Piece], Gathering | None]:
        """Return those of *pieces* that are read one by one, and the others as a whole, None without any.

        Topics in the shared log are read together. All of *pieces* were planned by where this access found
        their topics to stand.

        Raises:
            RecordsLost: If some are not there any more and that is to fail; else they are left out.
        """

    def read(
        self, piece: Piece | Gathered, schema: pa.Schema, *, fail_on_data_loss: bool
    ) -> Iterator[pa.RecordBatch]:
        """Yield the records of *piece* as batches of *schema*, in order, in bounded memory.

        Raises:
            RecordsLost: If some are not there any more and that is to fail; else they are skipped.
            CorruptRange: Where records are not what was written.
        """

    def commit(self, group_id: str, offsets: Mapping[tuple[str, int], int]) -> None:
        """Note how far a group has read, for people and for retention to see; never backwards."""

    def close(self) -> None:
        """Let go."""


def open_access(place: Place, *, verify: bool, chain: bool = False, task: bool = False) -> Access:
    """Return access to the records at *place*, from the driver or from a *task*.

    With *chain*, which is for a data directory, every frame is compared with its leaf.

    Raises:
        StorageError: If there is no data directory, or not for this process to see.
        ConfigError: If the client of a broker does not take a setting.
    """
    if place.path is not None:
        from cordwood.spark.path_access import PathAccess

        return PathAccess(place.path, verify=verify, chain=chain, task=task)
    from cordwood.spark.broker_access import BrokerAccess

    return BrokerAccess(place.client, verify=verify)
