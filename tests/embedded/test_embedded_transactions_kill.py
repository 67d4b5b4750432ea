"""kill -9 of a process that embeds the library, in the middle of its transactions; then a history check.

`CORDWOOD_TRANSACTION_KILLS` sets how often it is killed (default 3), `CORDWOOD_SEED` when.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread

import pytest
from support.history.checker import check
from support.history.operations import READ_COMMITTED, READ_UNCOMMITTED, Scanned
from support.history.recorder import ClientRecord, Recorder
from support.patience import SECONDS_MAX, until
from support.seeds import seed_or
from support.transactional_process import (
    GROUP,
    INPUT,
    NAMES,
    PARTITIONS,
    PLACES,
    open_log,
    read_of,
    read_some,
)

import cordwood
from cordwood.errors import CordwoodError

KILLS = int(os.environ.get("CORDWOOD_TRANSACTION_KILLS", "3"))
SEED = seed_or(20_261_127)
#: Each thread commits this many transactions between two kills, and then one of them a few more.
TRANSACTIONS, TRANSACTIONS_MORE = 5, 30
MOMENT_SECONDS = 0.02


class Running:
    """A process with its commits by thread."""

    def __init__(self, data: Path, history: Path, generation: str, seed: int) -> None:
        command = [sys.executable, "-m", "support.transactional_process"]
        self.process = subprocess.Popen(
            [*command, str(data), str(history), generation, str(seed)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])},
        )
        self.committed: Counter[str] = Counter()
        self._counting = Thread(target=self._count, daemon=True)
        self._counting.start()

    def _count(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.committed[line.strip()] += 1

    def wait_for(self, name: str, count: int) -> None:
        """Wait until a thread has committed *count* transactions."""
        until(
            lambda: self.committed[name] >= count or self.process.poll() is not None,
            f"{count} commits of {name}",
        )
        assert self.process.poll() is None, f"the process ended with {self.process.returncode}"

    def end(self, *, kill: bool) -> None:
        """End it, by SIGKILL or in its own time."""
        if kill:
            self.process.kill()
        assert self.process.stdin is not None
        self.process.stdin.close()
        code = self.process.wait(SECONDS_MAX)
        self._counting.join(SECONDS_MAX)
        assert self.process.stdout is not None
        self.process.stdout.close()
        assert kill or code == 0, f"the process ended with {code}"


@contextmanager
def readers(data: Path, recorder: Recorder) -> Iterator[None]:
    """Read beside the writers, in this process, over all kills."""
    done = Event()
    threads = [
        Thread(target=read_along, args=(data, recorder.client(f"reader {name}"), done), name=name)
        for name in ("one", "two")
    ]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        done.set()
        for thread in threads:
            thread.join(SECONDS_MAX)


def read_along(data: Path, record: ClientRecord, done: Event) -> None:
    """Read what is committed, of each partition, until it is done."""
    try:
        with cordwood.open(data, read_only=True) as log:
            topics = {name: log.topic(name) for name, _ in PLACES}
            positions = dict.fromkeys(PLACES, 0)
            record.assign((*place, 0) for place in positions)
            while not done.wait(0.005):
                polling = record.poll(READ_COMMITTED)
                given = [
                    read
                    for (name, number), at in positions.items()
                    for read in read_some(topics[name], number, at)
                ]
                polling.ok(tuple(given))
                for read in given:
                    positions[read.topic, read.partition] = read.offset + 1
    except CordwoodError as error:
        record.problem(repr(error))


def audit(data: Path, auditor: ClientRecord) -> int:
    """Read everything with both isolations, and the offsets; return how many records are committed."""
    count = 0
    with cordwood.open(data) as log:
        for name, number in PLACES:
            topic = log.topic(name)
            assert topic.last_stable_offset(number) == topic.high_watermark(number), "something is open"
            for isolation in (READ_COMMITTED, READ_UNCOMMITTED):
                committed = isolation == READ_COMMITTED
                scanning = auditor.scan(name, number, isolation, final=True)
                found = tuple(
                    read_of(topic, number, each) for each in topic.read(number, committed=committed)
                )
                scanning.ok(Scanned(0, topic.high_watermark(number), found))
                count += len(found) if committed else 0
        fetching = auditor.fetch_offsets(GROUP, READ_COMMITTED)
        offsets = log.committed_offsets(GROUP)
        fetching.ok({(INPUT, number): offsets.get((INPUT, number), -1) for number in range(PARTITIONS)})
    return count


@pytest.mark.called_only
@pytest.mark.timeout(300 + 60 * KILLS)
def test_kills_of_a_process_with_the_library_tear_no_transaction_apart_and_lose_none(tmp_path: Path) -> None:
    """X1, X2, X4 and X5 as its threads, readers beside it and a reader afterwards see them."""
    chance = random.Random(SEED)
    recorder, data, history = Recorder(), tmp_path / "data", tmp_path / "history"
    recorder.add_file(history)
    committed: Counter[str] = Counter()
    open_log(data).close()
    with readers(data, recorder):
        for generation in range(KILLS + 1):
            running = Running(data, history, f"process {generation}", chance.randrange(1 << 32))
            try:
                for name in NAMES:
                    running.wait_for(name, TRANSACTIONS)
                name = chance.choice(NAMES)
                running.wait_for(name, running.committed[name] + chance.randrange(TRANSACTIONS_MORE))
                time.sleep(chance.uniform(0, MOMENT_SECONDS))
            except BaseException:
                running.end(kill=True)
                raise
            running.end(kill=generation < KILLS)
            committed += running.committed
    stored = audit(data, recorder.client("auditor"))
    verdict = check(recorder.history())
    print(f"seed {SEED}: {KILLS} kills, {committed.total()} transactions committed, {stored} records")
    print(verdict.counts)
    assert verdict.problems() == []
    assert verdict.counts["unseen"] == 0
    assert verdict.counts["transactions committed"] >= committed.total()
