"""The matrix of rights: principals with their ACLs, and requests of every API and version that they make.

A broker is asked all of it, in one order, over connections of each principal. What it answers is reduced to
what differs between one who may and one who may not: error codes, the names that are listed, and the
operations that a client is told it may do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack
from typing import Any, NamedTuple

import msgspec
from support.authenticated import AuthenticatedClient
from support.authorization_table import TABLE, Row
from support.client_quotas import quotas_of
from support.serving import RawClient
from support.tenant_requests import LISTING, REACHING, Target, spoken

from cordwood.protocol.apis import ApiKey
from cordwood.protocol.error_codes import ErrorCode
from cordwood.protocol.messages import (
    authentication,
    controller,
    groups,
    metadata,
    producers,
    security,
    topics,
)
from cordwood.protocol.messages.api_versions import ApiVersionsRequest
from cordwood.security import Operation, PatternType, Permission, ResourceType

ADMIN = "admin"
TOPIC, GROUP = "orders", "billing"
#: What no principal has a rule for by its full name.
ABSENT_TOPIC = "missing"
#: Rules about it may come and go.
SPARE_TOPIC = "spare"
TXN_OF_OFFSETS = "t"
MEMBER = "member"
#: In place of a member, where a topic is named by its id.
BY_ID = "by id"
_TIMEOUT_MS = 10_000
_TRIES = 10_000
CLUSTER = "kafka-cluster"
_TRANSACTIONAL_ID = ResourceType.TRANSACTIONAL_ID
_OPERATIONS = (
    Operation.READ,
    Operation.WRITE,
    Operation.CREATE,
    Operation.DELETE,
    Operation.ALTER,
    Operation.DESCRIBE,
    Operation.CLUSTER_ACTION,
    Operation.DESCRIBE_CONFIGS,
    Operation.ALTER_CONFIGS,
    Operation.IDEMPOTENT_WRITE,
)
#: The operations that Kafka lets an ACL name for each kind of resource.
_POSSIBLE = {
    ResourceType.TOPIC: {
        Operation.READ,
        Operation.WRITE,
        Operation.CREATE,
        Operation.DELETE,
        Operation.ALTER,
        Operation.DESCRIBE,
        Operation.DESCRIBE_CONFIGS,
        Operation.ALTER_CONFIGS,
    },
    ResourceType.GROUP: {
        Operation.READ,
        Operation.DELETE,
        Operation.DESCRIBE,
        Operation.DESCRIBE_CONFIGS,
        Operation.ALTER_CONFIGS,
    },
    ResourceType.CLUSTER: {
        Operation.CREATE,
        Operation.CLUSTER_ACTION,
        Operation.DESCRIBE_CONFIGS,
        Operation.ALTER_CONFIGS,
        Operation.IDEMPOTENT_WRITE,
        Operation.ALTER,
        Operation.DESCRIBE,
    },
    _TRANSACTIONAL_ID: {Operation.WRITE, Operation.DESCRIBE},
}


class Rule(NamedTuple):
    """An ACL of one principal."""

    kind: ResourceType
    name: str
    pattern: PatternType = PatternType.LITERAL
    operation: Operation = Operation.ALL
    permission: Permission = Permission.ALLOW
    host: str = "*"


_NAMED = (
    Rule(ResourceType.TOPIC, TOPIC),
    Rule(ResourceType.GROUP, GROUP),
    Rule(_TRANSACTIONAL_ID, GROUP),
    Rule(_TRANSACTIONAL_ID, TXN_OF_OFFSETS),
    Rule(ResourceType.CLUSTER, CLUSTER),
)
_PREFIXED = tuple(
    Rule(each.kind, each.name[:3], PatternType.PREFIXED)
    for each in _NAMED
    if each.kind is not ResourceType.CLUSTER
)
_WILDCARD = tuple(Rule(kind, "*") for kind in (ResourceType.TOPIC, ResourceType.GROUP, _TRANSACTIONAL_ID))


def _denied(rules: tuple[Rule, ...]) -> tuple[Rule, ...]:
    return tuple(each._replace(permission=Permission.DENY) for each in rules)


def _only(operation: Operation) -> tuple[Rule, ...]:
    """Return the rules of one who may do one operation, with everything that has it."""
    return tuple(each._replace(operation=operation) for each in _NAMED if operation in _POSSIBLE[each.kind])


#: The principals and their rules. ``anonymous`` has not authenticated, and `ADMIN` is a super user.
PRINCIPALS: Mapping[str, tuple[Rule, ...]] = {
    "anonymous": (),
    "stranger": (),
    "allowed": _NAMED,
    "denied": (*_NAMED, *_denied(_NAMED)),
    "denied-prefix": (*_NAMED, *_denied(_PREFIXED)),
    "denied-all": (*_NAMED, *_denied(_WILDCARD)),
    "prefixed": _PREFIXED,
    "wildcard": _WILDCARD,
    "elsewhere": tuple(each._replace(host="192.0.2.1") for each in _NAMED),
    "not-from-here": (*_NAMED, *(each._replace(host="127.0.0.1") for each in _denied(_NAMED))),
    **{f"only-{operation.name.lower()}": _only(operation) for operation in _OPERATIONS},
    **{
        f"all-but-{operation.name.lower()}": (*_NAMED, *_denied(_only(operation)))
        for operation in (Operation.READ, Operation.WRITE, Operation.DESCRIBE, Operation.DESCRIBE_CONFIGS)
    },
    ADMIN: (),
}
PASSWORDS = {name: f"{name}-secret" for name in PRINCIPALS if name != "anonymous"}


def acls() -> security.CreateAclsRequest:
    """Return the request that creates the rules of all principals."""
    return security.CreateAclsRequest(
        creations=[
            security.AclCreation(
                resource_type=rule.kind,
                resource_name=rule.name,
                resource_pattern_type=rule.pattern,
                principal=f"User:{name}",
                host=rule.host,
                operation=rule.operation,
                permission_type=rule.permission,
            )
            for name, rules in PRINCIPALS.items()
            for rule in rules
        ]
    )


# --- requests ----------------------------------------------------------------------------------------


class Case(NamedTuple):
    """A request: its name says what is asked of, besides the API and the version."""

    key: ApiKey
    version: int
    about: str
    body: Callable[[bytes, str], Any]
    """Makes the body for the topic's id and the principal that asks."""
    everybody: bool = True
    """Whether all principals ask: otherwise only those that have not authenticated."""


