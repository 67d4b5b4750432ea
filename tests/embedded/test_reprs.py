"""What a log, a topic and a scan say about themselves at a prompt."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import cordwood
from cordwood.errors import LogClosed, RecordRefused

# The objects of the awaited library have names of their own.
pytestmark = pytest.mark.called_only


def test_a_log_shows_path_topics_and_mode_also_when_closed(tmp_path: Path) -> None:
    path = str(tmp_path / "data")
    log = cordwood.open(path)
    assert repr(log) == f"<cordwood.Log {path!r}, 0 topics, read-write>"
    log.topic("orders", partitions=3)
    assert repr(log) == f"<cordwood.Log {path!r}, 1 topic, read-write>"
    beside = cordwood.open(path, read_only=True)
    assert repr(beside) == f"<cordwood.Log {path!r}, read-only>"
    log.close()
    beside.close()
    assert repr(log) == repr(beside) == f"<cordwood.Log {path!r}, closed>"


def test_a_repr_reads_no_file(tmp_path: Path) -> None:
    """Also of a directory that is gone."""
    log = cordwood.open(tmp_path / "data")
    log.topic("orders").append(b"axe")
    log.close()
    beside = cordwood.open(tmp_path / "data", read_only=True)
    orders = beside.topic("orders")
    (tmp_path / "data").rename(tmp_path / "elsewhere")
    assert "read-only" in repr(beside)
    assert "'orders', 1 partition" in repr(orders)
    assert "'orders'" in repr(cordwood.open(tmp_path / "elsewhere", read_only=True).scan("orders"))


def test_a_topic_and_a_scan_show_what_they_are() -> None:
    with cordwood.open(":memory:") as log:
        orders = log.topic("orders", partitions=12)
        assert repr(orders) == f"<cordwood.Topic 'orders', 12 partitions, of {log!r}>"
        assert repr(orders.scan(3, start=5, columns=["key", "offset"])) == (
            "<cordwood.Scan of 'orders', partitions 3, start=5, columns key, offset>"
        )
        every = repr(orders.scan(columns=["key"]))
        assert every == "<cordwood.Scan of 'orders', partitions 0, 1, 2, 3, 4, 5, 6, 7, ..., columns key>"
    assert repr(orders) == f"<cordwood.Topic 'orders', 12 partitions, of {log!r}>"


def test_a_topic_scans_as_its_log_does() -> None:
    with cordwood.open(":memory:") as log:
        orders = log.topic("orders", partitions=2)
        for number in range(6):
            orders.append(b"%d" % number, partition=number % 2, timestamp=number)
        assert pa.table(orders.scan()).equals(pa.table(log.scan("orders")))
        asked: dict[str, Any] = {"start": 1, "stop": 3, "columns": ["value"], "since": 2, "until": 5}
        assert orders.scan(1, **asked) == log.scan("orders", 1, **asked)
        assert pa.table(orders.scan(1, **asked)).column("value").to_pylist() == [b"3"]
        with pytest.raises(RecordRefused, match="columns must be"):
            orders.scan(columns=["price"])


def test_len_counts_the_offsets_that_can_be_read_and_truth_does_not_depend_on_it() -> None:
    with cordwood.open(":memory:") as log:
        assert (len(log), list(log), bool(log)) == (0, [], True)
        orders = log.topic("orders", partitions=2)
        assert (len(orders), bool(orders)) == (0, True)
        orders.append_many([(None, b"a"), (None, b"b"), (None, b"c")], partition=0)
        orders.append(b"d", partition=1)
        assert len(orders) == 4
        orders.advance_log_start(0, 2)
        assert len(orders) == 2
        log.topic("carts")
        assert (len(log), list(log)) == (2, ["carts", "orders"])
        assert "orders" in log
        assert "order" not in log
    for call in (lambda: len(log), lambda: list(log), lambda: "orders" in log, lambda: len(orders)):
        with pytest.raises(LogClosed):
            call()
