"""A process that embeds the library and is killed: threads commit transactions, and note what they do.

``python -m support.transactional_process DIRECTORY HISTORY GENERATION SEED``; prints the name of a thread for
each of its commits, and ends cleanly at the end of its input.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from threading import Event, Thread

import cordwood
from support.history.operations import READ_COMMITTED, Read
from support.history.recorder import ClientRecord, EventFile

INPUT, OUTPUT, GROUP = "input", "output", "processors"
PARTITIONS = 2
PLACES = [(topic, number) for topic in (INPUT, OUTPUT) for number in range(PARTITIONS)]
WRITERS = 2
#: The share of transactions that a writer aborts.
ABORTED = 0.2
BATCH_MAX = 20
#: On a busy machine nothing may time out.
TIMEOUT_MS = 900_000
NAMES = [*(f"writer {number}" for number in range(WRITERS)), "processor"]


def open_log(directory: str | Path) -> cordwood.Log:
    """Open a directory with the topics, whose segments are small, so that kills also meet rolls."""
    log = cordwood.open(directory)
    for name in (INPUT, OUTPUT):
        log.topic(name, partitions=PARTITIONS, config={"segment.bytes": "20000"})
    return log


class Process:
    """The log, and what all threads have in common. Names in a history are those of one process."""

    def __init__(self, directory: str, history: str, generation: str, seed: int) -> None:
        self.log = open_log(directory)
        self.events = EventFile(history)
        self.generation = generation
        self.random = random.Random(seed)
        self.stopping = Event()

    def record(self, name: str) -> ClientRecord:
        """Return where a thread of this process notes what it does."""
        return ClientRecord(f"{name} of {self.generation}", self.events)

    def run(self) -> None:
        """Let all threads work until the input ends."""
        works = [partial(self._write, name, self.random.random()) for name in NAMES[:-1]]
        works.append(partial(self._process, NAMES[-1]))
        threads = [Thread(target=self._noting_problems, args=(work,)) for work in works]
        for thread in threads:
            thread.start()
        sys.stdin.read()
        self.stopping.set()
        for thread in threads:
            thread.join()
        self.log.close()

    def _noting_problems(self, work: Callable[[], None]) -> None:
        try:
            work()
        except Exception as error:
            self.record(f"problem of {work}").problem(repr(error))
            raise

    def _write(self, name: str, seed: float) -> None:
        chance, record, written = random.Random(seed), self.record(name), 0
        record.init(name).ok()
        while not self.stopping.is_set():
            count = chance.randint(1, 6)
            rows = [
                (INPUT, chance.randrange(PARTITIONS), f"{record.name}:{written + number}", None)
                for number in range(count)
            ]
            written += count
            self._transact(name, record, rows, aborted=chance.random() < ABORTED)

    def _process(self, name: str) -> None:
        """Make a record of each one of the input, exactly once."""
        record, topic, made = self.record(name), self.log.topic(INPUT), 0
        reading = self.record(f"{name} reading")
        record.init(name).ok()
        fetching = record.fetch_offsets(GROUP, READ_COMMITTED)
        found = self.log.committed_offsets(GROUP)
        positions = {(INPUT, number): found.get((INPUT, number), 0) for number in range(PARTITIONS)}
        fetching.ok({place: found.get(place, -1) for place in positions})
        reading.assign((*place, at) for place, at in positions.items())
        while not self.stopping.is_set():
            polling = reading.poll(READ_COMMITTED)
            given = [read for place, at in positions.items() for read in read_some(topic, place[1], at)]
            polling.ok(tuple(given))
            rows = [
                (OUTPUT, one.partition, f"{one.value}>{record.name}:{made + number}", one.value)
                for number, one in enumerate(given)
            ]
            made += len(given)
            for one in given:
                positions[INPUT, one.partition] = one.offset + 1
            offsets = {place: positions[place] for place in {(one.topic, one.partition) for one in given}}
            if rows:
                self._transact(name, record, rows, offsets)

    def _transact(
        self,
        name: str,
        record: ClientRecord,
        rows: Sequence[tuple[str, int, str, str | None]],
        offsets: dict[tuple[str, int], int] | None = None,
        *,
        aborted: bool = False,
    ) -> None:
        number = record.begin(name)
        tx = self.log.transaction(name, timeout_ms=TIMEOUT_MS)
        sends = [record.send(topic, place, value, number, source) for topic, place, value, source in rows]
        for topic, place, value, _ in rows:
            tx.append(topic, value.encode(), partition=place)
        if offsets:
            committing = record.commit_offsets(GROUP, offsets, number)
            tx.commit_offsets(GROUP, offsets)
            committing.ok()
        if aborted:
            aborting = record.abort(number)
            tx.abort()
            aborting.ok()
            return
        ending = record.commit(number)
        tx.commit()
        for send, placed in zip(sends, tx.placements, strict=True):
            send.ok(placed.offset)
        ending.ok()
        print(name, flush=True)


def read_some(topic: cordwood.Topic, partition: int, start: int) -> list[Read]:
    """Return the next few committed records of a partition as a history has them."""
    found = []
    for record in topic.read(partition, start):
        found.append(read_of(topic, partition, record))
        if len(found) == BATCH_MAX:
            break
    return found


def read_of(topic: cordwood.Topic, partition: int, record: cordwood.Record) -> Read:
    """Return a record as a history has it."""
    value = (record.value or b"").decode()
    return Read(topic.name, partition, record.offset, value, record.timestamp)


if __name__ == "__main__":
    Process(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])).run()
