"""kill -9 of the real server under three producers and a reader, again and again; then a history check.

`CORDWOOD_KILL_CYCLES` sets how often the server is killed (default 10), `CORDWOOD_SEED` when. A kill
cannot show a missing sync, since the page cache outlives it: the crash suite does that.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest
from support.asking import Asking
from support.histories import Client, LibraryProducer, PipeliningProducer, Reader, read_everything
from support.history.checker import check
from support.history.recorder import Recorder
from support.patience import until
from support.seeds import seed_or
from support.serving import ServerProcess, serving

CYCLES = int(os.environ.get("CORDWOOD_KILL_CYCLES", "10"))
SEED = seed_or(20_260_317)
TOPIC, PARTITIONS = "history", 4
IDEMPOTENT, PLAIN, PIPELINED = ("idempotent", "plain", "pipelined")
#: Thirty ids on four partitions with five batches each: up to 600 requests are under way.
PRODUCER_IDS = 30
UNANSWERED_MIN = 100
ACKNOWLEDGED_MIN = 2500 * CYCLES
#: Between two kills each producer gets so many records acknowledged, the pipelining one up to so many more.
RECORDS_PER_CYCLE, RECORDS_MORE = 50, 3000
MOMENT_SECONDS = 0.02
#: Small segments, so that kills also meet rolls and recovery finds many files.
SETTINGS = {"log.segment.bytes": str(256 << 10), "auto.create.topics.enable": "false"}


def verify(data: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "cordwood.cli", "verify", str(data)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def wait_for_more(producer: Client, count: int) -> None:
    """Wait until *count* more records of a producer are acknowledged."""
    wanted = producer.acknowledged() + count
    until(lambda: producer.acknowledged() >= wanted, f"{count} records of {producer.name}")


def kill(server: ServerProcess, pipelined: PipeliningProducer) -> int:
    """Kill the server and return how many requests of the pipelining producer it left unanswered."""
    before = len(pipelined.unanswered_at_breaks)
    server.kill()
    until(lambda: len(pipelined.unanswered_at_breaks) > before, "the connection breaks")
    # A process that dies closes what it listens on last, so that a client may get through once more.
    return pipelined.unanswered_at_breaks[before]


def kill_under_load(
    server: ServerProcess, recorder: Recorder, rng: random.Random
) -> tuple[list[int], dict[str, int]]:
    """Run the clients over all kills; return how many requests were unanswered at each, and how many records
    of each producer were acknowledged."""
    pipelined = PipeliningProducer(
        PIPELINED,
        recorder,
        TOPIC,
        PARTITIONS,
        server.address,
        seed=rng.randrange(1 << 32),
        ids=PRODUCER_IDS,
    )
    producers = (
        pipelined,
        LibraryProducer(IDEMPOTENT, recorder, TOPIC, PARTITIONS, server.bootstrap, idempotent=True),
        LibraryProducer(PLAIN, recorder, TOPIC, PARTITIONS, server.bootstrap, idempotent=False),
    )
    reader = Reader("reader", recorder, TOPIC, PARTITIONS, server.address)
    for client in (reader, *producers):
        client.start()
    unanswered = []
    for _ in range(CYCLES):
        for producer in producers:
            wait_for_more(producer, RECORDS_PER_CYCLE)
        wait_for_more(pipelined, rng.randrange(RECORDS_MORE))
        time.sleep(rng.uniform(0, MOMENT_SECONDS))
        unanswered.append(kill(server, pipelined))
        server.start()
    for client in (*reversed(producers), reader):
        client.stop()
    return unanswered, {producer.name: producer.acknowledged() for producer in producers}


@pytest.mark.timeout(100 + 10 * CYCLES)
def test_kills_lose_no_acknowledged_record_change_none_and_repeat_none_of_an_idempotent_producer(
    tmp_path: Path,
) -> None:
    """D1, O1 to O4 and O6, as three producers and a reader see them across kills."""
    rng = random.Random(SEED)
    recorder = Recorder()
    with serving(tmp_path / "data", SETTINGS) as server:
        with Asking(server.address) as client:
            client.create(TOPIC, PARTITIONS)
        unanswered, acknowledged = kill_under_load(server, recorder, rng)
        stored = read_everything(server.address, TOPIC, PARTITIONS, recorder.client("auditor"))
        server.kill()
        killed = verify(server.data)
        server.start()
        assert server.stop() == 0, server.errors
    closed = verify(server.data)
    verdict = check(recorder.history(), repeating=[PLAIN], dense=[TOPIC])
    by_name = ", ".join(f"{count} {name}" for name, count in acknowledged.items())
    print(
        f"seed {SEED}: {len(unanswered)} kills, each with {min(unanswered)} requests unanswered or more; "
        f"{sum(acknowledged.values())} records acknowledged ({by_name}), {stored} stored, "
        f"{verdict.counts['records polled']} read along"
    )
    assert verdict.problems() == []
    for verified in (killed, closed):
        assert verified.returncode == 0, verified.stdout + verified.stderr
    assert len(unanswered) == CYCLES
    assert min(unanswered) >= UNANSWERED_MIN
    assert sum(acknowledged.values()) >= ACKNOWLEDGED_MIN
    assert verdict.counts["records polled"] > 0
    assert verdict.counts["unseen"] == 0
