"""Every API in every version, asked by clients with and without rights: the answers are Kafka's."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.authorization_table import CLUSTER, GROUP, TABLE, TOPIC, Need, Row, documented
from support.authorizing import (
    ALICE,
    ELSEWHERE,
    HERE,
    MALLORY,
    OTHER,
    OWN,
    ROOT,
    Answered,
    AskedServer,
    errors_in,
    plain,
    rule,
)
from support.tenant_requests import Target

from cordwood.broker.audit import AuditEvent, AuditOutcome
from cordwood.formats import batch
from cordwood.protocol.apis import APIS, ApiKey
from cordwood.protocol.error_codes import ErrorCode
from cordwood.protocol.messages import group_offsets, producers, topics, transactions
from cordwood.protocol.messages.produce import ProducePartition, ProduceRequest, ProduceTopic
from cordwood.security import (
    ANONYMOUS,
    CLUSTER_NAME,
    AclBinding,
    Acls,
    ClientEntity,
    Operation,
    PatternType,
    Permission,
    Principal,
)
from cordwood.server.audit import RequestWatch
from cordwood.server.audit.changes import CHANGES
from cordwood.server.audit.watching import api_name
from cordwood.server.security import SharedAcls
from cordwood.server.service import HANDLERS

EVERYONE = Principal("User", "*")
PRODUCE_NEWEST = APIS[ApiKey.PRODUCE].advertised.last


def versions_of(row: Row) -> list[int]:
    """Return the versions in which a row is asked: also those that clients are not told of."""
    accepted = APIS[row.key].versions
    return [version for version in range(row.first, row.last + 1) if version in accepted]


#: The errors of denied requests.
DENIALS = {
    ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    ErrorCode.GROUP_AUTHORIZATION_FAILED,
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
}
#: Every row in every version.
CASES = [(row, version) for row in TABLE for version in versions_of(row)]


class Asker:
    """Makes topics, groups and transactional ids to ask for, and asks; names are the same in each run."""

    def __init__(self, server: AskedServer) -> None:
        self.server = server
        self.ids: dict[bytes, bytes] = {}
        self.names: list[str] = []
        self._made = 0

    def authorize(self, acls: Acls | None, org: int = OWN) -> SharedAcls | None:
        """Have an org's requests decided by *acls* from here on."""
        shared = None if acls is None else SharedAcls(acls)
        self.server.contexts[org].authorization = shared
        return shared

    def make(self, row: Row | None = None, org: int = OWN, number: int | None = None) -> Target:
        """Make what the request of a row asks for."""
        self.authorize(None, org)
        if number is None:
            self._made = number = self._made + 1
        target = Target(f"{number:05}-orders", bytes(16), f"{number:05}-billing", "member")
        self.names.append(target.topic)
        if row is not None and row.absent:
            return target
        target = target._replace(topic_id=self._topic(target, org))
        key = ApiKey.API_VERSIONS if row is None else row.key
        if key in _WITH_OFFSETS:
            self._commit(target, org)
        if key in _WITH_TRANSACTION:
            self._begin(target, org)
        return target

    def _topic(self, target: Target, org: int) -> bytes:
        asked = topics.CreatableTopic(name=target.topic, num_partitions=2, replication_factor=1)
        request = topics.CreateTopicsRequest(topics=[asked])
        (made,) = self.server.ask(ApiKey.CREATE_TOPICS, 7, request, org=org).body.topics
        assert not made.error_code
        self.ids[made.topic_id] = target.topic.encode()
        record = produce_request({target.topic: made.topic_id})
        answer = self.server.ask(ApiKey.PRODUCE, PRODUCE_NEWEST, record, org=org)
        assert errors_in(answer.body) == {"topics.partitions.error_code": {0}}
        return bytes(made.topic_id)

    def _commit(self, target: Target, org: int) -> None:
        part = group_offsets.OffsetCommitRequestPartition(
            partition_index=0, committed_offset=1, committed_metadata="note"
        )
        topic = group_offsets.OffsetCommitRequestTopic(name=target.topic, partitions=[part])
        request = group_offsets.OffsetCommitRequest(group_id=target.group, topics=[topic])
        answer = self.server.ask(ApiKey.OFFSET_COMMIT, 9, request, org=org)
        assert errors_in(answer.body) == {"topics.partitions.error_code": {0}}

    def _begin(self, target: Target, org: int) -> None:
        init = producers.InitProducerIdRequest(transactional_id=target.group, transaction_timeout_ms=60_000)
        producer = self.server.ask(ApiKey.INIT_PRODUCER_ID, 5, init, org=org).body
        assert not producer.error_code
        added = transactions.AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=target.group,
            v3_and_below_producer_id=producer.producer_id,
            v3_and_below_producer_epoch=producer.producer_epoch,
            v3_and_below_topics=[transactions.AddPartitionsToTxnTopic(name=target.topic, partitions=[0])],
        )
        answer = self.server.ask(ApiKey.ADD_PARTITIONS_TO_TXN, 3, added, org=org)
        (topic,) = answer.body.results_by_topic_v3_and_below
        assert not topic.results_by_partition[0].partition_error_code

    def ask(
        self,
        row: Row,
        version: int,
        target: Target,
        principal: Principal,
        *,
        host: str = HERE,
        org: int = OWN,
    ) -> Answered:
        """Ask as a row does."""
        answer = self.server.ask(row.key, version, row.body(target, version), principal, host=host, org=org)
        found = self.server.contexts[org].tenant.find(target.topic)
        if found is not None:
            self.ids[found.id] = target.topic.encode()
        return answer

    def state(self, target: Target, org: int = OWN) -> Any:
        """Return everything that there is of a target: topic, records, offsets, members, transaction."""
        context = self.server.contexts[org]
        topic, group = context.tenant.find(target.topic), context.groups.find(target.group)
        transaction = context.transactions.find(target.group)
        found: list[Any] = [
            dict(context.groups.offsets(target.group)),
            group and list(group.members),
            transaction and (transaction.state, transaction.current),
            dict(context.client_quotas.limits.of(ClientEntity(target.group))),
        ]
        if topic is not None:
            logs = [
                context.node.directory.partitions.readable(topic.key, number)
                for number in range(topic.partitions)
            ]
            found += [topic.entry, [(log.log_start_offset, log.high_watermark) for log in logs]]
        return found

    def comparable(self, answer: Answered) -> bytes:
        """Return the bytes of an answer without what is random."""
        return self.server.comparable(answer, self.ids)


