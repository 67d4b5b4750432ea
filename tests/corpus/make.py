"""Write the corpus of data directories of this version: ``python -m corpus.make VERSION`` in ``tests``.

Each case is one archive, ``VERSION/<case>.tar.xz``, that holds the directory ``data`` (the backup case:
``backup``), the evidence that was given out for it, and ``expected.json``: the records of every partition
as they were read when the archive was made. Archives of a released version are never made again;
`test_corpus` opens all of them with the code of today.
"""

from __future__ import annotations

import base64
import contextlib
import json
import shutil
import sys
import tarfile
import tempfile
from collections.abc import Callable
from pathlib import Path
from unittest.mock import patch

from confluent_kafka import Consumer, Producer, TopicPartition
from support.commands import said
from support.publishing import frame_of, kill

import cordwood
from cordwood.errors import LogFailed
from cordwood.storage.directory.data_directory import DataDirectory
from cordwood.storage.sink.publishing import Publisher
from cordwood.storage.sink.staging import Share, StagedTarget

NOW_MS = 1_700_000_000_000
SMALL = {"segment.bytes": "600"}
FORMATS = ("batch", "rustlog", "kimberlite", "laminarmq", "frame")
WITH_KEYS = ("batch", "laminarmq", "frame")


def records_of(log: cordwood.Log) -> dict[str, dict[str, object]]:
    """Return every partition that can be read: where it starts and ends, and its records."""
    found: dict[str, dict[str, object]] = {}
    for name in sorted(log.topics):
        topic = log.topic(name)
        for partition in range(log.entry(name).partitions):
            start, end = topic.log_start_offset(partition), topic.high_watermark(partition)
            rows = [
                [record.offset, record.timestamp, *map(_text, (record.key, record.value)), _headers(record)]
                for record in topic.read(partition, start)
            ]
            found[f"{name}/{partition}"] = {"start": start, "end": end, "records": rows}
    return found


def _text(value: bytes | None) -> str | None:
    return None if value is None else base64.b64encode(value).decode()


def _headers(record: cordwood.Record) -> list[list[str | None]]:
    return [[name, _text(value)] for name, value in record.headers]


def make_formats(place: Path) -> None:
    """Write a topic in each format: several segments, a chain, a checkpoint, proofs; closed cleanly."""
    data = place / "data"
    with cordwood.open(data) as log:
        for format_ in FORMATS:
            topic = log.topic(format_, config={**SMALL, "cordwood.format": format_})
            for number in range(24):
                key = b"key %d" % (number % 5) if format_ in WITH_KEYS else None
                headers = [("n", b"%d" % number)] if format_ in ("batch", "laminarmq") else []
                topic.append(b"value %d" % number * 3, key=key, headers=headers, timestamp=NOW_MS + number)
        cut = log.topic("cut", config=SMALL)
        for number in range(20):
            cut.append(b"before %d" % number, timestamp=NOW_MS + number)
        cut.truncate(0, 11)
        cut.append(b"after the cut", timestamp=NOW_MS + 50)
        cut.advance_log_start(0, 6)
    _sign(place)
    for format_ in FORMATS:
        said("prove", "-t", format_, "7", "--data", data, "--to", place / f"{format_}.proof.json")


def make_compacted(place: Path) -> None:
    """Write topics that retention and compaction rewrote, one of them by an idempotent producer."""
    data = place / "data"
    with cordwood.Broker(data) as broker:
        servers = broker.bootstrap
        said("topic", "create", "state", "--config", "cleanup.policy=compact", "--bootstrap", servers)
        producer = Producer({"bootstrap.servers": servers, "enable.idempotence": True, "linger.ms": 0})
        for number in range(12):
            producer.produce("state", b"%d" % number, b"key %d" % (number % 4), timestamp=NOW_MS + number)
            producer.flush()
        consumer = Consumer({"bootstrap.servers": servers, "group.id": "readers"})
        consumer.commit(offsets=[TopicPartition("state", 0, 9)], asynchronous=False)
        consumer.close()
    with cordwood.open(data) as log:
        table = log.topic("table", config={**SMALL, "cleanup.policy": "compact", "cordwood.chain": "true"})
        for number in range(60):
            value = None if number % 7 == 0 else b"row %d" % number
            table.append(value, key=b"key %d" % (number % 6), timestamp=NOW_MS + number)
        aged = log.topic("aged", config={**SMALL, "retention.bytes": "900"})
        for number in range(40):
            aged.append(b"aged %d" % number, timestamp=NOW_MS + number)
        log.topic("state").roll()
        log.maintain(force=True)
        table.append(b"after", key=b"key 1", timestamp=NOW_MS + 70)
    _sign(place)
    said("prove", "-t", "table", "60", "--data", data, "--to", place / "table.proof.json")


