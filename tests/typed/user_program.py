"""A program as a user writes it. It is checked by mypy --strict, and run, by test_typing.py."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import cordwood
from cordwood.errors import CordwoodError, OffsetOutOfRange, UnexpectedOffset


def values(topic: cordwood.Topic, partition: int = 0) -> Iterator[bytes]:
    """Yield the values that are no tombstones."""
    for record in topic.read(partition):
        if record.value is not None:
            yield record.value


def append_next(topic: cordwood.Topic, value: bytes) -> int:
    """Append at the end as it is now, and return the offset."""
    while True:
        try:
            placed: cordwood.Placement = topic.append(value, expected_offset=topic.high_watermark())
        except UnexpectedOffset as conflict:
            print(conflict.expected, conflict.next_offset)
            continue
        return placed.offset


def total(state: int, record: cordwood.Record) -> int:
    return state + len(record.value or b"")


def replayed(topic: cordwood.Topic) -> int:
    result: cordwood.Replayed[int] = cordwood.replay(
        topic, total, 0, encode=lambda state: b"%d" % state, decode=int, save_every=100
    )
    return result.state


def checked(path: str) -> list[str]:
    items: Sequence[cordwood.CheckedItem] = cordwood.inspect_directory(path)
    return [item.text for item in items if item.level == "attention"]


def served(path: str) -> str:
    with cordwood.Broker(path, config={"num.partitions": "3"}) as broker:
        return broker.bootstrap


def main(path: str) -> None:
    with cordwood.open(path, sync="each") as log:
        orders = log.topic("orders", partitions=1, config={"retention.ms": "-1"})
        append_next(orders, b"axe")
        headers: list[cordwood.Header] = [("shop", b"oslo"), ("empty", None)]
        orders.append(b"saw", key=b"anna", headers=headers, timestamp=1_700_000_000_000)
        orders.append_many([(b"anna", None), (None, b"plane", headers)])
        orders.append_many([(None, b"nail", (), 1_700_000_000_001)], partition=0)
        orders.append_stream(iter([b"a", b"b"]), key=b"long")
        scan: cordwood.Scan = orders.scan(columns=["offset", "value"])
        offsets: cordwood.OffsetRange = orders.offsets()
        names: list[str] = [name for name in log if name in log]
        print(names, len(orders), len(offsets), bool(log), repr(scan))
        print(list(values(orders)), replayed(orders))
        try:
            orders.read(start=99)
        except OffsetOutOfRange as error:
            print(error.offset, error.start, error.end)
    print(checked(path), cordwood.__version__)
    try:
        cordwood.open(path, read_only=True).topic("ordres")
    except CordwoodError as error:
        print(error)
    print(served(path))
