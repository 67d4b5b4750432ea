"""The embedded library records a history, and the checker finds it sound: threads, a reader, a reopening."""

from __future__ import annotations

from pathlib import Path
from threading import Event, Thread

from support.history.checker import check
from support.history.operations import READ_UNCOMMITTED, Read, Scanned
from support.history.recorder import ClientRecord, Recorder

import cordwood
from cordwood.errors import CordwoodError

TOPIC, PARTITIONS, THREADS, APPENDS = "history", 2, 4, 50


def append_many(topic: cordwood.Topic, record: ClientRecord) -> None:
    """Append to each partition in turn, one record at a time and two at once."""
    for number in range(APPENDS):
        values = [f"{record.name}:{number}:{copy}" for copy in range(1 + number % 2)]
        index = number % PARTITIONS
        sends = [record.send(TOPIC, index, value) for value in values]
        try:
            if len(values) == 1:
                offsets = [topic.append(values[0].encode(), partition=index).offset]
            else:
                rows = [(None, value.encode()) for value in values]
                offsets = [placed.offset for placed in topic.append_many(rows, partition=index)]
        except CordwoodError as error:
            for send in sends:
                send.unknown(error)
        else:
            for send, offset in zip(sends, offsets, strict=True):
                send.ok(offset)


def read_along(topic: cordwood.Topic, record: ClientRecord, done: Event) -> None:
    """Read what is new of each partition until everything was appended."""
    positions = dict.fromkeys(range(PARTITIONS), 0)
    record.assign((TOPIC, index, 0) for index in positions)
    while not done.is_set():
        polling = record.poll()
        given = [read for index, at in positions.items() for read in reads_of(topic, index, at)]
        polling.ok(tuple(given))
        for read in given:
            positions[read.partition] = read.offset + 1


def reads_of(topic: cordwood.Topic, index: int, start: int) -> list[Read]:
    """Return the records of a partition as the history has them."""
    found = topic.read(partition=index, start=start)
    return [Read(TOPIC, index, one.offset, (one.value or b"").decode(), one.timestamp) for one in found]


def test_the_history_of_threads_on_one_log_is_sound_and_still_is_after_it_was_opened_again(
    tmp_path: Path,
) -> None:
    recorder = Recorder()
    done = Event()
    with cordwood.open(tmp_path) as log:
        topic = log.topic(TOPIC, partitions=PARTITIONS)
        threads = [
            Thread(target=append_many, args=(topic, recorder.client(f"thread {number}")))
            for number in range(THREADS)
        ]
        reader = Thread(target=read_along, args=(topic, recorder.client("reader"), done))
        for thread in (reader, *threads):
            thread.start()
        for thread in threads:
            thread.join()
        done.set()
        reader.join()
    auditor = recorder.client("auditor")
    with cordwood.open(tmp_path) as log:
        topic = log.topic(TOPIC)
        for index in range(PARTITIONS):
            scanning = auditor.scan(TOPIC, index, READ_UNCOMMITTED, final=True)
            found = tuple(reads_of(topic, index, 0))
            scanning.ok(Scanned(0, topic.high_watermark(index), found))
    verdict = check(recorder.history(), dense=[TOPIC])
    assert verdict.problems() == []
    assert verdict.counts["send ok"] == THREADS * (APPENDS + APPENDS // 2)
    assert verdict.counts["unseen"] == 0
