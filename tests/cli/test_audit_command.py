"""``cordwood audit tail``: the end of the audit log, for people and programs."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.asking import Asking
from support.auditing import AUDITED, TOPIC
from support.commands import refused, run, said, started
from support.patience import SECONDS_MAX

import cordwood
from cordwood import Broker
from cordwood.broker import Topics
from cordwood.broker.audit import AuditEvent, AuditKind, AuditOutcome, AuditRow
from cordwood.config import BrokerConfig

#: 2026-07-01T12:00:00Z, and an hour in milliseconds.
NOON, HOUR = 1_782_907_200_000, 3_600_000
ALICE, BOB = "User:alice", "User:bob"


def row(name: str, principal: str = ALICE, hours: int = 0, count: int = 1, **fields: Any) -> bytes:
    event = {
        "event": AuditKind.CHANGE,
        "outcome": AuditOutcome.OK,
        "api": "CreateTopics",
        "resource_type": "topic",
        "host": "10.0.0.1",
        **fields,
    }
    happened = AuditEvent(principal=principal, resource=name, **event)
    return AuditRow(happened=happened, time_ms=NOON + hours * HOUR, count=count).encode(0)


DENIED: dict[str, Any] = {
    "event": AuditKind.DENIED,
    "outcome": AuditOutcome.DENIED,
    "error": "TOPIC_AUTHORIZATION_FAILED",
}
LOGIN: dict[str, Any] = {
    "event": AuditKind.AUTHENTICATION,
    "outcome": AuditOutcome.DENIED,
    "resource_type": "",
}
#: What the log of most tests has.
ROWS = [
    row("one"),
    row("two", BOB, 1),
    row("three", BOB, 2, count=7, api="Fetch", **DENIED),
    row("", ALICE, 3, api="SaslAuthenticate", error="SASL_AUTHENTICATION_FAILED", **LOGIN),
    row("four", hours=4, details={"partitions": 2}),
]
APIS = ["CreateTopics", "CreateTopics", "Fetch", "SaslAuthenticate", "CreateTopics"]


def fill(data: Path, *values: bytes, topic: str = TOPIC) -> Path:
    """Make an audit topic, or append to it; a record is appended half a second after what it tells."""
    with cordwood.open(data) as log:
        Topics(log.data_directory, BrokerConfig()).ensure_internal(topic)
        for value in values:
            try:
                time_ms = NOON + HOUR * (int(json.loads(value)["time"][11:13]) - 12)
            except (ValueError, TypeError, KeyError, RecursionError):
                time_ms = NOON
            log.topic(topic).append(value, timestamp=time_ms + 500)
    return data


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return fill(tmp_path / "data", *ROWS)


@pytest.fixture(params=["files", "held", "broker"])
def where(request: pytest.FixtureRequest, data: Path) -> Iterator[list[object]]:
    """Say where: a directory, one that a server holds, or a server by its address."""
    if request.param == "files":
        yield ["--data", data]
        return
    with Broker(data) as broker:
        yield ["--data", data] if request.param == "held" else ["--bootstrap", broker.bootstrap]


def shown(*arguments: object) -> list[dict[str, Any]]:
    """Return the records that the command prints as JSON."""
    return [json.loads(line) for line in said("audit", "tail", "--json", *arguments).splitlines()]


def test_the_last_records_are_shown_in_their_order_everywhere(where: list[object]) -> None:
    assert [each["api"] for each in shown(*where)] == APIS
    assert [each["resource"] for each in shown("-n", 2, *where)] == ["", "four"]
    assert [each["offset"] for each in shown("-n", 99, *where)] == [0, 1, 2, 3, 4]
    assert shown("-n", 0, *where) == []
    (last,) = shown("-n", 1, *where)
    assert {name: last[name] for name in json.loads(ROWS[-1])} == json.loads(ROWS[-1])


def test_ten_records_are_shown_unless_more_are_asked_for(data: Path) -> None:
    fill(data, *(row(f"more-{number}", hours=5) for number in range(10)))
    assert len(shown("--data", data)) == 10
    assert len(shown("--data", data, "--since", "2026-07-01")) == 15


@pytest.mark.parametrize(
    ("options", "offsets"),
    [
        (["--denied"], [2, 3]),
        (["--outcome", "denied"], [2, 3]),
        (["--outcome", "ok", "--outcome", "denied"], [0, 1, 2, 3, 4]),
        (["--event", "denied"], [2]),
        (["--event", "denied", "--event", "authentication"], [2, 3]),
        (["--principal", BOB], [1, 2]),
        (["--principal", "bob"], [1, 2]),
        (["--principal", "alice", "--denied"], [3]),
        (["--principal", "nobody"], []),
        (["--principal", "alice", "-n", "2"], [3, 4]),
        (["--since", "2026-07-01T14:00"], [2, 3, 4]),
        (["--since", "2026-07-01T16:00:00+02:00"], [2, 3, 4]),
        (["--since", "2026-07-01T14:00:00.001Z"], [3, 4]),
        (["--since", "2026-07-01T12:30", "-n", "1", "--principal", "bob"], [2]),
        (["--since", "9999-01-01"], []),
    ],
)
def test_filters_select_and_the_last_are_those_that_are_selected(
    data: Path, options: list[str], offsets: list[int]
) -> None:
    assert [each["offset"] for each in shown("--data", data, *options)] == offsets


def test_records_of_the_last_days_are_selected_by_a_span(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with Broker(data, config=AUDITED) as broker, Asking(broker.bootstrap) as client:
        client.create("orders")
    expected = ["BrokerStart", "CreateTopics", "BrokerStop"]
    assert [each["api"] for each in shown("--data", data, "--since", "7d")] == expected


@pytest.mark.parametrize("text", ["yesterday", "2h ago", "-1h", "2026-13-01", ""])
def test_another_time_is_refused_with_what_is_expected(data: Path, text: str) -> None:
    sentence = refused("audit", "tail", "--since", text, "--data", data, code=2)
    assert "expected a time such as 2026-07-01T12:00 in UTC, or how long ago" in sentence


def test_a_line_says_who_did_what_with_which_answer(data: Path) -> None:
    lines = said("audit", "tail", "--data", data).splitlines()
    assert [line.split() for line in lines] == [
        ["2026-07-01T12:00:00.000Z", "ok", ALICE, "10.0.0.1", "CreateTopics", "topic:one"],
        ["2026-07-01T13:00:00.000Z", "ok", BOB, "10.0.0.1", "CreateTopics", "topic:two"],
        [
            *("2026-07-01T14:00:00.000Z", "denied", BOB, "10.0.0.1", "Fetch", "topic:three"),
            *("TOPIC_AUTHORIZATION_FAILED", "x7"),
        ],
        [
            *("2026-07-01T15:00:00.000Z", "denied", ALICE, "10.0.0.1", "SaslAuthenticate", "-"),
            "SASL_AUTHENTICATION_FAILED",
        ],
        [
            *("2026-07-01T16:00:00.000Z", "ok", ALICE, "10.0.0.1", "CreateTopics", "topic:four"),
            "partitions=2",
        ],
    ]
    assert len({line.index("10.0.0.1") for line in lines}) == 1, "columns are aligned"


def test_nothing_that_a_client_named_controls_a_terminal(tmp_path: Path) -> None:
    """Escape sequences, 8-bit controls, line breaks and marks that reverse the direction of text."""
    evil = "a\x1b[2Jb\x9bc\r\nd\u202ee\u2028f"
    fields: dict[str, Any] = {"client_id": evil, "listener": evil, "details": {evil: {evil: evil}}}
    data = fill(tmp_path / "data", row(evil, f"User:{evil}", **fields), evil.encode())
    for options in ([], ["--json"]):
        text = said("audit", "tail", "--data", data, *options)
        assert text.count("\n") == 2
        assert all(character.isprintable() for character in text.replace("\n", ""))
    (first, _) = shown("--data", data)
    assert (first["resource"], first["client_id"]) == (evil, evil), "nothing is lost"


def test_a_record_that_is_none_of_the_audit_log_is_shown_as_such(tmp_path: Path) -> None:
    later = json.dumps({**json.loads(ROWS[0]), "version": 2}).encode()
    foreign = [b"no json", b"{}", b"", b"\xff", b"[" * 5000, later]
    data = fill(tmp_path / "data", ROWS[0], *foreign, ROWS[1])
    lines = said("audit", "tail", "--data", data).splitlines()
    assert len(lines) == 8
    for number in range(1, 7):
        assert lines[number].startswith(f"record {number} cannot be read: ")
    assert "version is 2" in lines[6]
    found = shown("--data", data, "--denied")
    assert [each["offset"] for each in found] == [1, 2, 3, 4, 5, 6], "they may be anything"
    assert all(each["unreadable"] for each in found)


def test_fields_that_are_not_known_are_ignored(tmp_path: Path) -> None:
    value = json.dumps({**json.loads(ROWS[0]), "colour": "blue"}).encode()
    (found,) = shown("--data", fill(tmp_path / "data", value))
    assert found["resource"] == "one"


# --- which topic ------------------------------------------------------------------------------------


def test_without_an_audit_topic_one_sentence_says_how_to_get_one(tmp_path: Path) -> None:
    with cordwood.open(tmp_path) as log:
        log.create_topic("orders")
    sentence = refused("audit", "tail", "--data", tmp_path)
    assert sentence.startswith("there is no audit topic that can be read here; ")
    assert "-X cordwood.audit.topic=__audit" in sentence
    with Broker(tmp_path) as broker:
        assert refused("audit", "tail", "--bootstrap", broker.bootstrap) == sentence


def test_of_several_topics_the_configured_one_is_read_or_the_one_that_is_named(data: Path) -> None:
    fill(data, row("elsewhere"), topic="__audit-old")
    assert refused("audit", "tail", "--data", data) == (
        "there are several audit topics, __audit, __audit-old; choose one with --topic"
    )
    assert [each["resource"] for each in shown("--data", data, "--topic", "__audit-old")] == ["elsewhere"]
    done = run("audit", "tail", "--data", data, CORDWOOD_AUDIT_TOPIC="__audit-old")
    assert "topic:elsewhere" in done.stdout
    assert refused("audit", "tail", "--data", data, "--topic", "__nothing").endswith("topics")


# --- following --------------------------------------------------------------------------------------


@pytest.mark.parametrize("by", ["files", "address"])
def test_a_follower_shows_what_comes_and_ends_at_ctrl_c(tmp_path: Path, by: str) -> None:
    with Broker(tmp_path, config=AUDITED) as broker, Asking(broker.bootstrap) as client:
        client.create("first")
        place = ["--data", tmp_path] if by == "files" else ["--bootstrap", broker.bootstrap]
        process = started("audit", "tail", "-f", "--json", "--event", "change", "-n", 1, *place)
        assert process.stdout is not None
        assert json.loads(process.stdout.readline())["resource"] == "first"
        client.create("second")
        client.fetch("second")
        client.create("third")
        assert [json.loads(process.stdout.readline())["resource"] for _ in range(2)] == ["second", "third"]
        process.send_signal(signal.SIGINT)
        rest, errors = process.communicate(timeout=SECONDS_MAX)
    assert (process.returncode, rest, errors) == (130, b"", b"cordwood: interrupted\n")
