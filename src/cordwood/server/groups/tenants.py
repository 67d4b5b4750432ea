"""Consumer groups as the clients of one org see them: under their own ids, with their own topics."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from cordwood import tenancy
from cordwood.broker import BrokerTopic
from cordwood.broker.groups import (
    TEXT_BYTES_MAX,
    AnyGroup,
    CommitCheck,
    Committed,
    ConsumerTerms,
    GroupLimits,
    HeartbeatAnswer,
    Joined,
    JoinRequest,
    MemberHeartbeat,
    Refusal,
    Synced,
    TopicsView,
)
from cordwood.records import TopicPartition
from cordwood.server.groups.serving import Groups
from cordwood.server.groups.turns import Turns

Done = asyncio.Future[Exception | None]
"""Done once records are stored; the result is the error or None."""


class TenantGroups:
    """The groups of one org, for handlers. On the loop only.

    Arguments are group ids and topic names of clients; `Groups` uses internal ones with the org in them.
    """

    def __init__(self, groups: Groups, org: int, loop: asyncio.AbstractEventLoop) -> None:
        self._groups = groups
        self._loop = loop
        self._coordinator = groups.coordinator
        self._org = org
        #: The bounds of members' requests.
        self.limits: GroupLimits = groups.coordinator.limits
        #: Returns the time for groups; see `Groups.now_ms`.
        self.now_ms = groups.now_ms
        #: Where requests of members begin.
        self.requests: Turns = groups.requests

    @property
    def loaded(self) -> bool:
        """Whether the stored groups are loaded."""
        return self._coordinator.loaded

    def _key(self, group_id: str) -> str:
        assert tenancy.is_client_id(group_id)
        return tenancy.qualify_id(group_id, self._org)

    def _inside(self, place: TopicPartition) -> TopicPartition:
        return tenancy.qualify(place[0], self._org), place[1]

    def takes(self, group_id: str) -> bool:
        """Return whether *group_id* is a valid id."""
        if not group_id or not tenancy.is_client_id(group_id):
            return False
        return len(self._key(group_id).encode()) <= TEXT_BYTES_MAX

    # --- members ----------------------------------------------------------------------------------

    async def join(self, group_id: str, request: JoinRequest) -> Joined:
        """Add a member; return its answer once its generation begins."""
        told: asyncio.Future[Joined] = self._loop.create_future()
        self._groups.perform(
            self._coordinator.join(self._key(group_id), request, settling(told), self.now_ms())
        )
        return await told

    async def sync(
        self,
        group_id: str,
        member_id: str,
        instance_id: str | None,
        generation: int,
        protocol_type: str | None,
        protocol: str | None,
        assignments: Iterable[tuple[str, bytes]],
    ) -> Synced:
        """Return a member's assignment once the leader has sent it."""
        told: asyncio.Future[Synced] = self._loop.create_future()
        self._groups.perform(
            self._coordinator.sync(
                self._key(group_id),
                member_id,
                instance_id,
                generation,
                protocol_type,
                protocol,
                assignments,
                settling(told),
                self.now_ms(),
            )
        )
        return await told

    def heartbeat(
        self, group_id: str, member_id: str, instance_id: str | None, generation: int
    ) -> Refusal | None:
        """Extend a member's session; return why its heartbeat is refused, or None."""
        now_ms = self.now_ms()
        refusal = self._coordinator.heartbeat(self._key(group_id), member_id, instance_id, generation, now_ms)
        self._groups.perform([])
        return refusal

    def leave(self, group_id: str, member_id: str, instance_id: str | None) -> Refusal | None:
        """Remove a member; return why that is refused, or None."""
        refusal, effects = self._coordinator.leave(self._key(group_id), member_id, instance_id, self.now_ms())
        self._groups.perform(effects)
        return refusal

    # --- members of the consumer protocol ---------------------------------------------------------

    def consumer_heartbeat(
        self, group_id: str, beat: MemberHeartbeat
    ) -> tuple[asyncio.Future[HeartbeatAnswer], frozenset[str]]:
        """Take a heartbeat; return its answer, which waits for what it changes to be stored.

        Also returns the regular expressions to compare with all topics; `resolved` takes the result.
        """
        told: asyncio.Future[HeartbeatAnswer] = self._loop.create_future()
        effects, patterns = self._coordinator.consumer_heartbeat(
            self._key(group_id), beat, settling(told), self.now_ms()
        )
        self._groups.perform(effects)
        return told, patterns

    def resolved(self, group_id: str, found: Mapping[str, frozenset[str]] | None, version: int) -> None:
        """Set the topics, as they were in *version*, that regular expressions match; None if that failed."""
        self._groups.resolved(self._key(group_id), found, version)

    def topics(self, group_id: str) -> TopicsView:
        """Return the topics that the group sees."""
        return self._coordinator.topics_of(self._key(group_id))

    def terms(self, group_id: str) -> ConsumerTerms:
        """Return the settings of the group for the consumer protocol."""
        return self._coordinator.terms_of(self._key(group_id))

    # --- committed offsets ------------------------------------------------------------------------

    def check_commit(
        self, group_id: str, member_id: str, instance_id: str | None, generation: int, version: int
    ) -> Refusal | CommitCheck | None:
        """Return why a commit of offsets is refused, or what says so of each partition, or None."""
        key, now_ms = self._key(group_id), self.now_ms()
        return self._coordinator.check_commit(key, member_id, instance_id, generation, now_ms, version)

    def check_fetch(self, group_id: str, member_id: str | None, epoch: int) -> Refusal | None:
        """Return why committed offsets may not be read by a member, or None."""
        return self._coordinator.check_fetch(self._key(group_id), member_id, epoch)

    async def commit(self, group_id: str, offsets: Mapping[TopicPartition, Committed]) -> Exception | None:
        """Store and apply committed offsets; return the error if they could not be stored."""
        key = self._key(group_id)
        inside = {self._inside(place): committed for place, committed in offsets.items()}
        done: Done = self._loop.create_future()
        settle = settling(done)

        def stored(failure: Exception | None) -> None:
            # Here, not after the await: the next record may depend on it.
            if failure is None:
                self._coordinator.committed(key, inside)
            settle(failure)

        self._groups.store(self._coordinator.rows_to_commit(key, inside), stored)
        return await done

    def check_commit_in_transaction(
        self, group_id: str, member_id: str, instance_id: str | None, generation: int
    ) -> Refusal | CommitCheck | None:
        """Return why a commit of offsets in a transaction is refused, or what says so of each partition."""
        key = self._key(group_id)
        return self._coordinator.check_commit_in_transaction(key, member_id, instance_id, generation)

    async def commit_in_transaction(
        self,
        group_id: str,
        producer_id: int,
        producer_epoch: int,
        offsets: Mapping[TopicPartition, Committed],
    ) -> Exception | None:
        """Store offsets as part of an open transaction; return the error if they could not be stored."""
        inside = {self._inside(place): committed for place, committed in offsets.items()}
        done: Done = self._loop.create_future()
        self._groups.commit_in_transaction(
            self._key(group_id), producer_id, producer_epoch, inside, settling(done)
        )
        return await done

    def is_pending(self, group_id: str, place: TopicPartition) -> bool:
        """Return whether an open transaction may change the committed offset of a partition."""
        return self._coordinator.is_pending(self._key(group_id), self._inside(place))

    def offsets(self, group_id: str) -> Mapping[TopicPartition, Committed]:
        """Return the committed offsets of the group."""
        known = self._coordinator.offsets(self._key(group_id))
        if not self._org:
            return known
        return {(tenancy.split(topic).name, number): each for (topic, number), each in known.items()}

    def drop(self, group_id: str, places: Iterable[TopicPartition]) -> Done:
        """Delete offsets of a group; the result is the error or None."""
        done: Done = self._loop.create_future()
        self._groups.drop(self._key(group_id), map(self._inside, places), settling(done))
        return done

    async def forget_topics(self, topics: Iterable[BrokerTopic]) -> None:
        """Delete all offsets of deleted topics."""
        done: asyncio.Future[None] = self._loop.create_future()
        settle = settling(done)
        self._groups.forget_topics([topic.key for topic in topics], lambda: settle(None))
        await done

    # --- looking and deleting ---------------------------------------------------------------------

    def names(self) -> list[str]:
        """Return the ids of all groups, including those that have only offsets."""
        found = []
        for key in self._coordinator.groups():
            # A group with an invalid internal name belongs to no org.
            with contextlib.suppress(ValueError):
                name, org = tenancy.split_id(key)
                if org == self._org:
                    found.append(name)
        return found

    def find(self, group_id: str) -> AnyGroup | None:
        """Return the group, or None. Its ``id`` is the internal one, not for clients."""
        return self._coordinator.find(self._key(group_id))

    def is_subscribed(self, group_id: str, topic: str) -> bool:
        """Return whether a member's subscription includes *topic* or cannot be decoded."""
        return self._coordinator.is_subscribed(self._key(group_id), topic)

    def delete(self, group_id: str) -> Done:
        """Delete a group without members and its offsets; the result is the error or None."""
        done: Done = self._loop.create_future()
        self._groups.delete(self._key(group_id), settling(done))
        return done


def settling(future: asyncio.Future[Any]) -> Callable[[Any], None]:
    """Return a function that sets the result of *future* unless it is cancelled."""
    return lambda result: None if future.done() else future.set_result(result)
