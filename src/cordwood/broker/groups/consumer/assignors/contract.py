"""The contract of assignors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, Protocol

Partitions = tuple[int, ...]
"""Partitions of one topic, ascending."""
TargetAssignment = Mapping[bytes, Partitions]
"""The partitions that a member shall own, by topic id. No topic is without partitions."""


class Subscriber(NamedTuple):
    """A member, the topics that it is subscribed to and that exist, and its target assignment so far."""

    instance_id: str | None
    topics: frozenset[bytes]
    assigned: TargetAssignment


class Assignor(Protocol):
    """Assigns all partitions of the topics that members are subscribed to."""

    def __call__(
        self, members: Mapping[str, Subscriber], counts: Mapping[bytes, int], *, homogeneous: bool
    ) -> dict[str, TargetAssignment]:
        """Return the target assignment of each member.

        *counts* are the partitions of all topics that members are subscribed to. *homogeneous* says that all
        members are subscribed to the same topics. A member without partitions may be left out.
        """
        ...
