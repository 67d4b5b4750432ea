"""Groups of the consumer protocol (KIP-848): heartbeats and descriptions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial

from cordwood.broker.groups import TEXT_BYTES_MAX, ConsumerMember, LiveGroup, MemberHeartbeat, TopicsView
from cordwood.host import process
from cordwood.protocol import ErrorCode
from cordwood.protocol.messages import groups
from cordwood.security import Operation, ResourceType
from cordwood.server.answers import shortened
from cordwood.server.connections import Exchange
from cordwood.server.context import Context
from cordwood.server.handlers.groups import CODES, MEMBER_ID_MORE_BYTES, unavailable
from cordwood.server.patterns import InvalidPattern, matching_names, whole_match
from cordwood.server.security import Rights

#: The first version whose clients make the id of their member themselves.
OWN_MEMBER_ID_FROM = 1
_JOINING, _LEAVING, _RETURNING = 0, -1, -2
_CLASSIC_MEMBER, _CONSUMER_MEMBER = 0, 1


class _Declined(Exception):
    """A heartbeat that is refused before its group sees it."""

    def __init__(self, code: ErrorCode, sentence: str) -> None:
        super().__init__(sentence)
        self.code = code


async def consumer_group_heartbeat(
    context: Context, exchange: Exchange
) -> groups.ConsumerGroupHeartbeatResponse:
    """Add a member, keep it, or remove it; the answer comes when what has changed is stored."""
    request: groups.ConsumerGroupHeartbeatRequest = exchange.request.body
    try:
        _check(context, exchange, request)
    except _Declined as refused:
        return groups.ConsumerGroupHeartbeatResponse(
            error_code=refused.code, error_message=shortened(str(refused)), member_id=None
        )
    beat = MemberHeartbeat(
        member_id=request.member_id or process.new_id(),
        epoch=request.member_epoch,
        instance_id=request.instance_id,
        rack_id=request.rack_id,
        rebalance_ms=request.rebalance_timeout_ms,
        topics=None if request.subscribed_topic_names is None else tuple(request.subscribed_topic_names),
        regex=request.subscribed_topic_regex,
        assignor=request.server_assignor,
        owned=None if request.topic_partitions is None else _owned(request.topic_partitions),
        client_id=exchange.request.client_id or "",
        client_host=exchange.peer,
    )
    told, patterns = context.groups.consumer_heartbeat(request.group_id, beat)
    if patterns:
        _resolve(context, exchange, request.group_id, patterns)
    answer = await told
    response = groups.ConsumerGroupHeartbeatResponse(
        error_code=CODES[answer.refusal], member_id=answer.member_id, member_epoch=answer.epoch
    )
    if answer.refusal is not None:
        response.error_message = answer.refusal.value
        response.member_id = None
    elif not beat.leaves:
        response.heartbeat_interval_ms = context.groups.terms(request.group_id).heartbeat_ms
        if answer.assignment is not None:
            response.assignment = groups.HeartbeatAssignment(
                topic_partitions=[
                    groups.OwnedTopicPartitions(topic_id=topic, partitions=list(partitions))
                    for topic, partitions in answer.assignment.items()
                ]
            )
    return response


def _owned(named: Iterable[groups.OwnedTopicPartitions]) -> Mapping[bytes, frozenset[int]]:
    owned: dict[bytes, frozenset[int]] = {}
    for topic in named:
        topic_id = bytes(topic.topic_id)
        owned[topic_id] = owned.get(topic_id, frozenset()).union(topic.partitions)
    return owned


# --- what is refused ----------------------------------------------------------------------------------


def _check(context: Context, exchange: Exchange, request: groups.ConsumerGroupHeartbeatRequest) -> None:
    """Refuse a heartbeat that the client may not send, or that is not one, in the order of Kafka's checks."""
    rights = context.rights(exchange)
    code = rights.group_refusal(Operation.READ, request.group_id)
    if code is not None:
        raise _Declined(code, f"this needs READ on group {request.group_id}")
    refused = [
        name
        for name in dict.fromkeys(request.subscribed_topic_names or ())
        if rights.topic_refusal(Operation.DESCRIBE, name) is not None
    ]
    if refused:
        raise _Declined(ErrorCode.TOPIC_AUTHORIZATION_FAILED, f"this needs DESCRIBE on topic {refused[0]}")
    _check_fields(request, exchange.request.api_version)
    _check_sizes(request, exchange.request.client_id)
    code = unavailable(context, request.group_id)
    if code is not None:
        raise _Declined(code, f"group {request.group_id} cannot be served")
    _check_choices(context, request)


