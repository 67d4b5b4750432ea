"""The topic of the audit log: who may read it, that no client changes it, and what is never in it."""

from __future__ import annotations

import base64
import binascii
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.asking import Asking, values_in
from support.auditing import (
    ACL,
    ANYONE,
    AUDITED,
    BROKER_KIND,
    LISTEN,
    LOGINS,
    PASSWORDS,
    TOPIC,
    TOPIC_KIND,
    audit_rows,
    creation,
    credential,
    logged_in,
    of_clients,
    step,
    until_offset,
    until_recorded,
)
from support.clocks import ManualClock
from support.commands import run, said
from support.data_directory import with_crc
from support.patience import until
from support.sasl import SaslClient
from support.secured import Secured
from support.serving import serving

import cordwood
from cordwood import Broker
from cordwood.broker import OPERATION, TruncatePartition, encode_operation
from cordwood.errors import InvalidSetting, StorageError
from cordwood.formats import batch
from cordwood.protocol.apis import ApiKey, Request
from cordwood.protocol.error_codes import ErrorCode
from cordwood.protocol.messages.authentication import AlterUserScramCredentialsRequest
from cordwood.protocol.messages.configs import (
    AlterableConfig,
    AlterConfigsRequest,
    AlterConfigsResource,
    AlterConfigsResourceResponse,
    IncrementalAlterableConfig,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResource,
    IncrementalAlterConfigsResponse,
)
from cordwood.protocol.messages.metadata import MetadataRequest
from cordwood.protocol.messages.security import AclCreation, CreateAclsRequest
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
from cordwood.security import Operation
from cordwood.server.audit.changes import find_changes

INCREMENTAL = ApiKey.INCREMENTAL_ALTER_CONFIGS
USERS = ApiKey.ALTER_USER_SCRAM_CREDENTIALS


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return tmp_path / "data"


@pytest.fixture
def broker(data: Path) -> Iterator[Broker]:
    with Broker(data, listen=LISTEN, config=LOGINS, users=PASSWORDS) as started:
        yield started


# --- the topic itself -------------------------------------------------------------------------------


def test_no_client_writes_alters_truncates_or_deletes_the_audit_topic(broker: Broker, data: Path) -> None:
    """Not even a super user."""
    with logged_in(broker, "root") as client:
        before = until_recorded(data, 1)
        written = client.produce(TOPIC, batch.encode_records([(None, b"{}")], 1000))
        codes = [written.error_code, client.delete(TOPIC)]
        (topic,) = client.ask(ApiKey.DELETE_RECORDS, until_offset(TOPIC, 1)).topics
        codes.append(topic.partitions[0].error_code)
        more = CreatePartitionsRequest([CreatePartitionsTopic(name=TOPIC, count=2, assignments=None)])
        codes.append(client.ask(ApiKey.CREATE_PARTITIONS, more).results[0].error_code)
        truncation = TruncatePartition(partition=0, end_offset=0)
        for name, value in (("retention.ms", "1"), (OPERATION, encode_operation(truncation))):
            request = IncrementalAlterConfigsRequest([step(TOPIC_KIND, TOPIC, name, value)])
            codes.append(client.ask(INCREMENTAL, request).responses[0].error_code)
        replaced = [AlterConfigsResource(TOPIC_KIND, TOPIC, [AlterableConfig("retention.ms", "1")])]
        codes.append(client.ask(ApiKey.ALTER_CONFIGS, AlterConfigsRequest(replaced)).responses[0].error_code)
        mark = WritableTxnMarker(5, 0, False, [WritableTxnMarkerTopic(TOPIC, [0])], 0, 0)
        (marked,) = client.ask(ApiKey.WRITE_TXN_MARKERS, WriteTxnMarkersRequest([mark])).markers
        codes.append(marked.topics[0].partitions[0].error_code)
        for name in (TOPIC, "__audit-of-mine"):
            made = client.ask(ApiKey.CREATE_TOPICS, CreateTopicsRequest([creation(name)])).topics[0]
            codes.append(made.error_code)
    assert all(codes), codes
    broker.close()
    rows = of_clients(audit_rows(data))
    assert rows[: len(before)] == before
    refused = {(row["api"], row["outcome"]) for row in rows if row["resource"] == TOPIC}
    assert {outcome for _, outcome in refused} <= {"failed", "denied"}
    assert {"DeleteTopics", "DeleteRecords", "CreatePartitions", "AlterConfigs"} <= {
        api for api, _ in refused
    }
    with cordwood.open(data, read_only=True) as log:
        settings = log.config_of(TOPIC)
        assert (settings.retention_ms, settings.chain, log.entry(TOPIC).partitions) == (-1, True, 1)


