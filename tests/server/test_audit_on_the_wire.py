"""The audit log of a server: what clients do to it, and each change, denial and login as one record."""

from __future__ import annotations

import contextlib
import logging
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import confluent_kafka
import confluent_kafka.admin
import pytest
from support.asking import Asking
from support.auditing import (
    ACL,
    ANYONE,
    AUDITED,
    AUTHORIZED,
    BROKER_KIND,
    LISTEN,
    LOGINS,
    PASSWORDS,
    TOPIC_KIND,
    audit_rows,
    creation,
    credential,
    deletion,
    logged_in,
    of_clients,
    offsets_of,
    step,
    until_offset,
    until_recorded,
)
from support.authorities import ca_pem, client_context, named, server_pem, signed
from support.client_quotas import quotas_of
from support.groups import commit
from support.patience import SECONDS_MAX, Limit
from support.sasl import SaslClient
from support.serving import RawClient

from cordwood import Broker
from cordwood.broker import OPERATION, TruncatePartition, encode_operation
from cordwood.formats import batch
from cordwood.protocol.apis import ApiKey
from cordwood.protocol.error_codes import ErrorCode
from cordwood.protocol.messages.api_versions import ApiVersionsRequest
from cordwood.protocol.messages.authentication import (
    AlterUserScramCredentialsRequest,
    ScramCredentialDeletion,
)
from cordwood.protocol.messages.configs import (
    AlterableConfig,
    AlterConfigsRequest,
    AlterConfigsResource,
    DescribeConfigsRequest,
    DescribeConfigsResource,
    IncrementalAlterConfigsRequest,
)
from cordwood.protocol.messages.groups import DeleteGroupsRequest
from cordwood.protocol.messages.security import (
    AclCreation,
    CreateAclsRequest,
    DeleteAclsFilter,
    DeleteAclsRequest,
    DescribeAclsRequest,
)
from cordwood.protocol.messages.topics import (
    CreatePartitionsRequest,
    CreatePartitionsTopic,
    CreateTopicsRequest,
)
from cordwood.protocol.messages.transactions import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
)
from cordwood.security import (
    AclFilter,
)
from cordwood.server.audit.changes import CHANGES as RECORDED
from cordwood.server.audit.watching import api_name


def said_of(row: dict[str, Any]) -> tuple[Any, ...]:
    """Return who, what and with which answer, without what is the same in each record of a test."""
    return row["api"], row["resource_type"], row["resource"], row["outcome"], row["error"], row["details"]


# --- changes ----------------------------------------------------------------------------------------

