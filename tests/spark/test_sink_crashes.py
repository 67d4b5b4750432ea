"""kill -9 of drivers and brokers at planted points of the sink; then the output, record by record.

`CORDWOOD_SINK_RUNS` sets how many runs there are (default 2; with 20 each kind of kill must have occurred),
`CORDWOOD_SEED` the seed of the first.
Each run has data, batches and kills of its own; all share a driver, which is started again whenever it was
killed. A reader plans beside all of them, over and over: it never sees a part of a batch.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from support import killing
from support.killing import Kills
from support.patience import SECONDS_MAX
from support.seeds import seed_or
from support.sinks import (
    BrokerProcess,
    DriverProcess,
    batch_ends,
    check_clean,
    copied,
    fill,
    values_in,
)

from cordwood.spark.access.path import PathAccess

RUNS = int(os.environ.get("CORDWOOD_SINK_RUNS", "2"))
SEED = seed_or(20_261_116)
#: How often a job may end badly, beside being killed: a broker that is gone for a moment fails a query.
FAILURES_MAX = 10
INPUTS, OUTPUTS, ROWS, BATCHES = 3, 3, 110, 2
#: How often the reader beside looks.
WATCH_SECONDS = 0.01
PATH, ADDRESS, SERVED = CARRIERS = ("path", "address", "served path")

#: Who is killed where, by carrier. Rolling forward is killed too: that comes with another kill before it.
DRIVER, BROKER = "driver", "broker"
_SPARKS_OWN = [(DRIVER, point) for point in (killing.STAGED, killing.ALL_STAGED, killing.PUBLISHED)]
_PUBLISHING = (killing.INTENDED, killing.FIRST, killing.APPENDED, killing.CLOSED)
POINTS = {
    PATH: [*_SPARKS_OWN, *((DRIVER, point) for point in (*_PUBLISHING, killing.ROLLED))],
    ADDRESS: [
        *((BROKER, point) for point in (*_PUBLISHING, killing.STAGING, killing.COMMANDED, killing.TAKEN)),
        (BROKER, killing.ROLLED),
        # To Spark a driver is the same whoever carries, and takes seconds to come back; by path it dies most.
        (DRIVER, killing.PUBLISHED),
    ],
    SERVED: [
        *((BROKER, point) for point in (*_PUBLISHING, killing.COMMANDED, killing.ROLLED)),
        (DRIVER, killing.ALL_STAGED),
    ],
}


@dataclass
class Run:
    """One run: how it is written, and when who is killed."""

    seed: int
    carrier: str
    streaming: bool
    kills: list[tuple[str, str, int]] = field(default_factory=list)

    def __str__(self) -> str:
        what = "stream" if self.streaming else "transactions"
        return f"seed {self.seed}, {self.carrier}, {what}: {self.kills}"


def planned(count: int, seed: int) -> list[Run]:
    """Return the runs: each carrier in turn, streams twice as often as transactions, point after point."""
    turns = dict.fromkeys(CARRIERS, 0)
    runs = []
    for number in range(count):
        rng = random.Random(seed + number)
        carrier = CARRIERS[number % 3]
        run = Run(seed + number, carrier, streaming=number // 3 % 3 != 2)
        # A driver takes seconds to come back, so that those who have no broker are killed less often.
        wanted = 1 if carrier == PATH and number // 3 % 3 else 2
        batches = rng.sample(range(BATCHES), BATCHES)
        for batch in sorted(batches[:wanted]):
            who, point = POINTS[carrier][turns[carrier] % len(POINTS[carrier])]
            turns[carrier] += 1
            if point == killing.ROLLED:
                before = rng.choice((killing.INTENDED, killing.FIRST, killing.APPENDED))
                run.kills.append((who, before, batch))
            run.kills.append((who, point, batch))
        runs.append(run)
    return runs


class Watcher:
    """Plans the output by path, over and over, in a thread, and keeps the ends of the partitions it saw."""

    def __init__(self, data: Path) -> None:
        self.seen: Counter[tuple[int, ...]] = Counter()
        self._data = data
        self._done = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def _watch(self) -> None:
        try:
            with contextlib.closing(PathAccess(str(self._data), verify=False)) as access:
                while not self._done.wait(WATCH_SECONDS):
                    state = access.standing("out", None)
                    assert state is not None
                    self.seen[tuple(state.partitions[number].end for number in range(OUTPUTS))] += 1
        except BaseException as error:
            self._error = error

    def end(self) -> None:
        """Stop, and raise what the reader raised."""
        self._done.set()
        self._thread.join(SECONDS_MAX)
        if self._error is not None:
            raise self._error


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DriverProcess]:
    with contextlib.closing(_Ending(DriverProcess(tmp_path_factory.mktemp("driver")))) as ending:
        yield ending.driver


@dataclass
class _Ending:
    driver: DriverProcess

    def close(self) -> None:
        self.driver.end()


def limits_of(rng: random.Random, sizes: list[int]) -> list[list[int]]:
    """Return where each of the batches ends, in each partition."""
    cuts = [[*sorted(rng.sample(range(1, size), BATCHES - 1)), size] for size in sizes]
    return [list(each) for each in zip(*cuts, strict=True)]


def job_of(run: Run, data: Path, bootstrap: str | None, ends: list[list[int]], home: Path) -> dict[str, Any]:
    """Return what the driver is told."""
    place = {"path": str(data)} if run.carrier != ADDRESS else {"kafka.bootstrap.servers": str(bootstrap)}
    write = {**place, "topic": "out", "kills": str(home / DRIVER)}
    read = {**place, "subscribe": "in"}
    if run.streaming:
        each = -(-sum(ends[-1]) // BATCHES)
        read |= {"startingOffsets": "earliest", "maxOffsetsPerTrigger": str(each)}
        return {"read": read, "write": {**write, "checkpointLocation": str(home / "checkpoint")}}
    ranges = []
    for start, end in zip([[0] * INPUTS, *ends], ends, strict=False):
        texts = [json.dumps({"in": {str(n): at for n, at in enumerate(each)}}) for each in (start, end)]
        ranges.append({"startingOffsets": texts[0], "endingOffsets": texts[1]})
    return {"read": read, "write": write, "ranges": ranges, "name": f"app {run.seed}"}


def carry_out(run: Run, driver: DriverProcess, home: Path) -> Counter[tuple[str, str, str]]:
    """Do a run until it is done, check what there is then, and return who was killed where."""
    rng = random.Random(run.seed)
    rows = [
        [
            (b"key %d" % rng.randrange(40), b"%d-%d %d" % (run.seed, number, n))
            for n in range(rng.randrange(ROWS, ROWS + 40))
        ]
        for number in range(INPUTS)
    ]
    data = home / "data"
    fill(data, rows, OUTPUTS)
    dues = {who: Kills(home / who) for who in (DRIVER, BROKER)}
    for who, point, batch in run.kills:
        # Syncs of the staging topic do not say which batch it is; the first since the broker came up will do.
        dues[who].plant(point, 0 if point in (killing.STAGING, killing.COMMANDED) else batch)
    broker = None if run.carrier == PATH else BrokerProcess(data, home / BROKER)
    watcher = Watcher(data)
    try:
        ends = limits_of(rng, [len(each) for each in rows])
        job = job_of(run, data, None if broker is None else broker.bootstrap, ends, home)
        outcomes: Counter[str] = Counter()
        while not outcomes["done"]:
            outcomes[driver.do(job, broker.revive if broker is not None else lambda: None)] += 1
            assert outcomes["failed"] <= FAILURES_MAX, f"{run}: {driver.said}"
            assert outcomes["killed"] <= len(run.kills), f"{run}: killed without a plan"
    finally:
        watcher.end()
        if broker is not None:
            broker.stop()
    if run.streaming:
        ends = batch_ends(home / "checkpoint")
        assert len(ends) == BATCHES
    assert values_in(data) == copied(rows, ends, OUTPUTS), f"{run}: {outcomes}"
    whole = {
        tuple(len(values) for values in copied(rows, ends[:count], OUTPUTS)) for count in range(BATCHES + 1)
    }
    assert watcher.seen.keys() <= whole, f"{run}: E3: a part of a batch was planned: {watcher.seen}"
    assert watcher.seen.total() > BATCHES
    check_clean(data)
    for who, due in dues.items():
        assert not os.path.exists(due.directory) or due.left() == [], (
            f"{run}: {who} was never at {due.left()}"
        )
    return Counter(
        (run.carrier, who, point)
        for who, due in dues.items()
        if os.path.exists(due.directory)
        for point in due.done()
    )


@pytest.mark.timeout(1200)
def test_every_record_is_published_once_and_in_order_whoever_is_killed_when(
    driver: DriverProcess, tmp_path: Path
) -> None:
    """Streams and transactions, by path, by address, and by path while a server holds the directory."""
    kills: Counter[tuple[str, str, str]] = Counter()
    runs = planned(RUNS, SEED)
    for number, run in enumerate(runs):
        print(run)
        try:
            kills += carry_out(run, driver, tmp_path / str(number))
        except BaseException:
            print(f"CORDWOOD_SINK_RUNS={RUNS} CORDWOOD_SEED={SEED}: run {number} went wrong: {run}")
            raise
    for (carrier, who, point), count in sorted(kills.items()):
        print(f"{carrier}: {who} killed {count} times when {point}")
    print(f"{RUNS} runs, {kills.total()} kills, {driver.starts} drivers")
    if RUNS >= 20:
        wanted = {(carrier, *each) for carrier, points in POINTS.items() for each in points}
        assert wanted - kills.keys() == set()
