"""``cordwood checkpoint``: sign the content of a log, and verify it later."""

from __future__ import annotations

import os
from dataclasses import asdict, astuple
from itertools import pairwise

import click

import cordwood
from cordwood.cli.backends import LOCKED_SECONDS, complete_topic, data_option, json_option
from cordwood.cli.evidence.evidence import (
    checked_directory,
    key_option,
    read_text,
    refuting,
    write_private,
    write_text,
)
from cordwood.cli.output import print_json, print_table, spinner
from cordwood.cli.suggesting import SuggestingGroup
from cordwood.cli.web import WebRefused, WebServer, WebTarget, web_options
from cordwood.embedded import open_when_free
from cordwood.errors import CordwoodError, DirectoryLocked
from cordwood.integrity import Checkpoint, VerifierKey, unverified
from cordwood.wording import bytes_text, counted

_POST_SECONDS = 10


@click.group(cls=SuggestingGroup)
def checkpoint() -> None:
    """Sign the content of a log, so that a holder of the signature can detect changes.

    Example: cordwood checkpoint create
    """


@checkpoint.command()
@click.option(
    "-t",
    "--topic",
    metavar="TOPIC",
    shell_complete=complete_topic,
    help="Only this topic [all with cordwood.chain=true].",
)
@click.option("--to", metavar="FILE", help="Write the note to this file, or several into this directory.")
@web_options("post", "URL", "Send each note to this URL with an HTTP POST.")
@click.option(
    "--wait",
    metavar="SECONDS",
    type=click.FloatRange(0),
    default=15,
    show_default=True,
    help="How long to wait for a server's leaves, of the records that are synced when the command begins.",
)
@data_option
def create(
    topic: str | None,
    to: str | None,
    post: WebTarget | None,
    wait: float,
    data: str | None,
) -> None:
    """Sign a checkpoint of each partition, store it, and print it, write it to a file, or send it.

    A server writes the leaves of new records every few seconds. Beside a server, the command waits for the
    leaves of all records that are synced, and signs nothing if they are missing. The signing key is created
    on first use. For a topic in the shared log it signs the shared log, which has one chain.

    Example: cordwood checkpoint create -t orders --to orders.note
    """
    if to is not None and post is not None:
        raise click.UsageError("give --to or --post, not both.")
    # Before anything is signed: what is wrong with the options is said first.
    anchor = None if post is None else post.server()
    with checked_directory(data) as path, _opened(path) as log, refuting(), spinner("signing"):
        signed = log.checkpoint(topic, wait_seconds=wait)
    notes = [(f"{each.topic}-{each.partition}-{each.size}.note", each.note) for each in signed]
    if not notes:
        click.echo("nothing to sign: no partition has a record yet")
    elif to is not None:
        _write(notes, to)
    else:
        for _, note in notes:
            if anchor is not None:
                click.echo(f"{anchor.url}: answered {_posted(anchor, note)}")
            else:
                click.echo(note, nl=False)


def _posted(anchor: WebServer, note: str) -> int:
    try:
        return anchor.post(note, _POST_SECONDS)
    except WebRefused as error:
        raise CordwoodError(
            f"the checkpoint was signed and stored, but {anchor.url} did not accept it: {error}"
        ) from error


def _opened(path: str) -> cordwood.Log:
    """Open a data directory as its writer or, beside a server, which maintains the chains, for reading."""
    try:
        return open_when_free(lambda: cordwood.open(path, create=False), LOCKED_SECONDS)
    except DirectoryLocked as error:
        if error.address is None:
            raise
        return cordwood.open(path, read_only=True)


def _write(notes: list[tuple[str, str]], to: str) -> None:
    if os.path.isdir(to):
        for name, note in notes:
            write_text(os.path.join(to, name), note)
    elif len(notes) == 1:
        write_text(to, notes[0][1])
    else:
        raise CordwoodError(f"there are {len(notes)} checkpoints, so {to} must be an existing directory")
    click.echo(f"{to}: {counted(len(notes), 'checkpoint')} written")


@checkpoint.command()
@click.option(
    "-t",
    "--topic",
    metavar="TOPIC",
    shell_complete=complete_topic,
    help="Only the checkpoints of this topic.",
)
@data_option
@json_option
def show(topic: str | None, data: str | None, as_json: bool) -> None:
    """Print the verifier key and every checkpoint that was signed in this directory.

    Example: cordwood checkpoint show --json
    """
    with checked_directory(data) as path, refuting():
        found = cordwood.list_checkpoints(path, topic)
    if as_json:
        key = None if found.key is None else str(found.key)
        print_json({"key": key, "checkpoints": [asdict(each) for each in found.checkpoints]})
        return
    if found.key is None:
        click.echo("no checkpoint was signed yet; cordwood checkpoint create signs one")
        return
    click.echo(f"key {found.key}")
    headings = ("topic", "partition", "size", "next offset", "epoch", "file")
    print_table(headings, [astuple(each) for each in found.checkpoints])


