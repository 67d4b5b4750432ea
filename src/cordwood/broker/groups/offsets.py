"""The committed offsets of all groups, and those that open transactions are about to commit."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from cordwood.broker.groups import offsets_topic
from cordwood.broker.groups.offsets_topic import Committed, OffsetKey, OffsetsRow
from cordwood.broker.groups.pending import PendingValues, TransactionKey
from cordwood.broker.groups.replaying import StoredRows
from cordwood.records import TopicPartition


class GroupOffsets:
    """Offsets by group and partition. Used by one thread.

    Calls that report records as stored come in the order of those records.
    """

    def __init__(self) -> None:
        self.loaded = False
        self._offsets: dict[str, dict[TopicPartition, Committed]] = {}
        self._pending: PendingValues[tuple[str, TopicPartition], Committed] = PendingValues()
        #: Committed offsets that cannot be decoded, by group and partition; None for an undecodable key.
        self._unread: set[tuple[str, TopicPartition] | None] = set()

    def check_invariants(self, changed: str) -> None:
        """Check the offsets of the group named *changed*. Takes constant time.

        Raises:
            AssertionError: If they do not agree: a bug in this code.
        """
        assert self._offsets.get(changed) != {}, "a group has an empty entry of offsets"

    # --- loading ----------------------------------------------------------------------------------

    def _load_offset(self, key: OffsetKey, value: bytes | None) -> None:
        """Load the next record of an offset; raises ValueError if it cannot be decoded."""
        place = (key.topic, key.partition)
        if value is None:
            self._drop_offset(key.group, place)
            return
        self._unread.add((key.group, place))
        self._offsets.setdefault(key.group, {})[place] = offsets_topic.decode_offset(value)
        self._unread.discard((key.group, place))

    def _load_pending(self, stored: StoredRows) -> int:
        """Load the records of open transactions; return the number that cannot be decoded."""
        unread = 0
        for transaction, key, value in stored.pending():
            try:
                whose = offsets_topic.decode_key(key)
            except ValueError:
                self._unread.add(None)
                unread += 1
                continue
            if isinstance(whose, OffsetKey):
                name, place = whose.group, (whose.topic, whose.partition)
                try:
                    committed = None if value is None else offsets_topic.decode_offset(value)
                except ValueError:
                    self._unread.add((name, place))
                    unread += 1
                    continue
                self._pending.add(transaction, (name, place), committed)
        return unread

    # --- committing -------------------------------------------------------------------------------

    def rows_to_commit(self, name: str, offsets: Mapping[TopicPartition, Committed]) -> list[OffsetsRow]:
        """Return the records that store *offsets*."""
        return [
            (offsets_topic.offset_key(OffsetKey(name, *place)), offsets_topic.offset_value(committed))
            for place, committed in offsets.items()
        ]

    def committed(self, name: str, offsets: Mapping[TopicPartition, Committed]) -> None:
        """Apply offsets that are stored."""
        if offsets:
            self._offsets.setdefault(name, {}).update(offsets)
            self._unread.difference_update((name, place) for place in offsets)
            for place in offsets if self._pending else ():
                self._pending.supersede((name, place))
            self.check_invariants(name)

    def pended(
        self, name: str, transaction: TransactionKey, offsets: Mapping[TopicPartition, Committed]
    ) -> None:
        """Add offsets that are stored in an open transaction."""
        for place, committed in offsets.items():
            self._pending.add(transaction, (name, place), committed)

    def transaction_ended(self, transaction: TransactionKey, *, committed: bool) -> None:
        """Apply or drop the offsets of a transaction whose marker is stored."""
        for (name, place), offset in self._pending.end(transaction, committed=committed):
            self._offsets.setdefault(name, {})[place] = offset
            self._unread.discard((name, place))
            self.check_invariants(name)

    def offsets(self, name: str) -> Mapping[TopicPartition, Committed]:
        """Return the committed offsets of the group."""
        return self._offsets.get(name, {})

    def is_pending(self, name: str, place: TopicPartition) -> bool:
        """Return whether an open transaction may change the committed offset of a partition."""
        return (name, place) in self._pending

    def pending_of(self, name: str) -> list[TopicPartition]:
        """Return the partitions whose committed offsets open transactions may change."""
        return [place for group, place in self._pending if group == name]

    # --- deleting ---------------------------------------------------------------------------------

    def rows_to_drop(self, name: str, places: Iterable[TopicPartition]) -> list[OffsetsRow]:
        """Return the tombstones that delete offsets of a group, also from open transactions."""
        known = self._offsets.get(name, {})
        return offsets_topic.tombstones(
            offsets_topic.offset_key(OffsetKey(name, *place))
            for place in places
            if place in known or self.is_pending(name, place)
        )

    def dropped(self, name: str, places: Iterable[TopicPartition]) -> None:
        """Remove offsets whose tombstones are stored."""
        for place in places:
            self._drop_offset(name, place)

    def _drop_offset(self, name: str, place: TopicPartition) -> None:
        self._unread.discard((name, place))
        self._pending.drop((name, place))
        known = self._offsets.get(name)
        if known is not None:
            known.pop(place, None)
            if not known:
                del self._offsets[name]
        self.check_invariants(name)

    # --- looking ----------------------------------------------------------------------------------

    def topics(self) -> set[str]:
        """Return the topics that have committed or pending offsets."""
        committed = {topic for offsets in self._offsets.values() for topic, _ in offsets}
        return committed | {topic for _, (topic, _) in self._pending}

    def offsets_of_topic(self, topic: str) -> dict[str, list[TopicPartition]]:
        """Return the groups with committed or pending offsets in *topic*, and the partitions of those."""
        found: dict[str, dict[TopicPartition, None]] = {}
        for name, offsets in self._offsets.items():
            places = dict.fromkeys(place for place in offsets if place[0] == topic)
            if places:
                found[name] = places
        for name, place in self._pending:
            if place[0] == topic:
                found.setdefault(name, {})[place] = None
        return {name: list(places) for name, places in found.items()}

    def needed_from(self, topic: str, partition: int) -> int | None:
        """Return the smallest offset that any group has committed in a partition, or None.

        Offsets that an open transaction may commit count too. Returns 0 while groups are not loaded, or if a
        committed offset cannot be decoded: the position of that group is unknown.
        """
        if not self.loaded or self.is_unread(topic, partition):
            return 0
        place = (topic, partition)
        found = [offsets[place].offset for offsets in self._offsets.values() if place in offsets]
        for key in self._pending:
            if key[1] == place:
                found += [committed.offset for committed in self._pending.values(key)]
        return min(found, default=None)

    def is_unread(self, topic: str, partition: int) -> bool:
        """Return whether a stored record that may be about a partition could not be decoded."""
        place = (topic, partition)
        return any(each is None or each[1] == place for each in self._unread)
