"""`LogTransaction`: records for several partitions, and offsets of groups, that become visible together.

Everything is kept in memory until the commit. So an abort before it writes nothing, and no partition has an
open transaction for longer than the commit takes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, NamedTuple

from cordwood.broker import is_internal
from cordwood.broker.groups import TEXT_BYTES_MAX, Committed, OffsetKey
from cordwood.embedded.topic import Topic
from cordwood.embedded.writing import Placement, RowShare, check_offset
from cordwood.errors import RecordRefused, TransactionStateInvalid, TransactionsUnsupported, UnknownTopic
from cordwood.formats import EVERY_FORMAT, Row
from cordwood.records import EventType, Header, TopicPartition

if TYPE_CHECKING:
    from cordwood.embedded.log import Log
    from cordwood.embedded.transactions import LogTransactions

#: The largest offset that a group can commit.
OFFSET_MAX = (1 << 63) - 1
CommittedPosition = int | tuple[int, str]
"""The next offset that a group reads, alone or with metadata."""


class TransactionShare(NamedTuple):
    """The rows of a transaction for one partition, and the offsets that some of them are expected to get."""

    rows: list[Row]
    #: The index of a row and its expected offset.
    expected: list[tuple[int, int]]


class LogTransaction:
    """Records that are appended together or not at all; made by `Log.transaction`. For one thread at a time.

    Leaving its ``with`` block commits, an exception in the block aborts. It ends with the first `commit` or
    `abort`; also with a commit that raises, of which nothing is visible to readers of committed records.
    """

    def __init__(
        self, log: Log, transactions: LogTransactions, transactional_id: str, timeout_ms: int
    ) -> None:
        self.id = transactional_id
        self.timeout_ms = timeout_ms
        #: The records, by partition. Not part of the stable API, as the offsets and the places.
        self.shares: dict[TopicPartition, TransactionShare] = {}
        self.offsets: dict[OffsetKey, Committed] = {}
        self.places: list[tuple[TopicPartition, int]] = []
        self._log = log
        self._transactions = transactions
        self._topics: dict[str, Topic] = {}
        self._placements: list[Placement] | None = None
        #: Why nothing more can be done with it, None while it is open.
        self.ended: str | None = None

    def __repr__(self) -> str:
        """Return the id and the state. Reads no file."""
        return f"<cordwood.Transaction {self.id!r}, {self.ended or 'open'}>"

    def __enter__(self) -> LogTransaction:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.ended is not None:
            return
        if kind is None:
            self.commit()
        else:
            self.abort()

    # --- what is in it ----------------------------------------------------------------------------

    def append(
        self,
        topic: Topic | str,
        value: bytes | None,
        *,
        key: bytes | None = None,
        headers: Iterable[Header] = (),
        partition: int | None = None,
        timestamp: int | None = None,
        expected_offset: int | None = None,
        event_type: int = EventType.DATA,
    ) -> None:
        """Add one record; the arguments are those of `Topic.append`. Nothing is stored before the commit.

        With *expected_offset* the commit stores the transaction only if this record gets that offset.

        Raises:
            UnknownTopic: If there is no such topic or partition.
            TransactionsUnsupported: If the format of the topic cannot store transactions.
            RecordRefused: If the topic is of another log, or the key, headers or *expected_offset* are not
                what they must be.
            TransactionStateInvalid: If the transaction has ended.
        """
        check_offset(expected_offset)
        found = self._topic(topic)
        share = found.writer.share_of(value, key, headers, partition, timestamp, event_type)
        ((place, index),) = self._add(found, [share], [(share.partition, 0)])
        if expected_offset is not None:
            self.shares[place].expected.append((index, expected_offset))

    def append_many(self, topic: Topic | str, rows: Iterable[Row], *, partition: int | None = None) -> None:
        """Add ``(key, value[, headers[, timestamp]])`` rows, in their order. Raises as `append` does."""
        found = self._topic(topic)
        self._add(found, *found.writer.shares_of(rows, partition))

    def commit_offsets(self, group: str, offsets: Mapping[TopicPartition, CommittedPosition]) -> None:
        """Add what a consumer group has read: for (topic, partition) the next offset, or (offset, metadata).

        Raises:
            UnknownTopic: If there is no such topic or partition.
            RecordRefused: If the group, an offset or its metadata is not what it must be.
            TransactionStateInvalid: If the transaction has ended.
        """
        self.check_open()
        _check_text("group", group, at_least=1)
        now_ms = self._transactions.now_ms()
        if not isinstance(offsets, Mapping):
            raise RecordRefused(f"offsets must be a mapping, not {type(offsets).__name__}")
        found: dict[OffsetKey, Committed] = {}
        for place, position in offsets.items():
            topic, partition = _checked_place(place)
            offset, metadata = _checked_position(position)
            _check_text("metadata", metadata)
            _check_partition(self._topic_by_name(topic), partition)
            found[OffsetKey(group, topic, partition)] = Committed(offset, -1, metadata, now_ms)
        self.offsets |= found

    def _topic(self, topic: Topic | str) -> Topic:
        """Return the topic to append to."""
        self.check_open()
        found = self._topic_by_name(topic) if isinstance(topic, str) else topic
        if not isinstance(found, Topic):
            raise RecordRefused(f"topic must be a topic or its name, not {type(topic).__name__}")
        if found._log is not self._log:
            raise RecordRefused(f"{found.name} is a topic of another log")
        if is_internal(found.name):
            raise RecordRefused(f"{found.name} is internal")
        format_name = self._log.config_of(found.name).format
        if EVERY_FORMAT[format_name].record_per_frame:
            raise TransactionsUnsupported(format_name)
        return found

    def _topic_by_name(self, name: str) -> Topic:
        found = self._topics.get(name)
        if found is None:
            found = self._topics[name] = Topic(self._log, self._log.entry(name))
        return found

    def _add(
        self, topic: Topic, shares: Iterable[RowShare], places: Iterable[tuple[int, int]]
    ) -> list[tuple[TopicPartition, int]]:
        """Add *shares*; return for each of their rows its partition and its index among the rows there."""
        first: dict[int, int] = {}
        shares = list(shares)
        for share in shares:
            _check_partition(topic, share.partition)
        for share in shares:
            kept = self.shares.setdefault((topic.name, share.partition), TransactionShare([], []))
            first[share.partition] = len(kept.rows)
            kept.rows.extend(share.rows)
        added = [((topic.name, where), first[where] + i) for where, i in places]
        self.places += added
        return added

    # --- the end ----------------------------------------------------------------------------------

    def commit(self) -> None:
        """Store everything and make it visible to readers of committed records, all or nothing.

        Durable on return, whatever the sync policies of the topics: after any crash all of it is there. If it
        raises, nothing of it becomes visible. After LogFailed only opening the log again finds out whether it
        was committed.

        Raises:
            UnexpectedOffset: If a record would not get its *expected_offset*. Nothing was stored.
            RecordRefused, FrameTooLarge: If a record cannot be held. Nothing was stored.
            TransactionStateInvalid: If it has ended, is open for longer than its timeout, or another
                transaction has taken over its id since. Nothing was stored.
            DiskFull: Nothing was committed; works again, in a new transaction, once there is space.
            LogFailed: A sync failed; every later call says so too.
        """
        self.check_open()
        self._transactions.commit(self)

    def abort(self) -> None:
        """Drop everything. Nothing was written.

        Raises:
            TransactionStateInvalid: If it has ended.
        """
        self.check_open()
        self._transactions.drop(self)

    @property
    def placements(self) -> list[Placement]:
        """Where each record was put, in the order in which they were added; after the commit.

        Raises:
            TransactionStateInvalid: If it is not committed.
        """
        if self._placements is None:
            raise TransactionStateInvalid(f"the transaction of {self.id} is not committed")
        return self._placements

    def committed(self, base_offsets: Mapping[TopicPartition, int]) -> None:
        """Note that it is committed, with the first offset of each share."""
        self.ended = "committed"
        self._placements = [Placement(place[1], base_offsets[place] + index) for place, index in self.places]

    def check_open(self) -> None:
        """Raise TransactionStateInvalid if it has ended."""
        if self.ended is not None:
            raise TransactionStateInvalid(f"the transaction of {self.id} has ended: it is {self.ended}")


def _check_partition(topic: Topic, partition: int) -> None:
    if type(partition) is not int or not 0 <= partition < topic.partitions:
        raise UnknownTopic(f"topic {topic.name} has no partition {partition}")


def text_bytes(text: str) -> int | None:
    """Return the size of *text* in UTF-8, None for one that has none because of a lone surrogate."""
    try:
        return len(text.encode())
    except UnicodeEncodeError:
        return None


def _checked_place(place: object) -> TopicPartition:
    if not isinstance(place, tuple) or len(place) != 2 or not isinstance(place[0], str):
        raise RecordRefused(f"offsets are given by (name of a topic, partition), not by {place!r}")
    return place


def _checked_position(position: object) -> tuple[int, str]:
    """Return an offset and its metadata."""
    pair = position if isinstance(position, tuple) else (position, "")
    if len(pair) != 2:
        raise RecordRefused(f"a position is an offset or (offset, metadata), not {position!r}")
    offset, metadata = pair
    if type(offset) is not int or not 0 <= offset <= OFFSET_MAX:
        raise RecordRefused(f"offset must be a whole number from 0 to {OFFSET_MAX}, not {offset!r}")
    return offset, metadata


def _check_text(what: str, text: str, *, at_least: int = 0) -> None:
    if not isinstance(text, str):
        raise RecordRefused(f"{what} must be a text, not {type(text).__name__}")
    if (size := text_bytes(text)) is None:
        raise RecordRefused(f"{what} must be a text without half characters, not {text!r:.80}")
    if not at_least <= size <= TEXT_BYTES_MAX:
        raise RecordRefused(f"{what} must have {at_least} to {TEXT_BYTES_MAX} bytes")
