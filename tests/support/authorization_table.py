"""What each request needs, and what Kafka 4.3 answers without it: read from KafkaApis and ControllerApis."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from cordwood.broker.operations import RollPartition, TruncatePartition, encode_operation
from cordwood.formats import batch
from cordwood.formats.batch import TRANSACTIONAL, BatchOptions
from cordwood.protocol.apis import ApiKey
from cordwood.protocol.error_codes import ErrorCode
from cordwood.protocol.messages import (
    authentication,
    client_quotas,
    cluster,
    configs,
    controller,
    group_offsets,
    groups,
    metadata,
    producers,
    security,
    topics,
    transactions,
)
from cordwood.protocol.messages.api_versions import ApiVersionsRequest
from cordwood.protocol.messages.produce import ProducePartition, ProduceRequest, ProduceTopic
from cordwood.protocol.wire import NULL_ID
from cordwood.security import CLUSTER_NAME, Operation, ResourceType
from support.tenant_requests import LISTING, REACHING, Target

TOPIC, GROUP, ID = ResourceType.TOPIC, ResourceType.GROUP, ResourceType.TRANSACTIONAL_ID
CLUSTER = ResourceType.CLUSTER
_CODES = {
    TOPIC: ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    GROUP: ErrorCode.GROUP_AUTHORIZATION_FAILED,
    CLUSTER: ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    ID: ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
}
NEWEST = 99
Make = Callable[[Target, int], Any]
Paths = Sequence[tuple[int, Sequence[str]]]
"""Where the error is, by the first version in which it is there."""


@dataclass(frozen=True)
class Need:
    """A right that a request needs, and the answer to a client that has all others but this.

    ``paths`` are the fields with the error. If there are none, or with ``unseen``, the answer does not have
    the name. Any of ``instead`` does as well.
    """

    kind: ResourceType
    operation: Operation
    paths: Paths = ()
    instead: Sequence[tuple[ResourceType, Operation]] = ()
    unseen: bool = False

    def name(self, of: Target) -> str:
        """Return the name of the resource."""
        if self.kind == CLUSTER:
            return CLUSTER_NAME
        # A transactional id is called as the group is.
        return of.topic if self.kind == TOPIC else of.group

    @property
    def code(self) -> ErrorCode:
        """The error code of the answer to who lacks it."""
        return _CODES[self.kind]

    def paths_in(self, version: int) -> Sequence[str]:
        """Return where the error is in a version."""
        found: Sequence[str] = ()
        for first, paths in self.paths:
            found = paths if version >= first else found
        return found


@dataclass(frozen=True)
class Row:
    """One kind of request of an API, in the versions from ``first`` to ``last`` on."""

    key: ApiKey
    needs: Sequence[Need] = ()
    make: Make | None = None
    what: str = ""
    first: int = 0
    last: int = NEWEST
    #: Whether the answer lists what was not asked for by name.
    lists: bool = False
    #: Whether the topic is missing.
    absent: bool = False

    def body(self, of: Target, version: int) -> Any:
        """Return the request."""
        if self.make is not None:
            return self.make(of, version)
        if self.lists:
            return LISTING[self.key](version)
        return REACHING[self.key](of, version)

    def __str__(self) -> str:
        return f"{self.key.name} {self.what}".strip()


def _need(kind: ResourceType, operation: Operation, *paths: str, **more: Any) -> Need:
    return Need(kind, operation, [(0, paths)], **more)


def _cluster(operation: Operation, *paths: str, **more: Any) -> list[Need]:
    return [_need(CLUSTER, operation, *paths, **more)]


# --- requests -----------------------------------------------------------------------------------------


def _produce(of: Target, version: int, *, transactional: bool) -> ProduceRequest:
    options = BatchOptions()
    if transactional:
        options = BatchOptions(attributes=TRANSACTIONAL, producer_id=0, producer_epoch=0, base_sequence=0)
    data = batch.encode_records([(b"k", b"value")], 1_000, options)
    topic = ProduceTopic(of.topic, of.topic_id, [ProducePartition(0, memoryview(data))])
    return ProduceRequest(of.group if transactional else None, -1, 1_000, [topic])


def _metadata(of: Target, version: int) -> Any:
    return metadata.MetadataRequest(
        topics=[metadata.MetadataRequestTopic(name=of.topic)], allow_auto_topic_creation=True
    )


def _metadata_by_id(of: Target, version: int) -> Any:
    asked = metadata.MetadataRequestTopic(name=None, topic_id=of.topic_id)
    return metadata.MetadataRequest(topics=[asked])


def _offset_fetch(of: Target, version: int, *, all_topics: bool) -> Any:
    named = group_offsets.OffsetFetchRequestTopics(name=of.topic, topic_id=of.topic_id, partition_indexes=[0])
    old = group_offsets.OffsetFetchRequestTopic(name=of.topic, partition_indexes=[0])
    return group_offsets.OffsetFetchRequest(
        group_id=of.group,
        topics=None if all_topics else [old],
        groups=[
            group_offsets.OffsetFetchRequestGroup(group_id=of.group, topics=None if all_topics else [named])
        ],
    )


def _find(of: Target, version: int, *, kind: int) -> Any:
    return groups.FindCoordinatorRequest(key=of.group, key_type=kind, coordinator_keys=[of.group])


def _create(of: Target, version: int) -> Any:
    asked = topics.CreatableTopic(name=of.topic, num_partitions=1, replication_factor=1)
    return topics.CreateTopicsRequest(topics=[asked])


def _delete(of: Target, version: int, *, by_id: bool) -> Any:
    name, topic_id = (None, of.topic_id) if by_id else (of.topic, NULL_ID)
    named = topics.DeleteTopicState(name=name, topic_id=topic_id)
    return topics.DeleteTopicsRequest(topics=[named], topic_names=[of.topic])


def _init(of: Target, version: int, *, transactional: bool = False, two_phases: bool = False) -> Any:
    return producers.InitProducerIdRequest(
        transactional_id=of.group if transactional else None,
        transaction_timeout_ms=60_000,
        enable2_pc=two_phases,
    )


def _add_partitions(of: Target, version: int) -> Any:
    return transactions.AddPartitionsToTxnRequest(
        v3_and_below_transactional_id=of.group,
        v3_and_below_topics=[transactions.AddPartitionsToTxnTopic(name=of.topic, partitions=[0, 1])],
    )


def _commit_in_transaction(of: Target, version: int) -> Any:
    part = group_offsets.TxnOffsetCommitRequestPartition(
        partition_index=0, committed_offset=1, committed_metadata=None
    )
    topic = group_offsets.TxnOffsetCommitRequestTopic(name=of.topic, partitions=[part])
    return group_offsets.TxnOffsetCommitRequest(
        transactional_id=of.group, group_id=of.group, producer_id=0, topics=[topic]
    )


def _describe_settings(of: Target, version: int, *, kind: int, name: str | None = None) -> Any:
    asked = configs.DescribeConfigsResource(
        resource_type=kind, resource_name=_settings_of(of, kind, name), configuration_keys=None
    )
    return configs.DescribeConfigsRequest(resources=[asked])


def _replace_settings(of: Target, version: int, *, kind: int, name: str | None = None) -> Any:
    resource = configs.AlterConfigsResource(
        resource_type=kind,
        resource_name=_settings_of(of, kind, name),
        configs=[] if name else [configs.AlterableConfig(name="segment.ms", value="99")],
    )
    return configs.AlterConfigsRequest(resources=[resource], validate_only=True)


def _change_settings(
    of: Target, version: int, *, kind: int, name: str | None = None, setting: str, value: str
) -> Any:
    change = configs.IncrementalAlterableConfig(name=setting, config_operation=0, value=value)
    resource = configs.IncrementalAlterConfigsResource(
        resource_type=kind, resource_name=_settings_of(of, kind, name), configs=[change]
    )
    return configs.IncrementalAlterConfigsRequest(resources=[resource], validate_only=True)


def _settings_of(of: Target, kind: int, name: str | None) -> str:
    if name is not None:
        return name
    return of.group if kind == 32 else of.topic


def _describe_cluster(of: Target, version: int) -> Any:
    return cluster.DescribeClusterRequest(include_cluster_authorized_operations=True)


def _describe_quorum(of: Target, version: int) -> Any:
    return LISTING[ApiKey.DESCRIBE_QUORUM](version)


def _describe_users(of: Target, version: int) -> Any:
    return security.DescribeUserScramCredentialsRequest(users=[security.UserName(name="alice")])


def _alter_users(of: Target, version: int) -> Any:
    mechanism, iterations, size = 1, 4096, 32
    change = authentication.ScramCredentialUpsertion("alice", mechanism, iterations, b"salt", bytes(size))
    return authentication.AlterUserScramCredentialsRequest(upsertions=[change])


def _alter_quotas(of: Target, version: int) -> Any:
    change = client_quotas.QuotaAlteration(
        entity=[client_quotas.QuotaEntity("user", of.group)],
        ops=[client_quotas.QuotaOperation("producer_byte_rate", 1_000_000.0)],
    )
    return client_quotas.AlterClientQuotasRequest(entries=[change])


def _update_features(of: Target, version: int) -> Any:
    update = controller.FeatureUpdateKey(feature="metadata.version", max_version_level=30)
    return controller.UpdateFeaturesRequest(feature_updates=[update])


def _with(make: Callable[..., Any], **options: Any) -> Make:
    return lambda of, version: make(of, version, **options)


# --- what they need -----------------------------------------------------------------------------------

_READ, _WRITE, _CREATE, _DELETE = Operation.READ, Operation.WRITE, Operation.CREATE, Operation.DELETE
_ALTER, _DESCRIBE, _ACTION = Operation.ALTER, Operation.DESCRIBE, Operation.CLUSTER_ACTION
_DESCRIBE_CONFIGS, _ALTER_CONFIGS = Operation.DESCRIBE_CONFIGS, Operation.ALTER_CONFIGS
_PRODUCED = "topics.partitions.error_code"
_ANSWERED = "responses.error_code"

#: Every request of every API: some APIs have several, which need other rights.
TABLE: tuple[Row, ...] = (
    Row(ApiKey.PRODUCE, [_need(TOPIC, _WRITE, _PRODUCED)], _with(_produce, transactional=False)),
    Row(
        ApiKey.PRODUCE,
        [_need(ID, _WRITE, _PRODUCED), _need(TOPIC, _WRITE, _PRODUCED)],
        _with(_produce, transactional=True),
        "in a transaction",
    ),
    Row(ApiKey.FETCH, [_need(TOPIC, _READ, _PRODUCED)]),
    Row(ApiKey.LIST_OFFSETS, [_need(TOPIC, _DESCRIBE, _PRODUCED)]),
    Row(ApiKey.METADATA, [_need(TOPIC, _DESCRIBE, "topics.error_code")], _metadata),
    Row(
        ApiKey.METADATA,
        [_need(TOPIC, _DESCRIBE, "topics.error_code", unseen=True)],
        _metadata_by_id,
        "by id",
        first=12,
    ),
    Row(
        ApiKey.METADATA,
        [
            _need(TOPIC, _DESCRIBE, "topics.error_code"),
            _need(TOPIC, _CREATE, "topics.error_code", instead=[(CLUSTER, _CREATE)]),
        ],
        _metadata,
        "of a new topic",
        absent=True,
    ),
    Row(ApiKey.METADATA, [Need(TOPIC, _DESCRIBE)], what="of all", lists=True),
    Row(ApiKey.OFFSET_COMMIT, [_need(GROUP, _READ, _PRODUCED), _need(TOPIC, _READ, _PRODUCED)]),
    Row(
        ApiKey.OFFSET_FETCH,
        [
            Need(GROUP, _DESCRIBE, [(0, [_PRODUCED]), (2, ["error_code"]), (8, ["groups.error_code"])]),
            Need(TOPIC, _DESCRIBE, [(0, [_PRODUCED]), (8, ["groups.topics.partitions.error_code"])]),
        ],
        _with(_offset_fetch, all_topics=False),
    ),
    Row(
        ApiKey.OFFSET_FETCH,
        [
            Need(GROUP, _DESCRIBE, [(2, ["error_code"]), (8, ["groups.error_code"])]),
            Need(TOPIC, _DESCRIBE),
        ],
        _with(_offset_fetch, all_topics=True),
        "of all",
        first=2,
    ),
    Row(
        ApiKey.FIND_COORDINATOR,
        [Need(GROUP, _DESCRIBE, [(0, ["error_code"]), (4, ["coordinators.error_code"])])],
        _with(_find, kind=0),
    ),
    Row(
        ApiKey.FIND_COORDINATOR,
        [Need(ID, _DESCRIBE, [(1, ["error_code"]), (4, ["coordinators.error_code"])])],
        _with(_find, kind=1),
        "of transactions",
        first=1,
    ),
    Row(ApiKey.JOIN_GROUP, [_need(GROUP, _READ, "error_code")]),
    Row(ApiKey.SYNC_GROUP, [_need(GROUP, _READ, "error_code")]),
    Row(ApiKey.HEARTBEAT, [_need(GROUP, _READ, "error_code")]),
    Row(ApiKey.LEAVE_GROUP, [_need(GROUP, _READ, "error_code")]),
    Row(ApiKey.DESCRIBE_GROUPS, [_need(GROUP, _DESCRIBE, "groups.error_code")]),
    Row(
        ApiKey.CONSUMER_GROUP_HEARTBEAT,
        [_need(GROUP, _READ, "error_code"), _need(TOPIC, _DESCRIBE, "error_code")],
    ),
    Row(ApiKey.CONSUMER_GROUP_DESCRIBE, [_need(GROUP, _DESCRIBE, "groups.error_code")]),
    Row(ApiKey.LIST_GROUPS, [Need(GROUP, _DESCRIBE, instead=[(CLUSTER, _DESCRIBE)])], lists=True),
    Row(ApiKey.DELETE_GROUPS, [_need(GROUP, _DELETE, "results.error_code")]),
    Row(
        ApiKey.OFFSET_DELETE,
        [_need(GROUP, _DELETE, "error_code"), _need(TOPIC, _READ, _PRODUCED)],
    ),
    Row(ApiKey.API_VERSIONS, make=lambda of, version: ApiVersionsRequest()),
    Row(
        ApiKey.CREATE_TOPICS,
        [
            _need(TOPIC, _CREATE, "topics.error_code", instead=[(CLUSTER, _CREATE)]),
            Need(TOPIC, _DESCRIBE_CONFIGS, [(5, ["topics.topic_config_error_code"])]),
        ],
        _create,
        absent=True,
    ),
    Row(
        ApiKey.DELETE_TOPICS,
        [_need(TOPIC, _DELETE, _ANSWERED, instead=[(CLUSTER, _DELETE)])],
        _with(_delete, by_id=False),
    ),
    Row(
        ApiKey.DELETE_TOPICS,
        [_need(TOPIC, _DELETE, _ANSWERED, instead=[(CLUSTER, _DELETE)], unseen=True)],
        _with(_delete, by_id=True),
        "by id",
        first=6,
    ),
    Row(ApiKey.DELETE_RECORDS, [_need(TOPIC, _DELETE, _PRODUCED)]),
    Row(
        ApiKey.INIT_PRODUCER_ID,
        _cluster(Operation.IDEMPOTENT_WRITE, "error_code", instead=[(TOPIC, _WRITE)]),
        _init,
    ),
    Row(
        ApiKey.INIT_PRODUCER_ID,
        [_need(ID, _WRITE, "error_code")],
        _with(_init, transactional=True),
        "with an id",
    ),
    Row(
        ApiKey.INIT_PRODUCER_ID,
        [_need(ID, _WRITE, "error_code"), _need(ID, Operation.TWO_PHASE_COMMIT, "error_code")],
        _with(_init, transactional=True, two_phases=True),
        "in two phases",
        first=6,
    ),
    Row(
        ApiKey.OFFSET_FOR_LEADER_EPOCH,
        [_need(TOPIC, _DESCRIBE, _PRODUCED, instead=[(CLUSTER, _ACTION)])],
    ),
    Row(
        ApiKey.ADD_PARTITIONS_TO_TXN,
        [
            _need(ID, _WRITE, "results_by_topic_v3_and_below.results_by_partition.partition_error_code"),
            _need(TOPIC, _WRITE, "results_by_topic_v3_and_below.results_by_partition.partition_error_code"),
        ],
        _add_partitions,
    ),
    Row(
        ApiKey.ADD_OFFSETS_TO_TXN,
        [_need(ID, _WRITE, "error_code"), _need(GROUP, _READ, "error_code")],
    ),
    Row(ApiKey.END_TXN, [_need(ID, _WRITE, "error_code")]),
    Row(
        ApiKey.TXN_OFFSET_COMMIT,
        [_need(ID, _WRITE, _PRODUCED), _need(GROUP, _READ, _PRODUCED), _need(TOPIC, _READ, _PRODUCED)],
        _commit_in_transaction,
    ),
    Row(
        ApiKey.WRITE_TXN_MARKERS,
        _cluster(_ALTER, "markers.topics.partitions.error_code", instead=[(CLUSTER, _ACTION)]),
    ),
    Row(ApiKey.DESCRIBE_PRODUCERS, [_need(TOPIC, _READ, _PRODUCED)]),
    Row(
        ApiKey.DESCRIBE_TRANSACTIONS,
        [_need(ID, _DESCRIBE, "transaction_states.error_code"), Need(TOPIC, _DESCRIBE)],
    ),
    Row(ApiKey.LIST_TRANSACTIONS, [Need(ID, _DESCRIBE)], lists=True),
    Row(
        ApiKey.DESCRIBE_CONFIGS,
        [_need(TOPIC, _DESCRIBE_CONFIGS, "results.error_code")],
        _with(_describe_settings, kind=2),
    ),
    Row(
        ApiKey.DESCRIBE_CONFIGS,
        [_need(GROUP, _DESCRIBE_CONFIGS, "results.error_code")],
        _with(_describe_settings, kind=32),
        "of a group",
    ),
    Row(
        ApiKey.DESCRIBE_CONFIGS,
        _cluster(_DESCRIBE_CONFIGS, "results.error_code"),
        _with(_describe_settings, kind=4, name="0"),
        "of the broker",
    ),
    Row(
        ApiKey.DESCRIBE_CONFIGS,
        _cluster(_DESCRIBE_CONFIGS, "results.error_code"),
        _with(_describe_settings, kind=8, name="0"),
        "of loggers",
    ),
    Row(
        ApiKey.ALTER_CONFIGS,
        [_need(TOPIC, _ALTER_CONFIGS, _ANSWERED)],
        _with(_replace_settings, kind=2),
    ),
    Row(
        ApiKey.ALTER_CONFIGS,
        _cluster(_ALTER_CONFIGS, _ANSWERED),
        _with(_replace_settings, kind=4, name="0"),
        "of the broker",
    ),
    Row(
        ApiKey.INCREMENTAL_ALTER_CONFIGS,
        [_need(TOPIC, _ALTER_CONFIGS, _ANSWERED)],
        _with(_change_settings, kind=2, setting="segment.ms", value="99"),
    ),
    Row(
        ApiKey.INCREMENTAL_ALTER_CONFIGS,
        _cluster(_ALTER_CONFIGS, _ANSWERED),
        _with(_change_settings, kind=4, name="0", setting="log.segment.bytes", value="1048576"),
        "of the broker",
    ),
    Row(
        ApiKey.INCREMENTAL_ALTER_CONFIGS,
        [_need(GROUP, _ALTER_CONFIGS, _ANSWERED)],
        _with(_change_settings, kind=32, setting="consumer.session.timeout.ms", value="50000"),
        "of a group",
    ),
    Row(
        ApiKey.INCREMENTAL_ALTER_CONFIGS,
        _cluster(_ALTER_CONFIGS, _ANSWERED),
        _with(_change_settings, kind=8, name="0", setting="cordwood", value="INFO"),
        "of loggers",
    ),
    Row(
        ApiKey.INCREMENTAL_ALTER_CONFIGS,
        [_need(TOPIC, _ALTER_CONFIGS, _ANSWERED), _need(TOPIC, _DELETE, _ANSWERED)],
        _with(
            _change_settings,
            kind=2,
            setting="cordwood.operation",
            value=encode_operation(TruncatePartition(partition=0, end_offset=0)),
        ),
        "that truncates",
    ),
    Row(
        ApiKey.INCREMENTAL_ALTER_CONFIGS,
        [_need(TOPIC, _ALTER_CONFIGS, _ANSWERED), _need(TOPIC, _ALTER, _ANSWERED)],
        _with(
            _change_settings,
            kind=2,
            setting="cordwood.operation",
            value=encode_operation(RollPartition(partition=0)),
        ),
        "that seals",
    ),
    Row(ApiKey.CREATE_PARTITIONS, [_need(TOPIC, _ALTER, "results.error_code")]),
    Row(
        ApiKey.DESCRIBE_TOPIC_PARTITIONS,
        [_need(TOPIC, _DESCRIBE, "topics.error_code")],
    ),
    Row(ApiKey.DESCRIBE_TOPIC_PARTITIONS, [Need(TOPIC, _DESCRIBE)], what="of all", lists=True),
    Row(ApiKey.DESCRIBE_CLUSTER, make=_describe_cluster),
    Row(ApiKey.DESCRIBE_LOG_DIRS, [Need(CLUSTER, _DESCRIBE, [(3, ["error_code"])], unseen=True)]),
    Row(ApiKey.DESCRIBE_QUORUM, _cluster(_DESCRIBE, "error_code"), _describe_quorum),
    Row(ApiKey.UPDATE_FEATURES, _cluster(_ALTER, "error_code"), _update_features),
    Row(
        ApiKey.ELECT_LEADERS,
        [
            Need(
                CLUSTER,
                _ALTER,
                [
                    (0, ["replica_election_results.partition_result.error_code"]),
                    (1, ["error_code", "replica_election_results.partition_result.error_code"]),
                ],
            )
        ],
    ),
    Row(
        ApiKey.ALTER_PARTITION_REASSIGNMENTS,
        _cluster(_ALTER, "error_code", "responses.partitions.error_code"),
    ),
    Row(ApiKey.LIST_PARTITION_REASSIGNMENTS, _cluster(_DESCRIBE, "error_code")),
    Row(
        ApiKey.DESCRIBE_CLIENT_QUOTAS,
        _cluster(_DESCRIBE_CONFIGS, "error_code"),
        lambda of, version: LISTING[ApiKey.DESCRIBE_CLIENT_QUOTAS](version),
    ),
    Row(ApiKey.ALTER_CLIENT_QUOTAS, _cluster(_ALTER_CONFIGS, "entries.error_code"), _alter_quotas),
    Row(
        ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS,
        _cluster(_DESCRIBE, "error_code", "results.error_code"),
        _describe_users,
    ),
    Row(ApiKey.ALTER_USER_SCRAM_CREDENTIALS, _cluster(_ALTER, "results.error_code"), _alter_users),
    Row(ApiKey.SASL_HANDSHAKE, make=lambda of, version: authentication.SaslHandshakeRequest("PLAIN")),
    Row(ApiKey.SASL_AUTHENTICATE, make=lambda of, version: authentication.SaslAuthenticateRequest(b"x")),
    Row(ApiKey.DESCRIBE_ACLS, _cluster(_DESCRIBE, "error_code")),
    Row(ApiKey.CREATE_ACLS, _cluster(_ALTER, "results.error_code")),
    Row(ApiKey.DELETE_ACLS, _cluster(_ALTER, "filter_results.error_code")),
)


# --- as documented ------------------------------------------------------------------------------------

_RESOURCES = {TOPIC: "the topic", GROUP: "the group", CLUSTER: "the cluster", ID: "the transactional id"}


def documented(row: Row) -> list[str]:
    """Return the lines of docs/security-operations.md on a request."""
    name = row.key.name.title().replace("_", "")
    name += f" {row.what}" if row.what else ""
    lines = []
    for need in row.needs:
        ways = [(need.kind, need.operation), *need.instead]
        needed = " or ".join(f"{operation.name} on {_RESOURCES[kind]}" for kind, operation in ways)
        lines.append(f"| {name} | {needed} | {_answer_without(need)} |")
    return lines or [f"| {name} | nothing | |"]


def _answer_without(need: Need) -> str:
    if not need.paths:
        return "left out"
    places = []
    for number, (first, paths) in enumerate(need.paths):
        names = " and ".join(f"`{path}`" for path in paths)
        since = f" from version {first} on" if first and (number or first > 1) else ""
        places.append(names + since)
    hidden = ", and no name" if need.unseen and need.kind == TOPIC else ""
    return f"{need.code.name} in {', '.join(places)}{hidden}"