def _check_fields(request: groups.ConsumerGroupHeartbeatRequest, version: int) -> None:
    epoch = request.member_epoch
    required = {"GroupId": request.group_id, "InstanceId": request.instance_id, "RackId": request.rack_id}
    if version >= OWN_MEMBER_ID_FROM or epoch > 0 or epoch in (_LEAVING, _RETURNING):
        required["MemberId"] = request.member_id
    for name, value in required.items():
        if value is not None and not value.strip():
            raise _Declined(ErrorCode.INVALID_REQUEST, f"{name} can't be empty.")
    if epoch == _JOINING:
        if request.rebalance_timeout_ms == -1:
            sentence = "RebalanceTimeoutMs must be provided in first request."
            raise _Declined(ErrorCode.INVALID_REQUEST, sentence)
        if request.topic_partitions is None or request.topic_partitions:
            raise _Declined(ErrorCode.INVALID_REQUEST, "TopicPartitions must be empty when (re-)joining.")
        if request.subscribed_topic_names is None and request.subscribed_topic_regex is None:
            sentence = (
                "Either SubscribedTopicNames or SubscribedTopicRegex must be non-null when (re-)joining."
            )
            raise _Declined(ErrorCode.INVALID_REQUEST, sentence)
    elif epoch == _RETURNING and request.instance_id is None:
        raise _Declined(ErrorCode.INVALID_REQUEST, "InstanceId can't be null.")
    elif epoch < _RETURNING:
        sentence = f"MemberEpoch is {epoch}, but must be greater than or equal to -2."
        raise _Declined(ErrorCode.INVALID_REQUEST, sentence)


def _check_sizes(request: groups.ConsumerGroupHeartbeatRequest, client_id: str | None) -> None:
    """Refuse strings that do not fit the keys of stored records, or the record of a classic group."""
    texts = [client_id, request.member_id, request.instance_id, request.rack_id]
    texts += [request.subscribed_topic_regex, *(request.subscribed_topic_names or ())]
    if any(len((text or "").encode()) > TEXT_BYTES_MAX - MEMBER_ID_MORE_BYTES for text in texts):
        raise _Declined(ErrorCode.INVALID_REQUEST, "a string is too long to be stored")


def _check_choices(context: Context, request: groups.ConsumerGroupHeartbeatRequest) -> None:
    """Refuse an assignor that there is not, and a text that is not a regular expression."""
    assignors = context.groups.terms(request.group_id).assignors
    if request.server_assignor is not None and request.server_assignor not in assignors:
        known = ", ".join(assignors)
        sentence = f"ServerAssignor {request.server_assignor} is not supported. Supported assignors: {known}."
        raise _Declined(ErrorCode.UNSUPPORTED_ASSIGNOR, sentence)
    pattern = request.subscribed_topic_regex
    if not pattern or request.member_epoch < 0:
        return
    group = context.groups.find(request.group_id)
    if isinstance(group, LiveGroup) and pattern in group.known.regex_counts:
        return
    try:
        whole_match(pattern)
    except InvalidPattern as error:
        sentence = f"SubscribedTopicRegex `{pattern}` is not a valid regular expression: {error}."
        raise _Declined(ErrorCode.INVALID_REGULAR_EXPRESSION, sentence) from None


# --- regular expressions ------------------------------------------------------------------------------


