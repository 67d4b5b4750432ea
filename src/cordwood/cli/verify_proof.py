"""``cordwood verify-proof``: check a proof with nothing but a key."""

from __future__ import annotations

import click
import msgspec

from cordwood.cli.evidence import key_option, refuting
from cordwood.cli.output import print_json
from cordwood.cli.place import json_option
from cordwood.errors import EvidenceRefused, FrameError
from cordwood.formats.envelope import EnvelopeTable, Kind, Owner
from cordwood.formats.format import Format
from cordwood.formats.record_per_frame import RecordPerFrame
from cordwood.formats.registry import BATCH, EVERY_FORMAT
from cordwood.integrity import proof
from cordwood.integrity.checkpoint import Checkpoint
from cordwood.integrity.note import VerifierKey
from cordwood.records import Record
from cordwood.storage.virtual_log import owner_of


@click.command("verify-proof")
@click.argument("file", metavar="FILE")
@key_option
@click.option("-t", "--topic", metavar="TOPIC", help="The record must be of this topic.")
@json_option
def verify_proof(file: str, key: VerifierKey, topic: str | None, as_json: bool) -> None:
    """Check that FILE proves what it says, with the key that is pinned and no data directory.

    Of a record in the shared log the frame names the topic by a hash, which only --topic can be held against.

    Exit status: 0 proven, 4 not, and why.

    Example: cordwood verify-proof proof.json --key orders.pub
    """
    with open(file, "rb") as opened:
        document = opened.read()
    with refuting():
        found = proof.decode(document)
        checkpoint = proof.check(found, key, _offsets_of)
        record = _record_at(found.frame, found.offset, checkpoint)
        owner = _owner_of(found.frame, checkpoint)
        if topic is not None:
            _check_topic(topic, owner, checkpoint)
    facts = {
        "origin": checkpoint.origin,
        **({} if owner is None else {"owner": str(owner)}),
        "offset": found.offset,
        "leaf": found.leaf,
        "size": checkpoint.size,
        "timestamp": None if record is None else record.timestamp,
        "key_bytes": None if record is None or record.key is None else len(record.key),
        "value_bytes": None if record is None or record.value is None else len(record.value),
    }
    if as_json:
        print_json(facts)
        return
    what = "a frame without that record" if record is None else _described(record)
    whose = "" if owner is None else f" of {owner}"
    click.echo(
        f"{checkpoint.origin}: proven: "
        f"offset {found.offset}{whose} is in leaf {found.leaf} of {checkpoint.size:,}: {what}"
    )


def _described(record: Record) -> str:
    def size(data: bytes | None) -> str:
        return "none" if data is None else f"{len(data):,} bytes"

    return f"timestamp {record.timestamp}, key {size(record.key)}, value {size(record.value)}"


def _offsets_of(frame: bytes, checkpoint: Checkpoint) -> tuple[int, int] | None:
    """Return the offsets that a frame says it has; it must be one whole, sound frame."""
    format_ = _format(checkpoint)
    if isinstance(format_, RecordPerFrame):
        size = len(frame)
        try:
            found = format_.find_frame(frame, 0, size=size, size_max=size, checked=False)
        except FrameError as error:
            raise EvidenceRefused(f"the frame in the proof is not one whole record: {error}") from error
        if found.size != size:
            raise EvidenceRefused("the frame in the proof is not one whole record")
        return None if found.offset is None else (found.offset, found.offset + 1)
    table = format_.scan(frame, next_offset=0, dense=False, epochs=None, size_max=len(frame))
    if len(table) != 1 or table.end != len(frame):
        raise EvidenceRefused("the frame in the proof is not one whole record batch")
    if isinstance(table, EnvelopeTable):
        # Those of its topic: which ids it has in the shared log, the leaf tells.
        said = table.envelope(0)
        if said.kind is not Kind.RECORDS:
            raise EvidenceRefused("the frame in the proof has no records")
        return said.first_offset, said.first_offset + said.id_count
    return table.base_offset(0), table.next_offset(0)


def _owner_of(frame: bytes, checkpoint: Checkpoint) -> Owner | None:
    """Return whose a frame of the shared log is; None for any other, which has its topic in the origin."""
    format_ = _format(checkpoint)
    if isinstance(format_, RecordPerFrame):
        return None
    table = format_.scan(frame, next_offset=0, dense=False, epochs=None, size_max=len(frame))
    return table.envelope(0).owner if isinstance(table, EnvelopeTable) else None


def _check_topic(topic: str, owner: Owner | None, checkpoint: Checkpoint) -> None:
    """Refuse a proof of a record of another topic."""
    if owner is None:
        is_, found = checkpoint.origin.split("/")[-2:-1] == [topic], checkpoint.origin
    else:
        try:
            is_, found = owner_of(topic, owner.partition) == owner, str(owner)
        except ValueError as error:
            raise click.BadParameter(f"{error}.") from None
    if not is_:
        raise EvidenceRefused(f"the record is not of topic {topic}, but of {found}")


def _format(checkpoint: Checkpoint) -> Format:
    """Return the format that frames are signed to have."""
    format_ = EVERY_FORMAT.get(checkpoint.record_format)
    if format_ is None:
        raise EvidenceRefused(f"the checkpoint is of frames of a format {checkpoint.record_format[:60]!r}")
    number = checkpoint.origin.rpartition("/")[2]
    return format_.for_partition(int(number)) if number.isdecimal() else format_


def _record_at(frame: bytes, offset: int, checkpoint: Checkpoint) -> Record | None:
    format_ = _format(checkpoint)
    try:
        if isinstance(format_, RecordPerFrame):
            found = format_.find_frame(frame, 0, size=len(frame), size_max=len(frame), checked=True)
            content = format_.decode_frame(frame, 0, len(frame))
            return Record(offset, found.timestamp, content.key, content.value, content.headers)
        table = format_.scan(frame, next_offset=0, dense=False, epochs=None, size_max=len(frame))
        # With the offsets of their topic.
        records = BATCH.decode(table.content(0), 0) if isinstance(table, EnvelopeTable) else table.records(0)
    except (FrameError, msgspec.MsgspecError) as error:
        raise EvidenceRefused(f"the frame is in the log, but cannot be read: {error}") from error
    return next((record for record in records if record.offset == offset), None)
