"""``cordwood mirror``: topics of a Kafka cluster into a data directory, and up to date as long as wanted."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import click
import msgspec

from cordwood.cli import ExitCode
from cordwood.cli.backends import (
    CommandTarget,
    client_options,
    data_option,
    data_path,
    pairs,
    refusing,
    when_free,
)
from cordwood.cli.interrupting import noting_interrupts
from cordwood.cli.output import count_bar, print_json, print_table
from cordwood.config import BrokerConfig, load_broker_config
from cordwood.disk import files_of
from cordwood.errors import CordwoodError
from cordwood.mirror import MirrorFailure, MirrorOptions, MirrorReport, mirror_topics
from cordwood.storage.directory import DataDirectory, Opening
from cordwood.wire_client import KafkaCluster
from cordwood.wording import bytes_text, counted

_SECONDS = 30.0
_HEADINGS = ("topic", "partition", "start", "end", "source end", "batches", "records", "open transactions")


@click.command()
@click.option("--from", "source", metavar="HOST:PORT", required=True, help="A broker of the cluster to copy.")
@click.option(
    "-t",
    "--topic",
    "topics",
    metavar="PATTERN",
    multiple=True,
    help="Topics by name or by pattern, such as 'orders*'. Repeatable [all that are not internal].",
)
@click.option("--exclude", metavar="PATTERN", multiple=True, help="Topics to leave out. Repeatable.")
@click.option(
    "--groups", metavar="PATTERN", multiple=True, help="Copy the committed offsets of these groups, too."
)
@click.option(
    "--reset-groups",
    is_flag=True,
    help="Set committed offsets to those of the source also where a group is further here.",
)
@click.option("--follow", is_flag=True, help="Go on copying until Ctrl-C or SIGTERM.")
@click.option("--verify", is_flag=True, help="Read everything from the source again, and compare.")
@click.option(
    "--skip-deleted",
    is_flag=True,
    help="Go on where the source begins, if it has deleted records before they were copied.",
)
@click.option(
    "--topic-config",
    metavar="KEY=VALUE",
    multiple=True,
    callback=pairs("KEY=VALUE"),
    help="A setting of the topics that are created, in place of the source's.",
)
@data_option
@click.option(
    "--timeout",
    metavar="SECONDS",
    type=click.FloatRange(0, min_open=True),
    default=_SECONDS,
    show_default=True,
    help="The longest time to wait for a broker, or for the leader of a partition.",
)
@client_options
@click.option("--json", "as_json", is_flag=True, help="Print the whole report as one JSON object.")
def mirror(
    source: str,
    topics: tuple[str, ...],
    exclude: tuple[str, ...],
    groups: tuple[str, ...],
    reset_groups: bool,
    follow: bool,
    verify: bool,
    skip_deleted: bool,
    topic_config: dict[str, str],
    data: str | None,
    timeout: float,
    client: Mapping[str, str],
    client_config: str | None,
    as_json: bool,
) -> None:
    """Copy topics of any Kafka into a data directory: batches byte for byte, offsets, timestamps, topic ids.

    Run it again, after whatever ended it, and it goes on where it was. No server may hold the directory
    meanwhile. Topics that are there must be mirrors of the same topics; what they have is compared with the
    source before anything is added.

    Exit status: 0 everything is here, 1 a topic or partition could not be mirrored, 3 --verify found a
    difference.

    Example: cordwood mirror --from kafka-1:9092 --data data -t 'orders*' --groups '*' --verify
    """
    target = CommandTarget(data, source, timeout, client, client_config)
    settings = {**target.client_settings(), "bootstrap.servers": source}
    options = MirrorOptions(
        topics=topics or ("*",),
        exclude=exclude,
        groups=groups,
        config=topic_config,
        reset_groups=reset_groups,
        skip_deleted=skip_deleted,
        follow=follow,
        verify=verify,
        seconds=timeout,
        failed=_say_failed if follow else lambda failure: None,
    )
    report, is_interrupted = _run(data_path(data), settings, options, shown=not as_json)
    _print_report(report, as_json=as_json)
    if is_interrupted:
        raise KeyboardInterrupt
    _report_failures(report, said=follow)
    raise SystemExit(ExitCode.OK if report.is_whole else ExitCode.CHECK_FAILED)


def _run(
    path: str, settings: Mapping[str, Any], options: MirrorOptions, *, shown: bool
) -> tuple[MirrorReport, bool]:
    """Mirror into the directory *path*; return what was done, and whether Ctrl-C ended it too early."""
    config, _ = load_broker_config()
    _wait_for_source(settings, options.seconds)
    with (
        contextlib.closing(_opened(path, config)) as directory,
        noting_interrupts() as stopped,
        count_bar("mirroring", "offsets", shown=shown) as bar,
    ):
        options = replace(options, progress=bar.measure, reached=bar.count, stopped=stopped)
        try:
            report = mirror_topics(directory, config, settings, options)
        except KeyboardInterrupt:
            if not options.follow:
                raise
            # It was to end, and the source did not answer: what was copied is synced.
            raise SystemExit(ExitCode.OK) from None
        return report, stopped() and not options.follow


def _wait_for_source(settings: Mapping[str, Any], seconds: float) -> None:
    """Return once the source answers.

    Before the directory is created: a source that does not answer leaves nothing behind, and Ctrl-C ends this
    at once.

    Raises:
        CordwoodError: If it does not answer in *seconds*.
    """
    with contextlib.closing(KafkaCluster(settings, seconds)) as cluster:
        cluster.refresh()


def _report_failures(report: MirrorReport, *, said: bool) -> None:
    """Raise CordwoodError if there were failures. Several are printed, unless they were *said* before."""
    failures = report.failures
    if len(failures) == 1:
        raise CordwoodError(failures[0].sentence())
    if failures:
        for each in () if said else failures:
            _say_failed(each)
        raise CordwoodError(f"{len(failures)} topics or partitions were not mirrored")


def _opened(path: str, config: BrokerConfig) -> DataDirectory:
    path = os.path.abspath(path)
    with refusing(path):
        opening = Opening(files_of(path, config), path, config)
        return when_free(
            lambda: DataDirectory(opening), "stop it first: a mirror needs the directory exclusively"
        )


def _say_failed(failure: MirrorFailure) -> None:
    click.echo(f"cordwood: {failure.sentence()}", err=True)


def _print_report(report: MirrorReport, *, as_json: bool) -> None:
    if as_json:
        print_json({"whole": report.is_whole, **msgspec.to_builtins(report)})
        return
    rows = [
        (
            topic.topic,
            each.partition,
            each.start,
            each.end,
            each.source_end,
            each.batches,
            each.records,
            each.open_transactions,
        )
        for topic in report.topics
        for each in topic.partitions
    ]
    if rows:
        print_table(_HEADINGS, rows)
    for topic in report.topics:
        for line in topic.not_kept:
            click.echo(f"not kept: {topic.topic}: {line}")
    for group in report.groups:
        click.echo(f"group {group.group}: {counted(group.offsets, 'committed offset')}")
        for line in group.left_out:
            click.echo(f"not kept: group {group.group}: {line}")
    check = report.check
    if check is not None:
        for difference in check.differences:
            click.echo(f"different: {difference}")
        rewritten = f", {check.rewritten:,} compacted at the source since" if check.rewritten else ""
        click.echo(
            f"compared with the source: {check.identical:,} batches identical{rewritten}, "
            f"{counted(len(check.differences), 'partition')} different"
        )
    click.echo(
        f"mirrored {counted(report.records, 'record')}, {bytes_text(report.bytes)}, of "
        f"{counted(len(report.topics), 'topic')} from {report.source}"
    )
