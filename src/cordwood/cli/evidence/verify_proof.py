"""``cordwood verify-proof``: check a proof with only a key."""

from __future__ import annotations

import click

import cordwood
from cordwood.cli.backends import json_option
from cordwood.cli.evidence.evidence import key_option, refuting
from cordwood.cli.output import print_json
from cordwood.errors import InvalidSetting
from cordwood.integrity import VerifierKey


@click.command("verify-proof")
@click.argument("file", metavar="FILE")
@key_option
@click.option("-t", "--topic", metavar="TOPIC", help="Require that the record is of this topic.")
@json_option
def verify_proof(file: str, key: VerifierKey, topic: str | None, as_json: bool) -> None:
    """Check the proof in FILE with the given key; no data directory is needed.

    The frame of a record in the shared log has only a hash of the topic's name; --topic is compared with it.
    A proof shows that a record is of a transaction, and not how that ended: aborted or open is what the maker
    of the proof said.

    Exit status: 0 proven, 4 not proven; the reason is printed.

    Example: cordwood verify-proof proof.json --key orders.pub
    """
    with open(file, "rb") as opened:
        document = opened.read()
    if document.startswith(b'{"format":"cordwood-consistency/'):
        raise click.UsageError(
            f"{file} proves that a log grew between two checkpoints, which are needed to check it: "
            f"cordwood checkpoint verify --proof {file} OLD NEW"
        )
    try:
        with refuting():
            proven = cordwood.verify_proof(document, key, topic=topic)
    except InvalidSetting as error:
        raise click.BadParameter(f"{error}.") from None
    checkpoint, record, owner = proven.checkpoint, proven.record, proven.owner
    if as_json:
        print_json(
            {
                "origin": checkpoint.origin,
                **({} if owner is None else {"owner": str(owner)}),
                "offset": proven.offset,
                "leaf": proven.leaf,
                "size": checkpoint.size,
                "in_transaction": proven.in_transaction,
                "transaction": proven.transaction,
                "timestamp": None if record is None else record.timestamp,
                "key_bytes": None if record is None or record.key is None else len(record.key),
                "value_bytes": None if record is None or record.value is None else len(record.value),
            }
        )
        return
    what = "a frame without that record" if record is None else _described(record)
    whose = "" if owner is None else f" of {owner}"
    if proven.transaction is not None:
        whose += f", of an {proven.transaction} transaction,"
    elif proven.in_transaction:
        whose += ", of a transaction whose end the proof does not have,"
    click.echo(
        f"{checkpoint.origin}: proven: "
        f"offset {proven.offset}{whose} is in leaf {proven.leaf} of {checkpoint.size:,}: {what}"
    )


def _described(record: cordwood.Record) -> str:
    def size(data: bytes | None) -> str:
        return "none" if data is None else f"{len(data):,} bytes"

    return f"timestamp {record.timestamp}, key {size(record.key)}, value {size(record.value)}"
