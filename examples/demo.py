"""Cordwood end to end: a log that survives kill -9, a stock Kafka client, and a Spark pipeline.

Run it with ``make demo``. The first part needs neither Java nor a compiler. Everything it makes is in
``.demo/``, to look at afterwards.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from confluent_kafka import KafkaError, Message, Producer
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]
from rich.console import Console

import cordwood
from cordwood.disk import PosixFiles
from cordwood.verify import verify_directory

HOME = Path(".demo")
DATA, PICTURE = HOME / "data", HOME / "demo.png"
ORDERS = 120_000
PARTITIONS = 4
#: The broker is killed when this many more orders have been acknowledged.
KILLED_AFTER = 20_000
#: The orders were placed within these hours before now, a few of them a minute late or more.
HOURS = 3
ITEMS = {"axe": 42, "saw": 31, "maul": 55, "wedge": 12, "gloves": 9}
CUSTOMERS = [f"customer-{number:03d}" for number in range(200)]

console = Console(highlight=False)


@dataclass
class Killed:
    """What a producer was told before and after the broker was killed."""

    sent: int = 0
    acknowledged: set[bytes] = field(default_factory=set)
    #: Seconds since the first order, and how many had been acknowledged by then.
    over_time: list[tuple[float, int]] = field(default_factory=list)
    killed_at: float = 0.0
    back_at: float = 0.0
    found: int = 0


def main() -> None:
    """Show the log first, then the pipeline on Spark."""
    shutil.rmtree(HOME, ignore_errors=True)
    HOME.mkdir()
    console.print("[bold]A log that keeps what it acknowledged[/]")
    embed()
    with serving() as (address, pid):
        step(f"A broker on {address}, its data in {DATA}. It acknowledges a record when it is on the disk.")
        send_orders(address, ORDERS)
        killed = send_until_killed(address, pid)
    with serving() as (address, _):
        check_all_there(killed)
        step(
            f"Restarted in {killed.back_at - killed.killed_at:.1f} s: all {killed.found:,} acknowledged "
            "orders are there, none twice. No acknowledged record was lost."
        )
        verify()
        console.print("\n[bold]The data pipeline on Spark[/]")
        # Imported here: everything above works without Spark and Java.
        import demo_pipeline  # type: ignore[import-not-found]

        demo_pipeline.show(address, DATA, HOME, PICTURE, killed)
    verify()
    console.print("\n[bold]Try next[/]")
    for command in (
        f"cordwood consume --data {DATA} -t revenue -o beginning -e -c 5",
        f"cordwood pipeline materialize --data {DATA} -t orders --latest --to {HOME}/latest",
        f"cordwood pipeline run examples/pipeline/spark-pipeline.yml --data {DATA} --storage {HOME}/pipeline",
    ):
        console.print(f"  .venv/bin/{command}")


def step(sentence: str) -> None:
    """Say what was done."""
    console.print(f"[green]✓[/] {sentence}")


def embed() -> None:
    """Use the log as a library."""
    with cordwood.open(HOME / "embedded") as log:
        notes = log.topic("notes")
        placed = notes.append(b"hello", key=b"first")
        read = [record.value for record in notes.read()]
    step(f"As a library: appended at offset {placed.offset}, synced, read back {read[0]!r}.")


@contextmanager
def serving() -> Iterator[tuple[str, int]]:
    """Run ``cordwood serve`` and give its address and process id; end it, unless it is dead already."""
    with subprocess.Popen(
        [sys.executable, "-m", "cordwood.cli", "serve", "--data", str(DATA), "--listen", "127.0.0.1:0"],
        stdout=subprocess.PIPE,
        text=True,
    ) as server:
        assert server.stdout is not None
        try:
            yield server.stdout.readline().split()[-1], server.pid
        finally:
            server.terminate()


def make_order(number: int, dice: random.Random, now: float) -> tuple[str, dict[str, object]]:
    """Return customer and content of a believable order: more in the middle of the time than at its ends."""
    age = HOURS * 3600 * (1 - dice.betavariate(2, 2))
    late = dice.expovariate(1 / 90) if dice.random() < 0.02 else 0
    placed_at = datetime.fromtimestamp(now - age - late, UTC)
    item, count = dice.choice(list(ITEMS)), dice.randint(1, 3)
    order = {
        "order": number,
        "item": item,
        "amount": ITEMS[item] * count,
        "placed_at": placed_at.isoformat(timespec="milliseconds"),
    }
    return dice.choice(CUSTOMERS), order


def send_orders(address: str, count: int) -> None:
    """Send orders as they were placed, some with a payment, with a stock client and its default settings."""
    admin = AdminClient({"bootstrap.servers": address})
    topics = [
        NewTopic("orders", PARTITIONS, 1),
        NewTopic("more-orders", PARTITIONS, 1),
        NewTopic("payments", 1, 1),
        NewTopic("revenue", 1, 1),
    ]
    for made in admin.create_topics(topics).values():
        made.result(10)
    dice, now = random.Random(1), time.time()
    orders = [make_order(number, dice, now) for number in range(count)]
    orders.sort(key=lambda order: str(order[1]["placed_at"]))
    producer = Producer({"bootstrap.servers": address})
    started = time.perf_counter()
    for customer, order in orders:
        producer.produce("orders", json.dumps(order), customer)
        producer.poll(0)
        if dice.random() < 0.1:
            payment = {"order": order["order"], "paid": order["amount"], "paid_at": order["placed_at"]}
            producer.produce("payments", json.dumps(payment), customer)
    producer.flush()
    rate = count / (time.perf_counter() - started)
    step(f"confluent-kafka sent {count:,} orders, {rate:,.0f} a second, each one synced.")


def send_until_killed(address: str, pid: int) -> Killed:
    """Send more orders, kill the broker with -9 meanwhile, and return what the producer was told."""
    killed = Killed()
    started = time.perf_counter()

    def told(error: KafkaError | None, message: Message) -> None:
        value = message.value()
        if error is None and value is not None:
            killed.acknowledged.add(value)

    producer = Producer({"bootstrap.servers": address, "linger.ms": 1, "log_level": 0})
    dice, now = random.Random(2), time.time()
    while len(killed.acknowledged) < KILLED_AFTER:
        customer, order = make_order(ORDERS + killed.sent, dice, now)
        producer.produce("more-orders", json.dumps(order), customer, on_delivery=told)
        producer.poll(0)
        killed.sent += 1
        if killed.sent % 200 == 0:
            killed.over_time.append((time.perf_counter() - started, len(killed.acknowledged)))
    os.kill(pid, signal.SIGKILL)
    killed.killed_at = time.perf_counter() - started
    # Answers that were on their way still count.
    producer.poll(0.2)
    producer.purge()
    killed.over_time.append((killed.killed_at, len(killed.acknowledged)))
    waiting = killed.sent - len(killed.acknowledged)
    step(
        f"kill -9 while orders came in: {len(killed.acknowledged):,} had been acknowledged. The other "
        f"{waiting:,} were still on their way: the producer knows that, and would send them again."
    )
    killed.back_at = started
    return killed


def check_all_there(killed: Killed) -> None:
    """Compare what the log has with what the producer was told."""
    # Counted from the same moment as the rest; `serving` returned when clients could connect.
    killed.back_at = time.perf_counter() - killed.back_at
    with cordwood.open(DATA, read_only=True) as log:
        batches = log.scan("more-orders", columns=["value"]).batches()
        stored = [value.as_py() for batch in batches for value in batch[0]]
    if not killed.acknowledged <= set(stored) or len(set(stored)) != len(stored):
        sys.exit("an acknowledged order is gone or there twice, which is a bug: please report it")
    killed.found = len(killed.acknowledged)


def verify() -> None:
    """Check every byte of the data directory."""
    report = verify_directory(PosixFiles(), str(DATA))
    if not report.sound:
        sys.exit("verify found damage, which is a bug: please report it")
    step(
        f"Verified every byte: {report.records:,} records in {report.segments} segments, "
        f"{report.bytes:,} bytes, sound."
    )


if __name__ == "__main__":
    main()
