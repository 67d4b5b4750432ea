"""``cordwood checkpoint``: sign the content of a log, and verify it later."""

from __future__ import annotations

import http.client
import os
import urllib.error
import urllib.request
from dataclasses import asdict, astuple

import click

import cordwood
from cordwood.cli.backends import LOCKED_SECONDS, data_option, json_option
from cordwood.cli.evidence.evidence import checked_directory, key_option, read_text, refuting, write_text
from cordwood.cli.output import print_json, print_table
from cordwood.embedded import open_when_free
from cordwood.errors import CordwoodError, DirectoryLocked
from cordwood.integrity import VerifierKey
from cordwood.wording import counted

_POST_SECONDS = 10


@click.group()
def checkpoint() -> None:
    """Sign the content of a log, so that a holder of the signature can detect changes.

    Example: cordwood checkpoint create
    """


@checkpoint.command()
@click.option("-t", "--topic", metavar="TOPIC", help="Only this topic [all with cordwood.chain=true].")
@click.option("--to", metavar="FILE", help="Write the note to this file, or several into this directory.")
@click.option("--post", metavar="URL", help="Send each note to this URL with an HTTP POST.")
@data_option
def create(topic: str | None, to: str | None, post: str | None, data: str | None) -> None:
    """Sign a checkpoint of each partition, store it, and print it, write it to a file, or send it.

    Beside a server it signs the part of the log that is in the chain, all except the last seconds. The
    signing key is created on first use. For a topic in the shared log it signs the shared log, which has one
    chain.

    Example: cordwood checkpoint create -t orders --to orders.note
    """
    if to is not None and post is not None:
        raise click.UsageError("give --to or --post, not both.")
    if post is not None and not post.startswith(("http://", "https://")):
        raise click.UsageError("--post takes a URL that begins with http:// or https://.")
    with checked_directory(data) as path, _opened(path) as log, refuting():
        signed = log.checkpoint(topic)
    notes = [(f"{each.topic}-{each.partition}-{each.size}.note", each.note) for each in signed]
    if not notes:
        click.echo("nothing to sign: no partition has a record yet")
    elif to is not None:
        _write(notes, to)
    else:
        for _, note in notes:
            if post is not None:
                _post(note, post)
            else:
                click.echo(note, nl=False)


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


def _post(note: str, url: str) -> None:
    request = urllib.request.Request(  # noqa: S310 - the scheme was checked
        url, data=note.encode(), headers={"Content-Type": "text/plain; charset=utf-8"}, method="POST"
    )
    try:
        with urllib.request.urlopen(request, timeout=_POST_SECONDS) as answer:  # noqa: S310 - as above
            click.echo(f"{url}: answered {answer.status}")
    except urllib.error.HTTPError as error:
        error.close()
        raise _not_taken(url, f"it answered {error.code}") from error
    except urllib.error.URLError as error:
        raise _not_taken(url, error.reason) from error
    except (TimeoutError, http.client.HTTPException) as error:
        raise _not_taken(url, error or type(error).__name__) from error


def _not_taken(url: str, reason: object) -> CordwoodError:
    return CordwoodError(f"the checkpoint was signed and stored, but {url} did not accept it: {reason}")


@checkpoint.command()
@click.option("-t", "--topic", metavar="TOPIC", help="Only the checkpoints of this topic.")
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
@click.argument("file", metavar="FILE")
@key_option
@data_option
def verify(file: str, key: VerifierKey, data: str | None) -> None:
    """Check a checkpoint that was stored elsewhere against the log: signature, tree, and every frame.

    Changes nothing, takes no lock, and may run beside the writer.

    Exit status: 0 the checkpoint holds, 4 it does not; the difference is printed.

    Example: cordwood checkpoint verify --key orders.pub orders.note
    """
    with checked_directory(data) as path, refuting():
        note = read_text(file)
        found = cordwood.verify_checkpoint(path, note, key, name=file)
    said, report = found.checkpoint, found.report
    as_said = "as first appended, or as compaction left them" if report.compacted else "as first appended"
    click.echo(
        f"{said.origin}: holds: {said.size:,} of {report.leaves:,} leaves, up to offset {said.next_offset}; "
        f"{counted(report.frames_compared, 'frame')} {as_said}"
    )
    for each in found.statements:
        what = f"{each.kind}, {each.reason}" if each.reason else each.kind
        click.echo(
            f"leaf {each.leaf}: {what}: offsets {each.start} up to {each.end}, epoch {each.leader_epoch}"
        )
