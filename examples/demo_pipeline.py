"""The second part of the demo: revenue by window on Spark, as a table and as a picture."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

# The pipeline itself, which is an example of its own beside this file.
import streaming  # type: ignore[import-not-found]
from pyspark.sql import Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everyone calls it
from rich.console import Console
from rich.table import Table

import cordwood

if TYPE_CHECKING:
    from demo import Killed  # type: ignore[import-not-found]

#: From bark to heartwood, one for each item; readable beside each other without colour vision too.
COLOURS = ("#3e2a1c", "#7a4a24", "#b5763a", "#dcae6f", "#f1dfbd")
ACKNOWLEDGED, KILL, BACK = "#7a4a24", "#b3261e", "#2e6b4f"

#: How far a label is moved at a time if it would cover another.
STEP_POINTS = 4

console = Console(highlight=False)


def show(address: str, data: Path, home: Path, picture: Path, killed: Killed) -> None:
    """Run the pipeline, then print and draw what it wrote."""
    with stderr_to(home / "spark.log"):
        rows, open_orders = run_pipeline(address, data, home)
    show_table(rows, open_orders)
    draw(rows, killed, picture)
    console.print(f"[green]✓[/] The kill and the revenue as a picture: {picture}")


@contextmanager
def stderr_to(path: Path) -> Iterator[None]:
    """Write the messages of Spark into a file."""
    kept = os.dup(2)
    with path.open("wb") as log:
        os.dup2(log.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


def run_pipeline(address: str, data: Path, home: Path) -> tuple[list[Row], int]:
    """Add up revenue by window and item, from topic to topic; return it, and the orders not in it yet."""
    started = time.perf_counter()
    spark = cordwood.spark.session("demo", config={"spark.sql.shuffle.partitions": "2"})
    spark.conf.set("spark.sql.session.timeZone", "UTC")
    ready = time.perf_counter()
    source, sink = {"path": str(data.resolve())}, {"kafka.bootstrap.servers": address}
    streaming.run(spark, source, sink, str((home / "checkpoint").resolve()))
    rows = read_revenue(spark, data)
    with cordwood.open(data, read_only=True) as log:
        orders = log.topic("orders")
        sent = sum(len(orders.offsets(partition)) for partition in range(orders.partitions))
    spark.stop()
    console.print(
        f"[green]✓[/] Spark was up in {ready - started:.0f} s, then read the segment files beside the broker "
        f"and wrote {len(rows)} rows of closed windows to topic revenue, exactly once, "
        f"in {time.perf_counter() - ready:.0f} s."
    )
    return rows, sent - sum(row.orders for row in rows)


def read_revenue(spark: SparkSession, data: Path) -> list[Row]:
    """Return what the pipeline wrote."""
    topic = spark.read.format("cordwood").option("path", str(data.resolve())).option("subscribe", "revenue")
    schema = "start timestamp, item string, revenue long, orders long"
    parsed = topic.load().select(F.from_json(F.col("value").cast("string"), schema).alias("row"))
    return parsed.select("row.*").orderBy("start", "item").collect()


def show_table(rows: Sequence[Row], open_orders: int) -> None:
    """Print revenue by item, and by window as bars."""
    table = Table("item", "orders", "revenue (€)", title="revenue by item", title_justify="left")
    for column in table.columns[1:]:
        column.justify = "right"
    for item in items_of(rows):
        of_item = [row for row in rows if row.item == item]
        orders, revenue = sum(row.orders for row in of_item), sum(row.revenue for row in of_item)
        table.add_row(item, f"{orders:,}", f"{revenue:,}")
    console.print(table)
    console.print(
        f"  {open_orders:,} more orders belong to windows that late orders can still change. They are in the "
        "log, and in the table once their window is closed."
    )
    by_start = by_window(rows)
    most = max(by_start.values())
    for start, amount in by_start.items():
        console.print(f"  {start:%H:%M}  [rgb(181,118,58)]{'█' * round(40 * amount / most)}[/] {amount:,} €")


def items_of(rows: Sequence[Row]) -> list[str]:
    """Return the items, those with most revenue first."""
    revenue: dict[str, int] = {}
    for row in rows:
        revenue[row.item] = revenue.get(row.item, 0) + row.revenue
    return sorted(revenue, key=lambda item: -revenue[item])


def by_window(rows: Sequence[Row]) -> dict[datetime, int]:
    """Return the revenue of each window, in order."""
    found: dict[datetime, int] = {}
    for row in rows:
        found[row.start] = found.get(row.start, 0) + row.revenue
    return found


def draw(rows: Sequence[Row], killed: Killed, picture: Path) -> None:
    """Draw what was acknowledged and found again across the kill, and revenue by window and item."""
    drawn(rows, killed).savefig(picture, dpi=120)


def drawn(rows: Sequence[Row], killed: Killed) -> Any:
    """Return the picture as a figure of matplotlib."""
    import matplotlib as mpl

    mpl.use("agg")
    from matplotlib import pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(13, 4.6), width_ratios=(2, 3))
    draw_kill(left, killed)
    draw_revenue(right, rows)
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    figure.tight_layout()
    set_apart(left)
    return figure


def set_apart(axes: Any) -> None:
    """Move labels up until none covers another; one that would begin beside the picture is turned around."""
    renderer = axes.figure.canvas.get_renderer()
    taken: list[Any] = []
    for label in axes.texts:
        if label.get_window_extent(renderer).x0 < axes.bbox.x0:
            label.set_horizontalalignment("left")
        while any(label.get_window_extent(renderer).overlaps(box) for box in taken):
            across, up = label.get_position()
            label.set_position((across, up + STEP_POINTS))
        taken.append(label.get_window_extent(renderer))


def draw_kill(axes: Any, killed: Killed) -> None:
    """Draw how many orders had been acknowledged over time, and how many were there after the restart."""
    seconds, counts = zip(*killed.over_time, strict=True)
    axes.plot(seconds, counts, color=ACKNOWLEDGED, linewidth=2)
    axes.axvspan(killed.killed_at, killed.back_at, color=KILL, alpha=0.12, linewidth=0)
    axes.plot([killed.back_at], [killed.found], "o", color=BACK, markersize=8)
    top = killed.found * 1.3
    axes.set_ylim(0, top)
    axes.set_xlim(0, killed.back_at * 1.35)
    down = (killed.killed_at + killed.back_at) / 2
    axes.annotate("down", (down, 0), (0, 6), textcoords="offset points", color=KILL, ha="center")
    axes.hlines(killed.found, killed.killed_at, killed.back_at, color=BACK, linestyle=":", linewidth=1)
    axes.annotate(
        f"{killed.found:,}\nall there",
        (killed.back_at, killed.found),
        (6, 12),
        textcoords="offset points",
        color=BACK,
    )
    axes.annotate(
        "kill -9",
        (killed.killed_at, counts[-1]),
        (-6, 12),
        textcoords="offset points",
        color=KILL,
        ha="right",
    )
    axes.set_title("Acknowledged, and found again", loc="left")
    axes.set_xlabel("seconds")
    axes.set_ylabel("acknowledged orders")


def draw_revenue(axes: Any, rows: Sequence[Row]) -> None:
    """Draw stacked bars, a window each, with the items beside them."""
    starts, items = list(by_window(rows)), items_of(rows)
    amounts = {(row.start, row.item): row.revenue for row in rows}
    places, floor = range(len(starts)), [0] * len(starts)
    for item, colour in zip(items, COLOURS, strict=True):
        heights = [amounts.get((start, item), 0) for start in starts]
        axes.bar(places, heights, bottom=floor, color=colour, width=0.85, label=item)
        floor = [low + height for low, height in zip(floor, heights, strict=True)]
    axes.set_xticks(list(places)[::2], [f"{start:%H:%M}" for start in starts[::2]])
    axes.set_title(f"Revenue in windows of {streaming.WINDOW}, by item", loc="left")
    axes.set_xlabel("start of the window (UTC)")
    axes.set_ylabel("revenue (€)")
    # Beside the bars, where it covers none of them; in their order from top to bottom.
    axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False, reverse=True)