def _auto_creation(name: str) -> Any:
    asked = [metadata.MetadataRequestTopic(name=name)]
    return metadata.MetadataRequest(
        topics=asked,
        allow_auto_topic_creation=True,
        include_cluster_authorized_operations=True,
        include_topic_authorized_operations=True,
    )


def _creation(name: str) -> Any:
    asked = topics.CreatableTopic(name=name, num_partitions=1, replication_factor=1)
    return topics.CreateTopicsRequest(topics=[asked], validate_only=True)


def _new_user(version: int) -> Any:
    added = authentication.ScramCredentialUpsertion("somebody", 1, 4096, b"salt", bytes(32))
    return authentication.AlterUserScramCredentialsRequest(upsertions=[added])


def _deleted_user(version: int) -> Any:
    deleted = authentication.ScramCredentialDeletion("nobody", 1)
    return authentication.AlterUserScramCredentialsRequest(deletions=[deleted])


#: Requests that neither name what is there nor list it.
_MORE: Mapping[tuple[ApiKey, str], Callable[[int], Any]] = {
    (ApiKey.INIT_PRODUCER_ID, "idempotent"): lambda version: producers.InitProducerIdRequest(
        transactional_id=None, transaction_timeout_ms=60_000
    ),
    (ApiKey.INIT_PRODUCER_ID, "transactional"): lambda version: producers.InitProducerIdRequest(
        transactional_id=GROUP, transaction_timeout_ms=60_000
    ),
    (ApiKey.METADATA, "operations"): lambda version: _auto_creation(TOPIC),
    (ApiKey.CREATE_TOPICS, "prefix"): lambda version: _creation(f"{TOPIC}-new"),
    (ApiKey.CREATE_TOPICS, "other"): lambda version: _creation("new"),
    (ApiKey.ALTER_CLIENT_QUOTAS, "of a user"): lambda version: quotas_of(
        {"user": "somebody"}, {"producer_byte_rate": 1.0}, validate_only=True
    ),
    (ApiKey.UPDATE_FEATURES, "nothing"): lambda version: controller.UpdateFeaturesRequest(),
    (ApiKey.ALTER_USER_SCRAM_CREDENTIALS, "a new user"): _new_user,
    (ApiKey.ALTER_USER_SCRAM_CREDENTIALS, "a user that does not exist"): _deleted_user,
    (ApiKey.API_VERSIONS, "versions"): lambda version: ApiVersionsRequest("test", "1"),
}
#: What is asked at a listener without authentication only: elsewhere it begins to authenticate again.
_ANONYMOUSLY: Mapping[ApiKey, Any] = {
    ApiKey.SASL_HANDSHAKE: authentication.SaslHandshakeRequest("PLAIN"),
    ApiKey.SASL_AUTHENTICATE: authentication.SaslAuthenticateRequest(b"\0admin\0wrong"),
}
#: Rows of the table that are asked in other words here.
OTHERWISE = {
    "METADATA by id": "METADATA id of orders",
    "METADATA of all": "METADATA everything",
    "DELETE_TOPICS by id": "DELETE_TOPICS id of orders",
    "INIT_PRODUCER_ID with an id": "INIT_PRODUCER_ID transactional",
    "DESCRIBE_CONFIGS of the broker": "DESCRIBE_CONFIGS everything",
    "DESCRIBE_TOPIC_PARTITIONS of all": "DESCRIBE_TOPIC_PARTITIONS everything",
}
#: Rows of the table that are not asked, and why.
NOT_ASKED = {
    "INIT_PRODUCER_ID in two phases": "version 6 is announced by neither broker",
    "INCREMENTAL_ALTER_CONFIGS that truncates": "the setting is not Kafka's",
    "INCREMENTAL_ALTER_CONFIGS that seals": "the setting is not Kafka's",
}
#: The row that is asked of brokers that create topics when they are named.
CREATING = "METADATA of a new topic"
#: Kafka never answers one who may not, if the list of users is null; and its users here have no such keys.
_INSTEAD: Mapping[ApiKey, Callable[[int], Any]] = {
    ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: lambda version: security.DescribeUserScramCredentialsRequest(
        users=[security.UserName("nobody")]
    ),
}


