"""Every command that takes an address, at a broker that asks who its clients are, over TLS."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from support.commands import refused, run, with_address
from support.patience import SECONDS_MAX
from support.secured import CERTIFICATES, USERS, Secured

#: SCRAM-SHA-256 differs in nothing that a command sees.
WAYS = ("PLAIN", "SCRAM-SHA-512", "OAUTHBEARER", *CERTIFICATES)


class Doing(NamedTuple):
    """What a command is given, where WAY is the way in; its input, and something that it prints."""

    arguments: str
    expected: str
    stdin: bytes | None = None


#: For each command that takes an address, but for those that need Spark: tests/spark has them.
COMMANDS = {
    "acl add": Doing("--allow-principal User:WAY --operation Read --topic WAY", "added 1 ACL"),
    "acl list": Doing("", ""),
    "acl remove": Doing("--allow-principal User:WAY-gone --operation Read --topic WAY --force", ""),
    "audit tail": Doing("-n 1", "User:"),
    "consume": Doing("-t WAY -e", "axe\nsaw\n"),
    "group delete": Doing("WAY-doomed", "deleted"),
    "group describe": Doing("WAY", "WAY"),
    "group list": Doing("", "WAY"),
    "group reset": Doing("WAY -t WAY --to beginning", "WAY"),
    "produce": Doing("-t WAY-written", "", b"axe\n"),
    "top": Doing("--once --interval 0.01", "WAY"),
    "topic alter": Doing("WAY --config retention.ms=86400000", "WAY"),
    "topic create": Doing("WAY-new", "WAY-new"),
    "topic delete": Doing("WAY-doomed", "WAY-doomed"),
    "topic describe": Doing("WAY", "WAY"),
    "topic list": Doing("", "WAY"),
    "topic roll": Doing("WAY-written", "WAY"),
    "topic truncate": Doing("WAY-written --partition 0 --end-offset 0", "WAY"),
    "transaction abort": Doing("WAY", "aborted"),
    "transaction describe": Doing("WAY", "WAY"),
    "transaction list": Doing("", "WAY"),
    "user add": Doing("WAY --password-file -", "WAY", b"hidden-new\n"),
    "user list": Doing("", "bela"),
    "user remove": Doing("WAY-doomed", "WAY-doomed"),
}


each_command = pytest.mark.parametrize("command", COMMANDS)


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    users = {f"{way}-doomed": "hidden" for way in WAYS}
    found = Secured(tmp_path_factory.mktemp("secured"), users, {"cordwood.audit.topic": "__audit"})
    with found.broker:
        transactions = list(fill(found))
        yield found
        del transactions


def fill(secured: Secured) -> Iterator[Producer]:
    """Make what the commands work on; yield the producers of open transactions."""
    settings: dict[str, Any] = {
        "bootstrap.servers": secured.addresses["USERS"],
        "security.protocol": "SASL_SSL",
        "ssl.ca.location": str(secured.authority.certificate),
        "sasl.mechanism": "SCRAM-SHA-256",
        "sasl.username": "anna",
        "sasl.password": USERS["anna"],
        "log_level": 0,
        "linger.ms": 0,
    }
    topics = [NewTopic(f"{way}{kind}", 1, 1) for way in WAYS for kind in ("", "-doomed", "-written")]
    admin = AdminClient(settings)
    for made in admin.create_topics(topics).values():
        made.result(SECONDS_MAX)
    producer = Producer(settings)
    for way in WAYS:
        for value in ("axe", "saw"):
            producer.produce(way, value, partition=0)
            producer.produce(f"{way}-written", value, partition=0)
    assert producer.flush(SECONDS_MAX) == 0
    for way in WAYS:
        for group in (way, f"{way}-doomed"):
            consumer = Consumer({**settings, "group.id": group})
            consumer.commit(offsets=[TopicPartition(way, 0, 1)], asynchronous=False)
            consumer.close()
        open_one = Producer({**settings, "transactional.id": way})
        open_one.init_transactions(SECONDS_MAX)
        open_one.begin_transaction()
        open_one.produce(f"{way}-doomed", "axe", partition=0)
        open_one.flush(SECONDS_MAX)
        yield open_one


def test_every_command_with_an_address_is_tried() -> None:
    """A new one is not done before it is in a table, and it takes the settings of the client as all do."""
    found = with_address()
    assert {name for name in found if not name.startswith("pipeline ")} == COMMANDS.keys()
    for name, command in found.items():
        options = {option for each in command.params for option in each.opts}
        assert {"--command-config", "-X"} <= options, name


@each_command
@pytest.mark.parametrize("way", WAYS)
def test_a_command_does_its_work_with_the_file_of_kafkas_tools(
    way: str, command: str, secured: Secured, tmp_path: Path
) -> None:
    doing = COMMANDS[command]
    given = (*command.split(), *doing.arguments.replace("WAY", way).split())
    config = secured.properties(way, tmp_path)
    done = run(*given, "--bootstrap", secured.address(way), "--command-config", config, stdin=doing.stdin)
    assert (done.exit_code, done.stderr) == (0, ""), done.output
    assert doing.expected.replace("WAY", way) in done.stdout
    assert "hidden" not in done.output


@each_command
def test_a_command_that_is_not_let_in_says_why_once_and_no_password(
    command: str, secured: Secured, tmp_path: Path
) -> None:
    """By file and by option. At once: this would hang if it waited until the time for an answer is over."""
    doing = COMMANDS[command]
    given = (*command.split(), *doing.arguments.replace("WAY", "PLAIN").split())
    where = ("--bootstrap", secured.addresses["USERS"], "--timeout", "3600")
    config = secured.properties("SCRAM-SHA-512", tmp_path, password="hidden-wrong")
    for options in (
        ("--command-config", config),
        ("--command-config", secured.properties("PLAIN", tmp_path), "-X", "sasl.password=hidden-wrong"),
    ):
        sentence = refused(*given, *where, *options, stdin=doing.stdin)
        assert "Invalid username or password" in sentence or "invalid credentials" in sentence
        assert "hidden" not in sentence