_WITH_OFFSETS = {
    ApiKey.OFFSET_FETCH,
    ApiKey.LIST_GROUPS,
    ApiKey.DESCRIBE_GROUPS,
    ApiKey.DELETE_GROUPS,
    ApiKey.OFFSET_DELETE,
}
_WITH_TRANSACTION = {
    ApiKey.ADD_PARTITIONS_TO_TXN,
    ApiKey.ADD_OFFSETS_TO_TXN,
    ApiKey.TXN_OFFSET_COMMIT,
    ApiKey.END_TXN,
    ApiKey.DESCRIBE_TRANSACTIONS,
    ApiKey.LIST_TRANSACTIONS,
}


def produce_request(named: dict[str, bytes]) -> ProduceRequest:
    """Return a request that appends a record to partition 0 of topics."""
    data = batch.encode_records([(b"key", b"value")], 1_000)
    asked = [
        ProduceTopic(name, topic_id, [ProducePartition(0, memoryview(data))])
        for name, topic_id in named.items()
    ]
    return ProduceRequest(None, -1, 1_000, asked)


def literal(needs: Iterable[Need], target: Target, **more: Any) -> list[AclBinding]:
    """Return the rules that allow exactly *needs*."""
    return [rule(need.kind, need.operation, need.name(target), **more) for need in needs]