def _delete_topics(of: Target, version: int) -> Any:
    by_id = [topics.DeleteTopicState(name=None, topic_id=of.topic_id)]
    asked = by_id if of.member == BY_ID else [topics.DeleteTopicState(name=of.topic)]
    return topics.DeleteTopicsRequest(topics=asked, topic_names=[of.topic], timeout_ms=_TIMEOUT_MS)


def _metadata(of: Target, version: int) -> Any:
    by_id = metadata.MetadataRequestTopic(name=None, topic_id=of.topic_id)
    asked = by_id if of.member == BY_ID else metadata.MetadataRequestTopic(name=of.topic)
    return metadata.MetadataRequest(topics=[asked], allow_auto_topic_creation=False)


def _create_partitions(of: Target, version: int) -> Any:
    asked = topics.CreatePartitionsTopic(name=of.topic, count=3, assignments=None)
    return topics.CreatePartitionsRequest(topics=[asked], timeout_ms=_TIMEOUT_MS, validate_only=True)


#: Requests that say more than they do for other tests: time, and a name or an id where Kafka takes one.
_PRECISELY: Mapping[ApiKey, Callable[[Target, int], Any]] = {
    ApiKey.METADATA: _metadata,
    ApiKey.DELETE_TOPICS: _delete_topics,
    ApiKey.CREATE_PARTITIONS: _create_partitions,
    ApiKey.SYNC_GROUP: lambda of, version: groups.SyncGroupRequest(
        group_id=of.group,
        generation_id=1,
        member_id=of.member,
        protocol_type="consumer",
        protocol_name="range",
    ),
}
#: The versions from which on a topic may be named by its id.
_BY_ID = {ApiKey.METADATA: 12, ApiKey.DELETE_TOPICS: 6}