def _resolve(context: Context, exchange: Exchange, group_id: str, patterns: frozenset[str]) -> None:
    """Compare *patterns* with all topics that the client may describe, in a thread; tell the group.

    As in Kafka, the rights of the member whose heartbeat came count for all members with that expression.
    """
    rights, tenant = context.rights(exchange), context.tenant
    version = context.groups.topics(group_id).version

    def compare() -> Mapping[str, frozenset[str]]:
        return matching_names(patterns, filter(rights.sees_topic, tenant.names()))

    def compared(found: Mapping[str, frozenset[str]] | Exception) -> None:
        context.groups.resolved(group_id, None if isinstance(found, Exception) else found, version)

    call = compare if exchange.time is None else partial(exchange.time.work, compare)
    context.readers.run_for(call, compared)


# --- descriptions -------------------------------------------------------------------------------------


async def consumer_group_describe(
    context: Context, exchange: Exchange
) -> groups.ConsumerGroupDescribeResponse:
    """Describe groups of the consumer protocol, their epochs, and what their members own and will own."""
    request: groups.ConsumerGroupDescribeRequest = exchange.request.body
    rights = context.rights(exchange)
    described = []
    for name in request.group_ids:
        error = rights.group_refusal(Operation.DESCRIBE, name) or unavailable(context, name)
        group = None if error is not None else context.groups.find(name)
        if error is not None:
            one = groups.DescribedConsumerGroup(error_code=error, group_id=name)
        elif not isinstance(group, LiveGroup):
            found = "not found" if group is None else "not a consumer group"
            one = groups.DescribedConsumerGroup(
                error_code=ErrorCode.GROUP_ID_NOT_FOUND,
                error_message=shortened(f"Group {name} is {found}."),
                group_id=name,
            )
        else:
            one = _described(context, rights, name, group)
        if request.include_authorized_operations and not one.error_code:
            one.authorized_operations = rights.operations(ResourceType.GROUP, name)
        described.append(one)
    return groups.ConsumerGroupDescribeResponse(groups=described)


def _described(
    context: Context, rights: Rights, name: str, group: LiveGroup
) -> groups.DescribedConsumerGroup:
    topics = context.groups.topics(name)
    members = [_described_member(member, group, topics) for member in group.members.values()]
    shown = {
        topic.topic_name
        for member in members
        for assignment in (member.assignment, member.target_assignment)
        for topic in assignment.topic_partitions
    }
    refused = [each for each in shown if rights.topic_refusal(Operation.DESCRIBE, each) is not None]
    if refused:
        return groups.DescribedConsumerGroup(
            error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED,
            error_message="The group has described topic(s) that the client is not authorized to describe.",
            group_id=name,
        )
    return groups.DescribedConsumerGroup(
        group_id=name,
        group_state=group.state.value,
        group_epoch=group.generation,
        assignment_epoch=group.known.target_epoch.epoch,
        assignor_name=group.assignor,
        members=members,
    )


def _described_member(
    member: ConsumerMember, group: LiveGroup, topics: TopicsView
) -> groups.DescribedConsumerMember:
    metadata = member.metadata
    return groups.DescribedConsumerMember(
        member_id=member.id,
        instance_id=metadata.instance_id,
        rack_id=metadata.rack_id,
        member_epoch=member.epoch,
        client_id=metadata.client_id,
        client_host=metadata.client_host,
        subscribed_topic_names=list(metadata.topics),
        subscribed_topic_regex=metadata.regex,
        assignment=_assignment(member.owned.assigned, topics),
        target_assignment=_assignment(group.known.target.get(member.id, {}), topics),
        member_type=_CLASSIC_MEMBER if member.is_classic else _CONSUMER_MEMBER,
    )


def _assignment(partitions: Mapping[bytes, Iterable[int]], topics: TopicsView) -> groups.DescribedAssignment:
    """Return partitions with the names of their topics, without topics that are gone."""
    named = ((topic_id, topics.name_of(topic_id), each) for topic_id, each in partitions.items())
    return groups.DescribedAssignment(
        topic_partitions=[
            groups.DescribedTopicPartitions(topic_id=topic_id, topic_name=name, partitions=sorted(each))
            for topic_id, name, each in named
            if name is not None
        ]
    )
