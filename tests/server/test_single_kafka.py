"""What administrators ask of a whole cluster, answered as a healthy Kafka of one broker does."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import confluent_kafka
import confluent_kafka.admin
import kafka
import kafka.errors
import pytest
from kafka.admin import (
    ACLFilter,
    ACLOperation,
    ACLPermissionType,
    ACLResourcePatternType,
    ResourcePatternFilter,
    ResourceType,
)
from support.asking import Asking
from support.clocks import ManualClock
from support.patience import SECONDS_MAX

from cordwood import Broker
from cordwood.formats import batch
from cordwood.formats.batch import BatchOptions
from cordwood.protocol.apis import APIS, ApiKey
from cordwood.protocol.error_codes import ErrorCode
from cordwood.protocol.messages import client_quotas, controller, producers, security, transactions
from cordwood.protocol.messages.api_versions import ApiVersionsRequest

NONE = ErrorCode.NONE
UNKNOWN = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
LIBRDKAFKA: Any = confluent_kafka.admin


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker() as running:
        with Asking(running.bootstrap) as client:
            client.create("orders", 2)
            client.create("shared", cordwood_storage="shared")
        yield running


@pytest.fixture
def client(broker: Broker) -> Iterator[Asking]:
    with Asking(broker.bootstrap) as asking:
        yield asking


def versions_of(key: ApiKey) -> range:
    return range(APIS[key].advertised.first, APIS[key].advertised.last + 1)


# --- access control, users, quotas --------------------------------------------------------------------


def test_there_is_no_access_control_and_every_request_for_it_says_so(client: Asking) -> None:
    disabled = ErrorCode.SECURITY_DISABLED
    for version in versions_of(ApiKey.DESCRIBE_ACLS):
        found = client.ask(
            ApiKey.DESCRIBE_ACLS,
            security.DescribeAclsRequest(resource_type_filter=1, operation=1, permission_type=1),
            version,
        )
        assert (found.error_code, found.resources) == (disabled, [])
        assert "no authorizer" in found.error_message
        entry = security.AclCreation(resource_type=2, resource_name="orders", principal="User:a", host="*")
        made = client.ask(
            ApiKey.CREATE_ACLS, security.CreateAclsRequest(creations=[entry, entry]), version
        ).results
        assert [each.error_code for each in made] == [disabled, disabled]
        matching = security.DeleteAclsFilter(resource_type_filter=2, resource_name_filter=None)
        gone = client.ask(ApiKey.DELETE_ACLS, security.DeleteAclsRequest(filters=[matching]), version)
        assert [(each.error_code, each.matching_acls) for each in gone.filter_results] == [(disabled, [])]


def test_there_are_no_scram_users_of_any_name(client: Asking) -> None:
    def described(*names: str) -> list[tuple[str, int]]:
        request = security.DescribeUserScramCredentialsRequest(
            users=[security.UserName(name=name) for name in names]
        )
        answer = client.ask(ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, request)
        assert answer.error_code == NONE
        return [(each.user, each.error_code) for each in answer.results]

    everyone = security.DescribeUserScramCredentialsRequest(users=None)
    assert client.ask(ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, everyone).results == described() == []
    missing = ErrorCode.RESOURCE_NOT_FOUND
    assert described("a", "b") == [("a", missing), ("b", missing)]
    assert described("a", "b", "a") == [("a", ErrorCode.DUPLICATE_RESOURCE), ("b", missing)]
    # However long a name is, the answer fits its fields.
    assert described("x" * 30_000) == [("x" * 30_000, missing)]


@pytest.mark.parametrize(
    ("components", "code"),
    [
        ([], NONE),
        ([("user", 2, None)], NONE),
        ([("user", 0, "anna"), ("client-id", 1, None)], NONE),
        ([("ip", 0, "127.0.0.1")], NONE),
        ([("", 2, None)], ErrorCode.INVALID_REQUEST),
        ([("group", 2, None)], ErrorCode.UNSUPPORTED_VERSION),
        ([("user", 2, None), ("user", 1, None)], ErrorCode.INVALID_REQUEST),
        ([("user", 0, None)], ErrorCode.INVALID_REQUEST),
        ([("user", 1, "anna")], ErrorCode.INVALID_REQUEST),
        ([("user", 2, "anna")], ErrorCode.INVALID_REQUEST),
        ([("user", 3, None)], ErrorCode.INVALID_REQUEST),
        ([("ip", 2, None), ("user", 2, None)], ErrorCode.INVALID_REQUEST),
    ],
)
def test_nobody_has_a_client_quota_and_a_filter_that_means_nothing_is_refused(
    client: Asking, components: list[tuple[str, int, str | None]], code: int
) -> None:
    asked = [
        client_quotas.QuotaComponent(entity_type=kind, match_type=how, match=match)
        for kind, how, match in components
    ]
    for version in versions_of(ApiKey.DESCRIBE_CLIENT_QUOTAS):
        request = client_quotas.DescribeClientQuotasRequest(components=asked, strict=True)
        answer = client.ask(ApiKey.DESCRIBE_CLIENT_QUOTAS, request, version)
        assert (answer.error_code, answer.entries) == (code, [] if code == NONE else None)
        assert (answer.error_message is None) == (code == NONE)


# --- leaders and replicas -----------------------------------------------------------------------------


def test_no_election_is_needed_where_there_is_one_broker(client: Asking) -> None:
    named = [
        controller.TopicPartitions(topic="orders", partitions=[0, 1, 2, -1]),
        controller.TopicPartitions(topic="nothing", partitions=[0]),
    ]
    fine = ErrorCode.ELECTION_NOT_NEEDED
    for version in versions_of(ApiKey.ELECT_LEADERS):
        request = controller.ElectLeadersRequest(topic_partitions=named)
        answer = client.ask(ApiKey.ELECT_LEADERS, request, version)
        assert answer.error_code == NONE
        assert {
            each.topic: [(part.partition_id, part.error_code) for part in each.partition_result]
            for each in answer.replica_election_results
        } == {"orders": [(0, fine), (1, fine), (2, UNKNOWN), (-1, UNKNOWN)], "nothing": [(0, UNKNOWN)]}
        everything = controller.ElectLeadersRequest(topic_partitions=None)
        answer = client.ask(ApiKey.ELECT_LEADERS, everything, version)
        assert (answer.error_code, answer.replica_election_results) == (NONE, [])
    odd = controller.ElectLeadersRequest(election_type=7, topic_partitions=named)
    assert client.ask(ApiKey.ELECT_LEADERS, odd).error_code == ErrorCode.INVALID_REQUEST


def test_partitions_stay_where_they_are(client: Asking) -> None:
    targets: list[tuple[str, int, list[int] | None, int]] = [
        ("orders", 0, [0], NONE),
        ("orders", 1, [1], ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ("orders", 1, [0, 1], ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ("orders", 1, [], ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ("orders", 1, None, ErrorCode.NO_REASSIGNMENT_IN_PROGRESS),
        ("orders", 2, [0], UNKNOWN),
        ("nothing", 0, [0], UNKNOWN),
    ]
    for version in versions_of(ApiKey.ALTER_PARTITION_REASSIGNMENTS):
        for topic, index, replicas, code in targets:
            part = controller.ReassignablePartition(partition_index=index, replicas=replicas)
            moved = controller.ReassignableTopic(name=topic, partitions=[part])
            request = controller.AlterPartitionReassignmentsRequest(topics=[moved])
            answer = client.ask(ApiKey.ALTER_PARTITION_REASSIGNMENTS, request, version)
            (result,) = answer.responses[0].partitions
            assert (answer.error_code, result.error_code) == (NONE, code)
            assert (result.error_message is None) == (code == NONE)
    for asked in (
        controller.ListPartitionReassignmentsRequest(),
        controller.ListPartitionReassignmentsRequest(
            topics=[controller.ListPartitionReassignmentsTopics(name="orders", partition_indexes=[0])]
        ),
    ):
        answer = client.ask(ApiKey.LIST_PARTITION_REASSIGNMENTS, asked)
        assert (answer.error_code, answer.topics) == (NONE, [])


def test_the_quorum_is_this_broker(client: Asking) -> None:
    def asked(topic: str, index: int) -> controller.DescribeQuorumRequest:
        part = controller.QuorumPartition(partition_index=index)
        return controller.DescribeQuorumRequest(
            topics=[controller.QuorumTopic(topic_name=topic, partitions=[part])]
        )

    for version in versions_of(ApiKey.DESCRIBE_QUORUM):
        answer = client.ask(ApiKey.DESCRIBE_QUORUM, asked("__cluster_metadata", 0), version)
        (state,) = answer.topics[0].partitions
        assert (answer.error_code, state.error_code, state.leader_id) == (NONE, NONE, 0)
        (voter,) = state.current_voters
        assert (voter.replica_id, voter.log_end_offset) == (0, state.high_watermark)
        assert state.high_watermark > 0
        assert state.observers == []
        if version >= 2:
            (node,) = answer.nodes
            assert (node.node_id, node.listeners[0].port) == (0, client.socket.getpeername()[1])
        for topic, index in (("__cluster_metadata", 1), ("orders", 0)):
            wrong = client.ask(ApiKey.DESCRIBE_QUORUM, asked(topic, index), version)
            assert [part.error_code for part in wrong.topics[0].partitions] == [UNKNOWN]
    # It grows with the metadata.
    client.create("another")
    again = client.ask(ApiKey.DESCRIBE_QUORUM, asked("__cluster_metadata", 0))
    assert again.topics[0].partitions[0].high_watermark > state.high_watermark


# --- features -----------------------------------------------------------------------------------------


def test_features_are_those_that_hold_and_transactions_are_not_among_them(client: Asking) -> None:
    for version in (3, 4):
        answer = client.ask(ApiKey.API_VERSIONS, ApiVersionsRequest(), version)
        supported = {each.name: (each.min_version, each.max_version) for each in answer.supported_features}
        finalized = {each.name: each.max_version_level for each in answer.finalized_features}
        assert supported == {"group.version": (1, 1), "metadata.version": (30, 30)}
        assert finalized == {"group.version": 1, "metadata.version": 30}
        assert answer.finalized_features_epoch >= 0


@pytest.mark.parametrize(
    ("feature", "level", "refused"),
    [
        ("metadata.version", 30, False),
        ("metadata.version", 29, True),
        ("metadata.version", 0, True),
        ("transaction.version", 2, True),
        ("transaction.version", 0, False),
        ("group.version", 1, False),
        ("group.version", 0, True),
        ("streams.version", 1, True),
    ],
)
def test_a_feature_that_is_to_change_is_refused_by_its_name(
    client: Asking, feature: str, level: int, refused: bool
) -> None:
    code = ErrorCode.INVALID_UPDATE_VERSION if refused else NONE
    for version in versions_of(ApiKey.UPDATE_FEATURES):
        update = controller.FeatureUpdateKey(feature=feature, max_version_level=level)
        request = controller.UpdateFeaturesRequest(feature_updates=[update])
        answer = client.ask(ApiKey.UPDATE_FEATURES, request, version)
        said = answer if version >= 2 else answer.results[0]
        assert said.error_code == code
        assert (feature in said.error_message) if refused else said.error_message is None


# --- producers and transactions -----------------------------------------------------------------------


def send(client: Asking, topic: str, producer: int, epoch: int, first: int, count: int) -> None:
    options = BatchOptions(producer_id=producer, producer_epoch=epoch, base_sequence=first)
    data = batch.encode_records([(b"k", b"v")] * count, 1_000, options)
    assert not client.produce(topic, data).error_code


def described(client: Asking, topic: str, partition: int = 0) -> Any:
    asked = producers.DescribeProducersTopic(name=topic, partition_indexes=[partition])
    request = producers.DescribeProducersRequest(topics=[asked])
    (answer,) = client.ask(ApiKey.DESCRIBE_PRODUCERS, request).topics[0].partitions
    return answer


def producers_of(client: Asking, topic: str, partition: int = 0) -> dict[int, tuple[int, int]]:
    """Return epoch and last sequence of each producer that a partition knows."""
    answer = described(client, topic, partition)
    assert answer.error_code == NONE
    assert {(each.coordinator_epoch, each.current_txn_start_offset) for each in answer.active_producers} <= {
        (-1, -1)
    }
    return {each.producer_id: (each.producer_epoch, each.last_sequence) for each in answer.active_producers}


@pytest.mark.parametrize("topic", ["orders", "shared"])
def test_the_idempotent_producers_of_a_partition_are_told_with_their_last_sequence(
    client: Asking, topic: str
) -> None:
    assert producers_of(client, topic) == {}
    send(client, topic, 5001, 0, 0, 3)
    send(client, topic, 5002, 4, 0, 1)
    assert producers_of(client, topic) == {5001: (0, 2), 5002: (4, 0)}
    send(client, topic, 5001, 0, 3, 2)
    send(client, topic, 5002, 5, 0, 2)
    assert producers_of(client, topic) == {5001: (0, 4), 5002: (5, 1)}
    assert all(each.last_timestamp > 0 for each in described(client, topic).active_producers)
    assert described(client, topic, 9).error_code == UNKNOWN
    assert described(client, "nothing").error_code == UNKNOWN


def test_producers_are_known_after_a_restart_and_forgotten_when_they_expire(tmp_path: Any) -> None:
    clock = ManualClock()
    settings = {"producer.id.expiration.ms": "60000"}
    for _ in range(2):
        with Broker(tmp_path, config=settings, clock=clock) as broker, Asking(broker.bootstrap) as client:
            if not client.topics("kept", create=False)[0].partitions:
                client.create("kept")
                send(client, "kept", 7, 0, 0, 2)
            assert producers_of(client, "kept") == {7: (0, 1)}
    with Broker(tmp_path, config=settings, clock=clock) as broker, Asking(broker.bootstrap) as client:
        assert producers_of(client, "kept") == {7: (0, 1)}
        clock.advance(61_000)
        assert producers_of(client, "kept") == {}


def test_there_are_no_transactions_to_list(client: Asking) -> None:
    for version in versions_of(ApiKey.LIST_TRANSACTIONS):
        request = transactions.ListTransactionsRequest(
            state_filters=["Ongoing", "Odd", "Odd"], producer_id_filters=[1], duration_filter=5
        )
        answer = client.ask(ApiKey.LIST_TRANSACTIONS, request, version)
        assert (answer.error_code, answer.transaction_states) == (NONE, [])
        assert answer.unknown_state_filters == ["Odd"]


# --- real clients -------------------------------------------------------------------------------------


def test_librdkafka_is_told_what_a_single_kafka_tells(broker: Broker) -> None:
    admin = LIBRDKAFKA.AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": 0})
    assert admin.describe_user_scram_credentials().result(SECONDS_MAX) == {}
    with pytest.raises(confluent_kafka.KafkaException) as raised:
        admin.describe_user_scram_credentials(["anna"])["anna"].result(SECONDS_MAX)
    assert raised.value.args[0].code() == ErrorCode.RESOURCE_NOT_FOUND
    places = [confluent_kafka.TopicPartition("orders", number) for number in range(2)]
    elected = admin.elect_leaders(confluent_kafka.ElectionType.PREFERRED, places).result(SECONDS_MAX)
    codes = {error.code() for error in elected.values()}
    assert codes == {ErrorCode.ELECTION_NOT_NEEDED}


def test_kafka_python_is_told_what_a_single_kafka_tells(broker: Broker) -> None:
    admin: Any = kafka.KafkaAdminClient(bootstrap_servers=broker.bootstrap)
    try:
        features = admin.describe_features()
        assert features == {
            "group.version": {"supported": (1, 1), "finalized": (1, 1), "finalized_epoch": 0},
            "metadata.version": {"supported": (30, 30), "finalized": (30, 30), "finalized_epoch": 0},
        }
        (state,) = admin.describe_metadata_quorum()["topics"][0]["partitions"]
        assert [voter["replica_id"] for voter in state["current_voters"]] == [0]
        anything = ACLFilter(
            None,
            None,
            ACLOperation.ANY,
            ACLPermissionType.ANY,
            ResourcePatternFilter(ResourceType.ANY, None, ACLResourcePatternType.ANY),
        )
        with pytest.raises(kafka.errors.SecurityDisabledError):
            admin.describe_acls(anything)
        assert admin.list_partition_reassignments() == {}
        assert admin.list_transactions() == {0: []}
    finally:
        admin.close()
