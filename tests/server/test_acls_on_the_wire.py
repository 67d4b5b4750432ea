"""ACLs over the wire: stored before the answer, in force with it, and those of one org only."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import confluent_kafka
import confluent_kafka.admin
import kafka
import kafka.admin
import kafka.errors
import pytest
from support.asking import Asking
from support.crashes import CrashCount, crash_images
from support.disks import FaultPlan, FaultyFiles, RecordingFiles

from cordwood import Broker
from cordwood.config import load_broker_config
from cordwood.disk import Files
from cordwood.disk.memory import MemoryFiles
from cordwood.errors import MetadataDamaged
from cordwood.formats import batch
from cordwood.protocol.apis import APIS, ApiKey
from cordwood.protocol.error_codes import ErrorCode
from cordwood.protocol.messages.security import (
    AclCreation,
    CreateAclsRequest,
    DeleteAclsFilter,
    DeleteAclsRequest,
    DescribeAclsRequest,
)
from cordwood.security import (
    AclBinding,
    AclFilter,
    Acls,
    Operation,
    PatternType,
    Permission,
    ResourceType,
)
from cordwood.server.security import StoredAcls
from cordwood.storage.directory import DataDirectory, Opening
from cordwood.storage.meta import AclEntry

ANYONE = "User:ANONYMOUS"
AUTHORIZER = {"authorizer.class.name": "cordwood"}
#: The client of these tests, who is not authenticated, may do everything.
BY_ANYONE = {**AUTHORIZER, "super.users": ANYONE}
EVERY = AclFilter()
READ = AclBinding(
    ResourceType.TOPIC, "orders", PatternType.LITERAL, "User:alice", "*", Operation.READ, Permission.ALLOW
)
PREFIXED = READ._replace(resource_name="ord", pattern_type=PatternType.PREFIXED, operation=Operation.WRITE)
DENIED = READ._replace(resource_type=ResourceType.GROUP, host="10.0.0.1", permission=Permission.DENY)
NONE = ErrorCode.NONE


def versions_of(key: ApiKey) -> range:
    return range(APIS[key].advertised.first, APIS[key].advertised.last + 1)


def create(client: Asking, *acls: AclBinding, version: int | None = None) -> list[tuple[int, str | None]]:
    request = CreateAclsRequest(creations=[AclCreation(*acl) for acl in acls])
    results = client.ask(ApiKey.CREATE_ACLS, request, version).results
    return [(each.error_code, each.error_message) for each in results]


def describe(client: Asking, wanted: AclFilter = EVERY, version: int | None = None) -> list[AclBinding]:
    answer = client.ask(ApiKey.DESCRIBE_ACLS, DescribeAclsRequest(*wanted), version)
    assert (answer.error_code, answer.error_message) == (NONE, None)
    return [
        AclBinding(
            ResourceType(each.resource_type),
            each.resource_name,
            PatternType(each.pattern_type),
            rule.principal,
            rule.host,
            Operation(rule.operation),
            Permission(rule.permission_type),
        )
        for each in answer.resources
        for rule in each.acls
    ]


def delete(client: Asking, *wanted: AclFilter, version: int | None = None) -> list[list[tuple[object, ...]]]:
    request = DeleteAclsRequest(filters=[DeleteAclsFilter(*each) for each in wanted])
    results = client.ask(ApiKey.DELETE_ACLS, request, version).filter_results
    assert {(each.error_code, each.error_message) for each in results} == {(NONE, None)}
    found = [acl for each in results for acl in each.matching_acls]
    assert {(acl.error_code, acl.error_message) for acl in found} <= {(NONE, None)}
    return [
        [
            (
                a.resource_type,
                a.resource_name,
                a.pattern_type,
                a.principal,
                a.host,
                a.operation,
                a.permission_type,
            )
            for a in each.matching_acls
        ]
        for each in results
    ]


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Broker(config=BY_ANYONE) as running:
        yield running


@pytest.fixture
def client(broker: Broker) -> Iterator[Asking]:
    with Asking(broker.bootstrap) as asking:
        yield asking


# --- create, describe, delete ---------------------------------------------------------------------


@pytest.mark.parametrize("version", versions_of(ApiKey.CREATE_ACLS))
def test_acls_are_created_described_and_deleted(client: Asking, version: int) -> None:
    assert describe(client, version=version) == []
    assert create(client, READ, PREFIXED, DENIED, READ, version=version) == [(NONE, None)] * 4
    assert create(client, READ, version=version) == [(NONE, None)], "once more is no error"
    assert describe(client, version=version) == [READ, PREFIXED, DENIED]
    matching = AclFilter(ResourceType.TOPIC, "orders", PatternType.MATCH)
    assert describe(client, matching, version=version) == [READ, PREFIXED]
    overlapping = delete(client, matching, AclFilter(operation=Operation.READ), EVERY._replace(host="none"))
    assert overlapping == [[READ, PREFIXED], [READ, DENIED], []]
    assert describe(client, version=version) == []


def test_rules_on_one_resource_are_one_resource_of_the_answer(client: Asking) -> None:
    create(client, READ, PREFIXED, READ._replace(operation=Operation.WRITE))
    answer = client.ask(ApiKey.DESCRIBE_ACLS, DescribeAclsRequest(*EVERY))
    assert [(each.resource_name, len(each.acls)) for each in answer.resources] == [("orders", 2), ("ord", 1)]


def test_an_impossible_acl_is_refused_and_the_others_are_created(client: Asking) -> None:
    impossible: list[dict[str, Any]] = [
        {"principal": "alice"},
        {"host": "example.com"},
        {"resource_name": ""},
        {"resource_name": "x" * 30_000},
        {"resource_type": 4},
        {"resource_type": 1},
        {"resource_type": 99},
        {"pattern_type": 2},
        {"operation": -3},
        {"permission": 1},
    ]
    results = create(client, READ, *(READ._replace(**each) for each in impossible), PREFIXED)
    assert [code for code, _ in results] == [NONE, *[ErrorCode.INVALID_REQUEST] * len(impossible), NONE]
    assert all(message for code, message in results if code)
    assert describe(client) == [READ, PREFIXED]


@pytest.mark.parametrize("field", ["resource_type", "pattern_type", "operation", "permission"])
@pytest.mark.parametrize("number", [0, 99])
def test_a_filter_that_is_not_understood_deletes_nothing(client: Asking, field: str, number: int) -> None:
    create(client, READ)
    fields: dict[str, Any] = {field: number}
    unknown = EVERY._replace(**fields)
    request = DeleteAclsRequest(
        filters=[DeleteAclsFilter(*unknown), DeleteAclsFilter(*AclFilter(host="none"))]
    )
    refused, other = client.ask(ApiKey.DELETE_ACLS, request).filter_results
    assert (refused.error_code, refused.matching_acls) == (ErrorCode.INVALID_REQUEST, [])
    assert (other.error_code, other.matching_acls) == (NONE, [])
    answer = client.ask(ApiKey.DESCRIBE_ACLS, DescribeAclsRequest(*unknown))
    assert (answer.error_code, answer.resources) == (ErrorCode.INVALID_REQUEST, [])
    assert describe(client) == [READ]


# --- in force -------------------------------------------------------------------------------------


def started(path: Path, acls: Sequence[AclEntry], **settings: str) -> Broker:
    """Start a broker whose catalogue has *acls*."""
    with Broker(path) as first:
        first._node.directory.security.change(acls)
    return Broker(
        path, config={**AUTHORIZER, **{name.replace("_", "."): text for name, text in settings.items()}}
    )


def entry(kind: int, name: str, operation: int, principal: str = ANYONE, org: int = 0) -> AclEntry:
    return AclEntry(org, kind, name, 3, principal, "*", operation, 3)


ALTER_CLUSTER = entry(4, "kafka-cluster", 7)
CREATE_TOPIC = entry(2, "orders", 5)


def test_an_acl_counts_with_its_answer_and_no_longer_with_that_of_its_deletion(tmp_path: Path) -> None:
    """On other connections too, which are open already."""
    with (
        started(tmp_path / "data", [ALTER_CLUSTER, CREATE_TOPIC, entry(2, "orders", 8)]) as broker,
        Asking(broker.bootstrap) as admin,
        Asking(broker.bootstrap) as user,
    ):
        admin.create("orders")
        frame = batch.encode_records([(None, b"1")], now_ms=1)
        refused = ErrorCode.TOPIC_AUTHORIZATION_FAILED
        allowed = READ._replace(principal=ANYONE, operation=Operation.WRITE)
        denied = allowed._replace(permission=Permission.DENY, host="127.0.0.1")
        for _ in range(3):
            assert user.produce("orders", frame).error_code == refused
            assert create(admin, allowed) == [(NONE, None)]
            assert user.produce("orders", frame).error_code == NONE
            assert create(admin, allowed._replace(permission=Permission.DENY, host="127.0.0.1")) == [
                (NONE, None)
            ]
            assert user.produce("orders", frame).error_code == refused
            assert delete(admin, AclFilter(permission=Permission.DENY)) == [[denied]]
            assert user.produce("orders", frame).error_code == NONE
            delete(admin, AclFilter(*allowed))


def test_acls_are_for_those_who_may_alter_or_describe_the_cluster(tmp_path: Path) -> None:
    refused = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    with (
        started(tmp_path / "data", [entry(4, "kafka-cluster", 8)]) as broker,
        Asking(broker.bootstrap) as client,
    ):
        assert [code for code, _ in create(client, READ, PREFIXED)] == [refused, refused]
        request = DeleteAclsRequest(filters=[DeleteAclsFilter(*EVERY)])
        (result,) = client.ask(ApiKey.DELETE_ACLS, request).filter_results
        assert (result.error_code, result.matching_acls) == (refused, [])
        assert [acl.operation for acl in describe(client)] == [Operation.DESCRIBE]
    with started(tmp_path / "data", []) as broker, Asking(broker.bootstrap) as client:
        assert [acl.principal for acl in describe(client)] == [ANYONE]
    with started(tmp_path / "none", []) as broker, Asking(broker.bootstrap) as client:
        answer = client.ask(ApiKey.DESCRIBE_ACLS, DescribeAclsRequest(*EVERY))
        assert (answer.error_code, answer.resources) == (refused, [])


def test_acls_survive_a_restart_and_wait_for_an_authorizer(tmp_path: Path) -> None:
    with Broker(tmp_path / "data", config=BY_ANYONE) as broker, Asking(broker.bootstrap) as client:
        create(client, READ, PREFIXED, DENIED)
        delete(client, AclFilter(*PREFIXED))
    with Broker(tmp_path / "data") as broker, Asking(broker.bootstrap) as client:
        answer = client.ask(ApiKey.DESCRIBE_ACLS, DescribeAclsRequest(*EVERY))
        assert answer.error_code == ErrorCode.SECURITY_DISABLED
        assert client.create("orders")
    with Broker(tmp_path / "data", config=BY_ANYONE) as broker, Asking(broker.bootstrap) as client:
        assert describe(client) == [DENIED, READ], "denials are stored first"


def test_a_resource_without_acls_is_open_if_that_is_set(tmp_path: Path) -> None:
    config = {"allow_everyone_if_no_acl_found": "true"}
    with (
        started(tmp_path / "data", [entry(2, "secret", 3, "User:bob")], **config) as broker,
        Asking(broker.bootstrap) as client,
    ):
        assert client.create("orders")
        frame = batch.encode_records([(None, b"1")], now_ms=1)
        assert client.produce("orders", frame).error_code == NONE
        assert client.topics("secret", create=True)[0].error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED


def test_an_org_has_acls_of_its_own(tmp_path: Path) -> None:
    """Under the names that its clients use: neither seen, nor deleted, nor applied in another org."""
    settings = {**BY_ANYONE, "cordwood.listener.SEVEN.org": "7"}
    listen = "PLAINTEXT://localhost:0,SEVEN://localhost:0"
    for _ in range(2):
        with (
            Broker(tmp_path / "data", listen=listen, config=settings) as broker,
            Asking(broker.addresses["PLAINTEXT"]) as own,
            Asking(broker.addresses["SEVEN"]) as other,
        ):
            create(own, READ)
            create(other, PREFIXED, READ)
            assert describe(own) == [READ]
            assert describe(other) == [PREFIXED, READ]
            assert delete(other, AclFilter(*READ)) == [[READ]]
            assert describe(own) == [READ]
    # An org whose listener allows nobody anything is not opened by the ACLs of org 0.
    with (
        started(tmp_path / "two", [ALTER_CLUSTER, entry(2, "orders", 2, org=7)]) as broker,
        Asking(broker.bootstrap) as client,
    ):
        assert client.topics("orders", create=True)[0].error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED


# --- faults ---------------------------------------------------------------------------------------


def test_what_could_not_be_stored_is_neither_acknowledged_nor_in_force() -> None:
    files = FaultyFiles(MemoryFiles())
    with Broker(files=files, config=BY_ANYONE) as broker, Asking(broker.bootstrap) as client:
        create(client, READ)
        files.plan(FaultPlan(1, frozenset({"write"}), errno.ENOSPC, forever=True))
        ((code, message),) = create(client, DENIED)
        assert code == ErrorCode.KAFKA_STORAGE_ERROR
        assert message
        request = DeleteAclsRequest(filters=[DeleteAclsFilter(*EVERY)])
        (result,) = client.ask(ApiKey.DELETE_ACLS, request).filter_results
        assert (result.error_code, result.matching_acls) == (ErrorCode.KAFKA_STORAGE_ERROR, [])
        assert describe(client) == [READ]
        files.heal()
        assert create(client, DENIED) == [(NONE, None)]
        assert describe(client) == [READ, DENIED]


def test_no_power_cut_leaves_what_is_allowed_without_what_is_denied() -> None:
    """Of one request, whatever the order in it: neither while the rules are created nor while they go."""
    recording = RecordingFiles(MemoryFiles())
    config = load_broker_config(environment={})[0]

    def opened(files: Files) -> DataDirectory:
        return DataDirectory(Opening(files, "/data", config, mapped=False, holder="a test"))

    stored = StoredAcls(Acls(), 0, opened(recording).security)
    recording.acknowledge("opened")
    everything = READ._replace(resource_name="*", operation=Operation.ALL)
    secret = READ._replace(resource_name="secret", permission=Permission.DENY)
    for _ in range(2):
        stored.create([everything, secret, PREFIXED])
        assert stored.delete([EVERY]) == [[everything, secret, PREFIXED]]
    count, seen = CrashCount(), set()
    for cut in crash_images(recording, limit_per_prefix=12, count=count):
        if cut.acknowledged:
            left = opened(cut.files).security.acls(0)
            names = {acl.resource_name for acl in left}
            assert "*" not in names or "secret" in names, f"cut after {cut.prefix} operations, {cut.kind}"
            seen.add(frozenset(names))
    print(f"{count.images} disks, {len(seen)} states")
    assert {frozenset(), frozenset({"secret"}), frozenset({"secret", "*", "ord"})} <= seen


def test_a_broker_with_an_acl_that_it_cannot_apply_does_not_start(tmp_path: Path) -> None:
    """The catalogue takes any text as a host; a rule for none of them might have been a DENY."""
    with pytest.raises(
        MetadataDamaged, match=r"catalogue\.log: an ACL of org 0: host 'nowhere' must be an IP"
    ):
        started(tmp_path / "data", [AclEntry(0, 2, "orders", 3, ANYONE, "nowhere", 3, 2)])
    with Broker(tmp_path / "data"):
        pass


# --- clients --------------------------------------------------------------------------------------


def test_confluent_kafka_manages_acls(broker: Broker) -> None:
    names: Any = confluent_kafka.admin
    admin = names.AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": 0})
    rule = names.AclBinding(
        names.ResourceType.TOPIC,
        "orders",
        names.ResourcePatternType.LITERAL,
        "User:alice",
        "*",
        names.AclOperation.READ,
        names.AclPermissionType.ALLOW,
    )
    for made in admin.create_acls([rule]).values():
        assert made.result(30) is None
    every = names.AclBindingFilter(
        names.ResourceType.ANY,
        None,
        names.ResourcePatternType.ANY,
        None,
        None,
        names.AclOperation.ANY,
        names.AclPermissionType.ANY,
    )
    assert admin.describe_acls(every).result(30) == [rule]
    (deleted,) = admin.delete_acls([every]).values()
    assert deleted.result(30) == [rule]
    assert admin.describe_acls(every).result(30) == []


def test_kafka_python_manages_acls(broker: Broker) -> None:
    names: Any = kafka.admin
    with contextlib.closing(kafka.KafkaAdminClient(bootstrap_servers=broker.bootstrap)) as client:
        admin: Any = client
        pattern = names.ResourcePattern(
            names.ResourceType.TOPIC, "ord", names.ACLResourcePatternType.PREFIXED
        )
        rule = names.ACL("User:alice", "*", names.ACLOperation.WRITE, names.ACLPermissionType.ALLOW, pattern)
        made = admin.create_acls([rule])
        assert made["succeeded"] == [rule]
        every = names.ACLFilter(
            None,
            None,
            names.ACLOperation.ANY,
            names.ACLPermissionType.ANY,
            names.ResourcePatternFilter(names.ResourceType.ANY, None, names.ACLResourcePatternType.ANY),
        )
        found, error = admin.describe_acls(every)
        assert error is kafka.errors.NoError
        assert found == [rule]
        ((_, deleted, _),) = admin.delete_acls([every])
        assert deleted == [rule]
