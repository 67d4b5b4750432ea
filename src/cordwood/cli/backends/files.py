"""The backend for a data directory: reads it beside its writer, or writes it."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence

from cordwood.broker import is_internal, read_offsets_topic
from cordwood.broker.groups import NAME as OFFSETS_TOPIC
from cordwood.broker.groups import Committed, Coordinator, GroupLimits
from cordwood.broker.transactions import NAME as TRANSACTIONS_TOPIC
from cordwood.broker.transactions import Admission, Transaction, TransactionCoordinator, TransactionLimits
from cordwood.cli.backends.acls import remove_stored_acls, store_acls, stored_acls
from cordwood.cli.backends.backend import (
    Chunk,
    GroupDescription,
    GroupSummary,
    MemberInfo,
    PartitionSummary,
    ProducedRow,
    TopicDescription,
    TopicSummary,
    TransactionDescription,
    UserRow,
    has_members,
    unknown_group,
)
from cordwood.cli.backends.users import remove_stored_user, store_user, stored_users
from cordwood.config import TOPIC_SETTINGS, text_of
from cordwood.embedded import Log
from cordwood.errors import (
    CordwoodError,
    OffsetOutOfRange,
    RecordRefused,
    StorageError,
    TransactionalIdUnknown,
)
from cordwood.host import SystemClock
from cordwood.records import OffsetRange, Record, TopicPartition
from cordwood.security import AclBinding, AclFilter, ScramMechanism

CHUNK_RECORDS = 500
#: The interval at which a follower looks for new records.
FOLLOW_SECONDS = 0.05
#: The largest frame of rows, unless the topic's limit is smaller.
FRAME_BYTES_MAX = 1 << 20
#: An upper bound for the lengths and deltas of a row, and for the header of a frame.
_OVERHEAD_BYTES = 64
_NO_EPOCH = -1


class FilesBackend:
    """A data directory; see `Backend`."""

    def __init__(self, log: Log) -> None:
        self._log = log

    # --- topics -----------------------------------------------------------------------------------

    def topics(self) -> list[TopicSummary]:
        """Return the topics of the catalogue."""
        return [
            TopicSummary(name, self._log.entry(name).partitions, self._count(name), name.startswith("__"))
            for name in self._log.topics
        ]

    def topic_names(self) -> list[str]:
        """Return the names of the catalogue."""
        return self._log.topics

    def _count(self, topic: str) -> int | None:
        try:
            return sum(map(len, self.offsets(topic).values()))
        except StorageError:
            # One damaged topic must not hide the others; topic describe reports the damage.
            return None

    def describe(self, topic: str) -> TopicDescription:
        """Return the description of a topic from the catalogue and its partitions."""
        entry, config = self._log.entry(topic), self._log.config_of(topic)
        size = self._log.topic(topic).size
        partitions = [
            PartitionSummary(number, offsets.start, offsets.end, size(number))
            for number, offsets in self.offsets(topic).items()
        ]
        settings = {
            name: text_of(getattr(config, setting.attribute)) for name, setting in TOPIC_SETTINGS.items()
        }
        return TopicDescription(topic, entry.id, partitions, dict(entry.config), settings)

    def offsets(self, topic: str) -> dict[int, OffsetRange]:
        """Return the offsets of each partition."""
        entry = self._log.entry(topic)
        found = self._log.topic(topic)
        return {number: found.offsets(number) for number in range(entry.partitions)}

    def offset_at(self, topic: str, partition: int, timestamp: int) -> int | None:
        """Return the offset of the first record at or after *timestamp*, or None."""
        return self._log.topic(topic).offset_at(timestamp, partition)

    def create(self, topic: str, partitions: int | None, config: Mapping[str, str]) -> int:
        """Create a topic."""
        return self._log.create_topic(topic, partitions, config).partitions

    def alter(
        self, topic: str, partitions: int | None, config: Mapping[str, str], unset: Sequence[str]
    ) -> None:
        """Change a topic."""
        own = {**self._log.entry(topic).config, **config}
        kept = {name: value for name, value in own.items() if name not in unset}
        self._log.alter_topic(topic, partitions=partitions, config=kept if config or unset else None)

    def roll(self, topic: str, partition: int) -> None:
        """Seal the active segment of a partition."""
        self._log.data_directory.cutting.roll(self._changeable(topic), partition)

    def truncate(self, topic: str, partition: int, end_offset: int, *, force: bool, dry_run: bool) -> None:
        """Truncate a partition."""
        found = self._log.topic(self._changeable(topic))
        found.truncate(partition, end_offset, force=force, dry_run=dry_run)

    def _changeable(self, topic: str) -> str:
        """Return *topic*. Raises RecordRefused if it is internal, as a broker does."""
        self._log.entry(topic)
        if is_internal(topic):
            raise RecordRefused(f"{topic} is internal")
        return topic

    def delete(self, topic: str) -> None:
        """Delete a topic and its committed offsets, which a later topic of that name must not get."""
        self._log.delete_topic(topic)
        coordinator = self._coordinator()
        rows = [
            row
            for group, places in coordinator.offsets_of_topic(topic).items()
            for row in coordinator.rows_to_drop(group, places)
        ]
        self._store(rows)

    # --- records ----------------------------------------------------------------------------------

    def append(self, topic: str, rows: Sequence[ProducedRow], partition: int | None) -> int:
        """Append with one sync per partition."""
        found, size = self._log.topic(topic), 0
        limit = min(self._log.config_of(topic).max_message_bytes, FRAME_BYTES_MAX)
        frame: list[ProducedRow] = []
        for row in rows:
            size += _size(row)
            if frame and size > limit:
                found.append_many(frame, partition=partition)
                frame, size = [], _size(row)
            frame.append(row)
        found.append_many(frame, partition=partition)
        return len(rows)

    def flush(self) -> None:
        """Do nothing: a completed append is stored according to the topic's sync policy."""

    def read(self, topic: str, starts: Mapping[int, int], *, to_end: bool) -> Iterator[Chunk]:
        """Yield records, one partition after the other."""
        found, positions = self._log.topic(topic), dict(starts)
        while True:
            came = False
            for number in positions:
                for chunk in _chunks(number, found.read(number, positions[number])):
                    yield chunk
                    positions[number] = chunk[-1][1].offset + 1
                    came = True
            if to_end:
                return
            if not came:
                yield []
                time.sleep(FOLLOW_SECONDS)

    def read_group(self, topic: str, group: str, *, from_beginning: bool, to_end: bool) -> Iterator[Chunk]:
        """Yield records to the end: while this process holds the directory, no other process appends."""
        self._check_no_members(group)
        committed = self._coordinator().offsets(group)
        starts = {}
        for number, offsets in self.offsets(topic).items():
            place = committed.get((topic, number))
            starts[number] = offsets.start if from_beginning else offsets.end
            if place is not None:
                if not offsets.start <= place.offset <= offsets.end:
                    error = OffsetOutOfRange(place.offset, offsets.start, offsets.end)
                    raise CordwoodError(
                        f"group {group} in partition {number} of topic {topic}: {error}; "
                        "cordwood group reset moves it"
                    ) from error
                starts[number] = place.offset
        return self.read(topic, starts, to_end=True)

    # --- groups -----------------------------------------------------------------------------------

    def _coordinator(self) -> Coordinator:
        """Return the groups as they were last stored."""
        coordinator = Coordinator(GroupLimits(), str)
        if OFFSETS_TOPIC in self._log.topics:
            numbers = range(self._log.topic(OFFSETS_TOPIC).partitions)
            readable = self._log.directory.readable
            stored = read_offsets_topic(readable(OFFSETS_TOPIC, number) for number in numbers)
            coordinator.load_stored(stored, SystemClock().now_ms())
        return coordinator

    def groups(self) -> list[GroupSummary]:
        """Return the groups of the internal topic."""
        coordinator = self._coordinator()
        return [GroupSummary(name, _state(coordinator, name)) for name in sorted(coordinator.groups())]

    def group(self, name: str) -> GroupDescription:
        """Return the description of a group from the internal topic."""
        coordinator = self._coordinator()
        found = coordinator.find(name)
        if found is None:
            raise unknown_group(name)
        members = [
            MemberInfo(member.id, member.client_id, member.client_host) for member in found.members.values()
        ]
        offsets = {place: committed.offset for place, committed in coordinator.offsets(name).items()}
        return GroupDescription(name, found.state.value, members, offsets)

    def commit(self, group: str, offsets: Mapping[TopicPartition, int]) -> None:
        """Commit offsets of a group, in the way of the server."""
        self._check_no_members(group)
        now_ms = SystemClock().now_ms()
        committed = {place: Committed(offset, _NO_EPOCH, "", now_ms) for place, offset in offsets.items()}
        self._store(self._coordinator().rows_to_commit(group, committed))

    def delete_group(self, name: str) -> None:
        """Delete a group and its committed offsets."""
        self.group(name)
        self._check_no_members(name)
        self._store(self._coordinator().rows_to_delete(name))

    def _check_no_members(self, group: str) -> None:
        found = self._coordinator().find(group)
        if found is not None and found.members:
            raise has_members(group, len(found.members))

    def _store(self, rows: Sequence[tuple[bytes, bytes | None]]) -> None:
        if rows:
            self._log.offsets_topic().append_many(rows, partition=0)

    # --- transactions -----------------------------------------------------------------------------

    def transactions(self) -> list[TransactionDescription]:
        """Return the transactional ids of the internal topic, as they were last stored."""
        coordinator = TransactionCoordinator(TransactionLimits(), Admission())
        if TRANSACTIONS_TOPIC in self._log.topics:
            topic = self._log.topic(TRANSACTIONS_TOPIC)
            for number in range(topic.partitions):
                rows = ((r.key, r.value) for r in topic.read(number) if r.key is not None)
                coordinator.load(rows, SystemClock().now_ms())
        return sorted(map(_description, coordinator), key=lambda each: each.id)

    def transaction(self, transactional_id: str) -> TransactionDescription:
        """Return what was last stored of a transactional id."""
        for each in self.transactions():
            if each.id == transactional_id:
                return each
        raise TransactionalIdUnknown(transactional_id)

    def abort_transaction(self, transactional_id: str, timeout_ms: int) -> None:
        """Do nothing more: opening the directory has aborted every transaction that was open."""

    # --- ACLs -------------------------------------------------------------------------------------

    def acls(self, wanted: Sequence[AclFilter], org: int) -> list[AclBinding]:
        """Return the ACLs of the catalogue."""
        return stored_acls(self._log, wanted, org)

    def create_acls(self, acls: Sequence[AclBinding], org: int) -> None:
        """Add ACLs to the catalogue."""
        store_acls(self._log, acls, org)

    def delete_acls(self, wanted: Sequence[AclFilter], org: int) -> list[AclBinding]:
        """Remove ACLs from the catalogue."""
        found = self.acls(wanted, org)
        remove_stored_acls(self._log, found, org)
        return found

    # --- users ------------------------------------------------------------------------------------

    def users(self) -> list[UserRow]:
        """Return the users of the catalogue."""
        return stored_users(self._log)

    def set_user(
        self, name: str, password: str, mechanisms: Sequence[ScramMechanism], iterations: int
    ) -> None:
        """Set credentials in the catalogue."""
        store_user(self._log, name, password, mechanisms, iterations)

    def remove_user(self, name: str, mechanisms: Sequence[ScramMechanism]) -> list[ScramMechanism]:
        """Remove credentials from the catalogue."""
        return remove_stored_user(self._log, name, mechanisms)

    def close(self) -> None:
        """Flush, sync and close."""
        self._log.close()


def _description(found: Transaction) -> TransactionDescription:
    stored = found.current
    return TransactionDescription(
        found.id,
        stored.state.value,
        stored.producer_id,
        stored.epoch,
        stored.timeout_ms,
        stored.started_ms,
        sorted(stored.partitions),
    )


def _state(coordinator: Coordinator, name: str) -> str:
    found = coordinator.find(name)
    assert found is not None
    return str(found.state.value)


def _size(row: ProducedRow) -> int:
    """Return an upper bound for the bytes of a row in a frame."""
    key, value, headers = row
    named = sum(len(name) * 4 + len(content or b"") + _OVERHEAD_BYTES for name, content in headers)
    return len(key or b"") + len(value or b"") + named + 2 * _OVERHEAD_BYTES


def _chunks(partition: int, records: Iterator[Record]) -> Iterator[Chunk]:
    chunk: list[tuple[int, Record]] = []
    try:
        for record in records:
            chunk.append((partition, record))
            if len(chunk) == CHUNK_RECORDS:
                yield chunk
                chunk = []
    except CordwoodError:
        # Valid records are yielded before the error.
        if chunk:
            yield chunk
        raise
    if chunk:
        yield chunk