@checkpoint.command()
@click.argument("files", metavar="FILE...", nargs=-1, required=True)
@key_option
@click.option("--proof", metavar="FILE", help="Compare OLD and NEW with this proof instead of the log.")
@data_option
def verify(files: tuple[str, ...], key: VerifierKey, proof: str | None, data: str | None) -> None:
    """Check checkpoints that were kept elsewhere against the log: signature, tree, and every frame.

    Of several checkpoints of one log, OLD and NEW in any order, each must continue the next smaller one. With
    --proof, which cordwood checkpoint prove makes, that is checked without the log, and nothing else is.

    Changes nothing, takes no lock, and may run beside the writer.

    Exit status: 0 the checkpoint holds, 4 it does not; the difference is printed.

    Example: cordwood checkpoint verify --key orders.pub orders.note
    """
    if proof is not None:
        if len(files) != 2 or data is not None:
            raise click.UsageError("--proof takes two checkpoints, OLD and NEW, and no --data.")
        _verify_proof(proof, files, key)
        return
    with checked_directory(data) as path, refuting():
        notes = [read_text(file) for file in files]
        with spinner("verifying"):
            found = cordwood.verify_checkpoints(path, notes, key, names=files)
    by_origin: dict[str, list[tuple[str, cordwood.CheckpointReport]]] = {}
    for file, report in zip(files, found, strict=True):
        by_origin.setdefault(report.checkpoint.origin, []).append((file, report))
    for held in by_origin.values():
        _print_held(held)


def _print_held(held: list[tuple[str, cordwood.CheckpointReport]]) -> None:
    """Print what was found about the checkpoints of one partition, which all hold."""
    for _, found in held:
        said, report = found.checkpoint, found.report
        as_said = "as first appended, or as compaction left them" if report.compacted else "as first appended"
        click.echo(
            f"{said.origin}: holds: {said.size:,} of {report.leaves:,} leaves, "
            f"up to offset {said.next_offset}; {counted(report.frames_compared, 'frame')} {as_said}"
        )
    for older, newer in pairwise(sorted(held, key=lambda each: each[1].checkpoint.size)):
        said = newer[1].checkpoint
        click.echo(f"{said.origin}: consistent: {_grown(older[0], older[1].checkpoint, newer[0], said)}")
    for each in held[0][1].statements:
        what = f"{each.kind}, {each.reason}" if each.reason else each.kind
        click.echo(
            f"leaf {each.leaf}: {what}: offsets {each.start} up to {each.end}, epoch {each.leader_epoch}"
        )


def _grown(older: str, before: Checkpoint, newer: str, after: Checkpoint) -> str:
    return f"the {after.size:,} leaves of {newer} begin with the {before.size:,} leaves of {older}"


def _in_order(files: tuple[str, ...]) -> list[tuple[str, str]]:
    """Return the name and the text of each note, the smaller checkpoint first. Raises as `read_text`."""
    notes = [(file, read_text(file)) for file in files]
    return sorted(notes, key=lambda each: unverified(each[1]).size)


def _verify_proof(path: str, files: tuple[str, ...], key: VerifierKey) -> None:
    with open(path, "rb") as opened:
        document = opened.read()
    with refuting():
        (older, before), (newer, after) = _in_order(files)
        found = cordwood.verify_consistency(document, before, after, key)
    click.echo(f"{found.newer.origin}: consistent: {_grown(older, found.older, newer, found.newer)}")


@checkpoint.command()
@click.argument("old", metavar="OLD")
@click.argument("new", metavar="NEW")
@click.option("--to", metavar="FILE", help="Write the proof there instead of printing it.")
@data_option
def prove(old: str, new: str, to: str | None, data: str | None) -> None:
    """Prove that the log between two checkpoints, the files OLD and NEW, only grew.

    The proof is one JSON document with the hashes between the two roots. Anyone with both checkpoints and the
    verifier key checks it with cordwood checkpoint verify --proof, without the log.

    Example: cordwood checkpoint prove monday.note tuesday.note --to grown.json
    """
    with checked_directory(data) as path, refuting():
        (older, before), (newer, after) = _in_order((old, new))
        document = cordwood.prove_consistency(path, before, after).document()
    if to is None:
        click.echo(document, nl=False)
        return
    write_private(to, document)
    grown = _grown(older, unverified(before), newer, unverified(after))
    click.echo(f"{to}: proves that {grown} in {bytes_text(len(document))}")