DESCRIBED = {
    "pattern": "literal",
    "principal": "User:alice",
    "host": "*",
    "operation": "read",
    "permission": "allow",
}
TRUNCATION = TruncatePartition(partition=0, end_offset=1)
INCREMENTAL = ApiKey.INCREMENTAL_ALTER_CONFIGS
LOGGER_KIND = 8
USERS = ApiKey.ALTER_USER_SCRAM_CREDENTIALS
#: Requests in the order in which they are made, and for each the resource and the details of its record.
CHANGES: list[tuple[ApiKey, Any, str, str, dict[str, Any]]] = [
    (
        ApiKey.CREATE_TOPICS,
        CreateTopicsRequest(topics=[creation("orders", partitions=2, retention_ms="1000")]),
        *("topic", "orders", {"partitions": 2, "settings": {"retention.ms": "1000"}}),
    ),
    (
        ApiKey.CREATE_PARTITIONS,
        CreatePartitionsRequest([CreatePartitionsTopic(name="orders", count=3, assignments=None)]),
        *("topic", "orders", {"partitions": 3}),
    ),
    (
        ApiKey.DELETE_RECORDS,
        until_offset("orders", 1),
        *("topic", "orders", {"partition": 0, "before_offset": 1, "log_start_offset": 1}),
    ),
    (
        INCREMENTAL,
        IncrementalAlterConfigsRequest([step(TOPIC_KIND, "orders", "segment.ms", "5000")]),
        *("topic", "orders", {"set": {"segment.ms": "5000"}}),
    ),
    (
        INCREMENTAL,
        IncrementalAlterConfigsRequest([step(TOPIC_KIND, "orders", "segment.ms", None, how=1)]),
        *("topic", "orders", {"delete": {"segment.ms": None}}),
    ),
    (
        INCREMENTAL,
        IncrementalAlterConfigsRequest([step(BROKER_KIND, "", "log.cleaner.backoff.ms", "5000")]),
        *("broker", "", {"set": {"log.cleaner.backoff.ms": "5000"}}),
    ),
    (
        INCREMENTAL,
        IncrementalAlterConfigsRequest([step(LOGGER_KIND, "0", "cordwood.server", "WARN")]),
        *("broker_logger", "0", {"set": {"cordwood.server": "WARN"}}),
    ),
    (
        INCREMENTAL,
        IncrementalAlterConfigsRequest([step(BROKER_KIND, "", "cordwood.org.7.stored.bytes", "5")]),
        *("broker", "", {"set": {"cordwood.org.7.stored.bytes": "5"}}),
    ),
    (
        INCREMENTAL,
        IncrementalAlterConfigsRequest([step(TOPIC_KIND, "orders", OPERATION, encode_operation(TRUNCATION))]),
        *("topic", "orders"),
        {"operation": {"type": "truncate", "partition": 0, "end_offset": 1, "force": False}},
    ),
    (
        ApiKey.ALTER_CONFIGS,
        AlterConfigsRequest(
            [AlterConfigsResource(TOPIC_KIND, "orders", [AlterableConfig("retention.ms", "2000")])]
        ),
        *("topic", "orders", {"set": {"retention.ms": "2000"}}),
    ),
    (ApiKey.CREATE_ACLS, CreateAclsRequest([AclCreation(*ACL)]), "topic", "orders", {"acl": DESCRIBED}),
    (ApiKey.DELETE_ACLS, DeleteAclsRequest([DeleteAclsFilter(*ACL)]), "topic", "orders", {"acl": DESCRIBED}),
    (
        USERS,
        AlterUserScramCredentialsRequest([], [credential("bob", "password-of-bob")]),
        *("user", "bob"),
        {"credentials": [{"step": "set", "mechanism": "SCRAM-SHA-256", "iterations": 4096}]},
    ),
    (
        USERS,
        AlterUserScramCredentialsRequest([ScramCredentialDeletion("bob", 1)], []),
        *("user", "bob", {"credentials": [{"step": "delete", "mechanism": "SCRAM-SHA-256"}]}),
    ),
    (
        ApiKey.ALTER_CLIENT_QUOTAS,
        quotas_of(
            {"user": "bob", "client-id": None}, {"producer_byte_rate": 1e9, "consumer_byte_rate": None}
        ),
        *("client_quota", "client-id=<default>, user=bob"),
        {"limits": {"producer_byte_rate": 1e9, "consumer_byte_rate": None}},
    ),
    (
        ApiKey.OFFSET_DELETE,
        offsets_of("billing", "orders"),
        *("group", "billing", {"topic": "orders", "partition": 0}),
    ),
    (ApiKey.DELETE_GROUPS, DeleteGroupsRequest(["billing"]), "group", "billing", {}),
    (
        ApiKey.WRITE_TXN_MARKERS,
        WriteTxnMarkersRequest(
            [WritableTxnMarker(5, 0, False, [WritableTxnMarkerTopic("orders", [1])], 0, 0)]
        ),
        *("topic", "orders", {"partition": 1, "producer_id": 5, "committed": False}),
    ),
    (ApiKey.DELETE_TOPICS, deletion("orders"), "topic", "orders", {"topic_id": "as it was"}),
]


