"""``cordwood pipeline stats``: statistics of topics as tables, bars and a picture."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click
import msgspec

from cordwood.cli.backends import complete_topic
from cordwood.cli.output import print_json, print_table
from cordwood.cli.pipeline.line import CommandLine, job_options
from cordwood.wording import bytes_text

if TYPE_CHECKING:
    from cordwood.spark.jobs.stats import StatsReport, TopicStats

_BAR = 40


@click.command()
@click.option(
    "-t",
    "--topic",
    "topics",
    metavar="TOPIC",
    shell_complete=complete_topic,
    multiple=True,
    help="A topic [all].",
)
@click.option(
    "--picture", metavar="FILE.png", type=click.Path(dir_okay=False), help="Also draw a picture to this file."
)
@click.option(
    "--keys", metavar="N", type=click.IntRange(0), default=5, show_default=True, help="Frequent keys to show."
)
@click.option(
    "--buckets",
    metavar="N",
    type=click.IntRange(1),
    default=24,
    show_default=True,
    help="The number of intervals in the histogram of times.",
)
@job_options(address=True)
def stats(topics: tuple[str, ...], picture: str | None, keys: int, buckets: int, line: CommandLine) -> None:
    """Show sizes, rates, key skew and times of topics, of all topics without -t.

    Bytes are those of keys and values; the size on disk is that of the segments, known only for a directory.
    The number of keys is an estimate. A skew of 1 is even; 2 means that one partition has twice its share.

    Example: cordwood pipeline stats --data data -t orders --picture orders.png
    """
    place = line.place()
    from cordwood.spark.jobs.stats import check_can_draw, draw

    if picture is not None:
        check_can_draw()
    with line.working("counting") as spark:
        from cordwood.spark.jobs.stats import StatsOptions
        from cordwood.spark.jobs.stats import stats as run

        report = run(spark, StatsOptions(place, topics, keys, buckets))
    if picture is not None:
        draw(report, picture)
    if line.as_json:
        print_json(msgspec.to_builtins(report))
        return
    _print(report)
    if picture is not None:
        click.echo(f"drawn in {picture}")


def _print(report: StatsReport) -> None:
    print_table(
        ("topic", "partitions", "records", "keys", "values", "a record", "on disk"),
        [_sizes(each) for each in report.topics],
    )
    print_table(
        ("topic", "first", "last", "a second", "null values", "null keys", "estimated distinct keys", "skew"),
        [_spread(each) for each in report.topics],
    )
    for each in report.topics:
        if each.top_keys:
            click.echo(f"{each.topic}: most frequent keys")
            rows = [(key.key, key.records, f"{key.share:.1%}") for key in each.top_keys]
            print_table(("key", "records", "share"), rows)
        if each.histogram:
            click.echo(f"{each.topic}: records by time")
            print_table(("from", "records", ""), _bars(each))


def _sizes(topic: TopicStats) -> tuple[object, ...]:
    average = None if topic.average_bytes is None else bytes_text(round(topic.average_bytes))
    on_disk = None if topic.bytes_on_disk is None else bytes_text(topic.bytes_on_disk)
    return (
        topic.topic,
        len(topic.partitions),
        topic.records,
        bytes_text(topic.key_bytes),
        bytes_text(topic.value_bytes),
        average,
        on_disk,
    )


def _spread(topic: TopicStats) -> tuple[object, ...]:
    from cordwood.spark.jobs.stats import time_text

    times = [None if ms is None else time_text(ms) for ms in (topic.first_ms, topic.last_ms)]
    rate = None if topic.records_per_second is None else _rate(topic.records_per_second)
    skew = None if topic.skew is None else f"{topic.skew:.2f}"
    keys = (topic.null_keys, topic.estimated_distinct_keys)
    return (topic.topic, *times, rate, topic.null_values, *keys, skew)


def _rate(rate: float) -> str:
    return f"{rate:,.0f}" if rate >= 100 else f"{rate:.3g}"


def _bars(topic: TopicStats) -> list[tuple[object, ...]]:
    from cordwood.spark.jobs.stats import time_text

    most = max(each.records for each in topic.histogram)
    return [
        (
            time_text(each.start_ms, topic.bucket_ms or 1),
            each.records,
            "█" * round(_BAR * each.records / most),
        )
        for each in topic.histogram
    ]
