"""What exists so far, end to end: append, kill, recover, verify, and a Kafka client's decoder on the files.

Run it with ``make demo``.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pyarrow as pa
from aiokafka.record import MemoryRecords
from rich.console import Console
from rich.table import Table

import cordwood
from cordwood.storage.posix_files import PosixFiles
from cordwood.storage.verify import verify_directory

WRITER = """
import sys, cordwood
orders = cordwood.open(sys.argv[1]).topic("orders", config={"segment.bytes": "200000"})
for number in range(10**9):
    placed = orders.append(b'{"item": "axe", "price": %d}' % (number % 90), key=b"customer-%d" % (number % 7))
    print(placed.offset, flush=True)  # acknowledged: synced to the device
"""


def append_until_killed(data: str, records: int) -> int:
    """Let another process append, kill it after *records* acknowledgements; return the last offset."""
    writer = subprocess.Popen([sys.executable, "-c", WRITER, data], stdout=subprocess.PIPE, text=True)
    assert writer.stdout is not None
    last = -1
    for line in writer.stdout:
        last = int(line)
        if last >= records:
            break
    os.kill(writer.pid, signal.SIGKILL)
    # What it had acknowledged and we had not read yet counts too.
    for line in writer.stdout.read().splitlines():
        last = max(last, int(line))
    writer.wait()
    return last


def main() -> None:
    """Run the demonstration in a temporary directory."""
    console = Console()
    with tempfile.TemporaryDirectory() as directory:
        data = os.path.join(directory, "data")
        last = append_until_killed(data, 3_000)
        console.print(
            f"A writer appended orders until kill -9; the last one it acknowledged was offset {last}."
        )

        with cordwood.open(data) as log:
            orders = log.topic("orders")
            end = orders.high_watermark()
            assert end > last, "an acknowledged record is gone"
            cut = sum(report.truncated_bytes for report in log.reports)
            console.print(f"Opened again: {end} records, none acknowledged lost, {cut} torn bytes cut.")

            table = pa.table(log.scan("orders", columns=["key", "offset"]))
            counts = table.group_by("key").aggregate([("offset", "count")]).sort_by("key")
            shown = Table("customer", "orders", title="counted in Arrow columns")
            for row in counts.to_pylist():
                shown.add_row(row["key"].decode(), str(row["offset_count"]))
            console.print(shown)
            log.maintain()

        segment = sorted(Path(data).glob("topics/orders/0/segments/*.log"))[0]
        batches = MemoryRecords(segment.read_bytes())
        read = 0
        while batches.has_next():
            batch = batches.next_batch()
            assert batch.validate_crc()
            read += sum(1 for _ in batch)
        console.print(f"aiokafka's decoder reads {read} records straight from {segment.name}.")

        report = verify_directory(PosixFiles(), data)
        verdict = "sound" if report.sound else "NOT SOUND"
        console.print(f"Verified: {report.records} records in {report.segments} segments, {verdict}.")
    console.print("Try next: .venv/bin/cordwood verify --help, make bench, and docs/guarantees.md.")


if __name__ == "__main__":
    main()
