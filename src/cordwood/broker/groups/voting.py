"""The choice of a protocol that all members of a classic group support."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection

from cordwood.broker.groups.actions import GroupMember


def common_protocols(members: Collection[GroupMember]) -> set[str]:
    """Return the names of the protocols that all *members* support."""
    # A protocol counts once per member, even if the member lists it twice.
    known = Counter(name for member in members for name in {each.name for each in member.protocols})
    return {name for name, count in known.items() if count >= len(members)}


def vote(members: Collection[GroupMember]) -> str:
    """Return the protocol that most members prefer among those that all of them support."""
    common = common_protocols(members)
    votes = Counter(next(each.name for each in member.protocols if each.name in common) for member in members)
    return votes.most_common(1)[0][0]
