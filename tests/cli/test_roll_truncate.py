"""``cordwood topic roll`` and ``truncate``, on files, through the server that holds them, by its address."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.commands import refused, said

import cordwood
from cordwood import Broker
from cordwood.cli.backends.broker import BrokerBackend
from cordwood.disk.posix import PosixFiles
from cordwood.errors import CordwoodError
from cordwood.storage.log import PartitionState, read_state
from cordwood.verify import verify_directory

Where = list[object]


def state_of(tmp_path: Path, topic: str = "orders", partition: int = 0) -> PartitionState:
    return read_state(PosixFiles(), str(tmp_path / "data" / "topics" / topic / str(partition)))


def filled(where: Where, partitions: int = 1) -> None:
    said("topic", "create", "orders", "--partitions", partitions, *where)
    said("produce", "-t", "orders", "-p", 0, *where, stdin=b"a\nb\nc\n")


def test_roll_seals_the_segments_of_all_partitions_or_of_one(where: Where, tmp_path: Path) -> None:
    filled(where, partitions=2)
    assert said("topic", "roll", "orders", *where) == "rolled 2 partitions of topic orders\n"
    assert [info.next_offset for info in state_of(tmp_path).sealed] == [3]
    said("topic", "roll", "orders", "-p", 0, *where)
    assert len(state_of(tmp_path).sealed) == 1, "an empty segment is not sealed"
    said("produce", "-t", "orders", "-p", 0, *where, stdin=b"d\n")
    assert said("topic", "roll", "orders", "-p", 0, *where) == "rolled 1 partition of topic orders\n"
    assert [info.next_offset for info in state_of(tmp_path).sealed] == [3, 4]


def test_truncate_removes_the_newest_records_and_raises_the_leader_epoch(
    where: Where, tmp_path: Path
) -> None:
    filled(where)
    arguments = ("topic", "truncate", "orders", "-p", 0, "--end-offset", 1, *where)
    would = said(*arguments, "--dry-run")
    assert would == "would truncate partition 0 of topic orders to offset 1: 2 offsets removed\n"
    assert said("consume", "-t", "orders", "-e", *where) == "a\nb\nc\n"
    assert said(*arguments) == would.replace("would truncate", "truncated")
    assert said("consume", "-t", "orders", "-e", *where) == "a\n"
    assert state_of(tmp_path).leader_epoch == 1
    said("produce", "-t", "orders", *where, stdin=b"other\n")
    assert said("consume", "-t", "orders", "-e", *where) == "a\nother\n"


def test_committed_offsets_stay_where_they_are(where: Where) -> None:
    filled(where)
    said("consume", "-t", "orders", "-G", "billing", "-e", *where)
    before = said("group", "describe", "billing", "--json", *where)
    said("topic", "truncate", "orders", "-p", 0, "--end-offset", 1, *where)
    after = said("group", "describe", "billing", "--json", *where)
    assert [json.loads(each)["offsets"][0]["committed"] for each in (before, after)] == [3, 3]


def test_records_under_a_checkpoint_are_removed_only_by_force(where: Where, tmp_path: Path) -> None:
    """D18, and `verify` calls it a truncation and no tampering."""
    filled(where)
    pytest.importorskip("cryptography")
    said("checkpoint", "create", "--data", tmp_path / "data")
    arguments = ("topic", "truncate", "orders", "-p", 0, "--end-offset", 1, *where)
    for dry in ((), ("--dry-run",)):
        assert "checkpoint" in refused(*arguments, *dry)
    assert said("consume", "-t", "orders", "-e", *where) == "a\nb\nc\n"
    said(*arguments, "--force", "--dry-run")
    said(*arguments, "--force")
    assert said("consume", "-t", "orders", "-e", *where) == "a\n"


def test_a_truncation_by_a_server_is_in_the_chain(tmp_path: Path) -> None:
    with Broker(tmp_path / "data") as broker:
        where: Where = ["--bootstrap", broker.bootstrap]
        filled(where)
        said("topic", "truncate", "orders", "-p", 0, "--end-offset", 2, *where)
        said("produce", "-t", "orders", *where, stdin=b"d\n")
    report = verify_directory(PosixFiles(), str(tmp_path / "data"))
    assert report.sound, report.findings


def test_what_cannot_be_cut_is_said_in_a_sentence(where: Where) -> None:
    filled(where)
    said("topic", "create", "tiny", "--config", "cordwood.storage=shared", *where)
    said("produce", "-t", "tiny", *where, stdin=b"a\n")

    def cut(topic: str, offset: int, partition: int = 0) -> str:
        sentence = refused("topic", "truncate", topic, "-p", partition, "--end-offset", offset, *where)
        assert refused(
            "topic", "truncate", topic, "-p", partition, "--end-offset", offset, "--dry-run", *where
        )
        return sentence

    assert "offset 4 is not within 0 and 3" in cut("orders", 4)
    assert "there is no topic nowhere" in cut("nowhere", 0)
    assert "topic orders has no partition 7" in cut("orders", 0, partition=7)
    assert "topic orders has no partition 7" in refused("topic", "roll", "orders", "-p", 7, *where)
    assert "in the shared log" in cut("tiny", 0)
    sentence = refused("topic", "roll", "tiny", *where)
    assert "in the shared log" in sentence
    assert "set those, or give the topic a log of its own when it is created" in sentence
    assert "there is no topic nowhere" in refused("topic", "roll", "nowhere", *where)
    refused("topic", "truncate", "orders", "-p", 0, *where, code=2)


def test_internal_topics_are_neither_rolled_nor_truncated(tmp_path: Path) -> None:
    where: Where = ["--data", tmp_path / "data"]
    filled(where)
    said("consume", "-t", "orders", "-G", "billing", "-e", *where)
    said("topic", "create", "tiny", "--config", "cordwood.storage=shared", *where)
    said("produce", "-t", "tiny", *where, stdin=b"a\n")
    for name in ("__consumer_offsets", "__shared"):
        sentence = f"{name} is internal"
        assert refused("topic", "roll", name, *where) == sentence
        assert refused("topic", "truncate", name, "-p", 0, "--end-offset", 0, *where) == sentence
    with Broker(tmp_path / "data") as broker:
        by_address = ("--bootstrap", broker.bootstrap)
        assert "__consumer_offsets is internal" in refused("topic", "roll", "__consumer_offsets", *by_address)


def test_a_broker_that_is_not_cordwood_gets_no_request_and_the_caller_one_sentence() -> None:
    """The broker is librdkafka's own mock cluster, which is not ours."""
    backend = BrokerBackend("localhost:1", {"test.mock.num.brokers": "1"}, 10.0)
    with pytest.raises(CordwoodError, match="is not a Cordwood broker: rolling partition 0 of topic t"):
        backend.roll("t", 0)
    with pytest.raises(CordwoodError, match="is not a Cordwood broker: truncating partition 0 of topic t"):
        backend.truncate("t", 0, 1, force=False, dry_run=False)
    backend.close()


def test_a_dry_run_works_beside_a_writer(tmp_path: Path) -> None:
    with cordwood.open(tmp_path / "data") as log:
        log.topic("orders").append(b"a")
        would = said(
            "topic",
            "truncate",
            "orders",
            "-p",
            0,
            "--end-offset",
            0,
            "--dry-run",
            "--data",
            tmp_path / "data",
        )
        assert would == "would truncate partition 0 of topic orders to offset 0: 1 offset removed\n"
        assert log.topic("orders").log_end_offset() == 1
