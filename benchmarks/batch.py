"""Decoding batches to Arrow columns and encoding them, beside aiokafka's compiled codec.

100-byte values with 8-byte keys in batches of 500. Both sides check the CRC, both touch every key and
value, and both end with the same Arrow arrays (decoding) or the same bytes (encoding).
"""

from __future__ import annotations

import aiokafka.record.default_records as theirs
import pyarrow as pa

from benchmarks.measure import Figure, best_seconds
from cordwood import kernels
from cordwood.formats import BatchOptions, Compression, batch, columns
from cordwood.kernels import Want

RECORDS_PER_BATCH = 500
BATCHES = 100
NOW_MS = 1_700_000_000_000
COLUMNS = Want.OFFSET | Want.TIMESTAMP | Want.KEY | Want.VALUE


def make_rows() -> list[list[tuple[bytes, bytes, int]]]:
    """Return the (key, value, timestamp) rows of each batch."""
    return [
        [(b"%08d" % i, (b"%04d" % b) * 25, NOW_MS + i) for i in range(RECORDS_PER_BATCH)]
        for b in range(BATCHES)
    ]


def encode_all(rows: list[list[tuple[bytes, bytes, int]]], compression: Compression) -> list[bytes]:
    """Encode each batch at its place in the log."""
    return [
        bytes(
            batch.encode_records(
                [(key, value, None, timestamp) for key, value, timestamp in chunk],
                NOW_MS,
                BatchOptions(base_offset=b * RECORDS_PER_BATCH, compression=compression),
            )
        )
        for b, chunk in enumerate(rows)
    ]


def decode_ours(buffer: bytes) -> pa.RecordBatch:
    """Decode a run of batches to Arrow, checksums checked."""
    found = batch.scan(buffer)
    assert batch.count_sound(buffer, found) == BATCHES
    return columns.to_arrow(batch.decode_columns(buffer, found, COLUMNS))


def decode_theirs(batches: list[bytes]) -> pa.RecordBatch:
    """Decode the same batches to the same Arrow columns through aiokafka's compiled reader."""
    offsets, timestamps, keys, values = [], [], [], []
    for one in batches:
        reader = theirs.DefaultRecordBatch(one)
        assert reader.validate_crc()
        for record in reader:
            offsets.append(record.offset)
            timestamps.append(record.timestamp)
            keys.append(record.key)
            values.append(record.value)
    schema = columns.schema()
    return pa.RecordBatch.from_arrays(
        [
            pa.array(keys, pa.binary()),
            pa.array(values, pa.binary()),
            pa.array(offsets, pa.int64()),
            pa.array(timestamps, pa.int64()).cast(pa.timestamp("ms", "UTC")),
        ],
        schema=pa.schema([schema.field(name) for name in ("key", "value", "offset", "timestamp")]),
    )


def encode_theirs(rows: list[list[tuple[bytes, bytes, int]]]) -> list[bytes]:
    """Build the batches with aiokafka's compiled builder."""
    built = []
    for chunk in rows:
        builder = theirs.DefaultRecordBatchBuilder(2, 0, 0, -1, -1, -1, 1 << 20)
        for i, (key, value, timestamp) in enumerate(chunk):
            builder.append(i, timestamp, key, value, [])
        built.append(bytes(builder.build()))
    return built


def encode_ours_from_columns(table: kernels.ColumnBuffers) -> list[bytearray]:
    """Build the batches from columns."""
    return [
        batch.encode_columns(table, start, start + RECORDS_PER_BATCH)
        for start in range(0, table.rows, RECORDS_PER_BATCH)
    ]


def run() -> list[Figure]:
    """Measure decoding, raw and zstd, and encoding, from columns and from rows."""
    assert theirs.DefaultRecordBatch is not theirs._DefaultRecordBatchPy, "aiokafka's extension is not loaded"
    assert kernels.COMPILED, kernels.NOTICE
    total = RECORDS_PER_BATCH * BATCHES
    rows = make_rows()
    figures = []
    for name, compression, goal in (("raw", Compression.NONE, 10.0), ("zstd", Compression.ZSTD, None)):
        batches = encode_all(rows, compression)
        log = b"".join(batches)
        assert decode_ours(log).equals(decode_theirs(batches))
        seconds = best_seconds(
            {
                "ours": lambda log=log: decode_ours(log),  # type: ignore[misc]
                "theirs": lambda batches=batches: decode_theirs(batches),  # type: ignore[misc]
            }
        )
        figures += [
            Figure(f"decode to columns, {name}", total / seconds["ours"] / 1e6, "M records/s"),
            Figure(f"decode to columns, {name}: aiokafka", total / seconds["theirs"] / 1e6, "M records/s"),
            Figure(f"decode to columns, {name}: ratio", seconds["theirs"] / seconds["ours"], "x", goal),
        ]
    raw = b"".join(encode_all(rows, Compression.NONE))
    decoded = batch.decode_columns(raw, batch.scan(raw), COLUMNS)
    flat = decoded._replace(offset=None)
    assert [bytes(b)[16:] for b in encode_ours_from_columns(flat)] == [b[16:] for b in encode_theirs(rows)]
    as_rows = [[(key, value, None, timestamp) for key, value, timestamp in chunk] for chunk in rows]
    seconds = best_seconds(
        {
            "columns": lambda: encode_ours_from_columns(flat),
            "rows": lambda: [batch.encode_records(chunk, NOW_MS) for chunk in as_rows],
            "theirs": lambda: encode_theirs(rows),
        }
    )
    return [
        *figures,
        Figure("encode from columns", total / seconds["columns"] / 1e6, "M records/s"),
        Figure("encode from rows", total / seconds["rows"] / 1e6, "M records/s"),
        Figure("encode: aiokafka", total / seconds["theirs"] / 1e6, "M records/s"),
        Figure("encode from columns: ratio", seconds["theirs"] / seconds["columns"], "x", 5.0),
        Figure("encode from rows: ratio", seconds["theirs"] / seconds["rows"], "x"),
    ]
