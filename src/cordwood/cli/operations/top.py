"""``cordwood top``: show rates, sizes and lag of topics periodically."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Mapping
from http import HTTPStatus

import click
import msgspec

from cordwood.cli.backends import Backend, CommandTarget, json_option, place_options
from cordwood.cli.output import print_json, print_table
from cordwood.cli.web import WebRefused, WebTarget, web_options
from cordwood.errors import CordwoodError, UnknownTopic
from cordwood.wording import bytes_text

_SAMPLE = re.compile(r"^(\w+)\{(.*)\} (\S+)$", re.MULTILINE)
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
_ENDS, _STARTS = "kafka_topic_partition_current_offset", "kafka_topic_partition_oldest_offset"
#: The columns that a narrow terminal does without, the least important first.
_OMITTED_FIRST = ("partitions", "bytes/s", "offsets", "size", "lag")
_BYTES, _LAG = "cordwood_topic_bytes", "kafka_consumergroup_lag_sum"


class Look(msgspec.Struct):
    """A sample of a topic. ``end`` is the sum of its high watermarks; None is an unknown value."""

    partitions: int = 0
    offsets: int = 0
    end: int = 0
    bytes: int | None = None
    lag: int | None = None


class TopicLine(msgspec.Struct, frozen=True):
    """A topic and its changes since the previous sample. ``lag`` is that of the group furthest behind."""

    topic: str
    partitions: int
    offsets: int
    records_per_second: float | None
    bytes: int | None
    bytes_per_second: float | None
    lag: int | None


def _metrics_url(address: str) -> str:
    """Return the address of the metrics for ``HOST:PORT``, with a scheme, or that of the metrics itself."""
    url = address if "://" in address else f"http://{address}"
    return f"{url.rstrip('/').removesuffix('/metrics')}/metrics"


@click.command()
@web_options(
    "metrics",
    "HOST:PORT",
    "Read a server's metrics, with TLS at https://HOST:PORT; needs cordwood.metrics.partitions=true.",
    _metrics_url,
)
@click.option(
    "--interval",
    metavar="SECONDS",
    type=click.FloatRange(0, min_open=True),
    default=2.0,
    show_default=True,
    help="The time between two samples.",
)
@click.option("--once", is_flag=True, help="Take two samples, print once, and end.")
@click.option("--internal", is_flag=True, help="Also show internal topics.")
@click.option(
    "--limit",
    metavar="N",
    type=click.IntRange(1),
    default=20,
    show_default=True,
    help="The number of topics to show; JSON has all.",
)
@json_option
@place_options
def top(
    metrics: WebTarget | None,
    interval: float,
    once: bool,
    internal: bool,
    limit: int,
    as_json: bool,
    place: CommandTarget,
) -> None:
    """Show rates, sizes and lag of topics, the busiest first, until Ctrl-C.

    Rates count records that became visible to consumers between two samples. With --json each sample is a
    line.

    Example: cordwood top --bootstrap localhost:9092 --once
    """
    if metrics is not None and (place.bootstrap is not None or place.data is not None):
        raise click.UsageError("give --metrics, --bootstrap or --data, not two of them.")
    before: Mapping[str, Look] = {}
    then = 0.0
    while True:
        looked = _ask(metrics, place.timeout) if metrics is not None else _look(place)
        now = time.monotonic()
        found = {name: look for name, look in looked.items() if internal or not name.startswith("__")}
        if before or then:
            _print(_lines(before, found, now - then), limit, as_json)
            if once:
                return
        before, then = found, now
        time.sleep(interval)


def _print(lines: list[TopicLine], limit: int, as_json: bool) -> None:
    if as_json:
        print_json(lines)
        return
    if sys.stdout.isatty():
        click.clear()
    headings = ("topic", "partitions", "offsets", "records/s", "size", "bytes/s", "lag")
    rows = [
        (
            line.topic,
            line.partitions,
            line.offsets,
            None if line.records_per_second is None else round(line.records_per_second),
            "-" if line.bytes is None else bytes_text(line.bytes),
            None if line.bytes_per_second is None else round(line.bytes_per_second),
            line.lag,
        )
        for line in lines[:limit]
    ]
    print_table(headings, rows, omitted_first=_OMITTED_FIRST)
    if len(lines) > limit:
        click.echo(f"and {len(lines) - limit:,} more")


def _lines(before: Mapping[str, Look], now: Mapping[str, Look], seconds: float) -> list[TopicLine]:
    """Return the topics, those with the most records per second first."""
    lines = []
    for name, look in now.items():
        old = before.get(name)
        # A topic that was deleted and created again is a new one.
        known = old is not None and old.end <= look.end
        rate = (look.end - old.end) / seconds if old is not None and known else None
        growth = None
        if old is not None and known and look.bytes is not None and old.bytes is not None:
            growth = (look.bytes - old.bytes) / seconds
        lines.append(TopicLine(name, look.partitions, look.offsets, rate, look.bytes, growth, look.lag))
    return sorted(lines, key=lambda line: (-(line.records_per_second or 0), line.topic))


# --- by a directory or an address -------------------------------------------------------------------


def _look(place: CommandTarget) -> dict[str, Look]:
    with place.reading() as backend:
        found, ends = {}, {}
        for summary in backend.topics():
            try:
                # A broker does not report the size of partitions, so only offsets are requested.
                partitions = _offsets(backend, summary.name, sizes=place.bootstrap is None)
            except UnknownTopic:
                continue
            look = found[summary.name] = Look(partitions=len(partitions))
            for number, (start, end, size) in partitions.items():
                ends[summary.name, number] = end
                look.offsets += end - start
                look.end += end
                look.bytes = None if size is None else (look.bytes or 0) + size
        for group in backend.groups():
            behind: dict[str, int] = {}
            for at, offset in backend.group(group.name).offsets.items():
                behind[at[0]] = behind.get(at[0], 0) + max(ends.get(at, offset) - offset, 0)
            _note_lags(found, behind)
    return found


def _offsets(backend: Backend, topic: str, *, sizes: bool) -> dict[int, tuple[int, int, int | None]]:
    """Return start, end and bytes of each partition."""
    if sizes:
        described = backend.describe(topic).partitions
        return {
            each.partition: (each.log_start_offset, each.high_watermark, each.bytes) for each in described
        }
    return {number: (each.start, each.end, None) for number, each in backend.offsets(topic).items()}


def _note_lags(found: Mapping[str, Look], behind: Mapping[str, int]) -> None:
    for topic, lag in behind.items():
        if topic in found:
            found[topic].lag = max(found[topic].lag or 0, lag)


# --- by the metrics of a server ---------------------------------------------------------------------


def _ask(metrics: WebTarget, timeout: float) -> dict[str, Look]:
    """Return the topics in the metrics of a server. A new token in its file is noticed.

    Raises:
        CordwoodError: If there is no answer, or it has no topics.
    """
    server = metrics.server()
    try:
        text = server.get(timeout)
    except WebRefused as error:
        advice = "cordwood serve --metrics HOST:PORT serves them"
        if error.status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
            advice = f"give the server's token in --metrics-token-file or {metrics.token_variable}"
        elif error.status is None and server.context is None:
            advice += ", with TLS at https://HOST:PORT"
        raise CordwoodError(f"there are no metrics at {server.url}: {error}; {advice}") from error
    return read_metrics(text, server.url)


def read_metrics(text: str, url: str) -> dict[str, Look]:
    """Return the topics in an exposition.

    Raises:
        CordwoodError: If it has no series per topic, although there are topics.
    """
    found: dict[str, Look] = {}
    behind: dict[str, dict[str, int]] = {}
    for name, inner, value in _SAMPLE.findall(text):
        labels = {label: re.sub(r"\\(.)", r"\1", quoted) for label, quoted in _LABEL.findall(inner)}
        if name in (_ENDS, _STARTS, _BYTES):
            look = found.setdefault(labels["topic"], Look())
            if name == _ENDS:
                look.partitions += 1
                look.end += int(float(value))
                look.offsets += int(float(value))
            elif name == _STARTS:
                look.offsets -= int(float(value))
            else:
                look.bytes = int(float(value))
        elif name == _LAG:
            behind.setdefault(labels["consumergroup"], {})[labels["topic"]] = int(float(value))
    for lags in behind.values():
        _note_lags(found, lags)
    if not found and not re.search(r"^cordwood_topics 0$", text, re.MULTILINE):
        raise CordwoodError(
            f"{url} has no series per topic; start the server with -X cordwood.metrics.partitions=true"
        )
    return found
