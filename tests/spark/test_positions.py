"""Positions: the checkpoint's form, and what another log under the same name means."""

from __future__ import annotations

import json

import pytest

from cordwood.errors import RecordsLost
from cordwood.spark.access.access import Ends, Piece, TopicState
from cordwood.spark.access.positions import Positions, find_loss, from_json, settle

STORED = {"orders": {"0": 123, "10": 5}, "orders=id-1/2": {}}
#: As the first versions wrote it, and as Spark's Kafka connector does.
FORMER = {"orders": {"0": 123, "10": 5}, "_": {"orders": ["id-1", 2]}}
CONNECTORS = {"orders": {"0": 123, "10": 5}}


def standing(*ends: Ends, topic_id: str = "id-1") -> dict[str, TopicState]:
    return {"orders": TopicState(topic_id, dict(enumerate(ends)))}


def read_to(*offsets: int, epoch: int = 0) -> Positions:
    return Positions({("orders", n): offset for n, offset in enumerate(offsets)}, {"orders": ("id-1", epoch)})


def test_the_form_of_the_checkpoint() -> None:
    """The same positions are the same text, whatever order they were found in: Spark compares texts."""
    positions = from_json(STORED)
    assert positions.offsets == {("orders", 0): 123, ("orders", 10): 5}
    assert json.dumps(positions.to_json()) == json.dumps(STORED)
    turned = Positions(dict(reversed(list(positions.offsets.items()))), positions.identities)
    assert json.dumps(turned.to_json()) == json.dumps(STORED)
    assert json.dumps(from_json(json.loads(json.dumps(STORED))).to_json()) == json.dumps(STORED)


def test_a_checkpoint_of_the_first_versions_is_the_same_one() -> None:
    assert from_json(FORMER) == from_json(STORED)
    assert from_json({"_": {"0": 7}}) == Positions({("_", 0): 7}, {})


def test_a_checkpoint_goes_to_sparks_kafka_connector_and_back() -> None:
    """It reads a map of names to maps of whole numbers to whole numbers, and every entry of those counts."""
    stored = from_json(STORED).to_json()
    read = {(name, int(number)): int(offset) for name in stored for number, offset in stored[name].items()}
    assert read == {("orders", 0): 123, ("orders", 10): 5}
    back = from_json(CONNECTORS)
    assert back.offsets == read
    assert back.topic_id("orders") == ""
    assert back.to_json() == CONNECTORS


def test_what_is_not_known_of_a_topic_is_not_written() -> None:
    assert Positions({("a", 0): 1}, {"a": ("", -1), "b": ("", 3)}).to_json() == {"a": {"0": 1}, "b=/3": {}}
    assert from_json({"b=/3": {}}).identities == {"b": ("", 3)}


def test_epochs_of_a_topic_add_up() -> None:
    assert standing(Ends(0, 1, 2), Ends(0, 1, 3))["orders"].epoch == 5
    assert standing(Ends(0, 1, 2), Ends(0, 1))["orders"].epoch == -1


@pytest.mark.parametrize("fail", [True, False])
def test_what_is_no_loss(fail: bool) -> None:
    """New partitions, positions ahead of the mark, and what is not known by address."""
    now = standing(Ends(3, 10, 0), Ends(7, 9, 0))
    assert settle(read_to(5), now, fail_on_data_loss=fail).offsets == {("orders", 0): 5, ("orders", 1): 7}
    assert settle(read_to(50, 8), now, fail_on_data_loss=fail).offsets[("orders", 0)] == 50
    unknown = {"orders": TopicState("", {0: Ends(0, 10)})}
    assert settle(read_to(5, epoch=3), unknown, fail_on_data_loss=fail).offsets == {("orders", 0): 5}


@pytest.mark.parametrize(
    ("now", "sentence", "goes_on"),
    [
        (
            standing(Ends(8, 10, 0)),
            "offsets 5 up to 8 of partition 0 of topic orders are lost: the log starts",
            8,
        ),
        (standing(Ends(1, 10, 0), topic_id="id-2"), "made again, with id id-2 in place of id-1", 1),
        (standing(Ends(0, 10, 1, 4)), "offsets 4 up to 5 of partition 0 .* truncated at 4", 5),
        (standing(Ends(0, 3, 1, 3)), "offsets 3 up to 5 of partition 0 .* truncated at 3", 5),
        (standing(Ends(0, 9, 1, 9)), "offsets from 5 on of partition 0 .* truncated at 9", 5),
    ],
)
def test_losses_fail_by_name_or_skip_forward(now: dict[str, TopicState], sentence: str, goes_on: int) -> None:
    with pytest.raises(RecordsLost, match=sentence):
        settle(read_to(5), now, fail_on_data_loss=True)
    after = settle(read_to(5), now, fail_on_data_loss=False)
    assert after.offsets == {("orders", 0): goes_on}
    assert settle(after, now, fail_on_data_loss=True) == after


def test_a_partition_that_is_gone() -> None:
    deleted = (
        "offsets from 5 on of partition 0 of topic orders are lost: the topic was deleted after the query "
        "had read partition 0 up to 5, 1 up to 9"
    )
    with pytest.raises(RecordsLost, match=deleted):
        settle(read_to(5, 9), {}, fail_on_data_loss=True)
    assert settle(read_to(5, 9), {}, fail_on_data_loss=False).offsets == {}
    with pytest.raises(RecordsLost, match=r"offsets from 9 on of partition 1 .* there is no such partition"):
        settle(read_to(5, 9), standing(Ends(0, 5, 0)), fail_on_data_loss=True)


PIECE = Piece("orders", 0, 10, 20, "id-1", 0)


@pytest.mark.parametrize(
    ("found", "lost"),
    [
        (("id-1", 0, 30, ((0, 0),)), None),
        (("id-1", 10, 20, ((0, 0),)), None),
        (("id-1", 12, 30, ((0, 0),)), (10, 12)),
        (("id-1", 25, 30, ((0, 0),)), (10, 20)),
        (("id-1", 0, 15, ((0, 0),)), (15, 20)),
        (("id-1", 0, 5, ((0, 0),)), (10, 20)),
        (("id-1", 0, 30, ((0, 0), (18, 1))), (18, 20)),
        (("id-1", 0, 30, ((0, 0), (20, 1))), None),
        (("id-1", 0, 30, ((0, 0), (5, 1), (25, 2))), (10, 20)),
        (("id-2", 0, 30, ((0, 0),)), (10, 20)),
        (("", 0, 30, ()), None),
    ],
)
def test_what_a_task_finds_missing(
    found: tuple[str, int, int, tuple[tuple[int, int], ...]], lost: tuple[int, int] | None
) -> None:
    loss = find_loss(PIECE, *found)
    assert (None if loss is None else (loss.start, loss.end)) == lost
