"""Two tenants on one broker, and every request by which one could reach for what is the other's."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from cordwood.formats import batch
from cordwood.protocol.apis import APIS, ApiKey
from cordwood.protocol.messages import (
    client_quotas,
    cluster,
    configs,
    controller,
    group_offsets,
    groups,
    metadata,
    offsets,
    producers,
    security,
    topics,
    transactions,
)
from cordwood.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from cordwood.protocol.messages.produce import ProducePartition, ProduceRequest, ProduceTopic

#: Listeners of a broker with tenants, and their orgs.
ORGS = {"PLAIN": 0, "ALPHA": 7, "BETA": 18446744073709551615}
LISTEN = ",".join(f"{name}://localhost:0" for name in ORGS)
SETTINGS = {f"cordwood.listener.{name}.org": str(org) for name, org in ORGS.items() if org}
TOPIC_RESOURCE = 2


class Target(NamedTuple):
    """What a request reaches for: a topic by name and id, a group, and a member of it."""

    topic: str
    topic_id: bytes
    group: str
    member: str


def _produce(of: Target, version: int) -> ProduceRequest:
    data = memoryview(batch.encode_records([(b"k", b"forged")], 1_000))
    return ProduceRequest(None, -1, 1_000, [ProduceTopic(of.topic, of.topic_id, [ProducePartition(0, data)])])


def _fetch(of: Target, version: int) -> FetchRequest:
    wanted = [FetchPartition(0, fetch_offset=0, max_bytes=1 << 20)]
    return FetchRequest(-1, 0, 1, 1 << 20, 0, 0, -1, [FetchTopic(of.topic, of.topic_id, wanted)], [], "")


def _list_offsets(of: Target, version: int) -> Any:
    asked = offsets.ListOffsetsPartition(partition_index=0, timestamp=-1)
    return offsets.ListOffsetsRequest(
        replica_id=-1, topics=[offsets.ListOffsetsTopic(name=of.topic, partitions=[asked])]
    )


def _metadata(of: Target, version: int) -> Any:
    asked = [metadata.MetadataRequestTopic(name=of.topic)]
    if version >= 12:
        asked.append(metadata.MetadataRequestTopic(name=None, topic_id=of.topic_id))
    return metadata.MetadataRequest(topics=asked, allow_auto_topic_creation=False)


def _offset_commit(of: Target, version: int) -> Any:
    part = group_offsets.OffsetCommitRequestPartition(
        partition_index=0, committed_offset=1, committed_metadata=""
    )
    topic = group_offsets.OffsetCommitRequestTopic(name=of.topic, topic_id=of.topic_id, partitions=[part])
    return group_offsets.OffsetCommitRequest(group_id=of.group, topics=[topic])


def _offset_fetch(of: Target, version: int) -> Any:
    asked = group_offsets.OffsetFetchRequestTopics(name=of.topic, topic_id=of.topic_id, partition_indexes=[0])
    return group_offsets.OffsetFetchRequest(
        group_id=of.group,
        topics=[group_offsets.OffsetFetchRequestTopic(name=of.topic, partition_indexes=[0])],
        groups=[
            group_offsets.OffsetFetchRequestGroup(group_id=of.group, topics=[asked]),
            group_offsets.OffsetFetchRequestGroup(group_id=of.group, topics=None),
        ],
    )


def _join_group(of: Target, version: int) -> Any:
    return groups.JoinGroupRequest(
        group_id=of.group,
        session_timeout_ms=10_000,
        rebalance_timeout_ms=10_000,
        member_id=of.member,
        protocol_type="consumer",
        protocols=[groups.JoinGroupRequestProtocol(name="range", metadata=b"")],
    )


def _create_topics(of: Target, version: int) -> Any:
    asked = topics.CreatableTopic(name=of.topic, num_partitions=1, replication_factor=1)
    return topics.CreateTopicsRequest(topics=[asked], validate_only=True)


def _delete_topics(of: Target, version: int) -> Any:
    asked = [
        topics.DeleteTopicState(name=of.topic),
        topics.DeleteTopicState(name=None, topic_id=of.topic_id),
    ]
    return topics.DeleteTopicsRequest(topics=asked, topic_names=[of.topic])


def _delete_records(of: Target, version: int) -> Any:
    part = topics.DeleteRecordsPartition(partition_index=0, offset=-1)
    return topics.DeleteRecordsRequest(topics=[topics.DeleteRecordsTopic(name=of.topic, partitions=[part])])


def _epochs(of: Target, version: int) -> Any:
    part = offsets.OffsetForLeaderPartition(partition=0, leader_epoch=0)
    return offsets.OffsetForLeaderEpochRequest(
        topics=[offsets.OffsetForLeaderTopic(topic=of.topic, partitions=[part])]
    )


def _describe_configs(of: Target, version: int) -> Any:
    asked = configs.DescribeConfigsResource(
        resource_type=TOPIC_RESOURCE, resource_name=of.topic, configuration_keys=None
    )
    return configs.DescribeConfigsRequest(resources=[asked])


def _alter_configs(of: Target, version: int) -> Any:
    changed = configs.AlterConfigsResource(
        resource_type=TOPIC_RESOURCE,
        resource_name=of.topic,
        configs=[configs.AlterableConfig(name="segment.ms", value="99")],
    )
    return configs.AlterConfigsRequest(resources=[changed])


def _incremental_alter_configs(of: Target, version: int) -> Any:
    change = configs.IncrementalAlterableConfig(name="segment.ms", config_operation=0, value="99")
    changed = configs.IncrementalAlterConfigsResource(
        resource_type=TOPIC_RESOURCE, resource_name=of.topic, configs=[change]
    )
    return configs.IncrementalAlterConfigsRequest(resources=[changed])


def _create_partitions(of: Target, version: int) -> Any:
    asked = topics.CreatePartitionsTopic(name=of.topic, count=9, assignments=None)
    return topics.CreatePartitionsRequest(topics=[asked])


def _offset_delete(of: Target, version: int) -> Any:
    part = group_offsets.OffsetDeleteRequestPartition(partition_index=0)
    topic = group_offsets.OffsetDeleteRequestTopic(name=of.topic, partitions=[part])
    return group_offsets.OffsetDeleteRequest(group_id=of.group, topics=[topic])


def _txn_offset_commit(of: Target, version: int) -> Any:
    part = group_offsets.TxnOffsetCommitRequestPartition(
        partition_index=0, committed_offset=1, committed_metadata=None
    )
    topic = group_offsets.TxnOffsetCommitRequestTopic(name=of.topic, partitions=[part])
    return group_offsets.TxnOffsetCommitRequest(
        transactional_id="t", group_id=of.group, producer_id=0, member_id=of.member, topics=[topic]
    )


def _describe_topic_partitions(of: Target, version: int) -> Any:
    return cluster.DescribeTopicPartitionsRequest(topics=[cluster.TopicRequest(name=of.topic)])


def _describe_log_dirs(of: Target, version: int) -> Any:
    return cluster.DescribeLogDirsRequest(
        topics=[cluster.DescribableLogDirTopic(topic=of.topic, partitions=[0])]
    )


def _leave_group(of: Target, version: int) -> Any:
    return groups.LeaveGroupRequest(
        group_id=of.group, member_id=of.member, members=[groups.MemberIdentity(member_id=of.member)]
    )


def _describe_acls(of: Target, version: int) -> Any:
    return security.DescribeAclsRequest(
        resource_type_filter=TOPIC_RESOURCE,
        resource_name_filter=of.topic,
        principal_filter=None,
        host_filter=None,
        operation=1,
        permission_type=1,
    )


def _create_acls(of: Target, version: int) -> Any:
    entry = security.AclCreation(
        resource_type=TOPIC_RESOURCE,
        resource_name=of.topic,
        principal="User:*",
        host="*",
        operation=2,
        permission_type=3,
    )
    return security.CreateAclsRequest(creations=[entry])


def _delete_acls(of: Target, version: int) -> Any:
    matching = security.DeleteAclsFilter(
        resource_type_filter=TOPIC_RESOURCE,
        resource_name_filter=of.topic,
        principal_filter=None,
        host_filter=None,
        operation=1,
        permission_type=1,
    )
    return security.DeleteAclsRequest(filters=[matching])


def _elect_leaders(of: Target, version: int) -> Any:
    named = controller.TopicPartitions(topic=of.topic, partitions=[0, 1])
    return controller.ElectLeadersRequest(topic_partitions=[named])


def _alter_reassignments(of: Target, version: int) -> Any:
    parts = [
        controller.ReassignablePartition(partition_index=0, replicas=[0]),
        controller.ReassignablePartition(partition_index=1, replicas=None),
    ]
    topic = controller.ReassignableTopic(name=of.topic, partitions=parts)
    return controller.AlterPartitionReassignmentsRequest(topics=[topic])


def _list_reassignments(of: Target, version: int) -> Any:
    named = controller.ListPartitionReassignmentsTopics(name=of.topic, partition_indexes=[0])
    return controller.ListPartitionReassignmentsRequest(topics=[named])


def _describe_producers(of: Target, version: int) -> Any:
    named = producers.DescribeProducersTopic(name=of.topic, partition_indexes=[0, 1])
    return producers.DescribeProducersRequest(topics=[named])


def _add_partitions_to_txn(of: Target, version: int) -> Any:
    topic = transactions.AddPartitionsToTxnTopic(name=of.topic, partitions=[0, 1])
    return transactions.AddPartitionsToTxnRequest(
        v3_and_below_transactional_id=of.group, v3_and_below_topics=[topic]
    )


def _write_txn_markers(of: Target, version: int) -> Any:
    topic = transactions.WritableTxnMarkerTopic(name=of.topic, partition_indexes=[0, 1])
    return transactions.WriteTxnMarkersRequest(markers=[transactions.WritableTxnMarker(topics=[topic])])


def _describe_quorum(version: int) -> Any:
    part = controller.QuorumPartition(partition_index=0)
    topic = controller.QuorumTopic(topic_name="__cluster_metadata", partitions=[part])
    return controller.DescribeQuorumRequest(topics=[topic])


def _consumer_group_heartbeat(of: Target, version: int) -> Any:
    return groups.ConsumerGroupHeartbeatRequest(
        group_id=of.group, member_id=of.member, member_epoch=1, subscribed_topic_names=[of.topic]
    )


#: A request of every API that names topics, ids of topics or groups.
REACHING: Mapping[ApiKey, Callable[[Target, int], Any]] = {
    ApiKey.PRODUCE: _produce,
    ApiKey.FETCH: _fetch,
    ApiKey.LIST_OFFSETS: _list_offsets,
    ApiKey.METADATA: _metadata,
    ApiKey.OFFSET_COMMIT: _offset_commit,
    ApiKey.TXN_OFFSET_COMMIT: _txn_offset_commit,
    ApiKey.OFFSET_FETCH: _offset_fetch,
    ApiKey.FIND_COORDINATOR: lambda of, version: groups.FindCoordinatorRequest(
        key=of.group, coordinator_keys=[of.group]
    ),
    ApiKey.JOIN_GROUP: _join_group,
    ApiKey.HEARTBEAT: lambda of, version: groups.HeartbeatRequest(
        group_id=of.group, generation_id=1, member_id=of.member
    ),
    ApiKey.LEAVE_GROUP: _leave_group,
    ApiKey.SYNC_GROUP: lambda of, version: groups.SyncGroupRequest(
        group_id=of.group, generation_id=1, member_id=of.member
    ),
    ApiKey.DESCRIBE_GROUPS: lambda of, version: groups.DescribeGroupsRequest(groups=[of.group]),
    ApiKey.CONSUMER_GROUP_HEARTBEAT: _consumer_group_heartbeat,
    ApiKey.CONSUMER_GROUP_DESCRIBE: lambda of, version: groups.ConsumerGroupDescribeRequest(
        group_ids=[of.group]
    ),
    ApiKey.CREATE_TOPICS: _create_topics,
    ApiKey.DELETE_TOPICS: _delete_topics,
    ApiKey.DELETE_RECORDS: _delete_records,
    ApiKey.OFFSET_FOR_LEADER_EPOCH: _epochs,
    ApiKey.DESCRIBE_CONFIGS: _describe_configs,
    ApiKey.ALTER_CONFIGS: _alter_configs,
    ApiKey.INCREMENTAL_ALTER_CONFIGS: _incremental_alter_configs,
    ApiKey.DESCRIBE_LOG_DIRS: _describe_log_dirs,
    ApiKey.CREATE_PARTITIONS: _create_partitions,
    ApiKey.DELETE_GROUPS: lambda of, version: groups.DeleteGroupsRequest(groups_names=[of.group]),
    ApiKey.OFFSET_DELETE: _offset_delete,
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: _describe_topic_partitions,
    ApiKey.DESCRIBE_ACLS: _describe_acls,
    ApiKey.CREATE_ACLS: _create_acls,
    ApiKey.DELETE_ACLS: _delete_acls,
    ApiKey.ELECT_LEADERS: _elect_leaders,
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: _alter_reassignments,
    ApiKey.LIST_PARTITION_REASSIGNMENTS: _list_reassignments,
    ApiKey.DESCRIBE_PRODUCERS: _describe_producers,
    ApiKey.ADD_PARTITIONS_TO_TXN: _add_partitions_to_txn,
    ApiKey.ADD_OFFSETS_TO_TXN: lambda of, version: transactions.AddOffsetsToTxnRequest(
        transactional_id=of.group, group_id=of.group
    ),
    ApiKey.END_TXN: lambda of, version: transactions.EndTxnRequest(transactional_id=of.group),
    ApiKey.WRITE_TXN_MARKERS: _write_txn_markers,
    ApiKey.DESCRIBE_TRANSACTIONS: lambda of, version: transactions.DescribeTransactionsRequest([of.group]),
}
#: Requests that ask for everything there is, without naming any of it.
LISTING: Mapping[ApiKey, Callable[[int], Any]] = {
    ApiKey.METADATA: lambda version: metadata.MetadataRequest(topics=None if version else []),
    ApiKey.LIST_GROUPS: lambda version: groups.ListGroupsRequest(),
    ApiKey.DESCRIBE_LOG_DIRS: lambda version: cluster.DescribeLogDirsRequest(topics=None),
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: lambda version: cluster.DescribeTopicPartitionsRequest(),
    ApiKey.DESCRIBE_CLUSTER: lambda version: cluster.DescribeClusterRequest(),
    ApiKey.DESCRIBE_CONFIGS: lambda version: configs.DescribeConfigsRequest(
        resources=[
            configs.DescribeConfigsResource(resource_type=4, resource_name="0", configuration_keys=None)
        ],
        include_synonyms=True,
    ),
    ApiKey.ELECT_LEADERS: lambda version: controller.ElectLeadersRequest(topic_partitions=None),
    ApiKey.LIST_PARTITION_REASSIGNMENTS: lambda version: controller.ListPartitionReassignmentsRequest(),
    ApiKey.DESCRIBE_CLIENT_QUOTAS: lambda version: client_quotas.DescribeClientQuotasRequest(),
    ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: lambda version: security.DescribeUserScramCredentialsRequest(
        users=None
    ),
    ApiKey.DESCRIBE_QUORUM: _describe_quorum,
    ApiKey.LIST_TRANSACTIONS: lambda version: transactions.ListTransactionsRequest(),
}
#: Requests that neither name nor list anything that has an owner.
NEITHER = frozenset(
    {
        ApiKey.SASL_HANDSHAKE,
        ApiKey.SASL_AUTHENTICATE,
        ApiKey.ALTER_CLIENT_QUOTAS,
        ApiKey.ALTER_USER_SCRAM_CREDENTIALS,
        ApiKey.API_VERSIONS,
        ApiKey.INIT_PRODUCER_ID,
        ApiKey.UPDATE_FEATURES,
    }
)


def spoken(key: ApiKey) -> range:
    """Return the versions of an API that a server answers."""
    api = APIS[key]
    return range(max(api.advertised.first, api.versions.first), api.advertised.last + 1)