def test_each_change_is_one_record_with_what_was_changed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    # The level of the logger that a request changes is that of this process; it is restored afterwards.
    caplog.set_level(logging.INFO, "cordwood.server")
    with Broker(tmp_path, config=AUTHORIZED) as broker, Asking(broker.bootstrap) as client:
        for number, (key, body, *_) in enumerate(CHANGES):
            client.ask(key, body)
            if number == 0:
                topic_id = client.id_of("orders").hex()
                client.produce("orders", batch.encode_records([(None, b"a"), (None, b"b")], 1000))
            commit(client, "billing", {("orders", 0): (0, -1, "")}, version=8)
        client.topics("made-by-name", create=True)
    rows = of_clients(audit_rows(tmp_path))
    expected = [
        (
            api_name(key),
            kind,
            name,
            "ok",
            None,
            details if "topic_id" not in details else {"topic_id": topic_id},
        )
        for key, _, kind, name, details in CHANGES
    ]
    expected.append(("Metadata", "topic", "made-by-name", "ok", None, {"automatically": True}))
    assert [said_of(row) for row in rows] == expected
    assert {row["event"] for row in rows} == {"change"}
    who = {(r["principal"], r["client_id"], r["listener"], r["org"], r["count"], r["lost"]) for r in rows}
    assert who == {(ANYONE, "raw", "PLAINTEXT", 0, 1, 0)}
    assert {row["host"] for row in rows} <= {"127.0.0.1", "::1"}


def test_every_api_that_changes_something_is_in_the_test_above() -> None:
    assert {key for key, *_ in CHANGES} == RECORDED.keys()


def test_a_change_that_fails_is_recorded_with_kafkas_error_and_without_what_it_asked_for(
    tmp_path: Path,
) -> None:
    with Broker(tmp_path, config=AUTHORIZED) as broker, Asking(broker.bootstrap) as client:
        client.create("orders")
        client.ask(
            ApiKey.CREATE_TOPICS, CreateTopicsRequest(topics=[creation("orders"), creation("bad/name")])
        )
        client.delete("missing")
        client.ask(INCREMENTAL, IncrementalAlterConfigsRequest([step(TOPIC_KIND, "orders", "no.such", "x")]))
        client.ask(ApiKey.DELETE_RECORDS, until_offset("orders", 99))
        client.ask(USERS, AlterUserScramCredentialsRequest([ScramCredentialDeletion("nobody", 1)], []))
        client.ask(ApiKey.ALTER_CLIENT_QUOTAS, quotas_of({"ip": "10.0.0.1"}, {"producer_byte_rate": 1.0}))
    _, *rows = of_clients(audit_rows(tmp_path))
    assert {(row["api"], row["resource"], row["error"]) for row in rows} == {
        ("CreateTopics", "orders", "TOPIC_ALREADY_EXISTS"),
        ("CreateTopics", "bad/name", "INVALID_TOPIC_EXCEPTION"),
        ("DeleteTopics", "missing", "UNKNOWN_TOPIC_OR_PARTITION"),
        ("IncrementalAlterConfigs", "orders", "INVALID_CONFIG"),
        ("DeleteRecords", "orders", "OFFSET_OUT_OF_RANGE"),
        ("AlterUserScramCredentials", "nobody", "RESOURCE_NOT_FOUND"),
        ("AlterClientQuotas", "ip=10.0.0.1", "INVALID_REQUEST"),
    }
    assert {(row["event"], row["outcome"]) for row in rows} == {("change", "failed")}
    assert len(rows) == 7
    assert "no.such" in str(rows)


