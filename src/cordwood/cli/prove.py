"""``cordwood prove``: a small document that shows to anyone that a record is in the log."""

from __future__ import annotations

from typing import NamedTuple

import click

from cordwood.cli.evidence import opened_to_read, refuted, refuting
from cordwood.cli.output import bytes_text
from cordwood.cli.place import data_option
from cordwood.errors import CordwoodError, OffsetOutOfRange
from cordwood.integrity import merkle, proof
from cordwood.integrity.checkpoint import unverified
from cordwood.storage.catalogue import SHARED_TOPIC
from cordwood.storage.chain import kept_chain
from cordwood.storage.chain_files import KeptChain
from cordwood.storage.chain_following import frames_of
from cordwood.storage.checkpoints import KeptCheckpoint, kept_checkpoints, read_note, verifier_key
from cordwood.storage.data_directory import partition_directory
from cordwood.storage.partition_state import PartitionState, read_state
from cordwood.storage.posix_files import PosixFiles
from cordwood.storage.read_only import ReadOnlyDirectory, ReadOnlyPartition


@click.command()
@click.argument("offset", type=click.IntRange(0))
@click.option("-t", "--topic", metavar="TOPIC", required=True, help="The topic.")
@click.option(
    "-p", "--partition", type=click.IntRange(0), default=0, show_default=True, help="The partition."
)
@click.option("--to", metavar="FILE", help="Write the proof there instead of printing it.")
@data_option
def prove(offset: int, topic: str, partition: int, to: str | None, data: str | None) -> None:
    """Prove that the record at OFFSET is what was first appended there.

    The proof is one JSON document: the frame with the record, its path in the tree, and the newest signed
    checkpoint. Whoever has the verifier key checks it with cordwood verify-proof, or without Cordwood. Of a
    topic in the shared log the frame and the checkpoint are those of the shared log.

    Example: cordwood prove -t orders 17 --to proof.json
    """
    files = PosixFiles()
    with opened_to_read(data) as directory:
        found = _located(directory, topic, partition, offset)
        place = partition_directory(directory.path, found.topic, found.partition)
        first, next_offset, frame = found.first_offset, found.next_offset, found.frame
        with kept_chain(files, place) as chain, refuting():
            kept = kept_checkpoints(files, directory.path, found.topic_id, found.partition)
            key = verifier_key(files, directory.path)
            if chain is None or not kept or key is None:
                raise CordwoodError(
                    f"no checkpoint of partition {found.partition} of topic {found.topic} was signed yet; "
                    f"sign one with cordwood checkpoint create -t {topic}"
                )
            leaf = _leaf_of(chain, read_state(files, place), found.chained_offset, frame)
            note = _note_over(files, kept, leaf, topic, offset)
            said = unverified(note)
            path = chain.inclusion_path(leaf, said.size, said.root)
    document = proof.encode(
        proof.Proof(
            format=proof.FORMAT,
            offset=offset,
            first_offset=first,
            next_offset=next_offset,
            leaf=leaf,
            path=path,
            checkpoint=note,
            key=str(key),
            frame=frame,
        )
    )
    if to is None:
        click.echo(document, nl=False)
        return
    with open(to, "wb") as file:
        file.write(document)
    click.echo(
        f"{to}: proves offset {offset} of partition {partition} of {topic} in {bytes_text(len(document))}"
    )


class _Located(NamedTuple):
    """A frame that holds the offset that was asked for, and the partition whose chain has its leaf.

    ``chained_offset`` is an offset that it has there: an id, if that is the shared log.
    """

    topic: str
    topic_id: str
    partition: int
    chained_offset: int
    first_offset: int
    next_offset: int
    frame: bytes


def _located(directory: ReadOnlyDirectory, topic: str, partition: int, offset: int) -> _Located:
    """Find the frame that holds *offset*.

    Raises:
        CordwoodError: If the partition has no record there.
    """
    log = directory.readable(topic, partition)
    start, end = log.log_start_offset, log.high_watermark
    if not start <= offset < end:
        place = f"partition {partition} of topic {topic}"
        if start == end:
            raise CordwoodError(f"{place} has no records, so there is nothing to prove")
        raise CordwoodError(
            f"offset {offset} is not within {start} and {end - 1}, the first and the last of {place}"
        )
    if isinstance(log, ReadOnlyPartition):
        return _Located(topic, log.topic_id, partition, offset, *_frame_at(log, offset))
    envelope = log.frame_at(offset)
    shared = directory.readable(SHARED_TOPIC, 0)
    assert isinstance(shared, ReadOnlyPartition)
    first, end = envelope.first_offset, envelope.first_offset + envelope.id_count
    id_ = envelope.first_id + offset - first
    return _Located(SHARED_TOPIC, shared.topic_id, 0, id_, first, end, _frame_at(shared, id_)[2])


def _frame_at(log: ReadOnlyPartition, offset: int) -> tuple[int, int, bytes]:
    """Return the offsets and the bytes of the frame that holds *offset*."""
    runs = log.read(offset, 1).runs
    for first, next_offset, frame in frames_of(runs[0]) if runs else ():
        if first <= offset < next_offset:
            return first, next_offset, bytes(frame)
    raise OffsetOutOfRange(offset, log.log_start_offset, log.high_watermark)


def _leaf_of(chain: KeptChain, state: PartitionState, offset: int, frame: bytes) -> int:
    """Return the leaf of *frame*, which is what was appended at *offset*, or end the command."""
    leaf = chain.find(offset, _generation(state, offset))
    if leaf is None:
        raise CordwoodError(f"the frame at offset {offset} has no leaf: {_why_not(chain, offset)}")
    if chain.hash_at(0, leaf) == merkle.leaf_hash(frame):
        return leaf
    if _generation(state, offset) and chain.find(offset) == leaf:
        raise CordwoodError(
            f"the frame at offset {offset} was compacted by somebody who did not say so in the chain, "
            "so it cannot be proven"
        )
    raise refuted(
        f"the frame at offset {offset} is not what was first appended there: its leaf {leaf} is of another"
    )


def _generation(state: PartitionState, offset: int) -> int:
    """Return how often the segment that holds *offset* was compacted."""
    found = (each.generation for each in state.sealed if each.base <= offset < each.next_offset)
    return next(found, state.active_generation)


def _why_not(chain: KeptChain, offset: int) -> str:
    for each in chain.statements():
        if each.kind == "gap" and each.start <= offset < each.end:
            return f"it was {each.reason} before it could get one"
    return "cordwood checkpoint create gives it one"


def _note_over(files: PosixFiles, kept: list[KeptCheckpoint], leaf: int, topic: str, offset: int) -> str:
    """Return the newest checkpoint, which must have the leaf."""
    if kept[-1].size <= leaf:
        raise CordwoodError(
            f"the newest checkpoint does not reach offset {offset}; "
            f"sign one that does with cordwood checkpoint create -t {topic}"
        )
    return read_note(files, kept[-1])
