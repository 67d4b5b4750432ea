"""The log in a bucket: what shipping costs beside appends, the lag, requests an interval, and a takeover.

The store is one in memory, so that what is measured is ours; `SlowStore` adds the time of a network.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import cordwood
from benchmarks.measure import Figure
from cordwood.bucket import view_bucket
from cordwood.bucket.stores import MemoryStore
from cordwood.host import Host

RECORD = b"v" * 1000
BATCH = 1000
#: What is appended a second, and for how long.
RATE_BYTES, SECONDS = 100_000_000, 5
TAKEOVER_BYTES = 1 << 30


class SlowStore(MemoryStore):
    """A store that takes *seconds* for each request, and counts those that create an object."""

    def __init__(self, seconds: float = 0.0) -> None:
        super().__init__()
        self.seconds = seconds
        self.created: Counter[str] = Counter()

    def create(self, key: str, data: bytes) -> str:
        """Create an object, slowly."""
        time.sleep(self.seconds)
        self.created[key.partition("/")[0]] += 1
        return super().create(key, data)


@contextmanager
def directory() -> Iterator[Path]:
    """Yield a directory that is removed afterwards."""
    path = Path(tempfile.mkdtemp(prefix="cordwood-bench-"))
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def run() -> list[Figure]:
    """Measure all of it."""
    figures = list(paced())
    figures += requests()
    figures += takeover()
    return figures


def appended_a_second(store: MemoryStore | None, rate: int | None) -> tuple[float, float]:
    """Return the bytes appended a second, at most *rate*, and the longest lag in seconds."""
    rows = [(None, RECORD)] * BATCH
    with directory() as path, cordwood.open(path / "data", bucket=store) as log:
        topic = log.topic("orders", partitions=4)
        started, appended, longest = time.perf_counter(), 0, 0.0
        while (elapsed := time.perf_counter() - started) < SECONDS:
            if rate is not None and appended > rate * elapsed:
                time.sleep(appended / rate - elapsed)
            topic.append_many(rows, partition=appended // (BATCH * 1000) % 4)
            appended += BATCH * len(RECORD)
            lag = log.bucket_lag()
            longest = max(longest, lag.seconds if lag is not None else 0.0)
        return appended / (time.perf_counter() - started), longest


def paced() -> Iterator[Figure]:
    """Yield what shipping leaves of the rate of appends, paced and as fast as it goes."""
    for name, rate in (("at 100 MB/s", RATE_BYTES), ("unpaced", None)):
        best, lags = {True: 0.0, False: 0.0}, list[float]()
        for _ in range(3):
            for on in (True, False):
                store = SlowStore() if on else None
                reached, lag = appended_a_second(store, rate)
                best[on] = max(best[on], reached)
                lags += [lag] if on else []
        goal = 0.9 if rate else None
        yield Figure(f"bucket: appends {name}, shipping on / off", best[True] / best[False], "", goal)
        yield Figure(f"bucket: longest lag {name}", min(lags), "s", 2.0 if rate else None, at_most=True)


def requests() -> Iterator[Figure]:
    """Yield how many pieces an interval there are, with one partition and with 1,000."""
    for partitions in (1, 1_000):
        store = SlowStore()
        with directory() as path, cordwood.open(path / "data", sync="never", bucket=store) as log:
            topic = log.topic("many", partitions=partitions)
            for partition in range(partitions):
                topic.append(b"x", partition=partition)
            before, started = store.created["w"], time.perf_counter()
            while time.perf_counter() - started < SECONDS:
                for partition in range(0, partitions, max(partitions // 100, 1)):
                    topic.append(b"x", partition=partition)
            count = store.created["w"] - before
        yield Figure(
            f"bucket: pieces a second, {partitions:,} partitions", count / SECONDS, "", 1.2, at_most=True
        )


def takeover() -> Iterator[Figure]:
    """Yield how long another machine takes to fetch 1 GiB and to be ready, and what it reads."""
    store = SlowStore()
    rows = [(None, RECORD)] * BATCH
    with directory() as path:
        with cordwood.open(path / "a", bucket=store) as log:
            topic = log.topic("orders")
            for _ in range(TAKEOVER_BYTES // (BATCH * len(RECORD))):
                topic.append_many(rows)
        started = time.perf_counter()
        view_bucket(store, Host())
        yield Figure("bucket: the state of 1 GiB read", time.perf_counter() - started, "s")
        started = time.perf_counter()
        with cordwood.open(path / "b", bucket=store) as log:
            log.topic("orders").append(b"first")
            seconds = time.perf_counter() - started
        yield Figure("bucket: a cold takeover of 1 GiB to its first append", seconds, "s")
