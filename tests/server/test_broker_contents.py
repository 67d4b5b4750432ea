"""What a `cordwood.Broker` in a program shows of itself: its topics, its records, and a repr."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from support.asking import Asking

import cordwood
from cordwood import Broker, host, testing
from cordwood.errors import CordwoodError, LogClosed
from cordwood.spark import access


@pytest.mark.parametrize("name", [None, "data"])
def test_topics_and_records_are_there_without_a_consumer(name: str | None, tmp_path: Path) -> None:
    path = None if name is None else tmp_path / name
    with Broker(path) as broker:
        assert broker.topics == []
        with Asking(broker.bootstrap) as asking:
            asking.create("orders", 2)
            asking.create("clicks")
        assert broker.topics == ["clicks", "orders"]
        with broker.log as log:
            assert log.topic("orders").partitions == 2
            assert pa.table(log.scan("orders")).num_rows == 0
            with pytest.raises(CordwoodError):
                log.topic("orders").append(b"axe")
        assert broker.topics == ["clicks", "orders"], "closing such a log closes nothing of the broker"
    for ask in (lambda: broker.topics, lambda: broker.log):
        with pytest.raises(LogClosed, match="the broker is closed"):
            ask()


def test_a_repr_says_where_its_data_is_its_address_and_whether_it_runs(tmp_path: Path) -> None:
    with Broker() as broker:
        assert repr(broker) == f"<cordwood.Broker in memory at {broker.bootstrap}, running>"
    assert repr(broker) == f"<cordwood.Broker in memory at {broker.bootstrap}, closed>"
    with Broker(tmp_path / "data") as broker:
        assert repr(broker) == f"<cordwood.Broker {str(tmp_path / 'data')!r} at {broker.bootstrap}, running>"


@pytest.mark.parametrize("room", [cordwood, testing, host, access])
def test_the_names_of_a_lazy_room_are_listed_before_they_are_loaded(room: object) -> None:
    assert dir(room) == sorted(vars(room)["__all__"])
    for name in dir(room):
        getattr(room, name)
