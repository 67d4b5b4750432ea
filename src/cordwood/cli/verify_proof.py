"""``cordwood verify-proof``: check a proof with nothing but a key."""

from __future__ import annotations

import click
import msgspec

from cordwood.cli.evidence import key_option, refuting
from cordwood.cli.output import print_json
from cordwood.cli.place import json_option
from cordwood.errors import FrameError
from cordwood.formats.native import BatchFormat
from cordwood.integrity import proof
from cordwood.integrity.note import VerifierKey
from cordwood.integrity.refusals import EvidenceRefused
from cordwood.records import Record


@click.command("verify-proof")
@click.argument("file", metavar="FILE")
@key_option
@json_option
def verify_proof(file: str, key: VerifierKey, as_json: bool) -> None:
    """Check that FILE proves what it says, with the key that is pinned and no data directory.

    Exit status: 0 proven, 4 not, and why.

    Example: cordwood verify-proof proof.json --key orders.pub
    """
    with open(file, "rb") as opened:
        document = opened.read()
    with refuting():
        found = proof.decode(document)
        checkpoint = proof.check(found, key, _offsets_of)
        record = _record_at(found.frame, found.offset)
    facts = {
        "origin": checkpoint.origin,
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
    click.echo(
        f"{checkpoint.origin}: proven: "
        f"offset {found.offset} is in leaf {found.leaf} of {checkpoint.size:,}: {what}"
    )


def _described(record: Record) -> str:
    def size(data: bytes | None) -> str:
        return "none" if data is None else f"{len(data):,} bytes"

    return f"timestamp {record.timestamp}, key {size(record.key)}, value {size(record.value)}"


def _offsets_of(frame: bytes) -> tuple[int, int]:
    """Return the offsets that a frame says it has; it must be one whole, sound frame."""
    table = BatchFormat().scan(frame, next_offset=0, dense=False, epochs=None, size_max=len(frame))
    if len(table) != 1 or table.end != len(frame):
        raise EvidenceRefused("the frame in the proof is not one whole record batch")
    return table.base_offset(0), table.next_offset(0)


def _record_at(frame: bytes, offset: int) -> Record | None:
    try:
        records = BatchFormat().decode(frame, 0)
    except (FrameError, msgspec.MsgspecError) as error:
        raise EvidenceRefused(f"the frame is in the log, but cannot be read: {error}") from error
    return next((record for record in records if record.offset == offset), None)
