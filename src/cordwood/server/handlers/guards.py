"""Requests that need an operation on the cluster: without it they are refused as a whole.

The error is where Kafka has it: for the whole request, in each of its parts, or both.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from cordwood.protocol import ApiKey, ErrorCode
from cordwood.protocol.messages import (
    AclCreationResult,
    AlterClientQuotasRequest,
    AlterClientQuotasResponse,
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    AlterUserScramCredentialsResult,
    CreateAclsRequest,
    CreateAclsResponse,
    DeleteAclsFilterResult,
    DeleteAclsRequest,
    DeleteAclsResponse,
    DescribeAclsResponse,
    DescribeClientQuotasResponse,
    DescribeLogDirsResponse,
    DescribeQuorumResponse,
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
    DescribeUserScramCredentialsResult,
    ElectionResult,
    ElectLeadersRequest,
    ElectLeadersResponse,
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
    OngoingPartitionReassignment,
    OngoingTopicReassignment,
    QuotaAlterationResult,
    ReassignablePartitionResponse,
    ReassignableTopicResponse,
    ReplicaElectionResult,
    UpdateFeaturesResponse,
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopicResult,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from cordwood.security import Operation
from cordwood.server.connections import Exchange
from cordwood.server.context import Context


class Guard(NamedTuple):
    """The operations on the cluster of which a request needs one, and how it is answered without them.

    ``refuse`` makes the answer of a request, an error code and a sentence.
    """

    operations: tuple[Operation, ...]
    refuse: Callable[[Any, ErrorCode, str], Any]


def refused_by_guard(context: Context, exchange: Exchange) -> Any | None:
    """Return the answer of a request that its guard refuses, or None."""
    guard = GUARDS.get(exchange.request.api_key)
    if guard is None:
        return None
    code = context.rights(exchange).cluster_refusal(*guard.operations)
    if code is None:
        return None
    needed = " or ".join(operation.name for operation in guard.operations)
    return guard.refuse(exchange.request.body, code, f"this needs {needed} on the cluster")


def _describe_acls(request: Any, code: ErrorCode, message: str) -> DescribeAclsResponse:
    return DescribeAclsResponse(error_code=code, error_message=message)


def _create_acls(request: CreateAclsRequest, code: ErrorCode, message: str) -> CreateAclsResponse:
    refused = AclCreationResult(error_code=code, error_message=message)
    return CreateAclsResponse(results=[refused] * len(request.creations))


def _delete_acls(request: DeleteAclsRequest, code: ErrorCode, message: str) -> DeleteAclsResponse:
    refused = DeleteAclsFilterResult(error_code=code, error_message=message)
    return DeleteAclsResponse(filter_results=[refused] * len(request.filters))


def _describe_users(
    request: DescribeUserScramCredentialsRequest, code: ErrorCode, message: str
) -> DescribeUserScramCredentialsResponse:
    # As in Kafka, the parts have no names.
    refused = DescribeUserScramCredentialsResult(error_code=code, error_message=message)
    return DescribeUserScramCredentialsResponse(
        error_code=code, error_message=message, results=[refused] * len(request.users or ())
    )


def _alter_users(
    request: AlterUserScramCredentialsRequest, code: ErrorCode, message: str
) -> AlterUserScramCredentialsResponse:
    deleted = [change.name for change in request.deletions]
    names = dict.fromkeys([*deleted, *(change.name for change in request.upsertions)])
    return AlterUserScramCredentialsResponse(
        results=[
            AlterUserScramCredentialsResult(user=name, error_code=code, error_message=message)
            for name in names
        ]
    )


def _describe_quotas(request: Any, code: ErrorCode, message: str) -> DescribeClientQuotasResponse:
    return DescribeClientQuotasResponse(error_code=code, error_message=message, entries=None)


def _alter_quotas(
    request: AlterClientQuotasRequest, code: ErrorCode, message: str
) -> AlterClientQuotasResponse:
    return AlterClientQuotasResponse(
        entries=[
            QuotaAlterationResult(error_code=code, error_message=message, entity=entry.entity)
            for entry in request.entries
        ]
    )


def _describe_log_dirs(request: Any, code: ErrorCode, message: str) -> DescribeLogDirsResponse:
    return DescribeLogDirsResponse(error_code=code)


def _describe_quorum(request: Any, code: ErrorCode, message: str) -> DescribeQuorumResponse:
    return DescribeQuorumResponse(error_code=code, error_message=message)


def _update_features(request: Any, code: ErrorCode, message: str) -> UpdateFeaturesResponse:
    return UpdateFeaturesResponse(error_code=code, error_message=message)


def _elect_leaders(request: ElectLeadersRequest, code: ErrorCode, message: str) -> ElectLeadersResponse:
    return ElectLeadersResponse(
        error_code=code,
        replica_election_results=[
            ReplicaElectionResult(
                topic=topic.topic,
                partition_result=[
                    ElectionResult(partition_id=index, error_code=code, error_message=message)
                    for index in topic.partitions
                ],
            )
            for topic in request.topic_partitions or ()
        ],
    )


def _reassign(
    request: AlterPartitionReassignmentsRequest, code: ErrorCode, message: str
) -> AlterPartitionReassignmentsResponse:
    return AlterPartitionReassignmentsResponse(
        error_code=code,
        error_message=message,
        responses=[
            ReassignableTopicResponse(
                name=topic.name,
                partitions=[
                    ReassignablePartitionResponse(
                        partition_index=part.partition_index, error_code=code, error_message=message
                    )
                    for part in topic.partitions
                ],
            )
            for topic in request.topics
        ],
    )


def _list_reassignments(
    request: ListPartitionReassignmentsRequest, code: ErrorCode, message: str
) -> ListPartitionReassignmentsResponse:
    # The parts repeat the request and say nothing: there are no fields for errors.
    return ListPartitionReassignmentsResponse(
        error_code=code,
        error_message=message,
        topics=[
            OngoingTopicReassignment(
                name=topic.name,
                partitions=[
                    OngoingPartitionReassignment(partition_index=index) for index in topic.partition_indexes
                ],
            )
            for topic in request.topics or ()
        ],
    )


def _write_markers(request: WriteTxnMarkersRequest, code: ErrorCode, message: str) -> WriteTxnMarkersResponse:
    return WriteTxnMarkersResponse(
        markers=[
            WritableTxnMarkerResult(
                producer_id=marker.producer_id,
                topics=[
                    WritableTxnMarkerTopicResult(
                        name=topic.name,
                        partitions=[
                            WritableTxnMarkerPartitionResult(partition_index=index, error_code=code)
                            for index in topic.partition_indexes
                        ],
                    )
                    for topic in marker.topics
                ],
            )
            for marker in request.markers
        ]
    )


#: The requests that need an operation on the cluster. Every other handler asks for itself.
GUARDS: Mapping[ApiKey, Guard] = {
    ApiKey.WRITE_TXN_MARKERS: Guard((Operation.ALTER, Operation.CLUSTER_ACTION), _write_markers),
    ApiKey.DESCRIBE_ACLS: Guard((Operation.DESCRIBE,), _describe_acls),
    ApiKey.CREATE_ACLS: Guard((Operation.ALTER,), _create_acls),
    ApiKey.DELETE_ACLS: Guard((Operation.ALTER,), _delete_acls),
    ApiKey.DESCRIBE_LOG_DIRS: Guard((Operation.DESCRIBE,), _describe_log_dirs),
    ApiKey.ELECT_LEADERS: Guard((Operation.ALTER,), _elect_leaders),
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: Guard((Operation.ALTER,), _reassign),
    ApiKey.LIST_PARTITION_REASSIGNMENTS: Guard((Operation.DESCRIBE,), _list_reassignments),
    ApiKey.DESCRIBE_CLIENT_QUOTAS: Guard((Operation.DESCRIBE_CONFIGS,), _describe_quotas),
    ApiKey.ALTER_CLIENT_QUOTAS: Guard((Operation.ALTER_CONFIGS,), _alter_quotas),
    ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: Guard((Operation.DESCRIBE,), _describe_users),
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS: Guard((Operation.ALTER,), _alter_users),
    ApiKey.DESCRIBE_QUORUM: Guard((Operation.DESCRIBE,), _describe_quorum),
    ApiKey.UPDATE_FEATURES: Guard((Operation.ALTER,), _update_features),
}