def cases(common: Mapping[ApiKey, range]) -> Iterator[Case]:
    """Yield every request in the versions that both brokers speak."""
    for key, make in {**REACHING, **_PRECISELY}.items():
        # Rules of the principals must not come and go meanwhile.
        names = (SPARE_TOPIC,) if key in (ApiKey.CREATE_ACLS, ApiKey.DELETE_ACLS) else (TOPIC, ABSENT_TOPIC)
        for version in common.get(key, ()):
            for name in names:
                yield Case(key, version, name, _reaching(make, name, version, MEMBER))
                if version >= _BY_ID.get(key, version + 1):
                    yield Case(key, version, f"id of {name}", _reaching(make, name, version, BY_ID))
    for key, listed in {**LISTING, **_INSTEAD}.items():
        for version in common.get(key, ()):
            yield Case(key, version, "everything", _plain(listed, version))
    for (key, about), other in _MORE.items():
        for version in common.get(key, ()):
            yield Case(key, version, about, _plain(other, version))
    for row in TABLE:
        if row.what and str(row) not in {*OTHERWISE, *NOT_ASKED, CREATING}:
            yield from _of_row(row, common)
    for key, request in _ANONYMOUSLY.items():
        for version in common.get(key, ()):
            yield Case(key, version, "anonymously", _fixed(request), everybody=False)


def _of_row(row: Row, common: Mapping[ApiKey, range]) -> Iterator[Case]:
    """Yield the requests of a row of the table, of what there is and of what there is not."""
    for version in common.get(row.key, ()):
        if row.first <= version <= row.last:
            for name, more in ((TOPIC, ""), (ABSENT_TOPIC, f" of {ABSENT_TOPIC}")):
                yield Case(row.key, version, row.what + more, _reaching(row.body, name, version, MEMBER))


def creations(common: Mapping[ApiKey, range]) -> Iterator[Case]:
    """Yield the requests by which each principal names topics of its own that do not exist."""

    def body(name: str, version: int) -> Callable[[bytes, str], Any]:
        return lambda topic_id, who: _auto_creation(f"{name}-{version}-{who}")

    for version in common[ApiKey.METADATA]:
        for name in (TOPIC, "new"):
            yield Case(ApiKey.METADATA, version, f"of a new topic like {name}", body(name, version))


def _reaching(
    make: Callable[[Target, int], Any], name: str, version: int, member: str
) -> Callable[[bytes, str], Any]:
    def body(topic_id: bytes, who: str) -> Any:
        group = GROUP if name == TOPIC else f"{GROUP}-{name}"
        return make(Target(name, topic_id if name == TOPIC else bytes(range(16)), group, member), version)

    return body


def _plain(make: Callable[[int], Any], version: int) -> Callable[[bytes, str], Any]:
    return lambda topic_id, who: make(version)


def _fixed(request: Any) -> Callable[[bytes, str], Any]:
    return lambda topic_id, who: request


# --- answers -----------------------------------------------------------------------------------------

_NAMES = {"name", "topic", "topic_name", "group_id", "transactional_id", "key", "resource_name"}
#: Lists in which brokers differ whatever one may do.
_THEIR_OWN = {"configs", "nodes", "supported_features", "finalized_features"}
#: A group that was deleted before, or has no offsets left, is not there any more on one of the brokers.
_SAME = {ErrorCode.GROUP_ID_NOT_FOUND: ErrorCode.NONE}
#: Codes that ask the client to try again.
_AGAIN = {ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS}


def reduced(body: Any) -> Any:
    """Return what says in an answer who may do what: codes, names, and told operations.

    Topics of the broker itself are left out: they come and go with what is asked of it.
    """
    if isinstance(body, msgspec.Struct):
        found: dict[str, Any] = {}
        for field in body.__struct_fields__:
            value = getattr(body, field)
            if field.endswith("error_code"):
                found[field] = int(_SAME.get(value, value))
            elif field in _NAMES and str(value).startswith("__"):
                return None
            elif field.endswith("authorized_operations") or field in _NAMES:
                found[field] = value
            elif (
                field not in _THEIR_OWN
                and isinstance(value, list)
                and value
                and isinstance(value[0], msgspec.Struct)
            ):
                inner = [each for each in map(reduced, value) if each]
                if inner:
                    found[field] = sorted(inner, key=repr)
        return found
    return body


