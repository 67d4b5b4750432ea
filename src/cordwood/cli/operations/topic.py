"""``cordwood topic``: create, list, describe, alter, roll, truncate and delete topics."""

from __future__ import annotations

from collections.abc import Container, Mapping

import click
import msgspec

from cordwood.cli.backends import (
    CommandTarget,
    complete_topic,
    json_option,
    pairs,
    place_options,
    place_options_beside_config,
)
from cordwood.cli.output import print_json, print_table
from cordwood.cli.suggesting import SuggestingGroup
from cordwood.errors import CordwoodError, UnknownTopic
from cordwood.tenancy import suggest
from cordwood.wording import counted

_partitions_option = click.option(
    "--partitions", metavar="N", type=click.IntRange(1), help="The number of partitions."
)
_config_option = click.option(
    "--config",
    metavar="KEY=VALUE",
    multiple=True,
    callback=pairs("KEY=VALUE, such as retention.ms=3600000; --command-config takes a client.properties"),
    help="A setting of the topic, under Kafka's name.",
)


@click.group(cls=SuggestingGroup)
def topic() -> None:
    """Create, list, describe, alter, roll, truncate and delete topics.

    Example: cordwood topic create orders --partitions 3
    """


@topic.command()
@click.argument("name")
@_partitions_option
@_config_option
@place_options_beside_config
def create(name: str, partitions: int | None, config: Mapping[str, str], place: CommandTarget) -> None:
    """Create a topic, and the data directory if it does not exist.

    Example: cordwood topic create orders --partitions 3 --config segment.bytes=67108864
    """
    with place.writing(create=True) as backend:
        count = backend.create(name, partitions, config)
    click.echo(f"created topic {name} with {counted(count, 'partition')}")


@topic.command(name="list")
@click.option("--internal", is_flag=True, help="Also list internal topics.")
@json_option
@place_options
def list_(internal: bool, as_json: bool, place: CommandTarget) -> None:
    """List the topics.

    Example: cordwood topic list --json
    """
    with place.reading() as backend:
        found = [each for each in backend.topics() if internal or not each.internal]
    if as_json:
        print_json(found)
        return
    rows = [(each.name, each.partitions, _offsets(each.offsets)) for each in found]
    print_table(("topic", "partitions", "offsets"), rows)


def _check_partition(name: str, partition: int, existing: Container[int]) -> None:
    if partition not in existing:
        raise UnknownTopic(f"topic {name} has no partition {partition}")


def _offsets(count: int | None) -> int | str:
    return "damaged" if count is None else count


@topic.command()
@click.argument("name", shell_complete=complete_topic)
@json_option
@place_options
def describe(name: str, as_json: bool, place: CommandTarget) -> None:
    """Show the offsets and sizes of a topic's partitions, and its settings.

    Example: cordwood topic describe orders
    """
    with place.reading() as backend:
        found = backend.describe(name)
    if as_json:
        print_json(msgspec.to_builtins(found))
        return
    click.echo(f"topic {found.name}, id {found.id or 'not known'}")
    rows = [
        (each.partition, each.log_start_offset, each.high_watermark, each.bytes) for each in found.partitions
    ]
    print_table(("partition", "log start offset", "high watermark", "bytes"), rows)
    settings = [
        (key, value, "topic" if key in found.own else "default") for key, value in found.settings.items()
    ]
    print_table(("setting", "value", "from"), settings)


@topic.command()
@click.argument("name", shell_complete=complete_topic)
@_partitions_option
@_config_option
@click.option("--unset", metavar="KEY", multiple=True, help="Remove a setting of the topic.")
@place_options_beside_config
def alter(
    name: str, partitions: int | None, config: Mapping[str, str], unset: tuple[str, ...], place: CommandTarget
) -> None:
    """Change the number of partitions or the settings of a topic.

    With more partitions, keys map to other partitions; stored records stay where they are.

    Example: cordwood topic alter orders --partitions 6 --config cordwood.sync=ms:100
    """
    if partitions is None and not config and not unset:
        raise click.UsageError("nothing to alter: give --partitions, --config or --unset.")
    with place.writing() as backend:
        backend.alter(name, partitions, config, unset)
    click.echo(f"altered topic {name}")


@topic.command()
@click.argument("name", shell_complete=complete_topic)
@click.option(
    "-p", "--partition", metavar="N", type=click.IntRange(0), help="The partition. Default: all of them."
)
@place_options
def roll(name: str, partition: int | None, place: CommandTarget) -> None:
    """Seal the active segment of a topic's partitions, and continue in new ones.

    Retention, compaction and backup by links work on sealed segments. An empty segment stays as it is.

    Example: cordwood topic roll orders --partition 0
    """
    with place.writing() as backend:
        partitions = list(backend.offsets(name))
        if partition is not None:
            _check_partition(name, partition, partitions)
            partitions = [partition]
        for number in partitions:
            backend.roll(name, number)
    click.echo(f"rolled {counted(len(partitions), 'partition')} of topic {name}")


@topic.command()
@click.argument("name", shell_complete=complete_topic)
@click.option(
    "-p", "--partition", metavar="N", type=click.IntRange(0), required=True, help="The partition to truncate."
)
@click.option(
    "--end-offset",
    metavar="OFFSET",
    type=click.IntRange(0),
    required=True,
    help="The first offset that is removed; the next record gets it.",
)
@click.option("--force", is_flag=True, help="Also remove records that a checkpoint signs for.")
@click.option("--dry-run", is_flag=True, help="Print what would be removed, and remove nothing.")
@place_options
def truncate(
    name: str, partition: int, end_offset: int, force: bool, dry_run: bool, place: CommandTarget
) -> None:
    """Remove the newest records of a partition: all from an offset on.

    The leader epoch is raised, so consumers that have read further notice it and follow their reset policy.
    Committed offsets stay. The chain gets a statement about it. Records that a signed checkpoint covers are
    removed only with --force.

    Example: cordwood topic truncate orders --partition 0 --end-offset 1000 --dry-run
    """
    with place.reading() if dry_run else place.writing() as backend:
        offsets = backend.offsets(name)
        _check_partition(name, partition, offsets)
        start, end = offsets[partition].start, offsets[partition].end
        if not start <= end_offset <= end:
            raise CordwoodError(
                f"offset {end_offset} is not within {start} and {end}, which the partition has"
            )
        backend.truncate(name, partition, end_offset, force=force, dry_run=dry_run)
    removed = counted(max(offsets[partition].end - end_offset, 0), "offset")
    verb = "would truncate" if dry_run else "truncated"
    click.echo(f"{verb} partition {partition} of topic {name} to offset {end_offset}: {removed} removed")


@topic.command()
@click.argument("name", shell_complete=complete_topic)
@click.option("--dry-run", is_flag=True, help="Print what would be deleted, and delete nothing.")
@place_options
def delete(name: str, dry_run: bool, place: CommandTarget) -> None:
    """Delete a topic and all its records.

    Example: cordwood topic delete orders --dry-run
    """
    with place.reading() if dry_run else place.writing() as backend:
        found = {each.name: each for each in backend.topics()}
        summary = found.get(name)
        if summary is None:
            raise UnknownTopic.named(name, suggestion=suggest(name, found))
        if not dry_run:
            backend.delete(name)
    amount = "damaged records" if summary.offsets is None else counted(summary.offsets, "offset")
    verb = "would delete" if dry_run else "deleted"
    click.echo(f"{verb} topic {name}: {amount} in {counted(summary.partitions, 'partition')}")
