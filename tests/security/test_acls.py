"""ACLs and filters for them are what Kafka's are."""

from __future__ import annotations

from typing import Any

import pytest

from cordwood.security import (
    NAME_MAX,
    AclBinding,
    AclFilter,
    Operation,
    PatternType,
    Permission,
    ResourceType,
    acl_fault,
)

ANY_TOPIC = AclFilter(ResourceType.TOPIC)


def acl(
    name: str = "orders",
    pattern: PatternType = PatternType.LITERAL,
    principal: str = "User:alice",
    host: str = "*",
    operation: Operation = Operation.READ,
    permission: Permission = Permission.ALLOW,
    kind: ResourceType = ResourceType.TOPIC,
) -> AclBinding:
    return AclBinding(kind, name, pattern, principal, host, operation, permission)


LITERAL, PREFIXED, WILDCARD = acl("orders"), acl("ord", PatternType.PREFIXED), acl("*")


@pytest.mark.parametrize(
    ("pattern", "name", "selected"),
    [
        (PatternType.LITERAL, "orders", [LITERAL]),
        (PatternType.LITERAL, "ord", []),
        (PatternType.LITERAL, "*", [WILDCARD]),
        (PatternType.LITERAL, None, [LITERAL, WILDCARD]),
        (PatternType.PREFIXED, "ord", [PREFIXED]),
        (PatternType.PREFIXED, "orders", []),
        (PatternType.PREFIXED, None, [PREFIXED]),
        (PatternType.ANY, "orders", [LITERAL]),
        (PatternType.ANY, "ord", [PREFIXED]),
        (PatternType.ANY, None, [LITERAL, PREFIXED, WILDCARD]),
        (PatternType.MATCH, "orders", [LITERAL, PREFIXED, WILDCARD]),
        (PatternType.MATCH, "ord", [PREFIXED, WILDCARD]),
        (PatternType.MATCH, "or", [WILDCARD]),
        (PatternType.MATCH, "*", [WILDCARD]),
        (PatternType.MATCH, None, [LITERAL, PREFIXED, WILDCARD]),
    ],
)
def test_a_filter_selects_by_name_and_type_of_pattern(
    pattern: PatternType, name: str | None, selected: list[AclBinding]
) -> None:
    """``MATCH`` selects what applies to a resource; all other types compare the pattern itself."""
    wanted = ANY_TOPIC._replace(pattern_type=pattern, resource_name=name)
    assert [each for each in (LITERAL, PREFIXED, WILDCARD) if wanted.matches(each)] == selected


def test_each_field_of_a_filter_must_match() -> None:
    rule = acl(host="10.0.0.1")
    assert AclFilter().matches(rule)
    exact = AclFilter(*rule)
    assert exact.matches(rule)
    others: dict[str, Any] = {
        "resource_type": ResourceType.GROUP,
        "resource_name": "others",
        "pattern_type": PatternType.PREFIXED,
        "principal": "User:bob",
        "host": "10.0.0.2",
        "operation": Operation.WRITE,
        "permission": Permission.DENY,
    }
    assert others.keys() == set(AclFilter._fields)
    for field, value in others.items():
        assert not exact._replace(**{field: value}).matches(rule), field


def test_a_filter_takes_principals_and_hosts_literally() -> None:
    """In a filter ``User:*`` and ``*`` are the rules for everyone and everywhere, and no others."""
    assert not AclFilter(principal="User:*").matches(acl())
    assert AclFilter(principal="User:*").matches(acl(principal="User:*"))
    assert not AclFilter(host="*").matches(acl(host="10.0.0.1"))
    assert not AclFilter(operation=Operation.ALL).matches(acl())


@pytest.mark.parametrize(
    ("wanted", "word"),
    [
        (AclFilter(ResourceType.UNKNOWN), "resource type"),
        (AclFilter(pattern_type=PatternType.UNKNOWN), "pattern type"),
        (AclFilter(operation=Operation.UNKNOWN), "operation"),
        (AclFilter(permission=Permission.UNKNOWN), "permission type"),
    ],
)
def test_a_filter_with_an_unknown_field_is_refused(wanted: AclFilter, word: str) -> None:
    """What it would delete is not known."""
    assert wanted.fault == f"the {word} of the filter is unknown"
    assert AclFilter().fault is None


@pytest.mark.parametrize(
    "valid",
    [
        acl(),
        acl("*"),
        acl("x" * NAME_MAX, PatternType.PREFIXED),
        acl(principal="User:*", host="10.0.0.1", permission=Permission.DENY),
        acl(principal="User:CN=a,OU=b:c", host="2001:db8::1", operation=Operation.ALL),
        acl("kafka-cluster", kind=ResourceType.CLUSTER, operation=Operation.ALTER),
        acl("tx-", PatternType.PREFIXED, kind=ResourceType.TRANSACTIONAL_ID),
        acl("User:alice", kind=ResourceType.USER, operation=Operation.CREATE_TOKENS),
    ],
)
def test_what_kafka_accepts_is_accepted(valid: AclBinding) -> None:
    assert acl_fault(valid) is None


@pytest.mark.parametrize(
    ("invalid", "fault"),
    [
        (acl(kind=ResourceType.ANY), "invalid resource type ANY"),
        (acl(kind=ResourceType.UNKNOWN), "invalid resource type UNKNOWN"),
        (acl(operation=Operation.ANY), "invalid operation ANY"),
        (acl(operation=Operation.UNKNOWN), "invalid operation UNKNOWN"),
        (acl(pattern=PatternType.MATCH), "invalid pattern type MATCH"),
        (acl(pattern=PatternType.ANY), "invalid pattern type ANY"),
        (acl(pattern=PatternType.UNKNOWN), "invalid pattern type UNKNOWN"),
        (acl(permission=Permission.ANY), "invalid permission type ANY"),
        (acl(permission=Permission.UNKNOWN), "invalid permission type UNKNOWN"),
        (acl(""), "must have 1 to 1000 characters, not 0"),
        (acl("x" * (NAME_MAX + 1)), "must have 1 to 1000 characters, not 1001"),
        (acl("cluster", kind=ResourceType.CLUSTER), "only valid name for the CLUSTER resource"),
        (acl(principal="alice"), "expected a principal such as User:alice"),
        (acl(principal=":alice"), "expected a principal such as User:alice"),
        (acl(principal="User:"), "expected a principal such as User:alice"),
        (acl(principal="User:" + "a" * NAME_MAX), "at most 1000 characters"),
        (acl(host=""), "must be an IP address or *"),
        (acl(host="10.0.0.0/8"), "must be an IP address or *"),
        (acl(host="build.example.com"), "must be an IP address or *"),
    ],
)
def test_a_rule_that_could_never_apply_is_refused(invalid: AclBinding, fault: str) -> None:
    """Whoever creates a DENY relies on it."""
    assert fault in (acl_fault(invalid) or "")


def test_a_rule_reads_as_a_sentence() -> None:
    rule = acl("ord", PatternType.PREFIXED, permission=Permission.DENY)
    assert str(rule) == "deny User:alice from host * read on prefixed topic 'ord'"
