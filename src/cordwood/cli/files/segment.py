"""``cordwood segment``: list the segments of a topic, print the content of a segment's files."""

from __future__ import annotations

import dataclasses

import click

import cordwood
from cordwood.cli.backends import data_option, data_path, json_option
from cordwood.cli.output import print_json, print_table
from cordwood.cli.records import record_fields
from cordwood.cli.suggesting import SuggestingGroup
from cordwood.errors import CordwoodError
from cordwood.formats import EVERY_FORMAT
from cordwood.inspection import InspectedFrame, is_index, list_segments

#: A table is printed for this many frames at a time.
_TABLE_ROWS = 1000
#: The columns of each kind of frame: the heading, and the field.
_COLUMNS = {
    "batch": {
        "position": "position",
        "size": "size",
        "base offset": "base_offset",
        "last offset": "last_offset",
        "records": "records",
        "compression": "compression",
        "max timestamp": "max_timestamp",
        "epoch": "leader_epoch",
        "producer": "producer_id",
    },
    "envelope": {
        "position": "position",
        "size": "size",
        "kind": "kind",
        "owner": "owner",
        "org": "org",
        "first id": "first_id",
        "last id": "last_id",
        "first offset": "first_offset",
        "max timestamp": "max_timestamp",
        "epoch": "leader_epoch",
    },
    "record": {
        "position": "position",
        "size": "size",
        "offset": "offset",
        "timestamp": "timestamp",
        "key bytes": "key_bytes",
        "value bytes": "value_bytes",
        "compression": "compression",
    },
}
#: Numbers that are printed as they are, without commas.
_NAMES = ("timestamp", "max_timestamp", "org")


@click.group(cls=SuggestingGroup)
def segment() -> None:
    """List the segments of a topic, or print the content of a segment file.

    Example: cordwood segment dump data/topics/orders/0/segments/00000000000000000000.log
    """


@segment.command(name="list")
@click.argument("topic")
@data_option
@json_option
def list_(topic: str, data: str | None, as_json: bool) -> None:
    """List the segments of a topic, with the SHA-256 of each sealed one once it is recorded.

    Example: cordwood segment list orders --data data
    """
    found = list_segments(data_path(data), topic)
    if as_json:
        print_json([dataclasses.asdict(each) for each in found])
        return
    rows = [
        (
            each.partition,
            str(each.base_offset),
            str(each.next_offset),
            each.bytes,
            "active" if each.is_active else each.sealed_ms and str(each.sealed_ms),
            each.sha256,
        )
        for each in found
    ]
    print_table(("partition", "base offset", "next offset", "bytes", "sealed", "sha256"), rows)


@segment.command()
@click.argument("file", type=click.Path(exists=True, dir_okay=False))
@click.option(
    "--format",
    "format_name",
    type=click.Choice(tuple(EVERY_FORMAT)),
    help="The format of the file, if no partition.json beside it has it. Default: batch.",
)
@click.option("--records", is_flag=True, help="Also print the records of each frame, as JSON.")
@click.option(
    "--json", "as_json", is_flag=True, help="Print a JSON object for each frame, or each entry of an index."
)
def dump(file: str, format_name: str | None, records: bool, as_json: bool) -> None:
    """Print the frames of a .log file, or the entries of an index or a file of checksums, and check each.

    FILE may be any file of Kafka's record batches, of another record format with --format, or a file in
    quarantine/. Bytes past the mark of the partition are not checked.

    Exit status: 4 if a frame is corrupt.

    Example: cordwood segment dump --records 00000000000000000000.log
    """
    if is_index(file):
        _dump_index(file, as_json)
        return
    found = cordwood.inspect_segment(file, record_format=format_name, records=records)
    rows: list[InspectedFrame] = []
    try:
        for frame in found:
            decoded = [
                {"offset": record.offset, "ts": record.timestamp, **record_fields(record)}
                for record in frame.records
            ]
            if as_json:
                print_json({**frame.fields, **({"content": decoded} if records else {})})
                continue
            rows.append(frame)
            if len(rows) == _TABLE_ROWS or records:
                _print(rows)
                rows = []
            for record in decoded:
                print_json(record)
    finally:
        # The sound frames are printed before the error.
        if rows:
            _print(rows)
    if found.tail is not None:
        click.echo(found.tail, err=True)


def _print(frames: list[InspectedFrame]) -> None:
    columns = _COLUMNS[frames[0].kind]
    print_table(tuple(columns), [[_cell(frame, name) for name in columns.values()] for frame in frames])


def _cell(frame: InspectedFrame, name: str) -> object:
    fields = frame.fields
    if name == "records" and fields.get("marker") is not None:
        return fields["marker"]
    if name == "producer_id":
        id_, epoch = fields["producer_id"], fields["producer_epoch"]
        return f"{id_}/{epoch}" if isinstance(id_, int) and id_ >= 0 else None
    return str(fields[name]) if name in _NAMES else fields[name]


def _dump_index(file: str, as_json: bool) -> None:
    found = cordwood.inspect_index(file)
    if as_json:
        for entry in found.entries:
            print_json(dict(zip(found.fields, entry, strict=True)))
    else:
        print_table(found.fields, [[str(value) for value in entry] for entry in found.entries])
    if found.cut_off is not None:
        raise CordwoodError(found.cut_off)
