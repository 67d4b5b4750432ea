"""What the tests of verify share."""

from __future__ import annotations

import struct
from dataclasses import replace
from typing import Any

from cordwood.disk.files import Files
from cordwood.disk.memory import MemoryFiles
from cordwood.verify import Finding, VerifyReport, verify_directory
from support.data_directory import (
    Frame,
    Partition,
    envelope,
    orders_partition,
    put,
    topic_entry,
    with_crc,
    write_broker_id,
    write_catalogue,
    write_sound_directory,
)

ROOT = "/data"
BROKER = f"{ROOT}/meta/broker.id"
CATALOGUE = f"{ROOT}/meta/catalogue.log"


def orders_path(name: str) -> str:
    return f"{ROOT}/topics/orders/0/{name}"


def segment_file(base: int, suffix: str) -> str:
    return orders_path(f"segments/{base:020d}.{suffix}")


STATE = orders_path("partition.json")
PRODUCERS = orders_path("producers.json")


def verify(files: Files, root: str = ROOT) -> VerifyReport:
    return verify_directory(files, root)


def sound_directory() -> tuple[MemoryFiles, Partition, Partition]:
    files = MemoryFiles()
    orders, payments = write_sound_directory(files, ROOT)
    return files, orders, payments


def one_partition(partition: Partition, partitions: int = 2) -> MemoryFiles:
    """Return a directory that holds nothing but *partition*."""
    files = MemoryFiles()
    write_broker_id(files, ROOT)
    write_catalogue(files, ROOT, [topic_entry(partition.topic, partition.topic_id, partitions)])
    partition.write(files, ROOT)
    return files


def serious(report: VerifyReport) -> list[Finding]:
    return [finding for finding in report.findings if finding.severity != "note"]


def notes(report: VerifyReport) -> list[Finding]:
    return [finding for finding in report.findings if finding.severity == "note"]


def stamped(frame: Frame, producer: int, epoch: int, sequence: int) -> Frame:
    """Return the same batch as that producer's."""
    stamp = struct.pack(">qhi", producer, epoch, sequence)
    return replace(frame, data=with_crc(frame.data[:43] + stamp + frame.data[57:]))


#: What is known of the producers of `producing_partition`, of all but its last batch.
SNAPSHOT: dict[str, Any] = {
    "format": 1,
    "topic_id": "id-orders",
    "partition": 0,
    "leader_epoch": 0,
    "next_offset": 38,
    "producers": [
        {"id": 7, "epoch": 2, "batches": [[6, 7, 30, 32], [8, 9, 32, 34], [10, 11, 36, 38]], "seen_ms": 5},
        {"id": 9, "epoch": 0, "batches": [[2147483647, 0, 34, 36]], "seen_ms": 4},
    ],
}


def producing_partition() -> Partition:
    """Return the partition of orders with a last segment whose batches are those of producers."""
    partition = orders_partition()
    stamps = [(7, 2, 6), (7, 2, 8), (9, 0, 2147483647), (7, 2, 10), (7, 2, 12)]
    partition.active = [stamped(frame, *stamp) for frame, stamp in zip(partition.active, stamps, strict=True)]
    return partition


def producing_directory(**changes: object) -> MemoryFiles:
    """Return a directory with that partition and a snapshot of its producers, with these fields instead."""
    files = one_partition(producing_partition())
    put(files, PRODUCERS, envelope({**SNAPSHOT, **changes}))
    return files
