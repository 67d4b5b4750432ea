"""The record of a classic group."""

from __future__ import annotations

from cordwood.broker.groups import offsets_topic
from cordwood.broker.groups.actions import GroupMember, GroupState, Protocol
from cordwood.broker.groups.group import Group
from cordwood.broker.groups.offsets_topic import OffsetsRow, StoredGroup, StoredMember


def row_of(group: Group) -> OffsetsRow:
    """Return the record of a group as it is now."""
    members = tuple(
        StoredMember(
            member.id,
            member.instance_id,
            member.client_id,
            member.client_host,
            member.rebalance_ms,
            member.session_ms,
            member.metadata_for(group.protocol),
            group.assignment_to_store(member),
        )
        for member in group.members.values()
    )
    # A generation that its members must leave has no leader, so that a restart begins the rebalance again.
    leader = None if group.state is GroupState.PREPARING else group.leader
    stored = StoredGroup(
        group.protocol_type or "",
        group.generation,
        group.protocol,
        leader,
        group.state_since_ms,
        members,
    )
    return offsets_topic.group_key(group.id), offsets_topic.group_value(stored)


def member_of(stored: StoredMember, protocol: str | None) -> GroupMember:
    """Return a member as it was stored."""
    return GroupMember(
        stored.id,
        stored.instance_id,
        stored.client_id,
        stored.client_host,
        stored.session_ms,
        stored.rebalance_ms,
        (Protocol(protocol or "", stored.subscription),),
        stored.assignment,
    )