def prefixed(needs: Iterable[Need], target: Target) -> list[AclBinding]:
    rules = literal([need for need in needs if need.kind == CLUSTER], target)
    for need in needs:
        if need.kind != CLUSTER:
            prefix = need.name(target).partition("-")[0] + "-"
            rules.append(rule(need.kind, need.operation, prefix, pattern=PatternType.PREFIXED))
    return rules


def wildcard(needs: Iterable[Need], target: Target) -> list[AclBinding]:
    return [
        rule(need.kind, need.operation, CLUSTER_NAME if need.kind == CLUSTER else "*", principal=EVERYONE)
        for need in needs
    ]


def here_only(needs: Iterable[Need], target: Target) -> list[AclBinding]:
    return literal(needs, target, host=HERE)


@pytest.fixture(scope="module")
def asker() -> Iterator[Asker]:
    with AskedServer() as server:
        yield Asker(server)


@pytest.fixture(scope="module")
def unrestricted() -> dict[tuple[str, int], tuple[bytes, Any]]:
    """The answers of a server without an authorizer."""
    return run(lambda row, target: None, ANONYMOUS)


def run(
    acls: Callable[[Row, Target], Acls | None], principal: Principal
) -> dict[tuple[str, int], tuple[bytes, Any]]:
    """Ask everything of a new server, each with rules of its own; return the answers."""
    found = {}
    with AskedServer() as server:
        asker = Asker(server)
        for row, version in CASES:
            target = asker.make(row)
            asker.authorize(acls(row, target))
            answer = asker.ask(row, version, target, principal)
            assert answer.closed is None, (str(row), version)
            found[str(row), version] = (asker.comparable(answer), answer.body)
        for context in server.contexts:
            context.authorization = None
    return found


def test_every_api_has_a_row() -> None:
    """An API that is added is asked for here, or this fails."""
    assert {row.key for row in TABLE} == set(APIS) == set(HANDLERS)
    assert len({str(row) for row in TABLE}) == len(TABLE)
    for key in HANDLERS:
        asked = {version for row in TABLE if row.key is key for version in versions_of(row)}
        assert asked == set(range(APIS[key].versions.first, APIS[key].versions.last + 1)), key
    assert all(versions_of(row) for row in TABLE)
    print(f"{len(TABLE)} requests of {len(HANDLERS)} APIs, {len(CASES)} with their versions")


Answers = dict[tuple[str, int], tuple[bytes, Any]]


def test_a_super_user_is_answered_byte_for_byte_as_without_an_authorizer(unrestricted: Answers) -> None:
    answers = run(lambda row, target: Acls([], [ROOT]), ROOT)
    for case, (answer, _) in answers.items():
        assert answer == unrestricted[case][0], case
    print(f"{len(answers)} answers are the same")
    assert len(answers) > 250


def essence(body: Any) -> Any:
    """Return what a message says, without random ids and without the operations that the client may do."""
    if isinstance(body, dict):
        return {
            field: essence(value)
            for field, value in body.items()
            if not field.endswith("authorized_operations") and field not in _RANDOM
        }
    return [essence(each) for each in body] if isinstance(body, list) else body


#: Fields that are random, or a number that is counted for all orgs.
_RANDOM = {"topic_id", "member_id", "leader", "cluster_id", "producer_id"}
Grant = Callable[[Iterable[Need], Target], list[AclBinding]]


@pytest.mark.parametrize("grant", [literal, here_only, prefixed, wildcard], ids=lambda grant: grant.__name__)
def test_exactly_the_rights_of_the_table_are_enough(grant: Grant, unrestricted: Answers) -> None:
    """What is asked for by name is answered as without an authorizer; a listing has what is allowed."""
    answers = run(lambda row, target: Acls(grant(row.needs, target)), ALICE)
    listings = 0
    for number, (row, version) in enumerate(CASES, 1):
        case = (str(row), version)
        frame, body = answers[case]
        if row.lists and grant is not wildcard:
            listings += 1
            names = set(re.findall(rb"\d{5}-(?:orders|billing)", frame))
            assert names, case
            assert names <= {b"%05d-orders" % number, b"%05d-billing" % number}, case
        else:
            assert essence(plain(body)) == essence(plain(unrestricted[case][1])), case
    print(f"{len(answers)} answers, {listings} of them listings")
    assert len(answers) > 250


