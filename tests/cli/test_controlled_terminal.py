"""What clients called their groups, transactions and themselves is shown, and cannot command the terminal."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from support.commands import refused, said

from cordwood import Broker

#: Clears the screen, begins a line, and ends one as some programs see it; the last two are no ASCII.
NAME = "evil\x1b[2J\nforged line\r\u2028\x85\x9b2J"
SHOWN = ascii(NAME)


@pytest.fixture(scope="module")
def where() -> Iterator[list[object]]:
    """Have a broker with a group, a member and an open transaction that are all called that."""
    with Broker() as broker:
        client: dict[str, str | int | float | bool | None] = {
            "bootstrap.servers": broker.bootstrap,
            "client.id": NAME,
        }
        with Producer({**client, "transactional.id": NAME}) as producer:
            producer.init_transactions(20)
            producer.begin_transaction()
            producer.produce("orders", b"axe")
            producer.flush(20)
            with Consumer({**client, "group.id": NAME}) as consumer:
                consumer.subscribe(["orders"])
                while not consumer.assignment():
                    consumer.poll(0.1)
                consumer.commit(offsets=[TopicPartition("orders", 0, 0)], asynchronous=False)
                yield ["--bootstrap", broker.bootstrap]
            producer.abort_transaction(20)


def harmless(text: str) -> bool:
    return all(each.isprintable() or each == "\n" for each in text) and "\nforged" not in text


@pytest.mark.parametrize(
    "command",
    [
        ["group", "list"],
        ["group", "describe", NAME],
        ["transaction", "list"],
        ["transaction", "describe", NAME],
        ["transaction", "abort", NAME, "--dry-run"],
    ],
    ids=lambda command: " ".join(command).replace(NAME, "NAME"),
)
def test_a_name_of_a_client_is_printed_with_its_control_characters_as_escapes(
    where: list[object], command: list[object]
) -> None:
    printed = said(*command, *where)
    assert SHOWN in printed
    assert harmless(printed)


def test_json_has_the_name_itself_with_every_control_character_as_an_escape(where: list[object]) -> None:
    printed = said("group", "list", "--json", *where)
    assert harmless(printed)
    assert [each["name"] for each in json.loads(printed)] == [NAME]


def test_an_error_with_a_name_is_one_line_without_control_characters(where: list[object]) -> None:
    assert SHOWN[1:-1] in refused("group", "delete", NAME, *where)
