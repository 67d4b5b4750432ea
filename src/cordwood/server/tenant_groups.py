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
    Committed,
    Group,
    GroupLimits,
    Joined,
    JoinRequest,
    Refusal,
    Synced,
)
from cordwood.records import TopicPartition
from cordwood.server.groups import Groups

Done = asyncio.Future[Exception | None]
"""Done once something is stored; the result is why it could not be."""


class TenantGroups:
    """What handlers may do with groups. On the loop only; `Groups` does it.

    Groups go in by the ids that clients give and places by the names that clients give to topics; both are
    called otherwise inside.
    """

    def __init__(self, groups: Groups, org: int, loop: asyncio.AbstractEventLoop) -> None:
        self._groups = groups
        self._loop = loop
        self._coordinator = groups.coordinator
        self._org = org
        #: What members may ask for.
        self.limits: GroupLimits = groups.coordinator.limits
        #: Returns the time that groups live by.
        self.now_ms = groups.now_ms

    @property
    def loaded(self) -> bool:
        """Whether what groups have stored is known."""
        return self._coordinator.loaded

    def _key(self, group_id: str) -> str:
        assert tenancy.is_client_id(group_id)
        return tenancy.qualify_id(group_id, self._org)

    def _inside(self, place: TopicPartition) -> TopicPartition:
        return tenancy.qualify(place[0], self._org), place[1]

    def takes(self, group_id: str) -> bool:
        """Return whether a group can be called so."""
        if not group_id or not tenancy.is_client_id(group_id):
            return False
        return len(self._key(group_id).encode()) <= TEXT_BYTES_MAX

    # --- members ----------------------------------------------------------------------------------

    async def join(self, group_id: str, request: JoinRequest) -> Joined:
        """Add a member, and return what it is told once its generation begins."""
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
        """Return a member's assignment once the leader has handed it in."""
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
        """Keep a member; return what it is to be told, None if all is well."""
        now_ms = self.now_ms()
        return self._coordinator.heartbeat(self._key(group_id), member_id, instance_id, generation, now_ms)

    def leave(self, group_id: str, member_id: str, instance_id: str | None) -> Refusal | None:
        """Let a member go; return why that cannot be."""
        refusal, effects = self._coordinator.leave(self._key(group_id), member_id, instance_id, self.now_ms())
        self._groups.perform(effects)
        return refusal

    # --- committed offsets ------------------------------------------------------------------------

    def check_commit(
        self, group_id: str, member_id: str, instance_id: str | None, generation: int
    ) -> Refusal | None:
        """Return why offsets may not be committed, None if they may."""
        now_ms = self.now_ms()
        return self._coordinator.check_commit(self._key(group_id), member_id, instance_id, generation, now_ms)

    async def commit(self, group_id: str, offsets: Mapping[TopicPartition, Committed]) -> Exception | None:
        """Store offsets and take note of them; return why they could not be stored."""
        key = self._key(group_id)
        inside = {self._inside(place): committed for place, committed in offsets.items()}
        done: Done = self._loop.create_future()
        settle = settling(done)

        def stored(failure: Exception | None) -> None:
            # Here, not after the await: what is stored next may build on it.
            if failure is None:
                self._coordinator.committed(key, inside)
            settle(failure)

        self._groups.store(self._coordinator.rows_to_commit(key, inside), stored)
        return await done

    def offsets(self, group_id: str) -> Mapping[TopicPartition, Committed]:
        """Return what the group has committed."""
        known = self._coordinator.offsets(self._key(group_id))
        if not self._org:
            return known
        return {(tenancy.split(topic).name, number): each for (topic, number), each in known.items()}

    def drop(self, group_id: str, places: Iterable[TopicPartition]) -> Done:
        """Take back offsets of a group; the result is why that could not be stored."""
        done: Done = self._loop.create_future()
        self._groups.drop(self._key(group_id), map(self._inside, places), settling(done))
        return done

    async def forget_topics(self, topics: Iterable[BrokerTopic]) -> None:
        """Take back all offsets of topics that were deleted."""
        done: asyncio.Future[None] = self._loop.create_future()
        settle = settling(done)
        self._groups.forget_topics([topic.key for topic in topics], lambda: settle(None))
        await done

    # --- looking and deleting ---------------------------------------------------------------------

    def names(self) -> list[str]:
        """Return the ids of all groups, also of those that have nothing but offsets."""
        found = []
        for key in self._coordinator.groups():
            # One that is called as nothing can be, of whichever origin, is nobody's.
            with contextlib.suppress(ValueError):
                name, org = tenancy.split_id(key)
                if org == self._org:
                    found.append(name)
        return found

    def find(self, group_id: str) -> Group | None:
        """Return the group; its own ``id`` is what it is called inside, not for clients."""
        return self._coordinator.find(self._key(group_id))

    def is_subscribed(self, group_id: str, topic: str) -> bool:
        """Return whether a member of the group reads *topic*, as far as its subscription tells."""
        return self._coordinator.is_subscribed(self._key(group_id), topic)

    def delete(self, group_id: str) -> Done:
        """Take back everything of a group without members; the result is why that could not be stored."""
        done: Done = self._loop.create_future()
        self._groups.delete(self._key(group_id), settling(done))
        return done


def settling(future: asyncio.Future[Any]) -> Callable[[Any], None]:
    """Return a call that gives *future* its result, unless nobody waits for it any more."""
    return lambda result: None if future.done() else future.set_result(result)
