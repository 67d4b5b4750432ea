"""``cordwood checkpoint``: sign for what is in the log, and see later whether it still is."""

from __future__ import annotations

import contextlib
import http.client
import os
import urllib.error
import urllib.request
from collections.abc import Iterator

import click

from cordwood import process
from cordwood.cli.evidence import (
    key_option,
    open_to_write,
    opened_to_read,
    read_text,
    refuted,
    refuting,
    write_text,
)
from cordwood.cli.output import counted, print_json, print_table
from cordwood.cli.place import data_option, json_option
from cordwood.errors import CordwoodError, DirectoryLocked, UnknownTopic
from cordwood.integrity.checkpoint import Checkpoint, open_checkpoint, origin_of, unverified
from cordwood.integrity.note import SigningKey, VerifierKey
from cordwood.storage.catalogue import SHARED_TOPIC, is_shared
from cordwood.storage.chain import kept_chain
from cordwood.storage.checkpoints import (
    kept_checkpoints,
    read_note,
    sign_checkpoint,
    signing_key,
    verifier_key,
)
from cordwood.storage.data_directory import partition_directory
from cordwood.storage.posix_files import PosixFiles
from cordwood.storage.read_only import ReadOnlyDirectory
from cordwood.storage.verify import GivenCheckpoint, statements_of, verify_directory

_POST_SECONDS = 10


@click.group()
def checkpoint() -> None:
    """Sign for what a log holds, so that whoever keeps the signature notices when it changes.

    Example: cordwood checkpoint create
    """


@checkpoint.command()
@click.option("-t", "--topic", metavar="TOPIC", help="This topic only [every one with cordwood.chain=true].")
@click.option("--to", metavar="FILE", help="Write the note there; of several, into this directory.")
@click.option("--post", metavar="URL", help="Send each note there with an HTTP POST.")
@data_option
def create(topic: str | None, to: str | None, post: str | None, data: str | None) -> None:
    """Sign a checkpoint of each partition, keep it, and print it, or take it elsewhere.

    Beside a server it signs for what that has followed, all but the last seconds. The key that signs is made
    on first use. For a topic in the shared log it signs for the shared log, which has one chain.

    Example: cordwood checkpoint create -t orders --to orders.note
    """
    if to is not None and post is not None:
        raise click.UsageError("give --to or --post, not both.")
    if post is not None and not post.startswith(("http://", "https://")):
        raise click.UsageError("--post takes a URL that begins with http:// or https://.")
    _follow(data)
    with opened_to_read(data) as directory, refuting():
        notes = list(_signed(directory, topic))
    if not notes:
        click.echo("nothing to sign for: no partition has a record yet")
    elif to is not None:
        _write(notes, to)
    else:
        for _, note in notes:
            if post is not None:
                _post(note, post)
            else:
                click.echo(note, nl=False)


def _follow(data: str | None) -> None:
    """Have every record in the chains. A server does that by itself, within seconds."""
    try:
        with contextlib.closing(open_to_write(data)) as directory:
            for log in directory.all_partitions():
                if log.config.chain:
                    directory.chains.commit(log)
    except DirectoryLocked as error:
        if error.address is None:
            raise


def _signed(directory: ReadOnlyDirectory, topic: str | None) -> Iterator[tuple[str, str]]:
    """Yield a file name and the note for each partition that has records."""
    files, broker = PosixFiles(), directory.identity.uuid
    key: SigningKey | None = None
    for name in _chained_topics(directory, topic):
        for partition in range(directory.topics[name].partitions):
            with kept_chain(files, partition_directory(directory.path, name, partition)) as chain:
                if chain is None or not chain.head.size:
                    continue
                # Made here, when there is something to sign for.
                key = key or signing_key(files, directory.path, broker, process.new_seed)
                known = (files, directory.path, broker, name, partition, chain, key)
                note = sign_checkpoint(*known, directory.config_of(directory.topics[name].config).format)
                yield f"{name}-{partition}-{chain.head.size}.note", note


