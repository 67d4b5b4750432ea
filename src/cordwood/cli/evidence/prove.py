"""``cordwood prove``: create a small document that proves that a record is in the log."""

from __future__ import annotations

import click

import cordwood
from cordwood.cli.backends import complete_topic, data_option
from cordwood.cli.evidence.evidence import checked_directory, refuting, write_private
from cordwood.wording import bytes_text


@click.command()
@click.argument("offset", type=click.IntRange(0))
@click.option(
    "-t", "--topic", metavar="TOPIC", shell_complete=complete_topic, required=True, help="The topic."
)
@click.option(
    "-p", "--partition", type=click.IntRange(0), default=0, show_default=True, help="The partition."
)
@click.option(
    "--checkpoint",
    metavar="FILE",
    type=click.Path(exists=True, dir_okay=False),
    help="Prove it under this checkpoint, not the newest one.",
)
@click.option(
    "--uncommitted",
    is_flag=True,
    help="Prove it also if its transaction is aborted or open; the proof says so.",
)
@click.option("--to", metavar="FILE", help="Write the proof to this file instead of printing it.")
@data_option
def prove(
    offset: int,
    topic: str,
    partition: int,
    checkpoint: str | None,
    uncommitted: bool,
    to: str | None,
    data: str | None,
) -> None:
    """Prove that the record at OFFSET is the one that was first appended there.

    The proof is one JSON document: the frame with the record, its path in the tree, and the newest signed
    checkpoint. Of a topic that may be compacted it has the record alone. Anyone with the verifier key checks
    it with cordwood verify-proof, or without Cordwood. Of a topic in the shared log the frame and the
    checkpoint are those of the shared log. A record of an aborted or open transaction is refused without
    --uncommitted.

    Example: cordwood prove -t orders 17 --to proof.json
    """
    note = None
    if checkpoint is not None:
        with open(checkpoint, encoding="utf-8") as opened:
            note = opened.read()
    with checked_directory(data) as path, refuting():
        found = cordwood.prove(
            path, topic, offset, partition=partition, checkpoint=note, committed=not uncommitted
        )
    document = found.document()
    if to is None:
        click.echo(document, nl=False)
        return
    write_private(to, document)
    whose = f"partition {partition} of {topic}"
    if found.transaction is not None:
        whose += f", of an {found.transaction} transaction,"
    click.echo(f"{to}: proves offset {offset} of {whose} in {bytes_text(len(document))}")