def test_reading_and_validating_and_ordinary_work_are_not_recorded(tmp_path: Path) -> None:
    with Broker(tmp_path, config=AUTHORIZED) as broker, Asking(broker.bootstrap) as client:
        client.create("orders")
        before = len(until_recorded(tmp_path, 1))
        client.produce("orders", batch.encode_records([(None, b"a")], 1000))
        client.fetch("orders")
        client.offset_at("orders", -1)
        commit(client, "billing", {("orders", 0): (1, -1, "")})
        client.ask(ApiKey.DESCRIBE_ACLS, DescribeAclsRequest(*AclFilter()))
        client.ask(
            ApiKey.DESCRIBE_CONFIGS, DescribeConfigsRequest([DescribeConfigsResource(TOPIC_KIND, "orders")])
        )
        client.ask(ApiKey.CREATE_TOPICS, CreateTopicsRequest([creation("new")], validate_only=True))
        more = CreatePartitionsTopic(name="orders", count=3, assignments=None)
        client.ask(ApiKey.CREATE_PARTITIONS, CreatePartitionsRequest([more], validate_only=True))
        altered = [step(TOPIC_KIND, "orders", "segment.ms", "5000")]
        client.ask(INCREMENTAL, IncrementalAlterConfigsRequest(altered, validate_only=True))
        replaced = [AlterConfigsResource(TOPIC_KIND, "orders", [AlterableConfig("segment.ms", "5000")])]
        client.ask(ApiKey.ALTER_CONFIGS, AlterConfigsRequest(replaced, validate_only=True))
        limited = quotas_of({"user": "bob"}, {"producer_byte_rate": 1.0}, validate_only=True)
        client.ask(ApiKey.ALTER_CLIENT_QUOTAS, limited)
    assert len(of_clients(audit_rows(tmp_path))) == before


def test_the_broker_records_its_start_and_its_end(tmp_path: Path) -> None:
    for _ in range(2):
        Broker(tmp_path, config=AUDITED).close()
    assert [(row["event"], row["api"]) for row in audit_rows(tmp_path)] == [
        ("broker", "BrokerStart"),
        ("broker", "BrokerStop"),
    ] * 2


# --- denied requests and logins ---------------------------------------------------------------------


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return tmp_path / "data"


@pytest.fixture
def broker(data: Path) -> Iterator[Broker]:
    with Broker(data, listen=LISTEN, config=LOGINS, users=PASSWORDS) as started:
        yield started


def test_each_login_is_one_record_whether_it_succeeds_or_not(broker: Broker, data: Path) -> None:
    for mechanism in ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"):
        for name, password in (("alice", PASSWORDS["alice"]), ("alice", "wrong-password"), ("carol", "x")):
            with SaslClient(broker.addresses["USERS"]) as client:
                client.shake(mechanism)
                plain = mechanism == "PLAIN"
                client.plain(name, password) if plain else client.scram(name, password, mechanism)
    with SaslClient(broker.addresses["USERS"]) as client:
        client.shake("GSSAPI")
    broker.close()
    rows = of_clients(audit_rows(data))
    failed = "SASL_AUTHENTICATION_FAILED"
    expected = [
        ("SaslAuthenticate", "User:alice", "ok", None),
        ("SaslAuthenticate", "User:alice", "denied", failed),
        ("SaslAuthenticate", "User:carol", "denied", failed),
    ] * 3
    expected.append(("SaslHandshake", "", "denied", "UNSUPPORTED_SASL_MECHANISM"))
    found = [(row["api"], row["principal"], row["outcome"], row["error"]) for row in rows]
    # Failed ones come up to a second later, and equal ones as one record.
    assert sorted(set(found), key=str) == sorted(set(expected), key=str)
    assert sum(row["count"] for row in rows) == len(expected)
    assert sum(row["outcome"] == "ok" for row in rows) == 3
    assert {(row["event"], row["listener"], row["client_id"], row["org"]) for row in rows} == {
        ("authentication", "USERS", "raw", 0)
    }
    assert {row["details"]["mechanism"] for row in rows if row["outcome"] == "ok"} == {
        "PLAIN",
        "SCRAM-SHA-256",
        "SCRAM-SHA-512",
    }