def _chained_topics(directory: ReadOnlyDirectory, topic: str | None) -> list[str]:
    chained = [
        name
        for name, entry in sorted(directory.topics.items())
        if directory.config_of(entry.config).chain and not is_shared(entry)
    ]
    if topic is None:
        if not chained:
            raise CordwoodError(
                "no topic keeps a chain; have one keep it with "
                "cordwood topic alter TOPIC --config cordwood.chain=true"
            )
        return chained
    if topic not in directory.topics:
        raise UnknownTopic(f"there is no topic {topic}")
    if is_shared(directory.topics[topic]):
        # What signs for its records is the one chain over all that share a log.
        topic = SHARED_TOPIC
    if topic not in chained:
        raise CordwoodError(
            f"topic {topic} keeps no chain; have it keep one with "
            f"cordwood topic alter {topic} --config cordwood.chain=true"
        )
    return [topic]


def _write(notes: list[tuple[str, str]], to: str) -> None:
    if os.path.isdir(to):
        for name, note in notes:
            write_text(os.path.join(to, name), note)
    elif len(notes) == 1:
        write_text(to, notes[0][1])
    else:
        raise CordwoodError(f"there are {len(notes)} checkpoints, so {to} must be a directory that is there")
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
    return CordwoodError(f"the checkpoint was signed and is kept, but {url} did not take it: {reason}")


@checkpoint.command()
@click.option("-t", "--topic", metavar="TOPIC", help="The checkpoints of this topic only.")
@data_option
@json_option
def show(topic: str | None, data: str | None, as_json: bool) -> None:
    """Print the verifier key and every checkpoint that was signed here.

    Example: cordwood checkpoint show --json
    """
    files = PosixFiles()
    with opened_to_read(data) as directory:
        key = verifier_key(files, directory.path)
        rows = []
        topics = directory.topics
        if topic is not None and topic in topics and is_shared(topics[topic]):
            topic = SHARED_TOPIC
        for name, entry in sorted(topics.items()):
            if topic not in (None, name):
                continue
            for kept in kept_checkpoints(files, directory.path, entry.id):
                with refuting():
                    said = unverified(read_note(files, kept))
                rows.append((name, kept.partition, kept.size, said.next_offset, said.leader_epoch, kept.path))
    if as_json:
        names = ("topic", "partition", "size", "next_offset", "leader_epoch", "path")
        print_json(
            {
                "key": None if key is None else str(key),
                "checkpoints": [dict(zip(names, row, strict=True)) for row in rows],
            }
        )
        return
    if key is None:
        click.echo("no checkpoint was signed yet; cordwood checkpoint create signs one")
        return
    click.echo(f"key {key}")
    print_table(("topic", "partition", "size", "next offset", "epoch", "file"), rows)


@checkpoint.command()
@click.argument("file", metavar="FILE")
@key_option
@data_option
def verify(file: str, key: VerifierKey, data: str | None) -> None:
    """Check a checkpoint that was kept elsewhere against the log: signature, tree, and every frame.

    Changes nothing, takes no lock, and may run beside the writer.

    Exit status: 0 it all holds, 4 something differs, and what.

    Example: cordwood checkpoint verify --key orders.pub orders.note
    """
    with refuting():
        note = read_text(file)
        said = open_checkpoint(note, key)
    files = PosixFiles()
    with opened_to_read(data) as directory:
        topic, partition = _place_of(said, directory)
        place = partition_directory(directory.path, topic, partition)
        report = verify_directory(
            files,
            directory.path,
            topic,
            checkpoints=[GivenCheckpoint(file, note, key)],
            partition=partition,
        )
    for finding in report.findings:
        if finding.severity == "corruption":
            what = str(finding).removeprefix("corruption: ")
            raise refuted(f"partition {partition} of topic {topic} does not hold: {what}")
    as_said = "as first appended, or as compaction left them" if report.compacted else "as first appended"
    click.echo(
        f"{said.origin}: holds: {said.size:,} of {report.leaves:,} leaves, up to offset {said.next_offset}; "
        f"{counted(report.frames_compared, 'frame')} {as_said}"
    )
    for each in statements_of(files, place):
        what = f"{each.kind}, {each.reason}" if each.reason else each.kind
        click.echo(
            f"leaf {each.leaf}: {what}: offsets {each.start} up to {each.end}, epoch {each.leader_epoch}"
        )


def _place_of(said: Checkpoint, directory: ReadOnlyDirectory) -> tuple[str, int]:
    """Return the topic and partition that a checkpoint is of."""
    for topic, entry in directory.topics.items():
        for partition in range(entry.partitions):
            if origin_of(directory.identity.uuid, topic, partition) == said.origin:
                return topic, partition
    raise refuted(f"the checkpoint is of {said.origin}, which is not in {directory.path}")
