"""``cordwood acl``: on a directory, on one that a server holds, and on a broker by its address."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.commands import refused, said

from cordwood import Broker

Where = list[object]
BY_ANYONE = {"authorizer.class.name": "cordwood", "super.users": "User:ANONYMOUS"}
ALICE = ("--allow-principal", "User:alice")


@pytest.fixture(params=["directory", "held", "broker"])
def where(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Where]:
    """Say where: a directory, one that a server holds, or that server by its address."""
    place: Where = ["--data", tmp_path / "data"]
    if request.param == "directory":
        yield place
        return
    with Broker(tmp_path / "data", config=BY_ANYONE) as running:
        yield place if request.param == "held" else ["--bootstrap", running.bootstrap]


def listed(where: Where, *options: object) -> list[str]:
    """Return the ACLs that ``acl list`` shows, a line each."""
    return [
        f"{each['permission']} {each['principal']} at {each['host']}: {each['operation']} "
        f"{each['pattern_type']} {each['resource_type']} {each['resource_name']}"
        for each in json.loads(said("acl", "list", "--json", *options, *where))
    ]


def test_acls_are_added_listed_and_removed(where: Where) -> None:
    added = said(
        "acl", "add", *ALICE, "--operation", "Read", "--operation", "write", "--topic", "orders", *where
    )
    assert added.startswith("added 2 ACLs\n")
    said("acl", "add", *ALICE, "--operation", "Read", "--topic", "orders", *where)
    said("acl", "add", "--deny-principal", "User:*", "--deny-host", "10.0.0.1", "--group", "billing", *where)
    both = [
        "allow User:alice at *: read literal topic orders",
        "allow User:alice at *: write literal topic orders",
    ]
    denied = "deny User:* at 10.0.0.1: all literal group billing"
    assert listed(where) == [*both, denied]
    assert listed(where, "--topic", "orders") == both
    assert listed(where, "--topic", "orders", "--group", "billing", "--principal", "User:*") == [denied]
    assert "Deny        User:*      10.0.0.1  All        Group     Literal  billing" in said(
        "acl", "list", *where
    )
    dry = said("acl", "remove", "--topic", "orders", "--dry-run", *where)
    assert dry.startswith("would remove 2 ACLs\n")
    assert len(listed(where)) == 3
    removed = said("acl", "remove", *ALICE, "--operation", "Read", "--topic", "orders", "--force", *where)
    assert removed.startswith("removed 1 ACL\n")
    assert listed(where) == [both[1], denied]
    assert said("acl", "remove", "--topic", "none", *where) == "removed 0 ACLs\n"
    said("acl", "remove", "--topic", "orders", "--group", "billing", *where)
    assert listed(where) == []


def test_a_pattern_is_listed_and_removed_by_what_it_covers(where: Where) -> None:
    prefixed = "--resource-pattern-type", "prefixed"
    said("acl", "add", *ALICE, "--operation", "Describe", "--topic", "ord", *prefixed, *where)
    said("acl", "add", *ALICE, "--operation", "Describe", "--topic", "*", *where)
    found = [
        "allow User:alice at *: describe prefixed topic ord",
        "allow User:alice at *: describe literal topic *",
    ]
    assert listed(where, "--topic", "orders") == []
    assert listed(where, "--topic", "orders", "--resource-pattern-type", "match") == found
    assert listed(where, "--topic", "ord", "--resource-pattern-type", "ANY") == found[:1]
    assert listed(where, "--topic", "ord", *prefixed) == found[:1]
    said("acl", "remove", "--topic", "orders", "--resource-pattern-type", "match", *where)
    assert listed(where) == []


def test_roles_stand_for_what_their_clients_need(where: Where) -> None:
    """The same ACLs as kafka-acls makes of the same options."""
    said(
        "acl", "add", *ALICE, "--producer", "--idempotent", "--topic", "t", "--transactional-id", "x", *where
    )
    on_cluster = "allow User:alice at *: idempotent_write literal cluster kafka-cluster"
    produced = {f"allow User:alice at *: {each} literal topic t" for each in ("write", "describe", "create")}
    produced |= {
        f"allow User:alice at *: {each} literal transactional_id x" for each in ("write", "describe")
    }
    assert set(listed(where)) == produced | {on_cluster}
    bob = "--allow-principal", "User:bob", "--allow-host", "10.0.0.1", "--allow-host", "::1"
    said("acl", "add", *bob, "--consumer", "--topic", "t", "--group", "g", *where)
    consumed = {
        f"allow User:bob at {host}: {what}"
        for host in ("10.0.0.1", "::1")
        for what in ("read literal topic t", "describe literal topic t", "read literal group g")
    }
    assert set(listed(where, "--principal", "User:bob")) == consumed
    assert set(listed(where, "--topic", "t", "--group", "g", "--principal", "User:bob")) == consumed
    said("acl", "remove", *bob, "--consumer", "--topic", "t", "--group", "g", *where)
    assert set(listed(where)) == produced | {on_cluster}


def test_what_is_added_to_a_directory_is_in_force_when_its_broker_starts(tmp_path: Path) -> None:
    said("acl", "add", "--allow-principal", "User:ANONYMOUS", "--cluster", "--data", tmp_path / "data")
    with Broker(tmp_path / "data", config={"authorizer.class.name": "cordwood"}) as broker:
        at: Where = ["--bootstrap", broker.bootstrap]
        assert len(listed(at)) == 1
        # That is the last thing that the client may do.
        said("acl", "remove", "--cluster", *at)
        assert "this needs DESCRIBE on the cluster" in refused("acl", "list", *at), "none is another answer"
    assert listed(["--data", tmp_path / "data"]) == []


def test_acls_of_an_org_are_changed_in_its_directory_or_by_its_listener(tmp_path: Path) -> None:
    data = ["--data", tmp_path / "data"]
    said("acl", "add", *ALICE, "--topic", "orders", "--org", "7", *data)
    assert listed(data) == []
    of_org = ["allow User:alice at *: all literal topic orders"]
    assert listed([*data, "--org", "7"]) == of_org
    config = {**BY_ANYONE, "cordwood.listener.SEVEN.org": "7"}
    listen = "PLAINTEXT://localhost:0,SEVEN://localhost:0"
    with Broker(tmp_path / "data", listen=listen, config=config) as broker:
        assert listed(["--bootstrap", broker.addresses["SEVEN"]]) == of_org
        assert listed(["--bootstrap", broker.addresses["PLAINTEXT"]]) == []
        assert listed([*data, "--org", "7"]) == of_org
        for where in (data, ["--bootstrap", broker.addresses["SEVEN"]]):
            sentence = refused("acl", "remove", "--topic", "orders", "--org", "7", *where)
            assert "use the address of one of org 7, without --org" in sentence
    assert "not the number of an org" in refused("acl", "list", "--org", "x", *data, code=2)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ("add --allow-principal User:a", "say on what"),
        ("add --topic t", "say whom"),
        ("add --topic t --allow-host 10.0.0.1", "say who at this host: give --allow-principal"),
        ("add --topic t --allow-principal User:a --deny-host 10.0.0.1", "give --deny-principal"),
        ("add --topic t --allow-principal alice", "expected a principal such as User:alice, found 'alice'"),
        ("add --topic t --deny-principal user:alice", "no client is called user:alice: expected User:"),
        ("add --topic t --allow-principal User:a --allow-host example.com", "must be an IP address or *"),
        ("add --topic t --allow-principal User:a --operation Fly", "expected one of All, Read, Write"),
        ("add --topic t --allow-principal User:a --operation ClusterAction", "a Topic has no operation"),
        ("add --group g --allow-principal User:a --operation Write", "it has All, Read, Delete"),
        ("add --topic t --allow-principal User:a --resource-pattern-type match", "'match' is not one of"),
        (
            "add --topic t --allow-principal User:a --producer --operation Read",
            "--producer allows what",
        ),
        ("add --topic t --deny-principal User:a --consumer --group g", "--consumer allows what it says"),
        ("add --topic t --allow-principal User:a --consumer", "--consumer needs a --group"),
        ("add --group g --allow-principal User:a --consumer", "--consumer needs a --topic"),
        ("add --topic t --allow-principal User:a --idempotent", "--idempotent is for --producer"),
        (
            "add --topic t --group g --allow-principal User:a --producer",
            "says nothing about a Group",
        ),
        ("remove", "say on what"),
        ("remove --topic t --operation Read", "say whose"),
        ("remove --topic t --producer", "say whose"),
    ],
)
def test_what_is_missing_or_contradicts_is_said_and_changes_nothing(
    tmp_path: Path, options: str, sentence: str
) -> None:
    """kafka-acls removes every ACL of the topic if it is told an operation and no principal."""
    data = "--data", tmp_path / "data"
    said("acl", "add", *ALICE, "--topic", "t", *data)
    assert sentence in refused("acl", *options.split(), *data, code=2)
    assert len(listed([*data])) == 1


def test_a_broker_without_an_authorizer_says_so(tmp_path: Path) -> None:
    with Broker() as broker:
        where = "--bootstrap", broker.bootstrap
        assert "no authorizer is configured" in refused("acl", "add", *ALICE, "--topic", "t", *where)


def test_control_characters_in_names_do_not_reach_the_terminal(tmp_path: Path) -> None:
    data = "--data", tmp_path / "data"
    said("acl", "add", "--allow-principal", "User:\x1b[2J", "--topic", "t", *data)
    assert "\x1b" not in said("acl", "list", *data)
    assert listed([*data]) == ["allow User:\x1b[2J at *: all literal topic t"]
