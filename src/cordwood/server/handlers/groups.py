"""Consumer groups: finding the coordinator, membership, descriptions and deletion."""

from __future__ import annotations

import asyncio

from cordwood.broker.groups import TEXT_BYTES_MAX, Group, GroupState, JoinRequest, Protocol, Refusal
from cordwood.protocol import ErrorCode
from cordwood.protocol.messages import (
    CoordinatorAddress,
    DeletableGroupResult,
    DeleteGroupsRequest,
    DeleteGroupsResponse,
    DescribedGroup,
    DescribedGroupMember,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupResponse,
    JoinGroupResponseMember,
    LeaveGroupRequest,
    LeaveGroupResponse,
    ListedGroup,
    ListGroupsRequest,
    ListGroupsResponse,
    MemberIdentity,
    MemberResponse,
    SyncGroupRequest,
    SyncGroupResponse,
)
from cordwood.security import CLUSTER_NAME, Operation, ResourceType
from cordwood.server.answers import code_of, shortened
from cordwood.server.connections import Exchange
from cordwood.server.context import Context
from cordwood.server.security import Rights

GROUP_KEY, TRANSACTION_KEY = 0, 1
_KEY_WORDS = {GROUP_KEY: "group", TRANSACTION_KEY: "transactional id"}
#: The most bytes of a member id besides the names of its client and instance.
MEMBER_ID_MORE_BYTES = 64

#: The types of groups.
CLASSIC, CONSUMER = "classic", "consumer"

CODES = {
    None: ErrorCode.NONE,
    Refusal.UNKNOWN_MEMBER: ErrorCode.UNKNOWN_MEMBER_ID,
    Refusal.MEMBER_ID_REQUIRED: ErrorCode.MEMBER_ID_REQUIRED,
    Refusal.ILLEGAL_GENERATION: ErrorCode.ILLEGAL_GENERATION,
    Refusal.REBALANCING: ErrorCode.REBALANCE_IN_PROGRESS,
    Refusal.INCONSISTENT_PROTOCOL: ErrorCode.INCONSISTENT_GROUP_PROTOCOL,
    Refusal.FENCED: ErrorCode.FENCED_INSTANCE_ID,
    Refusal.GROUP_FULL: ErrorCode.GROUP_MAX_SIZE_REACHED,
    Refusal.NOT_STORED: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    Refusal.NO_GROUP: ErrorCode.GROUP_ID_NOT_FOUND,
    Refusal.FENCED_EPOCH: ErrorCode.FENCED_MEMBER_EPOCH,
    Refusal.STALE_EPOCH: ErrorCode.STALE_MEMBER_EPOCH,
    Refusal.UNRELEASED_INSTANCE: ErrorCode.UNRELEASED_INSTANCE_ID,
    Refusal.UNSUPPORTED_VERSION: ErrorCode.UNSUPPORTED_VERSION,
}


def member_refusal(context: Context, exchange: Exchange, group_id: str) -> ErrorCode | None:
    """Return the error code if the client may not use the group, or it cannot be served, or None."""
    return context.rights(exchange).group_refusal(Operation.READ, group_id) or unavailable(context, group_id)


def unavailable(context: Context, group_id: str) -> ErrorCode | None:
    """Return the error code if the group cannot be served, or None."""
    if not context.groups.takes(group_id):
        return ErrorCode.INVALID_GROUP_ID
    if context.closing:
        return ErrorCode.COORDINATOR_NOT_AVAILABLE
    return None if context.groups.loaded else ErrorCode.COORDINATOR_LOAD_IN_PROGRESS


async def find_coordinator(context: Context, exchange: Exchange) -> FindCoordinatorResponse:
    """Return this broker as the coordinator of groups and transactions."""
    request: FindCoordinatorRequest = exchange.request.body
    where = context.advertised(exchange.local)
    many = exchange.request.api_version >= 4
    rights = context.rights(exchange)
    refusal_of = {GROUP_KEY: rights.group_refusal, TRANSACTION_KEY: rights.transaction_refusal}
    found = []
    for key in request.coordinator_keys if many else [request.key]:
        code: ErrorCode | None = ErrorCode.INVALID_REQUEST
        sentence = f"there is no coordinator of type {request.key_type}"
        if request.key_type in refusal_of:
            code = refusal_of[request.key_type](Operation.DESCRIBE, key)
            sentence = f"this needs DESCRIBE on {_KEY_WORDS[request.key_type]} {key}"
        if code is None:
            found.append(
                CoordinatorAddress(
                    key=key,
                    node_id=context.config.node_id,
                    host=where.host,
                    port=where.port,
                    error_message=None,
                )
            )
        else:
            found.append(
                CoordinatorAddress(
                    key=key,
                    node_id=-1,
                    port=-1,
                    error_code=code,
                    error_message=shortened(sentence),
                )
            )
    if many:
        return FindCoordinatorResponse(coordinators=found)
    (one,) = found
    return FindCoordinatorResponse(
        error_code=one.error_code,
        error_message=one.error_message,
        node_id=one.node_id,
        host=one.host,
        port=one.port,
    )


