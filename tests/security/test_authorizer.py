"""Decisions by ACLs are those of Kafka's StandardAuthorizer."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cordwood.security import (
    ANONYMOUS,
    CLUSTER_NAME,
    AclBinding,
    AclFilter,
    Acls,
    Operation,
    PatternType,
    Permission,
    Principal,
    ResourceType,
)

ALICE, BOB = Principal("User", "alice"), Principal("User", "bob")
HOST = "10.0.0.1"
ALLOW, DENY = Permission.ALLOW, Permission.DENY
LITERAL, PREFIXED = PatternType.LITERAL, PatternType.PREFIXED


def rule(
    permission: Permission,
    operation: Operation,
    name: str = "orders",
    pattern: PatternType = LITERAL,
    principal: str = "User:alice",
    host: str = "*",
    kind: ResourceType = ResourceType.TOPIC,
) -> AclBinding:
    return AclBinding(kind, name, pattern, principal, host, operation, permission)


def may(
    acls: Acls,
    operation: Operation,
    name: str = "orders",
    principal: Principal = ALICE,
    host: str = HOST,
    kind: ResourceType = ResourceType.TOPIC,
) -> bool:
    return acls.allows(principal, host, operation, kind, name)


def may_any(acls: Acls, operation: Operation, principal: Principal = ALICE, host: str = HOST) -> bool:
    return acls.allows_any(principal, host, operation, ResourceType.TOPIC)


# --- one resource ---------------------------------------------------------------------------------


def test_without_acls_nobody_may_do_anything() -> None:
    acls = Acls()
    for kind in (ResourceType.TOPIC, ResourceType.GROUP, ResourceType.CLUSTER):
        for operation in Operation:
            assert not acls.allows(ALICE, HOST, operation, kind, CLUSTER_NAME)


def test_an_acl_allows_its_operation_to_its_principal_on_its_resource() -> None:
    acls = Acls([rule(ALLOW, Operation.READ)])
    assert may(acls, Operation.READ)
    assert not may(acls, Operation.WRITE)
    assert not may(acls, Operation.READ, "order")
    assert not may(acls, Operation.READ, "orders2")
    assert not may(acls, Operation.READ, principal=BOB)
    assert not may(acls, Operation.READ, principal=Principal("Group", "alice"))
    assert not may(acls, Operation.READ, principal=ANONYMOUS)
    assert not may(acls, Operation.READ, kind=ResourceType.GROUP)


def test_a_prefix_covers_the_names_that_begin_with_it() -> None:
    acls = Acls([rule(ALLOW, Operation.READ, "ord", PREFIXED)])
    assert may(acls, Operation.READ, "orders")
    assert may(acls, Operation.READ, "ord")
    assert not may(acls, Operation.READ, "or")
    assert not may(acls, Operation.READ, "xord")


def test_the_wildcard_covers_every_name_and_the_prefix_star_does_not() -> None:
    assert may(Acls([rule(ALLOW, Operation.READ, "*")]), Operation.READ, "anything")
    acls = Acls([rule(ALLOW, Operation.READ, "*", PREFIXED)])
    assert not may(acls, Operation.READ, "anything")
    assert may(acls, Operation.READ, "*anything")


def test_everyone_is_every_user_of_any_kind() -> None:
    acls = Acls([rule(ALLOW, Operation.READ, principal="User:*")])
    assert may(acls, Operation.READ)
    assert may(acls, Operation.READ, principal=ANONYMOUS)
    assert may(acls, Operation.READ, principal=Principal("Group", "x"))
    assert not may(Acls([rule(ALLOW, Operation.READ, principal="Group:*")]), Operation.READ)


@pytest.mark.parametrize("denied", ["orders", "*"])
@pytest.mark.parametrize("order", [1, -1])
def test_a_deny_overrides_every_allow(denied: str, order: int) -> None:
    rules = [
        rule(ALLOW, Operation.ALL),
        rule(ALLOW, Operation.READ, "*", principal="User:*"),
        rule(ALLOW, Operation.READ, "ord", PREFIXED),
        rule(DENY, Operation.READ, denied, host=HOST),
    ]
    acls = Acls(rules[::order])
    assert not may(acls, Operation.READ)
    assert may(acls, Operation.READ, host="10.0.0.2")
    assert may(acls, Operation.WRITE)


def test_a_denied_prefix_overrides_an_allowed_name() -> None:
    acls = Acls([rule(ALLOW, Operation.READ), rule(DENY, Operation.READ, "o", PREFIXED)])
    assert not may(acls, Operation.READ)


def test_a_host_is_an_address() -> None:
    acls = Acls([rule(ALLOW, Operation.READ, host=HOST)])
    assert may(acls, Operation.READ)
    assert not may(acls, Operation.READ, host="10.0.0.11")
    assert not may(acls, Operation.READ, host="")


@pytest.mark.parametrize(
    ("written", "seen"),
    [
        ("::1", "::1"),
        ("0:0:0:0:0:0:0:1", "::1"),
        ("2001:DB8::A", "2001:db8:0:0::a"),
        ("10.0.0.1", "::ffff:10.0.0.1"),
        ("::ffff:10.0.0.1", "10.0.0.1"),
    ],
)
def test_one_address_written_in_two_ways_is_one_host(written: str, seen: str) -> None:
    """Java writes IPv6 addresses in full, and a DENY must not miss for that."""
    acls = Acls([rule(ALLOW, Operation.READ), rule(DENY, Operation.READ, host=written)])
    assert not may(acls, Operation.READ, host=seen)
    assert may(acls, Operation.READ, host="10.9.9.9")


IMPLYING_DESCRIBE = {Operation.READ, Operation.WRITE, Operation.DELETE, Operation.ALTER}


@pytest.mark.parametrize("operation", list(Operation)[3:], ids=lambda each: each.name)
def test_an_allowed_operation_implies_what_it_implies_in_kafka(operation: Operation) -> None:
    acls = Acls([rule(ALLOW, operation)])
    implied = {operation}
    if operation in IMPLYING_DESCRIBE:
        implied.add(Operation.DESCRIBE)
    if operation == Operation.ALTER_CONFIGS:
        implied.add(Operation.DESCRIBE_CONFIGS)
    assert {each for each in list(Operation)[3:] if may(acls, each)} == implied


@pytest.mark.parametrize("operation", list(Operation)[3:], ids=lambda each: each.name)
def test_a_denied_operation_denies_nothing_else(operation: Operation) -> None:
    acls = Acls([rule(ALLOW, Operation.ALL), rule(DENY, operation)])
    assert {each for each in list(Operation)[3:] if not may(acls, each)} == {operation}


def test_all_covers_every_operation() -> None:
    assert all(may(Acls([rule(ALLOW, Operation.ALL)]), each) for each in list(Operation)[3:])
    denied = Acls([rule(DENY, Operation.ALL), *(rule(ALLOW, each) for each in list(Operation)[3:])])
    assert not any(may(denied, each) for each in list(Operation)[3:])


def test_a_super_user_may_do_everything_whatever_is_denied() -> None:
    acls = Acls([rule(DENY, Operation.ALL, "*", principal="User:*")], [ALICE])
    assert may(acls, Operation.READ)
    assert may(acls, Operation.ALTER, CLUSTER_NAME, kind=ResourceType.CLUSTER)
    assert may_any(acls, Operation.WRITE)
    assert not may(acls, Operation.READ, principal=BOB)
    assert not may(acls, Operation.READ, principal=Principal("Group", "alice"))


def test_a_resource_without_acls_is_open_only_if_that_is_set() -> None:
    """Any ACL on a resource closes it, also one for others and for other operations."""
    acls = Acls([rule(ALLOW, Operation.WRITE, principal="User:bob")], allow_if_none=True)
    assert may(acls, Operation.READ, "others")
    assert may(acls, Operation.READ, "orders", kind=ResourceType.GROUP)
    assert not may(acls, Operation.READ)
    acls.add(rule(ALLOW, Operation.WRITE, "oth", PREFIXED, principal="User:bob"))
    assert not may(acls, Operation.READ, "others")
    acls.add(rule(ALLOW, Operation.WRITE, "*", principal="User:bob"))
    assert not may(acls, Operation.READ, "anything")


# --- any resource of a type -----------------------------------------------------------------------


def test_any_resource_is_allowed_by_one() -> None:
    assert not may_any(Acls(), Operation.WRITE)
    for pattern in PatternType.LITERAL, PatternType.PREFIXED:
        for name in "orders", "*":
            acls = Acls([rule(ALLOW, Operation.WRITE, name, pattern)])
            assert may_any(acls, Operation.WRITE)
            assert not may_any(acls, Operation.READ)
            assert not may_any(acls, Operation.WRITE, BOB)
            assert not acls.allows_any(ALICE, HOST, Operation.WRITE, ResourceType.GROUP)
    assert may_any(Acls(allow_if_none=True), Operation.WRITE)


@pytest.mark.parametrize(
    "denied",
    [
        rule(DENY, Operation.WRITE),
        rule(DENY, Operation.WRITE, "ord", PREFIXED),
        rule(DENY, Operation.WRITE, "orders", PREFIXED),
        rule(DENY, Operation.ALL, "*"),
        rule(DENY, Operation.WRITE, "*", principal="User:*", host=HOST),
    ],
)
def test_an_allow_that_a_deny_covers_does_not_count(denied: AclBinding) -> None:
    acls = Acls([rule(ALLOW, Operation.WRITE), denied])
    assert not may_any(acls, Operation.WRITE)
    acls.add(rule(ALLOW, Operation.WRITE, "orders-2"))
    assert may_any(acls, Operation.WRITE) == (denied.pattern_type == LITERAL and denied.resource_name != "*")


@pytest.mark.parametrize(
    "denied",
    [
        rule(DENY, Operation.WRITE, "orders-2"),
        rule(DENY, Operation.WRITE, "orders-", PREFIXED),
        rule(DENY, Operation.WRITE, principal="User:bob"),
        rule(DENY, Operation.WRITE, host="10.0.0.2"),
        rule(DENY, Operation.READ),
    ],
)
def test_an_allow_counts_unless_all_of_it_is_denied(denied: AclBinding) -> None:
    assert may_any(Acls([rule(ALLOW, Operation.WRITE), denied]), Operation.WRITE)
    prefixed = [rule(ALLOW, Operation.WRITE, "orders", PREFIXED), rule(DENY, Operation.WRITE, "orders")]
    assert may_any(Acls([*prefixed, denied]), Operation.WRITE)


def test_the_answer_about_any_resource_follows_every_change() -> None:
    acls, allowed, denied = Acls(), rule(ALLOW, Operation.WRITE), rule(DENY, Operation.WRITE)
    steps = ((acls.add, allowed, True), (acls.add, denied, False))
    for change, acl, expected in (*steps, (acls.remove, denied, True), (acls.remove, allowed, False)):
        assert may_any(acls, Operation.WRITE) is not expected
        change(acl)
        assert may_any(acls, Operation.WRITE) is expected


# --- the set of ACLs ------------------------------------------------------------------------------


def test_an_acl_is_there_once_and_gone_at_once() -> None:
    acls, allowed = Acls(), rule(ALLOW, Operation.READ)
    acls.add(allowed)
    acls.add(allowed)
    assert (len(acls), acls.matching(AclFilter())) == (1, [allowed])
    acls.remove(allowed)
    acls.remove(allowed)
    assert len(acls) == 0
    assert allowed not in acls
    assert not may(acls, Operation.READ)


def test_of_two_rules_for_one_address_one_remains() -> None:
    one, other = rule(DENY, Operation.READ, host="::1"), rule(DENY, Operation.READ, host="0:0::1")
    acls = Acls([rule(ALLOW, Operation.READ), one, other])
    acls.remove(one)
    assert not may(acls, Operation.READ, host="::1")
    acls.remove(other)
    assert may(acls, Operation.READ, host="::1")


def test_an_invalid_acl_is_refused_and_changes_nothing() -> None:
    acls = Acls()
    with pytest.raises(ValueError, match="expected a principal"):
        acls.add(rule(DENY, Operation.READ, principal="alice"))
    assert len(acls) == 0


# --- against a reference --------------------------------------------------------------------------

NAMES = st.text("ab*", min_size=1, max_size=4)
#: The name of the resource that Kafka asks about for all.
ASKED = st.one_of(NAMES, st.just("hardcode"))
HOSTS = st.sampled_from(["10.0.0.1", "10.0.0.2", "*"])
PRINCIPALS = st.sampled_from(["User:alice", "User:bob", "User:*"])
OPERATIONS = st.sampled_from(list(Operation)[2:])
SOME_OPERATIONS = st.sampled_from(
    [Operation.ALL, Operation.READ, Operation.WRITE, Operation.DESCRIBE, Operation.ALTER_CONFIGS]
)
KINDS = st.sampled_from([ResourceType.TOPIC, ResourceType.GROUP])
ACLS = st.builds(
    AclBinding,
    KINDS,
    ASKED,
    st.sampled_from([LITERAL, PREFIXED]),
    PRINCIPALS,
    HOSTS,
    st.one_of(SOME_OPERATIONS, OPERATIONS),
    st.sampled_from([ALLOW, DENY]),
)


def applies(acl: AclBinding, principal: Principal, host: str) -> bool:
    return acl.principal in (str(principal), "User:*") and acl.host in (host, "*")


def naive_allows(
    acls: Iterable[AclBinding],
    open_without: bool,
    principal: Principal,
    host: str,
    operation: Operation,
    kind: ResourceType,
    name: str,
) -> bool:
    """Decide by one pass over all rules, as the documentation of Kafka's authorizer says it."""
    covering = [
        acl
        for acl in acls
        if acl.resource_type == kind
        and (
            name.startswith(acl.resource_name)
            if acl.pattern_type == PREFIXED
            else acl.resource_name in (name, "*")
        )
    ]
    if not covering:
        return open_without
    applying = [acl for acl in covering if applies(acl, principal, host)]
    if any(acl.permission == DENY and acl.operation in (operation, Operation.ALL) for acl in applying):
        return False
    enough = {operation, Operation.ALL}
    if operation == Operation.DESCRIBE:
        enough |= IMPLYING_DESCRIBE
    if operation == Operation.DESCRIBE_CONFIGS:
        enough.add(Operation.ALTER_CONFIGS)
    return any(acl.permission == ALLOW and acl.operation in enough for acl in applying)


