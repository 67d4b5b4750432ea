"""``cordwood group``: on files from the internal topic, on a broker from its coordinator."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from confluent_kafka import Consumer
from support.commands import refused, said
from support.patience import until

import cordwood
from cordwood import Broker
from cordwood.broker.groups.offsets_topic import StoredGroup, StoredMember, group_key, group_value

Where = list[object]


@pytest.fixture
def consumed(where: Where) -> Where:
    """Have a group that consumed two of five records in one of two partitions."""
    said("topic", "create", "orders", "--partitions", 2, *where)
    said("produce", "-t", "orders", "-p", 1, *where, stdin=b"0\n1\n2\n3\n4\n")
    said("consume", "-t", "orders", "-G", "billing", "-c", 2, *where)
    # Who leaves is answered before that is stored, and files show what is stored.
    until(lambda: "Empty" in said("group", "list", *where), "the member has left")
    return where


def offsets(
    where: Where, group: str = "billing"
) -> dict[tuple[str, int], tuple[int, int | None, int | None]]:
    described = json.loads(said("group", "describe", group, "--json", *where))
    return {
        (each["topic"], each["partition"]): (each["committed"], each["high_watermark"], each["lag"])
        for each in described["offsets"]
    }


def test_groups_are_listed_and_described_with_their_lag(consumed: Where) -> None:
    assert said("group", "list", *consumed).splitlines() == ["group    state", "billing  Empty"]
    assert json.loads(said("group", "list", "--json", *consumed)) == [{"name": "billing", "state": "Empty"}]
    assert said("group", "describe", "billing", *consumed).splitlines() == [
        "group billing, Empty",
        "topic   partition  committed  high watermark  lag",
        "orders          1          2               5    3",
    ]
    assert offsets(consumed) == {("orders", 1): (2, 5, 3)}


def test_reset_moves_a_group_and_a_dry_run_does_not(consumed: Where) -> None:
    reset = ["group", "reset", "billing", "-t", "orders", *consumed]
    assert said(*reset, "--to", "end", "--dry-run").splitlines() == [
        "topic   partition  before  would be",
        "orders          0       -         0",
        "orders          1       2         5",
    ]
    assert offsets(consumed) == {("orders", 1): (2, 5, 3)}
    assert json.loads(said(*reset, "-p", 1, "--to", "beginning", "--json")) == [
        {"topic": "orders", "partition": 1, "before": 2, "after": 0}
    ]
    assert said("consume", "-t", "orders", "-e", "-G", "billing", "-f", "%s", *consumed) == "01234"
    # Without -t, every topic that the group has committed.
    said("group", "reset", "billing", "--to", -2, *consumed)
    assert offsets(consumed)["orders", 1] == (3, 5, 2)
    said(*reset, "-p", 1, "--to", "s@0")
    assert offsets(consumed)["orders", 1] == (0, 5, 5)


def test_delete_takes_a_group_away_and_a_dry_run_does_not(consumed: Where) -> None:
    would = said("group", "delete", "billing", "--dry-run", *consumed)
    assert would == "would delete group billing: committed offsets of 1 partition\n"
    assert offsets(consumed)
    assert said("group", "delete", "billing", *consumed) == would.replace("would delete", "deleted")
    assert json.loads(said("group", "list", "--json", *consumed)) == []
    assert said("consume", "-t", "orders", "-e", "-G", "billing", "-c", 1, *consumed) == "0\n"


def test_what_is_wrong_with_a_group_is_said_in_a_sentence(consumed: Where) -> None:
    unknown = "there is no group shipping; cordwood group list shows the existing groups"
    for command in (["describe"], ["delete"], ["delete", "--dry-run"], ["reset", "--to", "end"]):
        assert refused("group", command[0], "shipping", *command[1:], *consumed) == unknown
    reset = ["group", "reset", "billing", *consumed]
    assert "offset 9 is not within 0 and 5" in refused(*reset, "-t", "orders", "-p", 1, "--to", 9)
    assert "expected beginning, end, N" in refused(*reset, "--to", "yesterday", code=2)
    assert "-p needs -t" in refused(*reset, "-p", 1, "--to", "end", code=2)
    assert offsets(consumed) == {("orders", 1): (2, 5, 3)}


def test_a_group_can_be_given_a_place_before_it_first_consumes(where: Where) -> None:
    said("produce", "-t", "orders", *where, stdin=b"0\n1\n2\n")
    said("group", "reset", "fresh", "-t", "orders", "--to", 2, *where)
    assert said("consume", "-t", "orders", "-e", "-G", "fresh", "-f", "%s", *where) == "2"


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_group_with_members_is_described_and_not_moved(tmp_path: Path, protocol: str) -> None:
    with Broker(tmp_path / "data") as broker:
        where: Where = ["--data", tmp_path / "data"]
        said("produce", "-t", "orders", *where, stdin=b"0\n")
        consumer = Consumer(
            {
                "bootstrap.servers": broker.bootstrap,
                "group.id": "billing",
                "group.protocol": protocol,
                "client.id": "till",
                "auto.offset.reset": "earliest",
            }
        )
        try:
            consumer.subscribe(["orders"])
            assert consumer.consume(1, 20)
            consumer.commit(asynchronous=False)
            for place in (where, ["--bootstrap", broker.bootstrap]):
                assert "billing" in said("group", "list", *place)
                described = json.loads(said("group", "describe", "billing", "--json", *place))
                assert (described["state"], [each["client_id"] for each in described["members"]]) == (
                    "Stable",
                    ["till"],
                )
                assert "till" in said("group", "describe", "billing", *place)
                for command in (["reset", "billing", "--to", "end"], ["delete", "billing"]):
                    sentence = refused("group", *command, *place)
                    assert sentence.startswith("group billing has 1 member; stop them first")
        finally:
            consumer.close()
        until(lambda: "Empty" in said("group", "list", *where), "the member has left")
        said("group", "reset", "billing", "--to", "beginning", *where)
        assert offsets(where, "billing")["orders", 0][0] == 0
        said("group", "delete", "billing", *where)
        assert "billing" not in said("group", "list", *where)


def test_members_that_a_dead_server_left_keep_a_group_on_files_from_being_moved(tmp_path: Path) -> None:
    member = StoredMember("m", None, "till", "host", 1000, 1000, b"", b"")
    with cordwood.open(tmp_path) as log:
        log.topic("orders").append(b"0")
        stored = StoredGroup("consumer", 1, "range", "m", 0, (member,))
        log.offsets_topic().append(group_value(stored), key=group_key("billing"))
    sentence = refused("group", "reset", "billing", "-t", "orders", "--to", "end", "--data", tmp_path)
    assert sentence.startswith("group billing has 1 member; stop them first, or wait until their sessions")


def test_lag_of_a_topic_that_is_gone_is_not_known(tmp_path: Path) -> None:
    """Only what an older version left behind: deleting a topic takes back its offsets."""
    said("produce", "-t", "orders", "--data", tmp_path, stdin=b"0\n")
    said("consume", "-t", "orders", "-G", "billing", "--data", tmp_path)
    with cordwood.open(tmp_path) as log:
        log.delete_topic("orders")
    assert offsets(["--data", tmp_path]) == {("orders", 0): (1, None, None)}


def test_offsets_committed_on_files_are_the_servers_too(tmp_path: Path) -> None:
    said("produce", "-t", "orders", "--data", tmp_path, stdin=b"0\n1\n")
    said("consume", "-t", "orders", "-G", "billing", "-c", 1, "--data", tmp_path)
    with Broker(tmp_path) as broker:
        assert (
            said("consume", "-t", "orders", "-e", "-G", "billing", "--bootstrap", broker.bootstrap) == "1\n"
        )
    assert offsets(["--data", tmp_path]) == {("orders", 0): (2, 2, 0)}