async def join_group(context: Context, exchange: Exchange) -> JoinGroupResponse:
    """Add a member to a group; the answer comes when its generation begins."""
    request: JoinGroupRequest = exchange.request.body
    version = exchange.request.api_version
    limits = context.groups.limits
    error = context.rights(exchange).group_refusal(Operation.READ, request.group_id)
    if error is not None:
        return JoinGroupResponse(error_code=error, protocol_name=None if version >= 7 else "")
    error = unavailable(context, request.group_id)
    if error is None and not limits.session_min_ms <= request.session_timeout_ms <= limits.session_max_ms:
        error = ErrorCode.INVALID_SESSION_TIMEOUT
    if error is None and not _can_be_stored(request, exchange.request.client_id):
        error = ErrorCode.INVALID_REQUEST
    if error is not None:
        return JoinGroupResponse(error_code=error, member_id=request.member_id, protocol_name="")
    rebalance_ms = request.rebalance_timeout_ms if version >= 1 else request.session_timeout_ms
    joining = JoinRequest(
        member_id=request.member_id,
        instance_id=request.group_instance_id,
        client_id=exchange.request.client_id or "",
        client_host=exchange.peer,
        session_ms=request.session_timeout_ms,
        rebalance_ms=max(rebalance_ms, 0),
        protocol_type=request.protocol_type,
        protocols=tuple(Protocol(each.name, bytes(each.metadata)) for each in request.protocols),
        id_required_first=version >= 4,
        knows_skip=version >= 9,
    )

    joined = await context.groups.join(request.group_id, joining)
    return JoinGroupResponse(
        error_code=CODES[joined.refusal],
        generation_id=joined.generation,
        protocol_type=joined.protocol_type,
        # Before version 7 the name cannot be null.
        protocol_name=joined.protocol if version >= 7 else joined.protocol or "",
        leader=joined.leader,
        skip_assignment=joined.skip_assignment,
        member_id=joined.member_id,
        members=[
            JoinGroupResponseMember(member_id=member, group_instance_id=instance, metadata=metadata)
            for member, instance, metadata in joined.members
        ],
    )


def _can_be_stored(request: JoinGroupRequest, client_id: str | None) -> bool:
    """Return whether the member's strings fit the stored record: newer versions allow longer ones."""
    names = [client_id or "", request.group_instance_id or "", request.protocol_type]
    names += [protocol.name for protocol in request.protocols]
    return all(len(name.encode()) <= TEXT_BYTES_MAX - MEMBER_ID_MORE_BYTES for name in names)


async def sync_group(context: Context, exchange: Exchange) -> SyncGroupResponse:
    """Return a member's assignment; the answer comes when the leader has sent it."""
    request: SyncGroupRequest = exchange.request.body
    error = member_refusal(context, exchange, request.group_id)
    if error is not None:
        return SyncGroupResponse(error_code=error)

    synced = await context.groups.sync(
        request.group_id,
        request.member_id,
        request.group_instance_id,
        request.generation_id,
        request.protocol_type,
        request.protocol_name,
        [(each.member_id, bytes(each.assignment)) for each in request.assignments],
    )
    return SyncGroupResponse(
        error_code=CODES[synced.refusal],
        protocol_type=synced.protocol_type,
        protocol_name=synced.protocol,
        assignment=synced.assignment,
    )


async def heartbeat(context: Context, exchange: Exchange) -> HeartbeatResponse:
    """Extend a member's session, and tell it if the group is rebalancing."""
    request: HeartbeatRequest = exchange.request.body
    error = member_refusal(context, exchange, request.group_id)
    if error is None:
        refusal = context.groups.heartbeat(
            request.group_id, request.member_id, request.group_instance_id, request.generation_id
        )
        error = CODES[refusal]
    return HeartbeatResponse(error_code=error)


