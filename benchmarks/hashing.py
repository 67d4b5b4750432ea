"""Hash records one by one, with the lists of them that leaves commit to, on one core.

Records of 100 bytes, their keys of 16 included, in frames of 150. For each record the kernels hash its key,
the rest of it, its entry in the list of its frame and a node of the tree over the list: seven blocks of
SHA-256. Beside them, SHA-256 as `hashlib` has it over the same keys and values in one piece, which is less
than two blocks a record. Processor time is compared, because other processes share the cores.
"""

from __future__ import annotations

import hashlib
import random
import time
from array import array
from collections.abc import Callable
from functools import partial
from types import ModuleType

from benchmarks.measure import Figure, best_seconds
from cordwood import kernels
from cordwood.kernels import ColumnBuffers, HeaderBuffers, reference

RECORDS = 150_000
RECORDS_PER_FRAME = 150
KEY_BYTES = 16
VALUE_BYTES = 84
SALT = bytes(range(kernels.SALT_SIZE))
ROUNDS = 15
#: The plain kernels hash one record of this many.
PLAIN_SHARE = 25


def run() -> list[Figure]:
    """Measure the compiled kernels beside SHA-256 over the same bytes, and beside the plain kernels."""
    assert kernels.COMPILED, kernels.NOTICE
    columns, few = columns_of(RECORDS), columns_of(RECORDS // PLAIN_SHARE)
    data = b"".join(bytes(column.data) for column in (columns.key, columns.value) if column is not None)
    assert len(data) == RECORDS * (KEY_BYTES + VALUE_BYTES)
    sides: dict[str, Callable[[], object]] = {
        "records": partial(kernels.hash_records, columns, SALT),
        "both": partial(hash_frames, kernels, columns),
        "SHA-256": lambda: hashlib.sha256(data).digest(),
        "plain": partial(hash_frames, reference, few),
    }
    seconds = best_seconds(sides, ROUNDS, clock=time.process_time)
    both, sha256, plain = seconds["both"], seconds["SHA-256"], seconds["plain"] * PLAIN_SHARE
    return [
        Figure("hash records of 100 B", RECORDS / seconds["records"] / 1e6, "M records/s"),
        Figure("hash records of 100 B and their lists", RECORDS / both / 1e6, "M records/s", 2),
        Figure("SHA-256 over the same bytes in one piece", len(data) / sha256 / 1e6, "MB/s"),
        Figure("hash records and lists against SHA-256", sha256 / both, "x"),
        Figure("hash records and lists against the plain kernels", plain / both, "x"),
    ]


def columns_of(rows: int) -> ColumnBuffers:
    """Return columns of records with keys and without headers."""
    dice = random.Random(20)
    none = reference.lay_out([])
    return ColumnBuffers(
        rows=rows,
        offset=array("q", range(rows)).tobytes(),
        timestamp=array("q", range(1_700_000_000_000, 1_700_000_000_000 + rows)).tobytes(),
        timestamp_type=None,
        key=reference.lay_out([dice.randbytes(KEY_BYTES) for _ in range(rows)]),
        value=reference.lay_out([dice.randbytes(VALUE_BYTES) for _ in range(rows)]),
        headers=HeaderBuffers(bytes(4 * (rows + 1)), none, none),
    )


def hash_frames(kernel: ModuleType, columns: ColumnBuffers) -> None:
    """Hash the records, and the list of each frame."""
    counts = array("q", [RECORDS_PER_FRAME] * (columns.rows // RECORDS_PER_FRAME)).tobytes()
    roots = kernel.list_roots(kernel.hash_records(columns, SALT), columns.offset, counts)
    assert len(roots) == 32 * (columns.rows // RECORDS_PER_FRAME)