def naive_allows_any(
    acls: Iterable[AclBinding],
    open_without: bool,
    principal: Principal,
    host: str,
    operation: Operation,
    kind: ResourceType,
) -> bool:
    """Decide by the patterns of the rules that apply: is one allowed that no denied one covers?"""
    if naive_allows(acls, open_without, principal, host, operation, kind, "hardcode"):
        return True
    applying = [
        acl
        for acl in acls
        if acl.resource_type == kind
        and applies(acl, principal, host)
        and acl.operation in (operation, Operation.ALL)
    ]
    denied = {(acl.pattern_type, acl.resource_name) for acl in applying if acl.permission == DENY}
    allowed = {(acl.pattern_type, acl.resource_name) for acl in applying if acl.permission == ALLOW}
    if (LITERAL, "*") in denied:
        return False
    return (LITERAL, "*") in allowed or any(
        not ((pattern == LITERAL and (LITERAL, name) in denied) or covered(name, denied))
        for pattern, name in allowed
    )


def covered(name: str, denied: set[tuple[PatternType, str]]) -> bool:
    return any((PREFIXED, name[:size]) in denied for size in range(1, len(name) + 1))


@settings(max_examples=400)
@given(
    st.lists(ACLS, max_size=14),
    st.sets(st.integers(0, 13)),
    st.booleans(),
    st.lists(st.tuples(st.sampled_from(["10.0.0.1", "10.0.0.2"]), OPERATIONS, KINDS, ASKED), min_size=8),
)
def test_decisions_are_those_of_a_pass_over_all_rules(
    added: list[AclBinding],
    removed: set[int],
    open_without: bool,
    asked: list[tuple[str, Operation, ResourceType, str]],
) -> None:
    """Also after rules were removed in any order."""
    acls = Acls(added, allow_if_none=open_without)
    gone = {added[index] for index in removed if index < len(added)}
    for acl in gone:
        acls.remove(acl)
    left = dict.fromkeys(acl for acl in added if acl not in gone)
    assert acls.matching(AclFilter()) == list(left)
    for principal in (ALICE, BOB):
        for host, operation, kind, name in asked:
            expected = naive_allows(left, open_without, principal, host, operation, kind, name)
            assert acls.allows(principal, host, operation, kind, name) is expected
            expected = naive_allows_any(left, open_without, principal, host, operation, kind)
            assert acls.allows_any(principal, host, operation, kind) is expected


@settings(max_examples=200)
@given(st.lists(ACLS, max_size=14), st.one_of(ACLS, st.none()), st.data())
def test_a_filter_selects_what_its_fields_say(
    added: list[AclBinding], like: AclBinding | None, data: st.DataObject
) -> None:
    """A filter made of some fields of an ACL selects exactly the ACLs that have these fields."""
    fields = data.draw(st.sets(st.sampled_from(AclFilter._fields)))
    wanted = AclFilter() if like is None else AclFilter(**{field: getattr(like, field) for field in fields})
    chosen = fields if like is not None else set()
    expected = [
        acl
        for acl in dict.fromkeys(added)
        if all(getattr(acl, field) == getattr(like, field) for field in chosen)
    ]
    assert Acls(added).matching(wanted) == expected
