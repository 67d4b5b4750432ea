"""Commands that change a data directory without a server record that in its audit topic."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from support.auditing import AUDITED, TOPIC, audit_rows, of_clients
from support.commands import said

import cordwood
from cordwood import Broker
from cordwood.host import process

ACL = {
    "pattern": "literal",
    "principal": "User:alice",
    "host": "*",
    "operation": "read",
    "permission": "allow",
}
SCRAM = {"mechanism": "SCRAM-SHA-256"}
#: Commands in the order in which they run, with what each records: API, resource, details.
COMMANDS: list[tuple[str, list[tuple[str, str, dict[str, Any]]]]] = [
    (
        "topic create orders --partitions 2 --config retention.ms=1000",
        [("CreateTopics", "topic:orders", {"partitions": 2, "settings": {"retention.ms": "1000"}})],
    ),
    (
        "topic alter orders --partitions 3 --config segment.ms=5000 --unset retention.ms",
        [
            ("CreatePartitions", "topic:orders", {"partitions": 3}),
            (
                *("IncrementalAlterConfigs", "topic:orders"),
                {"set": {"segment.ms": "5000"}, "delete": {"retention.ms": None}},
            ),
        ],
    ),
    ("produce -t made-by-name", [("CreateTopics", "topic:made-by-name", {"automatically": True})]),
    ("produce -t made-by-name", []),
    ("consume -t made-by-name -e -G billing", []),
    (
        "topic roll made-by-name",
        [
            (
                *("IncrementalAlterConfigs", "topic:made-by-name"),
                {"operation": {"type": "roll", "partition": 0}},
            )
        ],
    ),
    ("topic truncate made-by-name -p 0 --end-offset 1 --dry-run", []),
    (
        "topic truncate made-by-name -p 0 --end-offset 1",
        [
            (
                *("IncrementalAlterConfigs", "topic:made-by-name"),
                {"operation": {"type": "truncate", "partition": 0, "end_offset": 1, "force": False}},
            )
        ],
    ),
    (
        "acl add --topic orders --allow-principal User:alice --operation Read",
        [("CreateAcls", "topic:orders", {"acl": ACL})],
    ),
    ("acl remove --topic orders --dry-run", []),
    ("acl remove --topic orders", [("DeleteAcls", "topic:orders", {"acl": ACL})]),
    (
        "user add alice --mechanism SCRAM-SHA-256 --password-file PASSWORD",
        [
            (
                *("AlterUserScramCredentials", "user:alice"),
                {"credentials": [{"step": "set", **SCRAM, "iterations": 4096}]},
            )
        ],
    ),
    (
        "user remove alice",
        [("AlterUserScramCredentials", "user:alice", {"credentials": [{"step": "delete", **SCRAM}]})],
    ),
    ("group delete billing", [("DeleteGroups", "group:billing", {})]),
    ("topic delete orders --dry-run", []),
    ("topic delete orders", [("DeleteTopics", "topic:orders", {"topic_id": "as it was"})]),
    ("topic list", []),
    ("topic delete made-by-name", [("DeleteTopics", "topic:made-by-name", {"topic_id": "as it was"})]),
]


def run_all(data: Path, password: Path) -> None:
    password.write_text("password-of-alice")
    for command, _ in COMMANDS:
        arguments = [str(password) if word == "PASSWORD" else word for word in command.split()]
        said(*arguments, "--data", data, stdin=b"axe\n" if arguments[0] == "produce" else None)


def test_each_change_of_a_command_is_a_record_with_the_user_of_the_system(tmp_path: Path) -> None:
    data = tmp_path / "data"
    Broker(data, config=AUDITED).close()
    run_all(data, tmp_path / "password")
    rows = of_clients(audit_rows(data))
    expected = [
        (api, resource, {"offline": True, **details})
        for _, records in COMMANDS
        for api, resource, details in records
    ]
    for row in rows:
        if "topic_id" in row["details"]:
            assert re.fullmatch("[0-9a-f]{32}", row["details"]["topic_id"])
            row["details"]["topic_id"] = "as it was"
    found = [(row["api"], f"{row['resource_type']}:{row['resource']}", row["details"]) for row in rows]
    assert found == expected
    assert {(row["principal"], row["client_id"], row["outcome"]) for row in rows} == {
        (f"OS:{process.user()}", "cordwood", "ok")
    }
    stored = b"".join(path.read_bytes() for path in data.glob(f"topics/{TOPIC}/**/*.log"))
    assert b"password-of-alice" not in stored
    assert "sound" in said("verify", data).lower()


def test_records_of_commands_are_in_the_chain(tmp_path: Path) -> None:
    data, note = tmp_path / "data", tmp_path / "note"
    Broker(data, config=AUDITED).close()
    said("topic", "create", "orders", "--data", data)
    said("checkpoint", "create", "-t", TOPIC, "--data", data, "--to", note)
    key = str(cordwood.list_checkpoints(data).key)
    said("checkpoint", "verify", "--key", key, note, "--data", data)
    (kept,) = cordwood.list_checkpoints(data).checkpoints
    assert kept.next_offset == 3


def test_names_of_tenants_are_recorded_as_their_clients_use_them(tmp_path: Path) -> None:
    Broker(tmp_path, config=AUDITED).close()
    said("topic", "create", "orders@7", "--data", tmp_path)
    (row,) = of_clients(audit_rows(tmp_path))
    assert (row["org"], row["resource"]) == (7, "orders")


def test_a_directory_without_an_audit_topic_gets_none(tmp_path: Path) -> None:
    data = tmp_path / "data"
    run_all(data, tmp_path / "password")
    with cordwood.open(data, read_only=True) as log:
        assert not [name for name in log.topics if name.startswith("__audit")]


@pytest.mark.parametrize("place", ["held", "address"])
def test_what_a_command_asks_a_server_to_do_is_recorded_once_by_the_server(
    tmp_path: Path, place: str
) -> None:
    with Broker(tmp_path, config=AUDITED) as broker:
        where = ["--data", tmp_path] if place == "held" else ["--bootstrap", broker.bootstrap]
        said("topic", "create", "orders", *where)
    (row,) = of_clients(audit_rows(tmp_path))
    assert (row["api"], row["principal"]) == ("CreateTopics", "User:ANONYMOUS")
    assert "offline" not in row["details"]
