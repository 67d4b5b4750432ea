"""Cordwood end to end in a minute: a broker, a stock Kafka client, a Spark pipeline, kill -9, what is left.

Run it with ``make demo``. Everything it makes is in ``.demo/``, to look at afterwards.
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
from datetime import UTC, datetime
from pathlib import Path

# The pipeline itself, which is an example of its own beside this file.
import streaming  # type: ignore[import-not-found]
from confluent_kafka import KafkaError, Message, Producer
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]
from pyspark.sql import Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everyone calls it
from rich.console import Console
from rich.table import Table

import cordwood
from cordwood.disk import PosixFiles
from cordwood.verify import verify_directory

HOME = Path(".demo")
DATA, PICTURE = HOME / "data", HOME / "revenue.png"
ORDERS = 120_000
PARTITIONS = 4
#: The orders were placed within these hours before now, a few of them a minute late or more.
HOURS = 3
ITEMS = {"axe": 42, "saw": 31, "maul": 55, "wedge": 12, "gloves": 9}
CUSTOMERS = [f"customer-{number:03d}" for number in range(200)]

console = Console(highlight=False)


def main() -> None:
    """Show everything, step by step."""
    shutil.rmtree(HOME, ignore_errors=True)
    HOME.mkdir()
    with serving() as (address, pid):
        step(f"A broker on {address}, its data in {DATA}. It acknowledges what is synced to the device.")
        send_orders(address, ORDERS)
        with stderr_to(HOME / "spark.log"):
            rows = run_pipeline(address)
        show_table(rows)
        draw(rows)
        acknowledged = send_until_killed(address, pid)
    with serving() as (address, _):
        check_all_there(acknowledged)
        step(f"Restarted on {address}: every acknowledged order is there, none twice.")
    report = verify_directory(PosixFiles(), str(DATA))
    if not report.sound:
        sys.exit("verify found damage, which is a bug: please report it")
    step(
        f"Verified every byte: {report.records:,} records in {report.segments} segments, "
        f"{report.bytes:,} bytes, sound."
    )
    console.print("\n[bold]What this showed[/]")
    console.print("  Acknowledged means synced: kill -9 lost nothing that a producer was told is stored.")
    console.print("  Spark read segment files beside the live broker, and its sink wrote each window once.")
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


@contextmanager
def stderr_to(path: Path) -> Iterator[None]:
    """Keep what Spark has to say while it starts for who wants to read it."""
    kept = os.dup(2)
    with path.open("wb") as log:
        os.dup2(log.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


@contextmanager
def serving() -> Iterator[tuple[str, int]]:
    """Run ``cordwood serve`` and give its address and process id; end it, unless it is dead already."""
    server = subprocess.Popen(
        [sys.executable, "-m", "cordwood.cli", "serve", "--data", str(DATA), "--listen", "127.0.0.1:0"],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert server.stdout is not None
    try:
        yield server.stdout.readline().split()[-1], server.pid
    finally:
        server.terminate()
        server.wait()


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
    topics = [NewTopic("orders", PARTITIONS, 1), NewTopic("payments", 1, 1), NewTopic("revenue", 1, 1)]
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


def run_pipeline(address: str) -> list[Row]:
    """Add up revenue by window and item, from topic to topic, and return it as a table."""
    started = time.perf_counter()
    spark = cordwood.spark.session("demo", config={"spark.sql.shuffle.partitions": "2"})
    spark.conf.set("spark.sql.session.timeZone", "UTC")
    ready = time.perf_counter()
    source, sink = {"path": str(DATA.resolve())}, {"kafka.bootstrap.servers": address}
    streaming.run(spark, source, sink, str(HOME / "checkpoint"))
    rows = read_revenue(spark)
    spark.stop()
    step(
        f"Spark was up in {ready - started:.0f} s, then read the segment files and wrote {len(rows)} closed "
        f"windows to topic revenue, exactly once, in {time.perf_counter() - ready:.0f} s."
    )
    return rows


def read_revenue(spark: SparkSession) -> list[Row]:
    """Return what the pipeline wrote."""
    topic = spark.read.format("cordwood").option("path", str(DATA.resolve())).option("subscribe", "revenue")
    schema = "start timestamp, item string, revenue long, orders long"
    parsed = topic.load().select(F.from_json(F.col("value").cast("string"), schema).alias("row"))
    return parsed.select("row.*").orderBy("start", "item").collect()


def show_table(rows: list[Row]) -> None:
    """Print revenue by item, and by window as bars."""
    table = Table("item", "orders", "revenue", title="revenue by item", title_justify="left")
    for column in table.columns[1:]:
        column.justify = "right"
    for item in ITEMS:
        of_item = [row for row in rows if row.item == item]
        table.add_row(
            item, f"{sum(row.orders for row in of_item):,}", f"{sum(row.revenue for row in of_item):,}"
        )
    console.print(table)
    by_start = by_window(rows)
    most = max(by_start.values())
    for start, amount in by_start.items():
        console.print(f"  {start:%H:%M}  [cyan]{'█' * round(40 * amount / most)}[/] {amount:,}")


def by_window(rows: list[Row]) -> dict[datetime, int]:
    """Return the revenue of each window, in order."""
    found: dict[datetime, int] = {}
    for row in rows:
        found[row.start] = found.get(row.start, 0) + row.revenue
    return found


def draw(rows: list[Row]) -> None:
    """Draw revenue by window and item as a picture."""
    import matplotlib as mpl

    mpl.use("agg")
    from matplotlib import dates
    from matplotlib import pyplot as plt

    starts = list(by_window(rows))
    amounts = {(row.start, row.item): row.revenue for row in rows}
    figure, axes = plt.subplots(figsize=(9, 4))
    axes.stackplot(
        dates.date2num(starts),  # type: ignore[no-untyped-call]
        [[amounts.get((start, item), 0) for start in starts] for item in ITEMS],
        labels=list(ITEMS),
    )
    axes.set_title(f"revenue in windows of {streaming.WINDOW}")
    axes.legend(loc="upper left", ncols=len(ITEMS))
    axes.xaxis.set_major_formatter(dates.DateFormatter("%H:%M"))  # type: ignore[no-untyped-call]
    figure.savefig(PICTURE, dpi=120, bbox_inches="tight")
    step(f"The same as a picture: {PICTURE}")


def send_until_killed(address: str, pid: int) -> set[bytes]:
    """Send more orders, kill the broker with -9 meanwhile, and return those it had acknowledged."""
    acknowledged: set[bytes] = set()

    def told(error: KafkaError | None, message: Message) -> None:
        value = message.value()
        if error is None and value is not None:
            acknowledged.add(value)

    producer = Producer({"bootstrap.servers": address, "linger.ms": 1, "log_level": 0})
    dice, now = random.Random(2), time.time()
    sent = 0
    while len(acknowledged) < 20_000:
        customer, order = make_order(ORDERS + sent, dice, now)
        producer.produce("orders", json.dumps(order), customer, on_delivery=told)
        producer.poll(0)
        sent += 1
    os.kill(pid, signal.SIGKILL)
    # Answers that were on their way still count.
    producer.poll(0.2)
    producer.purge()
    step(f"kill -9 while orders came in: {len(acknowledged):,} of {sent:,} were acknowledged.")
    return acknowledged


def check_all_there(acknowledged: set[bytes]) -> None:
    """Compare what the log has with what the producer was told."""
    with cordwood.open(DATA, read_only=True) as log:
        stored = [
            value.as_py() for batch in log.scan("orders", columns=["value"]).batches() for value in batch[0]
        ]
    later = [value for value in stored if json.loads(value)["order"] >= ORDERS]
    if not acknowledged <= set(later) or len(set(later)) != len(later):
        sys.exit("an acknowledged order is gone or there twice, which is a bug: please report it")


if __name__ == "__main__":
    main()