def test_another_right_does_as_well_where_kafka_says_so(asker: Asker) -> None:
    asked = 0
    for row, version in CASES:
        for need in row.needs:
            for kind, operation in need.instead:
                target = asker.make(row)
                others = literal([each for each in row.needs if each is not need], target)
                name = CLUSTER_NAME if kind == CLUSTER else target.topic
                asker.authorize(Acls([*others, rule(kind, operation, name)]))
                answer = asker.ask(row, version, target, ALICE)
                codes = {code for codes in errors_in(answer.body).values() for code in codes}
                assert codes.isdisjoint(DENIALS), (str(row), version, codes)
                if row.lists:
                    assert need.name(target).encode() in answer.frame
                asked += 1
    print(f"{asked} requests")
    assert asked > 30


def check_refused(need: Need, row: Row, version: int, target: Target, answer: Answered) -> None:
    """Check the answer to a client that has not the right *need*."""
    what = (str(row), version, need)
    found, paths = errors_in(answer.body), need.paths_in(version)
    assert set(paths) <= set(found), what
    for path, codes in found.items():
        assert codes == ({need.code} if path in paths else {0}), (path, codes, *what)
    if need.unseen or not need.paths:
        name = target.topic if need.kind == CLUSTER else need.name(target)
        assert name.encode() not in answer.frame, what


#: Who is refused: the principal, its address, its org, and whether rules deny what others allow.
REFUSED = {
    "no principal": (ANONYMOUS, HERE, OWN, False),
    "a stranger": (MALLORY, HERE, OWN, False),
    "denied": (ALICE, HERE, OWN, True),
    "elsewhere": (ALICE, ELSEWHERE, OWN, False),
    "another tenant": (ALICE, HERE, OTHER, False),
}


def denials(needs: Iterable[Need], target: Target) -> list[AclBinding]:
    """Return rules that deny everything on the resources of *needs*, and on those that do as well.

    Everything, because an operation that another one implies is not denied with that one.
    """
    return [
        rule(
            kind,
            Operation.ALL,
            CLUSTER_NAME if kind == CLUSTER else target.topic if kind == TOPIC else need.name(target),
            permission=Permission.DENY,
        )
        for need in needs
        for kind in (need.kind, *(kind for kind, _ in need.instead))
    ]


def test_who_has_no_right_is_refused_and_changes_nothing(unrestricted: Answers) -> None:
    """In every version of every API. What is asked afterwards is answered as if nobody had asked before."""
    asked = 0
    with AskedServer() as server:
        asker = Asker(server)
        for number, (row, version) in enumerate(CASES, 1):
            target, theirs = asker.make(row), asker.make(row, OTHER, number)
            allowed = literal(row.needs, target, host=HERE)
            asker.authorize(Acls(), OTHER)
            states = [asker.state(target), asker.state(theirs, OTHER)]
            for who, (principal, host, org, denied) in REFUSED.items():
                asker.authorize(Acls([*allowed, *denials(row.needs, target)] if denied else allowed))
                reached = theirs if org == OTHER else target
                answer = asker.ask(row, version, reached, principal, host=host, org=org)
                assert answer.closed is None, (who, str(row), version)
                if row.needs:
                    check_refused(row.needs[0], row, version, reached, answer)
                else:
                    before = unrestricted[str(row), version][1]
                    assert essence(plain(answer.body)) == essence(plain(before)), (who, str(row))
                asked += 1
            if row.needs:
                assert [asker.state(target), asker.state(theirs, OTHER)] == states, (str(row), version)
            asker.authorize(None)
            answer = asker.ask(row, version, target, ALICE)
            before = unrestricted[str(row), version][1]
            assert essence(plain(answer.body)) == essence(plain(before)), (str(row), version)
        server.contexts[OTHER].authorization = None
    print(f"{asked} requests of {len(REFUSED)} kinds of clients")
    assert asked > 1200


