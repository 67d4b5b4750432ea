"""Two versions of Cordwood beside each other: the CPU time that each takes for the same work.

``CORDWOOD_OTHER`` names the ``src`` folder of another checkout, with its kernels compiled. Each piece of work
runs in a process of its own, once with each version in turn, seven times; a figure is the median CPU time of
this version over that of the other one. CPU time, because other work on the machine changes it least.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from confluent_kafka import Consumer, Producer, TopicPartition

from benchmarks.measure import Figure

ROUNDS = 7
#: How much more CPU time than the other version the same work may take.
GOAL = 1.03
RECORD_BYTES = 1000
LOG_RECORDS = 500_000
SERVED_RECORDS = 400_000

_CPU = """
import resource, sys, time
def cpu():
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime
import cordwood
path, records, size = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
rows = [(b"key %d" % i, bytes([i % 251]) * size) for i in range(500)]
"""

#: Each prints its CPU seconds. The first fills the directory that the others read.
PROGRAMS: Mapping[str, str] = {
    "append": """
with cordwood.open(path) as log:
    topic = log.topic("t")
    before = cpu()
    for _ in range(records // len(rows)):
        topic.append_many(rows)
    print(cpu() - before)
""",
    "append one by one": """
with cordwood.open(path, sync="never") as log:
    topic = log.topic("single")
    before = cpu()
    for number in range(records // 5):
        key, value = rows[number % 500]
        topic.append(value, key=key)
    print(cpu() - before)
""",
    "read": """
with cordwood.open(path, read_only=True) as log:
    topic = log.topic("t")
    next(topic.read())
    before = cpu()
    for record in topic.read(0, 0, records):
        pass
    print(cpu() - before)
""",
    "scan": """
with cordwood.open(path, read_only=True) as log:
    import pyarrow  # Not a part of what is measured.
    before = cpu()
    for _ in range(4):
        for batch in log.scan("t").reader():
            pass
    print(cpu() - before)
""",
    "open": """
cordwood.open(path).close()
before = cpu()
for _ in range(40):
    cordwood.open(path).close()
print(cpu() - before)
""",
}

_SERVER = """
with cordwood.Broker(path) as broker:
    print(broker.bootstrap, flush=True)
    for line in sys.stdin:
        print(cpu(), flush=True)
"""


def run() -> list[Figure]:
    """Measure each piece of work with both versions; nothing where no other version is named."""
    other = os.environ.get("CORDWOOD_OTHER")
    if other is None:
        print("versions: skipped, CORDWOOD_OTHER names no other checkout")
        return []
    sides = {"this": str(Path(__file__).parents[1] / "src"), "other": other}
    seconds: dict[str, dict[str, list[float]]] = {}
    for number in range(ROUNDS):
        # They take turns at being first: the second one finds a warmer machine.
        for side in sorted(sides, reverse=number % 2 == 1):
            with tempfile.TemporaryDirectory() as folder:
                for work, cpu in {**embedded(sides[side], folder), **served(sides[side], folder)}.items():
                    seconds.setdefault(work, {}).setdefault(side, []).append(cpu)
    figures = []
    for work, found in seconds.items():
        this, before = (statistics.median(found[side]) for side in ("this", "other"))
        best = min(found["this"]) / min(found["other"])
        print(f"{work}: {this:.3f} s of CPU, the other version {before:.3f} s; the best rounds {best:.2f} x")
        figures.append(
            Figure(f"{work}: CPU time over the other version's", this / before, "x", GOAL, at_most=True)
        )
    return figures


def embedded(source: str, folder: str) -> dict[str, float]:
    """Return the CPU seconds of each program over the library."""
    return {
        work: float(
            subprocess.run(
                [
                    sys.executable,
                    "-c",
                    _CPU + program,
                    f"{folder}/embedded",
                    str(LOG_RECORDS),
                    str(RECORD_BYTES),
                ],
                env={**os.environ, "PYTHONPATH": source},
                check=True,
                stdout=subprocess.PIPE,
                text=True,
            ).stdout
        )
        for work, program in PROGRAMS.items()
    }


def served(source: str, folder: str) -> dict[str, float]:
    """Return the CPU seconds of a server while it is produced to, and while it is consumed from."""
    arguments = [f"{folder}/served", str(SERVED_RECORDS), str(RECORD_BYTES)]
    with subprocess.Popen(
        [sys.executable, "-c", _CPU + _SERVER, *arguments],
        env={**os.environ, "PYTHONPATH": source},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        bootstrap = server.stdout.readline().strip()

        def used() -> float:
            assert server.stdin is not None
            assert server.stdout is not None
            server.stdin.write("\n")
            server.stdin.flush()
            return float(server.stdout.readline())

        produce(bootstrap, 100)
        begun = used()
        produce(bootstrap, SERVED_RECORDS)
        produced = used()
        consume(bootstrap, SERVED_RECORDS)
        consumed = used()
        server.stdin.close()
    return {"produce": produced - begun, "fetch": consumed - produced}


def produce(bootstrap: str, count: int) -> None:
    """Send *count* records and return once all are acknowledged."""
    producer = Producer(
        {"bootstrap.servers": bootstrap, "linger.ms": 5, "queue.buffering.max.messages": 10_000_000}
    )
    value = os.urandom(RECORD_BYTES)
    for number in range(count):
        producer.produce("t", value, partition=0)
        if number % 1000 == 0:
            producer.poll(0)
    assert producer.flush(120) == 0


def consume(bootstrap: str, count: int) -> None:
    """Read *count* records from the start."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "any", "enable.auto.commit": False})
    consumer.assign([TopicPartition("t", 0, 0)])
    left = count
    while left > 0:
        left -= len(consumer.consume(min(left, 10_000), 10))
    consumer.close()
