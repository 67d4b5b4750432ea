"""Consumer groups as the clients of one org see them: under their own ids, with their own topics."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping

from cordwood import tenancy
from cordwood.broker.coordinator import Limits, Place
from cordwood.broker.group import Group, JoinRequest, Refusal
from cordwood.broker.offsets_topic import TEXT_BYTES_MAX, Committed
from cordwood.broker.topics import Topic
from cordwood.server.groups import Groups, Then


class TenantGroups:
    """What handlers may do with groups. On the loop only; `Groups` does it.

    Groups go in by the ids that clients give and places by the names that clients give to topics; both are
    called otherwise inside.
    """

    def __init__(self, groups: Groups, org: int) -> None:
        self._groups = groups
        self._coordinator = groups.coordinator
        self._org = org

    @property
    def limits(self) -> Limits:
        """What members may ask for."""
        return self._coordinator.limits

    @property
    def loaded(self) -> bool:
        """Whether what groups have stored is known."""
        return self._coordinator.loaded

    def now_ms(self) -> int:
        """Return the time that groups live by."""
        return self._groups.now_ms()

    def _key(self, group_id: str) -> str:
        assert tenancy.is_client_id(group_id)
        return tenancy.qualify_id(group_id, self._org)

    def _inside(self, place: Place) -> Place:
        return tenancy.qualify(place[0], self._org), place[1]

    def takes(self, group_id: str) -> bool:
        """Return whether a group can be called so."""
        if not group_id or not tenancy.is_client_id(group_id):
            return False
        return len(self._key(group_id).encode()) <= TEXT_BYTES_MAX

    # --- members ----------------------------------------------------------------------------------

    def join(self, group_id: str, request: JoinRequest, answer: object) -> None:
        """Let a member in; *answer* is called with what it is told, now or later."""
        self._groups.perform(
            self._coordinator.join(self._key(group_id), request, answer, self._groups.now_ms())
        )

    def sync(
        self,
        group_id: str,
        member_id: str,
        instance_id: str | None,
        generation: int,
        protocol_type: str | None,
        protocol: str | None,
        assignments: Iterable[tuple[str, bytes]],
        answer: object,
    ) -> None:
        """Tell a member its assignment; *answer* is called with it, now or later."""
        key, now_ms = self._key(group_id), self._groups.now_ms()
        self._groups.perform(
            self._coordinator.sync(
                key,
                member_id,
                instance_id,
                generation,
                protocol_type,
                protocol,
                assignments,
                answer,
                now_ms,
            )
        )

    def heartbeat(
        self, group_id: str, member_id: str, instance_id: str | None, generation: int
    ) -> Refusal | None:
        """Keep a member; return what it is to be told, None if all is well."""
        now_ms = self._groups.now_ms()
        return self._coordinator.heartbeat(self._key(group_id), member_id, instance_id, generation, now_ms)

    def leave(self, group_id: str, member_id: str, instance_id: str | None) -> Refusal | None:
        """Let a member go; return why that cannot be."""
        refusal, effects = self._coordinator.leave(
            self._key(group_id), member_id, instance_id, self._groups.now_ms()
        )
        self._groups.perform(effects)
        return refusal

    # --- committed offsets ------------------------------------------------------------------------

    def check_commit(
        self, group_id: str, member_id: str, instance_id: str | None, generation: int
    ) -> Refusal | None:
        """Return why offsets may not be committed, None if they may."""
        now_ms = self._groups.now_ms()
        return self._coordinator.check_commit(self._key(group_id), member_id, instance_id, generation, now_ms)

    def commit(self, group_id: str, offsets: Mapping[Place, Committed], then: Then) -> None:
        """Store offsets, take note of them, then call *then*."""
        key = self._key(group_id)
        inside = {self._inside(place): committed for place, committed in offsets.items()}

        def stored(failure: Exception | None) -> None:
            if failure is None:
                self._coordinator.committed(key, inside)
            then(failure)

        self._groups.store(self._coordinator.rows_to_commit(key, inside), stored)

    def offsets(self, group_id: str) -> Mapping[Place, Committed]:
        """Return what the group has committed."""
        known = self._coordinator.offsets(self._key(group_id))
        if not self._org:
            return known
        return {(tenancy.split(topic).name, number): each for (topic, number), each in known.items()}

    def drop(self, group_id: str, places: Iterable[Place], then: Then | None = None) -> None:
        """Take back offsets of a group."""
        self._groups.drop(self._key(group_id), map(self._inside, places), then)

    def forget_topics(self, topics: Iterable[Topic], then: Callable[[], None]) -> None:
        """Take back all offsets of topics that were deleted, then call *then*."""
        self._groups.forget_topics([topic.key for topic in topics], then)

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

    def delete(self, group_id: str, then: Then) -> None:
        """Take back everything of a group without members."""
        self._groups.delete(self._key(group_id), then)