def test_no_setting_of_the_broker_keeps_a_change_off_the_record(tmp_path: Path) -> None:
    """A client that may alter settings of the broker could do anything unnoticed after that."""
    extreme = {
        "cordwood.chain": "false",
        "cordwood.retention.clock": "timestamp",
        "cordwood.sync": "never",
        "cordwood.timestamp.order": "refuse",
        "compression.type": "zstd",
        "log.cleanup.policy": "compact",
        "log.message.timestamp.after.max.ms": "0",
        "log.message.timestamp.before.max.ms": "0",
        "log.message.timestamp.type": "LogAppendTime",
        "log.retention.bytes": "1",
        "log.retention.ms": "1",
        "log.segment.bytes": str(1 << 20),
        "message.max.bytes": "1",
    }
    data, clock = tmp_path / "data", ManualClock(now_ms=1_800_000_000_000)
    with Broker(data, config=AUDITED, clock=clock) as broker, Asking(broker.bootstrap) as client:
        for number, (name, value) in enumerate(extreme.items()):
            # By a clock that is set back and forth, as a machine's may be.
            clock.set_back((-1) ** number * 7_200_000)
            request = IncrementalAlterConfigsRequest([step(BROKER_KIND, "", name, value)])
            (answer,) = client.ask(INCREMENTAL, request).responses
            assert answer.error_code == 0, answer.error_message
            client.create(f"topic-{number}")
            until_recorded(data, 2 * (number + 1))
    rows = of_clients(audit_rows(data))
    assert {name for row in rows for name in row["details"].get("set", {})} == set(extreme)
    assert len(rows) == 2 * len(extreme)
    assert not any(row["lost"] for row in rows)


def test_what_is_changed_beside_very_much_else_is_on_record(broker: Broker, data: Path) -> None:
    """Padded values, and settings of hundreds of orgs."""
    quotas = {f"cordwood.org.{org}.producer.byte.rate": "0" * 4000 + "1024" for org in range(1, 302)}
    wanted = {**quotas, "log.retention.ms": "0" * 4000 + "60000"}
    with logged_in(broker, "root") as client:
        steps = [IncrementalAlterableConfig(name, 0, value) for name, value in wanted.items()]
        request = IncrementalAlterConfigsRequest([IncrementalAlterConfigsResource(BROKER_KIND, "", steps)])
        (answer,) = client.ask(INCREMENTAL, request).responses
        assert answer.error_code == 0, answer.error_message
        rows = until_recorded(data, 9)
    told = {name: value for row in rows for name, value in row["details"].get("set", {}).items()}
    assert told.keys() == wanted.keys()
    assert told["log.retention.ms"].endswith("60000")


def test_the_topic_is_read_by_those_whom_an_acl_of_the_default_org_allows(broker: Broker, data: Path) -> None:
    with SaslClient(broker.addresses["OPEN"]) as owner, logged_in(broker) as alice:
        alice.ids[TOPIC] = owner.id_of(TOPIC)
        assert alice.fetch(TOPIC).error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
        assert TOPIC not in {each.name for each in all_topics(alice)}
        reader = ACL._replace(resource_name=TOPIC)
        owner.ask(ApiKey.CREATE_ACLS, CreateAclsRequest([AclCreation(*reader)]))
        until(lambda: values_in(alice.fetch(TOPIC)), "the record of the start")
        read = values_in(alice.fetch(TOPIC))
        assert b"BrokerStart" in (read[0] or b"")
        assert TOPIC in {each.name for each in all_topics(alice)}


