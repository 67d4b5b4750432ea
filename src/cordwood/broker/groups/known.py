"""All groups of a broker by name: loading and finding them, their deadlines, and deleting them."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable
from typing import NamedTuple

from cordwood.broker.groups import offsets_topic
from cordwood.broker.groups.actions import GroupState
from cordwood.broker.groups.consumer import (
    ConsumerBasis,
    ConsumerGroup,
    ConsumerSurroundings,
    ConsumerTerms,
    LiveGroup,
    RowKind,
    TopicsView,
    layout,
)
from cordwood.broker.groups.group import Group
from cordwood.broker.groups.offsets import GroupOffsets
from cordwood.broker.groups.offsets_topic import OffsetKey, OffsetsRow, StoredGroup
from cordwood.broker.groups.replaying import StoredRows
from cordwood.broker.groups.stored import member_of
from cordwood.broker.groups.writes import GroupWrites
from cordwood.records import TopicPartition

AnyGroup = Group | LiveGroup
_CONSUMER_KINDS = frozenset(RowKind)


class GroupLimits(NamedTuple):
    """The bounds of members' requests, and the retention of offsets."""

    session_min_ms: int = 6_000
    session_max_ms: int = 1_800_000
    size_max: int = 1 << 30
    initial_delay_ms: int = 0
    retention_ms: int = 7 * 24 * 3_600_000


