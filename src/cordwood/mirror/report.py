"""What a mirror did, for people and programs."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class MirroredPartition:
    """The offsets [start, end) of a partition here, and how much of it this run copied.

    ``source_end`` is the high watermark of the source when the run last heard of it. ``filled`` counts the
    offsets, copied or not, that the source has no batch for. ``open_transactions`` have not ended yet in what
    was copied.
    """

    partition: int
    start: int
    end: int
    source_end: int
    batches: int
    records: int
    bytes: int
    filled: int
    open_transactions: int


@dataclass(frozen=True, slots=True)
class MirroredTopic:
    """A topic, whether this run created it, and a line for each of its settings that could not be kept."""

    topic: str
    topic_id: str
    created: bool
    partitions: tuple[MirroredPartition, ...]
    not_kept: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class MirroredGroup:
    """How many committed offsets of a group were stored, and why others were not."""

    group: str
    offsets: int
    left_out: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class MirrorFailure:
    """A topic, or a partition of one, that could not be mirrored further, and why; the others were."""

    topic: str
    partition: int | None
    reason: str

    def sentence(self) -> str:
        """Return the place and the reason."""
        place = self.topic if self.partition is None else f"{self.topic}-{self.partition}"
        return f"{place}: {self.reason}"


@dataclass(frozen=True, slots=True)
class MirrorCheck:
    """What was compared with the source once more.

    ``identical`` batches have the same bytes; ``rewritten`` ones were compacted since, at the source or here,
    and the records that both have of them are the same. ``records`` are those that were compared.
    ``differences`` are sentences, one for each partition.
    """

    batches: int
    identical: int
    rewritten: int
    records: int
    bytes: int
    differences: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class MirrorReport:
    """The result of one run."""

    source: str
    cluster_id: str | None
    topics: tuple[MirroredTopic, ...]
    groups: tuple[MirroredGroup, ...]
    failures: tuple[MirrorFailure, ...]
    check: MirrorCheck | None

    @property
    def is_whole(self) -> bool:
        """Whether all partitions were mirrored, and a check, if there was one, found no difference."""
        return not self.failures and (self.check is None or not self.check.differences)

    @property
    def bytes(self) -> int:
        """The bytes of the batches that were copied."""
        return sum(each.bytes for topic in self.topics for each in topic.partitions)

    @property
    def records(self) -> int:
        """The number of records that were copied."""
        return sum(each.records for topic in self.topics for each in topic.partitions)
