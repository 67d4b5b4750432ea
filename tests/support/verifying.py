"""What the tests of verify share."""

from __future__ import annotations

from cordwood.storage.files import Files
from cordwood.storage.memory_files import MemoryFiles
from cordwood.storage.verify import Finding, VerifyReport, verify_directory
from support.data_directory import (
    Partition,
    topic_entry,
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