class Asked:
    """A broker that is asked: connections of all principals to it."""

    def __init__(self, address: str, open_address: str, mechanism: str) -> None:
        self._stack = ExitStack()
        self._connections: dict[str, RawClient] = {
            "anonymous": self._stack.enter_context(RawClient(open_address))
        }
        for name, password in PASSWORDS.items():
            settings = {
                "security.protocol": "SASL_PLAINTEXT",
                "sasl.mechanism": mechanism,
                "sasl.username": name,
                "sasl.password": password,
            }
            connection = AuthenticatedClient(address, settings)
            self._connections[name] = self._stack.enter_context(connection)
        self.admin = self._connections[ADMIN]
        self._topic_id = b""

    def __enter__(self) -> Asked:
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def versions(self) -> dict[ApiKey, range]:
        """Return what the broker says it speaks, of what is spoken here."""
        answer = self.admin.ask(ApiKey.API_VERSIONS, ApiVersionsRequest("test", "1"), 3)
        said = {each.api_key: range(each.min_version, each.max_version + 1) for each in answer.api_keys}
        found = {}
        for key in ApiKey:
            both = set(spoken(key)) & set(said.get(int(key), ()))
            if both:
                found[key] = range(min(both), max(both) + 1)
        return found

    def prepare(self) -> None:
        """Create the rules and the topic, and have the coordinators ready, which Kafka makes when asked."""
        made = self.admin.ask(ApiKey.CREATE_ACLS, acls(), 3)
        assert {each.error_code for each in made.results} == {0}, made
        self.create()
        for kind, name in ((0, GROUP), (0, f"{GROUP}-{ABSENT_TOPIC}"), (1, GROUP), (1, TXN_OF_OFFSETS)):
            find = groups.FindCoordinatorRequest(key_type=kind, coordinator_keys=[name])
            self._until_ready(
                ApiKey.FIND_COORDINATOR, find, 4, lambda found: found.coordinators[0].error_code
            )
        for name in (GROUP, TXN_OF_OFFSETS):
            begin = producers.InitProducerIdRequest(transactional_id=name, transaction_timeout_ms=60_000)
            self._until_ready(ApiKey.INIT_PRODUCER_ID, begin, 4, lambda found: found.error_code)
        describe = groups.DescribeGroupsRequest(groups=[GROUP])
        self._until_ready(ApiKey.DESCRIBE_GROUPS, describe, 5, lambda found: found.groups[0].error_code)

    def _until_ready(self, key: ApiKey, body: Any, version: int, code: Callable[[Any], int]) -> None:
        for _ in range(_TRIES):
            if code(self.admin.ask(key, body, version)) == 0:
                return
        raise AssertionError(f"{key.name} is not answered")

    def create(self) -> None:
        """Create the topic unless it is there."""
        asked = topics.CreatableTopic(name=TOPIC, num_partitions=2, replication_factor=1)
        request = topics.CreateTopicsRequest(topics=[asked], timeout_ms=_TIMEOUT_MS)
        (made,) = self.admin.ask(ApiKey.CREATE_TOPICS, request, 7).topics
        if made.error_code == ErrorCode.TOPIC_ALREADY_EXISTS:
            return
        assert made.error_code == 0, made
        self._topic_id = bytes(made.topic_id)
        wanted = [metadata.MetadataRequestTopic(name=None, topic_id=self._topic_id)]
        look = metadata.MetadataRequest(topics=wanted, allow_auto_topic_creation=False)
        self._until_ready(ApiKey.METADATA, look, 12, lambda found: found.topics[0].error_code)

    def ask(self, principal: str, case: Case) -> Any:
        """Return the reduced answer."""
        connection, body = self._connections[principal], case.body(self._topic_id, principal)
        for _ in range(_TRIES):
            answer = connection.ask(case.key, body, case.version)
            if getattr(answer, "error_code", 0) not in _AGAIN:
                break
        if case.key is ApiKey.DELETE_TOPICS:
            self.create()
        return reduced(answer)

    def answers(self, asked: Iterable[Case]) -> dict[str, Any]:
        """Return the reduced answers to every request of every principal, by its name."""
        return {
            f"{case.key.name} {case.version} {case.about} {principal}": self.ask(principal, case)
            for case in asked
            for principal in (PRINCIPALS if case.everybody else ["anonymous"])
        }
