"""``cordwood group``: committed offsets and lag of consumer groups."""

from __future__ import annotations

import click
import msgspec

from cordwood.cli.backends import (
    Backend,
    CommandTarget,
    complete_group,
    complete_topic,
    json_option,
    place_options,
    unknown_group,
)
from cordwood.cli.output import print_json, print_table, printable
from cordwood.cli.records import Start, chosen, parse_start, starts
from cordwood.cli.suggesting import SuggestingGroup
from cordwood.errors import CordwoodError, UnknownTopic
from cordwood.records import TopicPartition
from cordwood.wording import counted


@click.group(cls=SuggestingGroup)
def group() -> None:
    """List, describe, reset and delete consumer groups.

    On a data directory, groups and lag are those that were last stored.

    Example: cordwood group describe billing
    """


@group.command(name="list")
@json_option
@place_options
def list_(as_json: bool, place: CommandTarget) -> None:
    """List the consumer groups.

    Example: cordwood group list
    """
    with place.reading() as backend:
        found = backend.groups()
    if as_json:
        print_json(found)
    else:
        print_table(("group", "state"), [(each.name, each.state) for each in found])


@group.command()
@click.argument("name", shell_complete=complete_group)
@json_option
@place_options
def describe(name: str, as_json: bool, place: CommandTarget) -> None:
    """Show a group's committed offsets, lag and members.

    Example: cordwood group describe billing --json
    """
    with place.reading() as backend:
        found = backend.group(name)
        ends = _ends(backend, {topic for topic, _ in found.offsets})
    rows = [
        (topic, number, offset, ends.get((topic, number)), _lag(offset, ends.get((topic, number))))
        for (topic, number), offset in sorted(found.offsets.items())
    ]
    headings = ("topic", "partition", "committed", "high watermark", "lag")
    if as_json:
        fields = ("topic", "partition", "committed", "high_watermark", "lag")
        offsets = [dict(zip(fields, row, strict=True)) for row in rows]
        members = msgspec.to_builtins(found.members)
        print_json({"name": name, "state": found.state, "members": members, "offsets": offsets})
        return
    click.echo(f"group {printable(name)}, {found.state}")
    print_table(headings, rows)
    if found.members:
        print_table(
            ("member", "client", "host"), [(each.id, each.client_id, each.host) for each in found.members]
        )


def _ends(backend: Backend, topics: set[str]) -> dict[TopicPartition, int]:
    """Return the high watermarks of the partitions of *topics* that exist."""
    found = {}
    for topic in topics:
        try:
            offsets = backend.offsets(topic)
        except UnknownTopic:
            continue
        found.update({(topic, number): each.end for number, each in offsets.items()})
    return found


def _lag(offset: int, end: int | None) -> int | None:
    return None if end is None else max(0, end - offset)


@group.command()
@click.argument("name", shell_complete=complete_group)
@click.option(
    "-t",
    "--topic",
    metavar="TOPIC",
    shell_complete=complete_topic,
    help="The topic [all topics with committed offsets of the group].",
)
@click.option("-p", "--partition", metavar="N", type=click.IntRange(0), help="One partition; needs -t.")
@click.option(
    "--to",
    metavar="OFFSET",
    callback=parse_start,
    required=True,
    help="The new position: beginning, end, N, -N for the last N, s@MS for a time.",
)
@click.option("--dry-run", is_flag=True, help="Print what would change, and change nothing.")
@json_option
@place_options
def reset(
    name: str,
    topic: str | None,
    partition: int | None,
    to: Start,
    dry_run: bool,
    as_json: bool,
    place: CommandTarget,
) -> None:
    """Change the committed offsets of a group. It must have no members.

    Example: cordwood group reset billing -t orders --to beginning --dry-run
    """
    if partition is not None and topic is None:
        raise click.UsageError("-p needs -t.")
    with place.reading() if dry_run else place.writing() as backend:
        committed = _committed(backend, name, needed=topic is None)
        topics = [topic] if topic is not None else sorted({each for each, _ in committed})
        after = {
            (each, number): offset
            for each in topics
            for number, offset in starts(backend, each, chosen(backend, each, partition), to).items()
        }
        if not dry_run:
            backend.commit(name, after)
    rows = [(each, number, committed.get((each, number)), offset) for (each, number), offset in after.items()]
    if as_json:
        fields = ("topic", "partition", "before", "after")
        print_json([dict(zip(fields, row, strict=True)) for row in rows])
        return
    print_table(("topic", "partition", "before", "would be" if dry_run else "after"), rows)


def _committed(backend: Backend, name: str, *, needed: bool) -> dict[TopicPartition, int]:
    if name in {each.name for each in backend.groups()}:
        found = backend.group(name).offsets
        if found or not needed:
            return found
        raise CordwoodError(f"group {name} has no committed offsets; give a topic with -t")
    if needed:
        raise unknown_group(name)
    return {}


@group.command()
@click.argument("name", shell_complete=complete_group)
@click.option("--dry-run", is_flag=True, help="Print what would be deleted, and delete nothing.")
@place_options
def delete(name: str, dry_run: bool, place: CommandTarget) -> None:
    """Delete a group and its committed offsets. It must have no members.

    Example: cordwood group delete billing --dry-run
    """
    with place.reading() if dry_run else place.writing() as backend:
        offsets = backend.group(name).offsets
        if not dry_run:
            backend.delete_group(name)
    verb = "would delete" if dry_run else "deleted"
    click.echo(f"{verb} group {printable(name)}: committed offsets of {counted(len(offsets), 'partition')}")