def test_what_exists_is_refused_byte_for_byte_as_what_does_not() -> None:
    """Whoever has no right cannot find out which names there are, only whether somebody has an id."""
    asked = 0
    with AskedServer() as server:
        asker = Asker(server)
        for row, version in CASES:
            target = asker.make(row)
            missing = target._replace(topic_id=bytes(16))
            if not row.needs or repr(row.body(target, version)) != repr(row.body(missing, version)):
                continue
            answers = []
            for org in (OWN, OTHER):
                # What the target names is missing in the other org.
                asker.authorize(Acls(), org)
                answers.append(asker.comparable(asker.ask(row, version, target, ALICE, org=org)))
            assert answers[0] == answers[1], (str(row), version)
            asked += 1
        for context in server.contexts:
            context.authorization = None
    print(f"{asked} requests, each for what exists and for what does not")
    assert asked > 200


def test_who_lacks_one_right_is_told_of_that_one(asker: Asker) -> None:
    """With all other rights of the table. If Kafka hides something, the answer does not have its name."""
    asked = 0
    for row, version in CASES:
        for need in row.needs:
            target = asker.make(row)
            rules = literal([each for each in row.needs if each is not need], target)
            asker.authorize(Acls(rules))
            check_refused(need, row, version, target, asker.ask(row, version, target, ALICE))
            asked += 1
    print(f"{asked} requests")
    assert asked > 300


class KeptEvents:
    """An audit log that keeps its events."""

    required = refuses_changes = False

    def __init__(self) -> None:
        self.events: list[AuditEvent] = []

    def note(self, event: AuditEvent) -> None:
        self.events.append(event)


def test_who_lacks_one_right_is_recorded_once_with_the_resource_of_that_right() -> None:
    """In the audit log, in every version of every API."""
    kept: Any = KeptEvents()
    asked = 0
    with AskedServer() as server:
        asker = Asker(server)
        context = server.contexts[OWN]
        for row, version in CASES:
            for need in row.needs:
                if set(need.paths_in(version)) <= {"topics.topic_config_error_code"}:
                    # What Kafka hides is not denied, nor is a new topic whose settings it hides.
                    continue
                context.watch = None
                target = asker.make(row)
                asker.authorize(Acls(literal([each for each in row.needs if each is not need], target)))
                context.watch, kept.events = RequestWatch(kept, context.tenant), []
                asker.ask(row, version, target, ALICE)
                denied = [each for each in kept.events if each.outcome is AuditOutcome.DENIED]
                found = {(each.api, each.resource_type, each.resource) for each in denied}
                what = (str(row), version, need, found)
                assert len(found) == 1, what
                ((api, kind, name),) = found
                assert api == api_name(row.key), what
                assert {each.error for each in denied} == {need.code.name}, what
                if need.kind != CLUSTER:
                    types = {TOPIC: "topic", GROUP: "group"}
                    assert (kind, name) == (types.get(need.kind, "transactional_id"), need.name(target)), what
                elif row.key not in CHANGES:
                    assert (kind, name) == ("cluster", ""), what
                asked += 1
    print(f"{asked} denied requests")
    assert asked > 200


def test_the_page_of_operations_has_exactly_the_table() -> None:
    page = (Path(__file__).parents[2] / "docs/security-operations.md").read_text()
    listed = [line for line in page.splitlines() if line.startswith("| ")]
    assert listed[0].startswith("| Request |")
    assert listed[1:] == [line for row in TABLE for line in documented(row)]
