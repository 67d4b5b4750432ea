"""The job ``compact``: Spark decides which records stay, tasks rewrite segments, the driver swaps them.

For topics whose keys do not fit one machine's memory: finding the last offset of each key is a shuffle, and a
task needs only the offsets that stay in its segments. The engine's code writes the bytes, so files and report
are those of the local compaction. The driver holds the directory's lock during the job.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass

from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everyone calls it

from cordwood.config import load_broker_config
from cordwood.disk import PosixFiles, files_of, join, parent, remove_tree
from cordwood.errors import ConfigError, StorageError
from cordwood.host import process
from cordwood.kernels import BinaryBuffers, Buffer
from cordwood.spark.failures import as_one_sentence
from cordwood.spark.jobs.log_place import LogPlace
from cordwood.spark.jobs.segments import spread_segments
from cordwood.storage.directory import Opening
from cordwood.storage.log import SUFFIX
from cordwood.storage.maintenance import CompactionReport
from cordwood.storage.meta import Contents, is_shared, local_path, read_catalogue
from cordwood.storage.offline import GroupDone, GroupWork, compact_staged, write_group


@dataclass(frozen=True)
class CompactOptions:
    """Which topic to compact. With *force*, also if little is dirty."""

    path: str
    topic: str
    force: bool = False


def compact(spark: SparkSession, options: CompactOptions) -> list[CompactionReport]:
    """Compact the due partitions of a topic and return a report. Durable on return.

    Raises:
        ConfigError: If the topic is in the shared log, which is not compacted.
        DirectoryLocked: If another process writes the directory.
        UnknownTopic: If there is no such topic.
        JobFailed: If a segment is damaged, or an executor cannot see the directory.
        DiskFull: Earlier swaps stay.
    """
    path, (config, _) = os.path.abspath(local_path(options.path)), load_broker_config()
    files = files_of(path, config)
    _check_compacted(files, path, options.topic)
    kept = join(path, "tmp", process.new_id() + SUFFIX, "kept")

    def run(work: Sequence[GroupWork]) -> list[GroupDone]:
        if not work:
            return []
        # Spark sets its own permissions on its files; this directory keeps others out.
        files.make_directories(parent(kept))
        _find_kept(spark, path, work, kept)
        return spread_segments(
            spark,
            path,
            work,
            lambda each: each.size,
            lambda files, each: write_group(files, each, KeptOffsets(kept, each)),
        )

    try:
        opening = Opening(files, path, config, create=False)
        return compact_staged(opening, options.topic, run, force=options.force)
    finally:
        if files.exists(parent(kept)):
            remove_tree(files, parent(kept))


def _check_compacted(files: PosixFiles, path: str, topic: str) -> None:
    """Refuse a topic in the shared log; opening the directory reports other faults."""
    entry = None
    with contextlib.suppress(OSError, StorageError):
        entry = Contents(read_catalogue(files, path)[0].entries).topics.get(topic)
    if entry is not None and is_shared(entry):
        raise ConfigError(
            "cordwood.storage",
            f"topic {topic} is in the shared log, whose topics are not compacted: convert it to one with "
            "files of its own, or let retention remove what is old",
        )


def _find_kept(spark: SparkSession, path: str, work: Sequence[GroupWork], kept: str) -> None:
    """Write the last offset of each key in the compacted segments to Parquet files at *kept*."""
    topic = work[0].state.topic
    starts = {str(each.state.partition): each.state.log_start_offset for each in work}
    ends = {str(each.state.partition): max(each.end, each.state.log_start_offset) for each in work}
    reader = spark.read.format("cordwood").options(**LogPlace(path=path).options())
    reader = reader.option("assign", json.dumps({topic: [int(number) for number in starts]}))
    reader = reader.option("startingOffsets", json.dumps({topic: starts}))
    reader = reader.option("endingOffsets", json.dumps({topic: ends}))
    with as_one_sentence():
        records = reader.schema("key binary, partition int, offset long").load()
        keyed = records.where("key IS NOT NULL").where(_rewritable(work)).groupBy("partition", "key")
        keyed.agg(F.max("offset").alias("offset")).select("partition", "offset").write.parquet(kept)


def _rewritable(work: Sequence[GroupWork]) -> str:
    """Return the condition for records that may supersede others: those of frames that may be rewritten."""
    ranges = {each.state.partition: each.rewritable for each in work}
    parts = []
    for partition, found in ranges.items():
        within = "true" if found is None else " OR ".join(f"offset >= {a} AND offset < {b}" for a, b in found)
        parts.append(f"partition = {partition} AND ({within or 'false'})")
    return " OR ".join(f"({part})" for part in parts)


class KeptOffsets:
    """Knows the superseded records from the offsets of those that stay."""

    def __init__(self, kept: str, work: GroupWork) -> None:
        """Read the offsets in the segments of *work* from the files at *kept*."""
        import pyarrow.compute as pc
        from pyarrow import dataset

        offset, partition = pc.field("offset"), pc.field("partition")
        start, end = work.infos[0].base, work.infos[-1].next_offset
        wanted = (partition == work.state.partition) & (offset >= start) & (offset < end)
        found = dataset.dataset(kept, format="parquet").to_table(columns=["offset"], filter=wanted)
        self._kept = found.column("offset").to_numpy()

    def superseded(self, column: BinaryBuffers, offsets: Buffer, rows: int) -> bytearray:
        """Return a byte for each record: 1 if it has a key and its offset is not one of those that stay."""
        import numpy as np

        gone = ~np.isin(np.frombuffer(offsets, np.int64, rows), self._kept)
        if column.validity is not None:
            bits = np.frombuffer(column.validity, np.uint8)
            gone &= np.unpackbits(bits, count=rows, bitorder="little").astype(bool)
        return bytearray(gone.astype(np.uint8).tobytes())
