"""One consumer group as the coordinator runs it: the same events and actions as those of a classic group.

As `Group`, it neither waits, reads a clock nor stores. An event that changes the group returns rows to store,
and the replies to send once they are stored.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from cordwood.broker.groups import offsets_topic
from cordwood.broker.groups.actions import (
    Action,
    GroupReply,
    HeartbeatAnswer,
    Joined,
    JoinRequest,
    Refusal,
    StoreRows,
    Synced,
    Token,
)
from cordwood.broker.groups.consumer import classic, heartbeats, layout, migration
from cordwood.broker.groups.consumer.changes import ConsumerTerms, GroupChange
from cordwood.broker.groups.consumer.group import ConsumerGroup, ConsumerGroupState
from cordwood.broker.groups.consumer.heartbeats import MemberHeartbeat
from cordwood.broker.groups.consumer.members import LEAVING, ConsumerMember
from cordwood.broker.groups.consumer.migration import MigrationPolicy
from cordwood.broker.groups.consumer.rows import RowKey, RowValue
from cordwood.broker.groups.consumer.topics import NO_TOPICS, TopicsView
from cordwood.broker.groups.group import Group
from cordwood.broker.groups.offsets_topic import OffsetsRow
from cordwood.broker.groups.stored import row_of

CommitCheck = Callable[[bytes, int], Refusal | None]
"""Returns why the offset of a partition, by topic id, is not committed, or None."""
#: The first version of OffsetCommit that has the epoch of a member.
EPOCHS_FROM = 9


@dataclass(frozen=True, slots=True)
class ConsumerBasis:
    """What consumer groups are told by the broker. The functions take the id of a group."""

    topics_of: Callable[[str], TopicsView] = lambda group_id: NO_TOPICS
    terms_of: Callable[[str], ConsumerTerms] = lambda group_id: ConsumerTerms()
    policy: Callable[[], MigrationPolicy] = lambda: MigrationPolicy.BIDIRECTIONAL


class ConsumerSurroundings(NamedTuple):
    """What a consumer group needs besides its state. ``new_classic`` returns a classic group of that id."""

    basis: ConsumerBasis
    new_classic: Callable[[str], Group]
    new_member_id: Callable[[str], str]


class LiveGroup:
    """A consumer group. Used by one thread.

    ``successor`` is the classic group that it has become, if all members that are left use that protocol.
    """

    protocol_type = "consumer"
    protocol = None

    def __init__(self, known: ConsumerGroup, around: ConsumerSurroundings, now_ms: int) -> None:
        self.known = known
        self.id = known.id
        self.successor: Group | None = None
        #: When the last member left, or the group was loaded.
        self.state_since_ms = now_ms
        self._around = around

    # --- queries ----------------------------------------------------------------------------------

    @property
    def members(self) -> Mapping[str, ConsumerMember]:
        """The members by id."""
        return self.known.members

    @property
    def generation(self) -> int:
        """The epoch of the group."""
        return self.known.epoch.epoch

    @property
    def state(self) -> ConsumerGroupState:
        """The state, found in time proportional to the number of members."""
        return self.known.state

    @property
    def assignor(self) -> str:
        """The assignor that the group uses."""
        return self.known.assignor(self._terms.assignors[0])

    @property
    def _terms(self) -> ConsumerTerms:
        return self._around.basis.terms_of(self.id)

    def deadline(self) -> int | None:
        """Return the time when `tick` is due, or None. It may be earlier than the first deadline."""
        return self.known.deadlines.next()

    def rows(self) -> list[OffsetsRow]:
        """Return all rows of the group."""
        return layout.encode_rows(self.known.rows())

    def converted_rows(self) -> layout.LaterRows:
        """Return all rows of the group as they are now, and the tombstone of the classic group before it."""
        return layout.LaterRows([(offsets_topic.group_key(self.id), None)], self.known.rows())

    def tombstones(self) -> list[OffsetsRow]:
        """Return the tombstones that delete the group."""
        return layout.encode_rows(self.known.tombstones())

    def is_subscribed(self, topic: str) -> bool:
        """Return whether a member is subscribed to *topic*."""
        return topic in self.known.subscribed_names()

    # --- loading ----------------------------------------------------------------------------------

    def load(self, key: RowKey, value: RowValue | None) -> None:
        """Apply a stored row."""
        self.known.apply(key, value)

    def loaded(self, now_ms: int) -> None:
        """Begin to serve a group whose rows were loaded: every deadline begins now.

        Rows of one event may be stored without those of the event before it, if these could not be stored and
        the broker then ended. If target assignments contradict each other, the next epoch makes new ones.
        """
        self.known.drop_incomplete()
        change = self._change(now_ms)
        if self.known.members and not self.known.is_assigned(change.topics):
            self.known.begin_epoch_after_load()
        self.begun(now_ms)

    def begun(self, now_ms: int) -> None:
        """Begin to serve a group with members: every deadline begins now."""
        self.state_since_ms = now_ms
        heartbeats.begin_deadlines(self._change(now_ms))
        self.known.check_invariants()

    # --- the consumer protocol --------------------------------------------------------------------

    def beat(self, beat: MemberHeartbeat, token: Token, now_ms: int) -> tuple[list[Action], frozenset[str]]:
        """Answer a heartbeat of a member that joins, stays or leaves.

        Also returns the regular expressions to compare with all topics; `resolved` takes the result.
        """
        change = self._change(now_ms)
        resolve: frozenset[str] = frozenset()
        if beat.leaves:
            refusal = heartbeats.check_leave(self.known, beat.member_id, beat.instance_id)
            if refusal is None:
                return self._leave(change, beat, token), resolve
        else:
            refusal = heartbeats.check_heartbeat(self.known, beat, self._terms.size_max)
        if refusal is not None:
            return [GroupReply(token, HeartbeatAnswer(refusal, beat.member_id))], resolve
        answer, resolve = heartbeats.heartbeat(change, beat)
        return self._store(change, GroupReply(token, answer)), resolve

    def _leave(self, change: GroupChange, beat: MemberHeartbeat, token: Token) -> list[Action]:
        if beat.epoch == LEAVING and self._can_downgrade([beat.member_id]):
            answer = HeartbeatAnswer(None, beat.member_id, beat.epoch)
            change.remove(beat.member_id)
            return self._downgrade(change, [GroupReply(token, answer)], rebalance=True)
        return self._store(change, GroupReply(token, heartbeats.leave(change, beat)))

    def resolved(self, found: Mapping[str, frozenset[str]] | None, version: int, now_ms: int) -> list[Action]:
        """Set the topics that regular expressions match; None if they could not be compared."""
        if found is None:
            self.known.is_resolving = False
            return []
        change = self._change(now_ms)
        heartbeats.resolved(change, found, version)
        return self._store(change)

    # --- the classic protocol ---------------------------------------------------------------------

    def join(self, request: JoinRequest, token: Token, now_ms: int) -> list[Action]:
        """Add a member that uses the classic protocol, or continue with it."""
        checked = classic.check_join(self.known, request, self._terms.size_max)
        if isinstance(checked, Refusal):
            return [GroupReply(token, Joined(checked, request.member_id))]
        member_id = request.member_id
        if not member_id:
            member_id = self._around.new_member_id(request.instance_id or request.client_id)
            if request.instance_id is None and request.id_required_first:
                return [GroupReply(token, Joined(Refusal.MEMBER_ID_REQUIRED, member_id))]
        old = None if request.instance_id is None else self.known.static_member(request.instance_id)
        downgrade = old is not None and not old.is_classic and self._can_downgrade([old.id], joining=1)
        change = self._change(now_ms)
        join = classic.ClassicJoin(request, member_id, checked)
        changed = classic.update_member(change, join)
        if not downgrade:
            change.assign_if_due()
        answer = classic.settle(change, join, changed=changed)
        if downgrade:
            # Without a rebalance, nobody would get what it still waits for.
            rebalance = self.known.state is not ConsumerGroupState.STABLE
            return self._downgrade(change, [GroupReply(token, answer)], rebalance=rebalance)
        return self._store(change, GroupReply(token, answer))

    def sync(
        self,
        member_id: str,
        instance_id: str | None,
        generation: int,
        protocol_type: str | None,
        protocol: str | None,
        assignments: Iterable[tuple[str, bytes]],
        token: Token,
        now_ms: int,
    ) -> list[Action]:
        """Answer a member that uses the classic protocol with its assignment."""
        refusal = classic.check_member(self.known, member_id, instance_id, generation)
        if refusal is not None:
            return [GroupReply(token, Synced(refusal))]
        change = self._change(now_ms)
        return self._store(
            change, GroupReply(token, classic.sync(change, member_id, protocol_type, protocol))
        )

    def heartbeat(
        self, member_id: str, instance_id: str | None, generation: int, now_ms: int
    ) -> Refusal | None:
        """Extend the session of a member of the classic protocol; return why it is refused, or None."""
        refusal = classic.check_member(self.known, member_id, instance_id, generation)
        return refusal or classic.heartbeat(self._change(now_ms), member_id)

    def leave(
        self, member_id: str, instance_id: str | None, now_ms: int
    ) -> tuple[Refusal | None, list[Action]]:
        """Remove a member. A static member may be named by its instance id alone."""
        if instance_id is not None and not member_id:
            member_id = self.known.instances.get(instance_id, "")
        refusal = heartbeats.check_leave(self.known, member_id, instance_id)
        return refusal, [] if refusal is not None else self._fence([member_id], now_ms)

    # --- time -------------------------------------------------------------------------------------

    def tick(self, now_ms: int) -> list[Action]:
        """Remove the members that missed a deadline."""
        late = heartbeats.late(self.known, now_ms)
        return self._fence(late, now_ms) if late else []

    def _fence(self, member_ids: Sequence[str], now_ms: int) -> list[Action]:
        change = self._change(now_ms)
        if self._can_downgrade(member_ids):
            for member_id in member_ids:
                change.remove(member_id)
            return self._downgrade(change, [], rebalance=True)
        change.fence(member_ids)
        return self._store(change)

    def refuse_all(self, refusal: Refusal) -> list[Action]:
        """Return nothing: no request waits here. Those whose rows are being stored wait for that."""
        return []

    # --- changing the protocol --------------------------------------------------------------------

    def _can_downgrade(self, leaving: Sequence[str], joining: int = 0) -> bool:
        size_max = self._around.new_classic(self.id).size_max
        if not self._around.basis.policy().downgrades:
            return False
        if joining and len(self.known.members) == 1:
            return True
        return migration.can_downgrade(self.known, leaving, size_max)

    def _downgrade(self, change: GroupChange, replies: list[GroupReply], *, rebalance: bool) -> list[Action]:
        empty = self._around.new_classic(self.id)
        group = migration.downgraded(self.known, change.topics, empty, change.now_ms)
        rows = [*layout.encode_rows(change.rows), *self.tombstones()]
        self.successor = group
        # Before the row, which says that the members have to join again.
        begun = group.rebalance(change.now_ms) if rebalance else []
        return [StoreRows([*rows, row_of(group)], replies), *begun]

    # --- committed offsets ------------------------------------------------------------------------

    def check_commit(
        self, member_id: str, instance_id: str | None, epoch: int, version: int | None
    ) -> Refusal | CommitCheck | None:
        """Return why a commit is refused, or what says so of each partition, or None if it is allowed.

        *version* is that of the request, None if it is in a transaction.
        """
        if epoch < 0 and (
            not self.known.members or (version is None and not member_id and instance_id is None)
        ):
            return None
        member = self.known.members.get(member_id)
        if member is None:
            return Refusal.UNKNOWN_MEMBER
        if version is not None and version < EPOCHS_FROM and not member.is_classic:
            return Refusal.UNSUPPORTED_VERSION
        wrong = self.wrong_epoch(member, in_transaction=version is None)
        if epoch >= member.epoch:
            return None if epoch == member.epoch else wrong

        def check(topic: bytes, partition: int) -> Refusal | None:
            # An older epoch may commit what the member has owned since then, without a break.
            since = member.epoch_of(topic, partition)
            return wrong if since is None or epoch < since else None

        return check

    def check_fetch(self, member_id: str | None, epoch: int) -> Refusal | None:
        """Return why a member may not read committed offsets, or None."""
        if member_id is None and epoch < 0:
            return None
        member = self.known.members.get(member_id or "")
        if member is None:
            return Refusal.UNKNOWN_MEMBER
        return None if epoch == member.epoch else self.wrong_epoch(member)

    @staticmethod
    def wrong_epoch(member: ConsumerMember, *, in_transaction: bool = False) -> Refusal:
        """Return the refusal of a request with another epoch than that of *member*."""
        classic_error = member.is_classic or in_transaction
        return Refusal.ILLEGAL_GENERATION if classic_error else Refusal.STALE_EPOCH

    # --- what all have in common ------------------------------------------------------------------

    def _change(self, now_ms: int) -> GroupChange:
        return GroupChange(self.known, self._around.basis.topics_of(self.id), self._terms, now_ms)

    def _store(self, change: GroupChange, *replies: GroupReply) -> list[Action]:
        if not self.known.members:
            self.state_since_ms = change.now_ms
        self.check_invariants()
        return [StoreRows(layout.encode_rows(change.rows), list(replies))]

    def check_invariants(self) -> None:
        """Check the state of the group. Takes constant time.

        Raises:
            AssertionError: If it does not agree with itself: a bug in this code.
        """
        self.known.check_invariants()