def test_equal_denials_are_counted_in_one_record_for_each_second(broker: Broker, data: Path) -> None:
    limit = Limit()
    with logged_in(broker) as client:
        for _ in range(50):
            assert client.topics("orders")[0].error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
    seconds = limit.elapsed
    broker.close()
    denied = [row for row in of_clients(audit_rows(data)) if row["event"] == "denied"]
    (said,) = {(row["principal"], *said_of(row)[:-1]) for row in denied}
    assert said == ("User:alice", "Metadata", "topic", "orders", "denied", "TOPIC_AUTHORIZATION_FAILED")
    assert sum(row["count"] for row in denied) == 50
    assert len(denied) <= seconds + 2


#: Requests that alice may not make, and the record of each.
DENIALS: list[tuple[ApiKey, Any, str, str, str]] = [
    (
        ApiKey.CREATE_TOPICS,
        CreateTopicsRequest([creation("mine")]),
        *("topic", "mine", "TOPIC_AUTHORIZATION_FAILED"),
    ),
    (ApiKey.DELETE_TOPICS, deletion("orders"), "topic", "orders", "TOPIC_AUTHORIZATION_FAILED"),
    (
        ApiKey.DELETE_RECORDS,
        until_offset("orders", 0),
        *("topic", "orders", "TOPIC_AUTHORIZATION_FAILED"),
    ),
    (
        INCREMENTAL,
        IncrementalAlterConfigsRequest([step(TOPIC_KIND, "orders", "retention.ms", "1")]),
        *("topic", "orders", "TOPIC_AUTHORIZATION_FAILED"),
    ),
    (
        INCREMENTAL,
        IncrementalAlterConfigsRequest([step(BROKER_KIND, "", "log.retention.ms", "1")]),
        *("broker", "", "CLUSTER_AUTHORIZATION_FAILED"),
    ),
    (
        ApiKey.CREATE_ACLS,
        CreateAclsRequest([AclCreation(*ACL)]),
        *("topic", "orders", "CLUSTER_AUTHORIZATION_FAILED"),
    ),
    (
        ApiKey.DELETE_ACLS,
        DeleteAclsRequest([DeleteAclsFilter(*ACL)]),
        *("acl", "", "CLUSTER_AUTHORIZATION_FAILED"),
    ),
    (
        ApiKey.DESCRIBE_ACLS,
        DescribeAclsRequest(*AclFilter()),
        *("cluster", "", "CLUSTER_AUTHORIZATION_FAILED"),
    ),
    (
        USERS,
        AlterUserScramCredentialsRequest([], [credential("mallory", "password-of-mallory")]),
        *("user", "mallory", "CLUSTER_AUTHORIZATION_FAILED"),
    ),
    (
        ApiKey.DELETE_GROUPS,
        DeleteGroupsRequest(["billing"]),
        "group",
        "billing",
        "GROUP_AUTHORIZATION_FAILED",
    ),
]


def test_each_denied_request_is_one_record_of_what_was_denied(broker: Broker, data: Path) -> None:
    with Asking(broker.addresses["OPEN"]) as owner:
        topic_id = owner.create("orders")
    with logged_in(broker) as client:
        client.ids["orders"] = topic_id
        for key, body, *_ in DENIALS:
            client.ask(key, body)
        client.fetch("orders")
        client.produce("orders", batch.encode_records([(None, b"a")], 1000))
    broker.close()
    rows = [row for row in of_clients(audit_rows(data)) if row["principal"] == "User:alice"]
    expected = [(api_name(key), *rest) for key, _, *rest in DENIALS]
    for api in ("Fetch", "Produce"):
        expected.append((api, "topic", "orders", "TOPIC_AUTHORIZATION_FAILED"))
    login, *denied = rows
    assert (login["event"], login["outcome"]) == ("authentication", "ok")
    found = [(row["api"], row["resource_type"], row["resource"], row["error"]) for row in denied]
    assert sorted(found) == sorted(expected)
    assert {(row["event"], row["outcome"], row["count"], row["listener"]) for row in denied} == {
        ("denied", "denied", 1, "USERS")
    }