def test_a_tenant_finds_no_audit_topic(broker: Broker) -> None:
    with Asking(broker.addresses["OPEN"]) as owner, Asking(broker.addresses["TENANT"]) as tenant:
        topic_id = owner.id_of(TOPIC)
        reader = ACL._replace(resource_name="*", principal=ANYONE, operation=Operation.ALL)
        tenant.ask(ApiKey.CREATE_ACLS, CreateAclsRequest([AclCreation(*reader)]))
        tenant.create("own")
        assert [each.name for each in all_topics(tenant)] == ["own"]
        assert tenant.topics(TOPIC)[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        tenant.ids[TOPIC] = topic_id
        assert tenant.fetch(TOPIC).error_code == ErrorCode.UNKNOWN_TOPIC_ID
        assert tenant.offset_at(TOPIC, -1).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert tenant.delete(TOPIC) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_what_a_tenant_does_is_recorded_with_its_org(broker: Broker, data: Path) -> None:
    with Asking(broker.addresses["TENANT"]) as tenant:
        tenant.create("own")
    (row,) = until_recorded(data, 1)
    assert (row["org"], row["listener"], row["resource"]) == (7, "TENANT", "own")


def all_topics(client: Asking) -> list[Any]:
    return list(client.ask(ApiKey.METADATA, MetadataRequest(topics=None)).topics)


def test_neither_passwords_nor_keys_nor_payloads_are_in_any_file_of_the_topic(
    broker: Broker, data: Path
) -> None:
    payload, typed, new = b"payload-of-a-client", "typed-by-mistake", "password-of-mallory"
    secret_setting = "value-of-a-foreign-setting"
    upsertion = credential("mallory", new)
    with logged_in(broker, "root") as client:
        client.create("orders")
        client.produce("orders", batch.encode_records([(payload, payload)], 1000))
        client.ask(USERS, AlterUserScramCredentialsRequest([], [upsertion]))
        client.ask(
            INCREMENTAL,
            IncrementalAlterConfigsRequest([step(BROKER_KIND, "", "ssl.key.password", secret_setting)]),
        )
        client.ask(
            ApiKey.CREATE_TOPICS, CreateTopicsRequest([creation("other", sasl_jaas_config=secret_setting)])
        )
        client.ask(
            INCREMENTAL, IncrementalAlterConfigsRequest([step(TOPIC_KIND, "orders", OPERATION, typed)])
        )
    for mechanism in ("PLAIN", "SCRAM-SHA-256"):
        with SaslClient(broker.addresses["USERS"]) as client:
            client.shake(mechanism)
            client.plain("root", typed) if mechanism == "PLAIN" else client.scram("root", typed)
    broker.close()
    assert len(of_clients(audit_rows(data))) >= 7
    secrets = [payload, typed.encode(), new.encode(), secret_setting.encode(), upsertion.salt]
    secrets += [upsertion.salted_password, *(password.encode() for password in PASSWORDS.values())]
    secrets += [encode(each) for each in secrets for encode in (base64.b64encode, binascii.hexlify)]
    stored = [path.read_bytes() for path in data.glob(f"topics/{TOPIC}/**/*") if path.is_file()]
    assert b"AlterUserScramCredentials" in b"".join(stored)
    for secret in secrets:
        assert not any(secret in content for content in stored), secret


def test_no_part_of_a_token_is_in_any_file_of_the_topic(tmp_path: Path) -> None:
    with Secured(tmp_path, settings=AUDITED) as secured:
        tokens = [secured.token(), secured.forged_token()]
        context = ssl.create_default_context(cafile=str(secured.authority.certificate))
        # A client may leave as soon as it knows that its token is refused, or acknowledge that.
        for token, acknowledged in ((tokens[0], False), (tokens[1], False), (tokens[1], True)):
            with SaslClient(secured.addresses["USERS"]) as client:
                client.socket = context.wrap_socket(client.socket, server_hostname="localhost")
                client.shake("OAUTHBEARER")
                client.token(f"n,,\x01auth=Bearer {token}\x01\x01".encode())
                if acknowledged:
                    assert client.token(b"\x01").error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
    data = tmp_path / "data"
    logins = of_clients(audit_rows(data))
    assert {(row["principal"], row["outcome"], row["error"]) for row in logins} == {
        ("User:anna", "ok", None),
        ("", "denied", "SASL_AUTHENTICATION_FAILED"),
    }, "a token that nobody vouches for claims nothing"
    assert {row["details"]["mechanism"] for row in logins} == {"OAUTHBEARER"}
    assert sum(row["count"] for row in logins) == 3, "each attempt once"
    stored = b"".join(path.read_bytes() for path in data.glob(f"topics/{TOPIC}/**/*") if path.is_file())
    for token in tokens:
        assert not [part for part in token.split(".") if part.encode() in stored]


def test_the_value_of_a_setting_that_is_not_ours_is_left_out_even_if_it_is_accepted() -> None:
    steps = [step(BROKER_KIND, "", name, "value") for name in ("ssl.key.password", "log.retention.ms")]
    request = Request(INCREMENTAL, 1, 1, "raw", IncrementalAlterConfigsRequest(steps))
    request.body.resources[0].configs += request.body.resources.pop().configs
    accepted = AlterConfigsResourceResponse(error_message=None, resource_type=BROKER_KIND, resource_name="")
    (change,) = find_changes(request, IncrementalAlterConfigsResponse(responses=[accepted])) or ()
    assert change.details == {"set": {"ssl.key.password": None, "log.retention.ms": "value"}}


def test_an_edited_record_contradicts_the_checkpoint_although_its_checksum_is_right(tmp_path: Path) -> None:
    data, note = tmp_path / "data", tmp_path / "note"
    with Broker(data, config=AUDITED) as broker, Asking(broker.bootstrap) as client:
        client.create("orders")
    said("checkpoint", "create", "-t", TOPIC, "--data", data, "--to", note)
    verifying = ["verify", data, "--checkpoint", note, "--key", str(cordwood.list_checkpoints(data).key)]
    assert run(*verifying).exit_code == 0
    (store,) = data.glob(f"topics/{TOPIC}/**/*.log")
    content = store.read_bytes()
    assert b'"orders"' in content
    edited = b"".join(
        with_crc(content[header.position : header.end].replace(b'"orders"', b'"others"'))
        for header in batch.scan(content).headers()
    )
    store.write_bytes(edited + content[len(edited) :])
    assert [row["resource"] for row in of_clients(audit_rows(data))] == ["others"]
    done = run(*verifying)
    assert done.exit_code == 4
    assert TOPIC in done.output


def test_the_audit_log_survives_restarts_kills_and_a_backup_with_its_proof(tmp_path: Path) -> None:
    data, backup, restored = (tmp_path / name for name in ("data", "backup", "restored"))
    settings = {**AUDITED, "cordwood.audit.required": "true"}
    with serving(data, settings) as server:
        for number, kill in enumerate((False, True, False)):
            with Asking(server.address) as client:
                client.create(f"topic-{number}")
            server.restart(kill=kill)
        assert server.stop() == 0
    rows = audit_rows(data)
    # Required records were durable before the answer, so the kill takes none but that of its own stop.
    assert [row["resource"] for row in of_clients(rows)] == [f"topic-{number}" for number in range(3)]
    assert [row["api"] for row in rows if row["event"] == "broker"].count("BrokerStart") == 4
    note = tmp_path / "note"
    said("checkpoint", "create", "-t", TOPIC, "--data", data, "--to", note)
    key = str(cordwood.list_checkpoints(data).key)
    said("backup", "--data", data, backup)
    said("restore", backup, "--data", restored)
    assert audit_rows(restored) == rows
    # What is restored is another directory, with a chain that goes on from there; the backup is the proof.
    assert run("verify", backup, "--checkpoint", note, "--key", key).exit_code == 0
    with Broker(restored, config=settings) as broker, Asking(broker.bootstrap) as client:
        client.create("after")
    assert [row["resource"] for row in of_clients(audit_rows(restored))][-2:] == ["topic-2", "after"]
    assert run("verify", restored).exit_code == 0


# --- cordwood.audit.required ------------------------------------------------------------------------


class Held:
    """A topic in place of the audit topic: its appends end when and as the test says."""

    def __init__(self) -> None:
        self.waiting: list[Any] = []

    def store(self, rows: Any, then: Any) -> None:
        self.waiting.append(then)


def test_where_records_are_required_a_change_is_answered_after_its_record_is_durable() -> None:
    with (
        Broker(config={**AUDITED, "cordwood.audit.required": "true"}) as broker,
        Asking(broker.bootstrap) as client,
    ):
        held = hold(broker)
        number = client.send(ApiKey.CREATE_TOPICS, 7, CreateTopicsRequest([creation("orders")]))
        until(lambda: held.waiting, "the append")
        # Requests of other clients go on, and show that the topic is there already.
        with Asking(broker.bootstrap) as other:
            assert other.topics("orders")[0].error_code == 0
        assert client.is_silent()
        broker._loop.call_soon_threadsafe(held.waiting.pop(0), None)
        answer = client.receive(ApiKey.CREATE_TOPICS, 7)
        assert answer.topics[0].error_code == 0
        assert number


@pytest.mark.parametrize("how", ["CreateTopics", "Metadata"])
def test_where_records_are_required_changes_are_refused_while_they_cannot_be_stored(how: str) -> None:
    def create(name: str) -> int:
        if how == "Metadata":
            return int(client.topics(name, create=True)[0].error_code)
        answer = client.ask(ApiKey.CREATE_TOPICS, CreateTopicsRequest([creation(name)]))
        return int(answer.topics[0].error_code)

    with (
        Broker(config={**AUDITED, "cordwood.audit.required": "true"}) as broker,
        Asking(broker.bootstrap) as client,
    ):
        failing, storing = Failing(), audit_of(broker)._topic
        audit_of(broker)._topic = failing
        # The first one is made before the failure is known: it is not answered as one that is on record.
        assert create("first") == ErrorCode.KAFKA_STORAGE_ERROR
        assert create("second") == ErrorCode.KAFKA_STORAGE_ERROR
        assert [each.name for each in all_topics(client)].count("second") == 0
        audit_of(broker)._topic = storing
        until(lambda: create("third") == 0 or create("fourth") == 0, "the next try")


class Failing:
    """A topic in place of the audit topic whose appends fail."""

    def store(self, rows: Any, then: Any) -> None:
        then(StorageError("the disk is full"))


def audit_of(broker: Broker) -> Any:
    assert broker._server is not None
    assert broker._server._contexts is not None
    return broker._server._contexts.means.audit


def hold(broker: Broker) -> Held:
    """Replace the audit topic of a server that has stored its first record."""
    audit = audit_of(broker)
    until(lambda: audit._settled == audit._noted, "the record of the start")
    audit._topic = held = Held()
    return held


def test_records_cannot_be_required_without_a_topic_for_them() -> None:
    with pytest.raises(InvalidSetting, match=r"cordwood\.audit\.topic"):
        Broker(config={"cordwood.audit.required": "true"})


def test_the_audit_log_has_a_name_that_no_topic_of_a_client_can_have() -> None:
    with pytest.raises(InvalidSetting, match="begins with __audit"):
        Broker(config={"cordwood.audit.topic": "orders"})
