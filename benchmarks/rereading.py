"""Read a log again, with ``cordwood.verify=first`` and ``every``: what comparing checksums each time costs.

Frames of 150 records of 100 bytes, in a sealed segment that is mapped. Both sides read their log once before
they are timed, so ``first`` has nothing left to compare. A fetch takes frames as they are in the file, 1 MiB
at a time, as the server does; a scan decodes keys, values, offsets and timestamps to columns.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import cordwood
from benchmarks.measure import Figure, best_seconds

FRAMES = 4_000
RECORDS_PER_FRAME = 150
VALUE_BYTES = 84
FETCH_BYTES = 1 << 20
ROUNDS = 9


def run() -> list[Figure]:
    """Measure fetches and scans of one log, opened with each setting."""
    with tempfile.TemporaryDirectory() as place, ExitStack() as stack:
        logs = {
            verify: stack.enter_context(filled(Path(place, verify), verify)) for verify in ("first", "every")
        }
        size = logs["first"].data_directory.partitions.own("t", 0).size()
        fetches: dict[str, Callable[[], object]] = {name: partial(fetch, log) for name, log in logs.items()}
        scans: dict[str, Callable[[], object]] = {name: partial(scan, log) for name, log in logs.items()}
        for side in (*fetches.values(), *scans.values()):
            side()
        fetched, scanned = best_seconds(fetches, ROUNDS), best_seconds(scans, ROUNDS)
    return [
        Figure("fetch again, first", size / fetched["first"] / 1e6, "MB/s"),
        Figure("fetch again, every", size / fetched["every"] / 1e6, "MB/s"),
        Figure("fetch again, time of every against first", fetched["every"] / fetched["first"], "x"),
        Figure("scan again, first", size / scanned["first"] / 1e6, "MB/s"),
        Figure("scan again, every", size / scanned["every"] / 1e6, "MB/s"),
        Figure("scan again, time of every against first", scanned["every"] / scanned["first"], "x"),
    ]


def filled(path: Path, verify: str) -> cordwood.Log:
    """Return an open log with one sealed segment of frames."""
    log = cordwood.open(path, sync="never")
    topic = log.topic("t", config={"cordwood.verify": verify, "cordwood.chain": "false"})
    rows = [(b"%016d" % number, bytes(VALUE_BYTES)) for number in range(RECORDS_PER_FRAME)]
    for _ in range(FRAMES):
        topic.append_many(rows, partition=0)
    log.data_directory.partitions.own("t", 0).roll()
    return log


def fetch(log: cordwood.Log) -> None:
    """Read every frame as it is in the file."""
    partition, offset = log.data_directory.partitions.own("t", 0), 0
    while offset < FRAMES * RECORDS_PER_FRAME:
        offset = partition.read(offset, FETCH_BYTES).next_offset


def scan(log: cordwood.Log) -> None:
    """Decode every record to columns."""
    rows = sum(batch.num_rows for batch in log.scan("t").batches())
    assert rows == FRAMES * RECORDS_PER_FRAME
