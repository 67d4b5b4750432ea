"""What exists so far, end to end: a batch written by Cordwood, read by a stock Kafka client's decoder.

Run it with ``make demo``.
"""

from __future__ import annotations

import time

from aiokafka.record.default_records import DefaultRecordBatch
from rich.console import Console
from rich.table import Table

from cordwood import kernels
from cordwood.errors import ChecksumMismatch
from cordwood.formats import batch, columns
from cordwood.formats.batch import BatchOptions
from cordwood.formats.compression import Compression

ORDERS = [
    (b"anna", b'{"item": "axe", "price": 49}', [("shop", b"oslo")]),
    (b"bela", b'{"item": "saw", "price": 32}', [("shop", b"gdansk")]),
    (None, b'{"item": "gloves", "price": 9}'),
    (b"anna", None),  # a tombstone: anna's order is gone
]


def main() -> None:
    """Encode, let aiokafka decode, decode to Arrow, and show what a flipped bit does."""
    console = Console()
    now_ms = time.time_ns() // 1_000_000
    options = BatchOptions(base_offset=1_000, compression=Compression.ZSTD)
    encoded = bytes(batch.encode_records(ORDERS, now_ms, options))
    console.print(f"Cordwood wrote {len(ORDERS)} records as one Kafka RecordBatch of {len(encoded)} bytes.")

    reader = DefaultRecordBatch(encoded)
    assert reader.validate_crc()
    table = Table("offset", "key", "value", "headers", title="read back by aiokafka")
    for record in reader:
        table.add_row(*map(str, (record.offset, record.key, record.value, dict(record.headers))))
    console.print(table)

    arrow = columns.to_arrow(batch.decode_columns(encoded, batch.scan(encoded)))
    console.print(
        f"The same records as Arrow columns: {', '.join(arrow.schema.names)}, {arrow.num_rows} rows."
    )

    damaged = bytearray(encoded)
    damaged[70] ^= 1
    try:
        batch.check_crc(damaged, batch.read_header(damaged))
    except ChecksumMismatch as error:
        console.print(f"One bit flipped, and the batch is refused: {error}")
    console.print("Kernels: compiled." if kernels.COMPILED else f"Kernels: {kernels.NOTICE}")
    console.print("Try next: make test, make bench, and docs/formats/batch.md for the bytes.")


if __name__ == "__main__":
    main()