async def leave_group(context: Context, exchange: Exchange) -> LeaveGroupResponse:
    """Remove members."""
    request: LeaveGroupRequest = exchange.request.body
    error = member_refusal(context, exchange, request.group_id)
    if error is not None:
        return LeaveGroupResponse(error_code=error)
    many = exchange.request.api_version >= 3
    results = []
    for member in request.members if many else [MemberIdentity(member_id=request.member_id)]:
        refusal = context.groups.leave(request.group_id, member.member_id, member.group_instance_id)
        results.append(
            MemberResponse(
                member_id=member.member_id,
                group_instance_id=member.group_instance_id,
                error_code=CODES[refusal],
            )
        )
    if many:
        return LeaveGroupResponse(members=results)
    return LeaveGroupResponse(error_code=results[0].error_code)


async def describe_groups(context: Context, exchange: Exchange) -> DescribeGroupsResponse:
    """Describe groups, their state and their members."""
    request: DescribeGroupsRequest = exchange.request.body
    rights = context.rights(exchange)
    described = []
    for name in request.groups:
        error = rights.group_refusal(Operation.DESCRIBE, name) or unavailable(context, name)
        group = None if error is not None else context.groups.find(name)
        if error is not None:
            one = DescribedGroup(error_code=error, group_id=name)
        elif not isinstance(group, Group):
            # As in Kafka, ConsumerGroupDescribe describes the groups of the other protocol.
            one = DescribedGroup(group_id=name, group_state="Dead")
            if exchange.request.api_version >= 6:
                one.error_code = ErrorCode.GROUP_ID_NOT_FOUND
                one.error_message = f"group {name} does not exist"
        else:
            one = _described(name, group)
        if request.include_authorized_operations and not one.error_code:
            one.authorized_operations = rights.operations(ResourceType.GROUP, name)
        described.append(one)
    return DescribeGroupsResponse(groups=described)


def _described(name: str, group: Group) -> DescribedGroup:
    return DescribedGroup(
        group_id=name,
        group_state=group.state.value,
        protocol_type=group.protocol_type or "",
        protocol_data=group.protocol or "",
        members=[
            DescribedGroupMember(
                member_id=member.id,
                group_instance_id=member.instance_id,
                client_id=member.client_id,
                client_host=member.client_host,
                member_metadata=member.metadata_for(group.protocol),
                # In a rebalance it is that of an earlier generation.
                member_assignment=member.assignment if group.state is GroupState.STABLE else b"",
            )
            for member in group.members.values()
        ],
    )


async def list_groups(context: Context, exchange: Exchange) -> ListGroupsResponse:
    """Return the names of all groups that match the filters and that the client may describe."""
    request: ListGroupsRequest = exchange.request.body
    groups = context.groups
    if not groups.loaded:
        return ListGroupsResponse(error_code=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
    states = {state.lower() for state in request.states_filter}
    types = {kind.lower() for kind in request.types_filter}
    rights = context.rights(exchange)
    all_seen = rights.sees(ResourceType.CLUSTER, CLUSTER_NAME)
    listed = []
    for name in groups.names():
        if not all_seen and not rights.sees(ResourceType.GROUP, name):
            continue
        group = groups.find(name)
        assert group is not None
        kind = CLASSIC if isinstance(group, Group) else CONSUMER
        if (not types or kind in types) and (not states or group.state.value.lower() in states):
            listed.append(
                ListedGroup(
                    group_id=name,
                    protocol_type=group.protocol_type or "",
                    group_state=group.state.value,
                    group_type=kind,
                )
            )
    return ListGroupsResponse(groups=listed)


async def delete_groups(context: Context, exchange: Exchange) -> DeleteGroupsResponse:
    """Delete groups without members, and their committed offsets."""
    request: DeleteGroupsRequest = exchange.request.body
    rights = context.rights(exchange)
    results = [DeletableGroupResult(group_id=name) for name in request.groups_names]
    await asyncio.gather(*(_delete(context, rights, result) for result in results))
    return DeleteGroupsResponse(results=results)


async def _delete(context: Context, rights: Rights, result: DeletableGroupResult) -> None:
    error = rights.group_refusal(Operation.DELETE, result.group_id) or unavailable(context, result.group_id)
    group = None if error is not None else context.groups.find(result.group_id)
    if error is not None:
        result.error_code = error
    elif group is None:
        result.error_code = ErrorCode.GROUP_ID_NOT_FOUND
    elif group.members:
        result.error_code = ErrorCode.NON_EMPTY_GROUP
    else:
        failure = await context.groups.delete(result.group_id)
        if failure is not None:
            result.error_code = code_of(failure)