class KnownGroups(GroupOffsets):
    """The groups of a broker, of the classic and the consumer protocol, and their committed offsets.

    *consumer* is what groups of the consumer protocol are told by the broker. Used by one thread.
    """

    def __init__(
        self,
        limits: GroupLimits,
        new_member_id: Callable[[str], str],
        consumer: ConsumerBasis | None = None,
    ) -> None:
        super().__init__()
        self.limits = limits
        self._new_member_id = new_member_id
        self._basis = consumer or ConsumerBasis()
        self._around = ConsumerSurroundings(self._basis, self._new_classic, new_member_id)
        self._groups: dict[str, AnyGroup] = {}
        self._writes: dict[str, GroupWrites] = {}
        self._alarms: list[tuple[int, str]] = []
        self._alarm_of: dict[str, int] = {}

    # --- loading ----------------------------------------------------------------------------------

    def load_stored(self, stored: StoredRows, now_ms: int) -> int:
        """Load what the internal topic says; return the number of records that cannot be decoded."""
        return self.load(stored.rows(), now_ms) + self._load_pending(stored)

    def load(self, rows: Iterable[OffsetsRow], now_ms: int) -> int:
        """Load records of the internal topic in their order; return the number that cannot be decoded.

        Members of a stored generation have one session timeout to send a heartbeat once `loaded` is set.
        """
        unread = 0
        for key, value in rows:
            try:
                self._load(key, value, now_ms)
            except ValueError:
                unread += 1
        for group in list(self._groups.values()):
            if isinstance(group, LiveGroup):
                group.loaded(now_ms)
                self._set_alarm(group)
        return unread

    def _load(self, key: bytes, value: bytes | None, now_ms: int) -> None:
        try:
            whose = offsets_topic.decode_key(key)
        except ValueError:
            self._unread.add(None)
            raise
        if isinstance(whose, OffsetKey):
            self._load_offset(whose, value)
        elif isinstance(whose, str):
            # Decoded first: a record that cannot be decoded must not remove the group.
            stored = None if value is None else offsets_topic.decode_group(value)
            if stored is not None:
                self._groups.pop(whose, None)
                self._restore(whose, stored, now_ms)
            elif isinstance(self._groups.get(whose), Group):
                del self._groups[whose]
        else:
            self._load_consumer(key, value, now_ms)

    def _load_consumer(self, key: bytes, value: bytes | None, now_ms: int) -> None:
        version, reader = offsets_topic.key_reader(key)
        if version not in _CONSUMER_KINDS:
            return
        whose = layout.decode_key(RowKind(version), reader.text)
        stored = None if value is None else layout.decode_value(whose.kind, value)
        group = self._groups.get(whose.group)
        if value is not None and not isinstance(group, LiveGroup):
            group = LiveGroup(ConsumerGroup(whose.group), self._around, now_ms)
            self._groups[whose.group] = group
        if isinstance(group, LiveGroup):
            group.load(whose, stored)
            if whose.kind is RowKind.GROUP_EPOCH and value is None:
                del self._groups[whose.group]

    def _restore(self, name: str, stored: StoredGroup, now_ms: int) -> None:
        group = self._new_group(name, now_ms)
        since_ms = stored.since_ms if stored.since_ms >= 0 else now_ms
        group.restore(stored.generation, stored.protocol_type or None, since_ms)
        if stored.members:
            members = [member_of(member, stored.protocol) for member in stored.members]
            group.restore_members(members, stored.protocol, stored.leader, now_ms)
        self._set_alarm(group)

    def _new_group(self, name: str, now_ms: int) -> Group:
        group = self._new_classic(name)
        group.state_since_ms = now_ms
        self._groups[name] = group
        return group

    def _new_classic(self, name: str) -> Group:
        limits = self.limits
        return Group(
            name, self._new_member_id, size_max=limits.size_max, initial_delay_ms=limits.initial_delay_ms
        )

    # --- deadlines --------------------------------------------------------------------------------

    def deadline(self) -> int | None:
        """Return the time when `tick` is due, or None."""
        while self._alarms and self._alarm_of.get(self._alarms[0][1]) != self._alarms[0][0]:
            heapq.heappop(self._alarms)
        return self._alarms[0][0] if self._alarms else None

    def _set_alarm(self, group: AnyGroup) -> None:
        """Set an alarm for the group's next deadline. An early alarm does no harm."""
        deadline = group.deadline()
        known = self._alarm_of.get(group.id)
        if deadline is not None and (known is None or deadline < known):
            self._alarm_of[group.id] = deadline
            heapq.heappush(self._alarms, (deadline, group.id))
        self.check_invariants(group.id)

    def check_invariants(self, changed: str) -> None:
        """Check the group named *changed*, its alarm and its offsets. Takes constant time.

        Raises:
            AssertionError: If they do not agree: a bug in this code.
        """
        super().check_invariants(changed)
        group = self._groups.get(changed)
        assert group is None or group.id == changed, "a group is stored under another name"
        assert group is None or group.state is not GroupState.DEAD, "a dead group was not removed"
        assert len(self._alarm_of) <= len(self._alarms), "a group's alarm was never set"

    # --- looking and deleting ---------------------------------------------------------------------

    def topics_of(self, name: str) -> TopicsView:
        """Return the topics that a group of that name sees."""
        return self._basis.topics_of(name)

    def terms_of(self, name: str) -> ConsumerTerms:
        """Return the settings of a group of the consumer protocol."""
        return self._basis.terms_of(name)

    def groups(self) -> list[str]:
        """Return the names of all groups, including those that have only offsets."""
        return list({**self._groups, **self._offsets, **dict(self._pending)})

    def find(self, name: str) -> AnyGroup | None:
        """Return the group of that name, or None. A group with only committed offsets counts as empty."""
        group = self._groups.get(name)
        if group is None and (name in self._offsets or self.pending_of(name)):
            return Group(name, self._new_member_id)
        return group

    def rows_to_delete(self, name: str) -> list[OffsetsRow]:
        """Return the tombstones that delete a group without members and its offsets, also pending ones."""
        places = {**self._offsets.get(name, {}), **dict.fromkeys(self.pending_of(name))}
        keys = [offsets_topic.offset_key(OffsetKey(name, *place)) for place in places]
        group = self._groups.get(name)
        if isinstance(group, Group):
            keys.append(offsets_topic.group_key(name))
        more = self._tombstones(group) if isinstance(group, LiveGroup) else []
        return [*offsets_topic.tombstones(keys), *more]

    def deleted(self, name: str, places: Iterable[TopicPartition]) -> None:
        """Remove a group and the offsets whose tombstones are stored."""
        group = self._groups.get(name)
        self.dropped(name, places)
        if group is not None and not group.members:
            if isinstance(group, Group):
                group.state = GroupState.DEAD
            del self._groups[name]
            group.check_invariants()

    def is_subscribed(self, name: str, topic: str) -> bool:
        """Return whether a member's subscription includes *topic* or cannot be decoded."""
        group = self._groups.get(name)
        if isinstance(group, LiveGroup):
            return group.is_subscribed(topic)
        if group is None or group.protocol_type != "consumer":
            return False
        for member in group.members.values():
            topics = offsets_topic.subscribed_topics(member.metadata_for(group.protocol))
            if topics is None or topic in topics:
                return True
        return False

    def expired(self, now_ms: int) -> dict[str, list[TopicPartition]]:
        """Return the offsets of groups without members whose retention time has passed.

        The time starts at the last commit or, if later, when the last member left. An offset that an open
        transaction may change does not expire.
        """
        found: dict[str, list[TopicPartition]] = {}
        for name, offsets in self._offsets.items():
            group = self._groups.get(name)
            if group is not None and group.members:
                continue
            since_ms = 0 if group is None else group.state_since_ms
            places = [
                place
                for place, committed in offsets.items()
                if now_ms - max(committed.commit_ms, since_ms) >= self.limits.retention_ms
                and not self.is_pending(name, place)
            ]
            if places:
                found[name] = places
        return found

    def abandoned(self, now_ms: int) -> list[str]:
        """Return the groups that have had neither members nor offsets for the retention time of offsets."""
        pending = {name for name, _ in self._pending}
        return [
            name
            for name, group in self._groups.items()
            if not group.members
            and group.state.value == GroupState.EMPTY.value
            and name not in self._offsets
            and name not in pending
            and now_ms - group.state_since_ms >= self.limits.retention_ms
        ]

    def _tombstones(self, group: LiveGroup) -> list[OffsetsRow]:
        writes = self._writes.get(group.id)
        return group.tombstones() if writes is None else writes.lost_tombstones(group.tombstones())