def test_a_denied_request_that_gets_no_answer_is_recorded(broker: Broker, data: Path) -> None:
    with Asking(broker.addresses["OPEN"]) as owner:
        topic_id = owner.create("orders")
    with logged_in(broker) as client:
        client.ids["orders"] = topic_id
        request = client.produce_request("orders", {0: batch.encode_records([(None, b"a")], 1000)}, acks=0)
        client.send(ApiKey.PRODUCE, 13, request)
        assert client.is_closed()
    broker.close()
    (row,) = (row for row in of_clients(audit_rows(data)) if row["event"] == "denied")
    assert said_of(row)[:5] == ("Produce", "topic", "orders", "denied", "TOPIC_AUTHORIZATION_FAILED")


# --- TLS, tokens, real clients ----------------------------------------------------------------------


def test_each_login_by_certificate_is_one_record_and_so_is_a_certificate_that_is_refused(
    tmp_path: Path,
) -> None:
    keys, trusted = tmp_path / "server.pem", tmp_path / "trusted.pem"
    keys.write_text(server_pem())
    trusted.write_text(ca_pem())
    config = {
        **AUDITED,
        "ssl.keystore.location": str(keys),
        "ssl.truststore.location": str(trusted),
        "ssl.client.auth": "required",
    }
    data = tmp_path / "data"

    def visit(port: str, identity: str | None) -> None:
        """Connect, and wait until the server has closed the connection or recorded a login."""
        context = client_context(tmp_path, identity)
        with (
            contextlib.suppress(OSError),
            socket.create_connection(("localhost", int(port))) as plain,
            context.wrap_socket(plain, server_hostname="localhost") as connected,
        ):
            if identity is None:
                connected.recv(1)
            else:
                until_recorded(data, 1)

    with Broker(data, listen="SSL://localhost:0", config=config) as broker:
        port = broker.bootstrap.rpartition(":")[2]
        visit(port, signed(named(CN="alice"))[1])
        visit(port, None)
    first, second = of_clients(audit_rows(data))
    assert (first["event"], first["api"], first["outcome"], first["error"]) == (
        *("authentication", "TLS", "ok", None),
    )
    assert first["principal"] == "User:CN=alice"
    assert (second["api"], second["outcome"], second["error"], second["principal"]) == (
        *("TLS", "denied", "SSL_HANDSHAKE_FAILED", ""),
    )
    assert {first["listener"], second["listener"]} == {"SSL"}


def test_a_client_that_needs_no_certificate_and_has_none_is_no_login(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with Broker(data, config=AUDITED, tls=True) as broker:
        context = ssl.create_default_context(cafile=broker.ca_path)
        with RawClient(broker.bootstrap) as client:
            client.socket = context.wrap_socket(client.socket, server_hostname="localhost")
            assert client.ask(ApiKey.API_VERSIONS, ApiVersionsRequest()).error_code == 0
    assert of_clients(audit_rows(data)) == []


def test_changes_of_a_real_client_are_recorded_with_its_principal_and_client_id(
    broker: Broker, data: Path
) -> None:
    settings: dict[str, Any] = {
        "bootstrap.servers": broker.addresses["USERS"],
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": "root",
        "sasl.password": PASSWORDS["root"],
        "client.id": "the-admin",
    }
    library: Any = confluent_kafka.admin
    admin = library.AdminClient(settings)
    (made,) = admin.create_topics([library.NewTopic("orders", 1, 1)]).values()
    made.result(SECONDS_MAX)
    (deleted,) = admin.delete_topics(["orders"]).values()
    deleted.result(SECONDS_MAX)
    del admin
    broker.close()
    rows = [row for row in of_clients(audit_rows(data)) if row["event"] == "change"]
    assert [(row["api"], row["resource"], row["outcome"]) for row in rows] == [
        ("CreateTopics", "orders", "ok"),
        ("DeleteTopics", "orders", "ok"),
    ]
    assert {(row["principal"], row["client_id"], row["listener"]) for row in rows} == {
        ("User:root", "the-admin", "USERS")
    }