def make_shared(place: Path) -> None:
    """Write topics of two tenants in the shared log, one of them deleted and one with a moved start."""
    data = place / "data"
    with cordwood.open(data) as log:
        for name in ("orders", "orders@7", "gone@7", "empty"):
            log.topic(name, partitions=2, config={"cordwood.storage": "shared"})
        for number in range(30):
            for name in ("orders", "orders@7", "gone@7"):
                value = b"%s %d" % (name.encode(), number)
                log.topic(name).append(value, partition=number % 2, timestamp=NOW_MS + number)
        log.delete_topic("gone@7")
        log.topic("orders").advance_log_start(0, 4)
    _sign(place)
    said("prove", "-t", "orders", "-p", "1", "5", "--data", data, "--to", place / "orders.proof.json")


def _sign(place: Path) -> None:
    (place / "checkpoints").mkdir()
    said("checkpoint", "create", "--data", place / "data", "--to", place / "checkpoints")


def make_sink(place: Path) -> None:
    """Write a directory whose writer was killed between the intent of a sink's batch and its publication."""
    data = place / "data"
    log = cordwood.open(data)
    log.topic("out", partitions=2)
    directory = log.data_directory
    directory.publisher.publish("first", 0, _staged(directory, "first", b"published"))
    shares = _staged(directory, "second", b"promised")
    # Between the synced intent and the first append: whoever opens the directory next must publish it.
    with patch.object(Publisher, "_append", side_effect=InterruptedError), contextlib.suppress(LogFailed):
        directory.publisher.publish("second", 0, shares)
    kill(log)


def _staged(directory: DataDirectory, query: str, word: bytes) -> tuple[Share, ...]:
    writer = directory.publisher.stage(query, 0, "0-a")
    for partition in range(2):
        target = StagedTarget("out", directory.topics["out"].id, partition)
        writer.append(target, frame_of(*(b"%s %d" % (word, number) for number in range(3))))
    return writer.finish()


def make_unclean(place: Path) -> None:
    """Write a directory whose writer was killed while it appended: half a frame lies behind the mark."""
    data = place / "data"
    log = cordwood.open(data)
    topic = log.topic("orders", config=SMALL)
    for number in range(20):
        topic.append(b"value %d" % number, key=b"k", timestamp=NOW_MS + number)
    kill(log)
    newest = max((data / "topics/orders/0/segments").glob("*.log"))
    whole = newest.read_bytes()
    with newest.open("ab") as file:
        file.write(whole[:40])


def make_backup(place: Path) -> None:
    """Write a backup of what `make_formats` writes."""
    make_formats(place)
    assert cordwood.backup(place / "data", place / "backup").sound
    shutil.rmtree(place / "data")


CASES: dict[str, Callable[[Path], None]] = {
    "formats": make_formats,
    "compacted": make_compacted,
    "shared": make_shared,
    "sink": make_sink,
    "unclean": make_unclean,
    "backup": make_backup,
}


def _expected(place: Path) -> dict[str, dict[str, object]]:
    """Return what the directory holds, read from a copy: opening it would recover the original."""
    with tempfile.TemporaryDirectory() as scratch:
        copy = Path(scratch) / "copy"
        if (place / "backup").exists():
            cordwood.restore(place / "backup", copy)
        else:
            shutil.copytree(place / "data", copy)
        with cordwood.open(copy) as log:
            return records_of(log)


def main(version: str) -> None:
    """Make the archive of every case."""
    folder = Path(__file__).parent / version
    folder.mkdir()
    for case, make in CASES.items():
        with tempfile.TemporaryDirectory() as scratch:
            place = Path(scratch)
            with patch("socket.gethostname", return_value="corpus"):
                make(place)
            (place / "expected.json").write_text(json.dumps(_expected(place)))
            with tarfile.open(folder / f"{case}.tar.xz", "w:xz") as archive:
                for path in sorted(place.iterdir()):
                    archive.add(path, path.name, filter=_of_nobody)


def _of_nobody(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    """Return *entry* without the user and the time that made it."""
    entry.uid = entry.gid = entry.mtime = 0
    entry.uname = entry.gname = ""
    return entry


if __name__ == "__main__":
    main(sys.argv[1])
