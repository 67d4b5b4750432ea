"""Histories without an attacker: whatever the operator does, verify finds nothing against any checkpoint.

Appends, compactions, retention, changes of policy, truncations, restarts and crashes in random order, in the
formats that can be compacted. Every checkpoint that was ever made is compared at the end, except those that a
forced truncation contradicts, which must be found. Invariants I4, I5. Prints the seeds and what happened.
"""

from __future__ import annotations

import random
from collections import Counter

import pytest
from support.disks import image
from support.logs import DATA, disk_of
from support.seeds import seed_or
from support.sweeps import FULL

import cordwood
from cordwood.disk.files import join, read_file
from cordwood.disk.memory import MemoryFiles
from cordwood.integrity.note import VerifierKey
from cordwood.verify import GivenCheckpoint, verify_directory

HISTORIES = 2_000 if FULL else 150
SEED = seed_or(20_261_118)
POLICIES = ("compact", "compact", "compact,delete", "delete")


class ManualMs:
    """A clock that the history moves."""

    def __init__(self) -> None:
        self.ms = 1_700_000_000_000

    def now_ms(self) -> int:
        self.ms += 1
        return self.ms

    def now_us(self) -> int:
        return self.now_ms() * 1_000

    def monotonic_ns(self) -> int:
        self.ms += 1
        return self.ms * 1_000_000


class History:
    """One log, what an operator does with it, and the checkpoints that somebody else has."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.files = MemoryFiles()
        self.clock = ManualMs()
        self.did: Counter[str] = Counter()
        self.held: list[tuple[int, GivenCheckpoint]] = []
        self.refuted: list[GivenCheckpoint] = []
        self.config = {
            "cordwood.format": self.chance.choice(["batch", "batch", "batch", "frame", "laminarmq"]),
            "cleanup.policy": self.chance.choice(POLICIES),
            "segment.bytes": str(self.chance.choice([300, 600, 2000])),
            "min.cleanable.dirty.ratio": "0",
            "delete.retention.ms": str(self.chance.choice([0, 50])),
            "message.timestamp.type": self.chance.choice(["CreateTime", "CreateTime", "LogAppendTime"]),
        }
        if self.config["cordwood.format"] == "batch":
            self.config["compression.type"] = self.chance.choice(["producer", "zstd", "lz4"])
        self.log = self.opened()
        self.topic = self.log.topic("orders", config=self.config)

    def opened(self) -> cordwood.Log:
        return cordwood.open(DATA, files=self.files, clock=self.clock)

    def run(self, steps: int) -> None:
        for _ in range(steps):
            act = self.chance.choice(
                ["append"] * 6
                + ["compact"] * 3
                + ["policy", "truncate", "advance", "retain", "restart", "crash", "sign", "roll", "expire"]
            )
            getattr(self, act)()
            self.did[act] += 1
        self.log.close()

    def append(self) -> None:
        rows: list[tuple[bytes | None, bytes | None]] = []
        for _ in range(self.chance.randrange(1, 6)):
            key = b"k%d" % self.chance.randrange(8)
            value = None if self.chance.random() < 0.15 else b"v%d" % self.chance.randrange(10**6)
            keyless = "compact" not in self.config["cleanup.policy"] and self.chance.random() < 0.3
            rows.append((None, b"nobody's") if keyless else (key, value))
        self.topic.append_many(rows, partition=0)

    def compact(self) -> None:
        self.clock.ms += self.chance.choice([0, 100])
        self.topic.roll()
        report = self.log.maintain(force=True)
        assert report.failures == (), report.failures
        self.did["dropped"] += report.records_removed

    def policy(self) -> None:
        self.config["cleanup.policy"] = self.chance.choice(POLICIES)
        self.log.alter_topic("orders", config=self.config)

    def truncate(self) -> None:
        start, end = self.topic.log_start_offset(0), self.topic.log_end_offset(0)
        if start == end:
            return
        at = self.chance.randrange(max(start, end - 6), end)
        self.topic.truncate(0, at, force=True)
        self.refuted += [given for offset, given in self.held if offset > at]
        self.held = [(offset, given) for offset, given in self.held if offset <= at]

    def advance(self) -> None:
        start, end = self.topic.log_start_offset(0), self.topic.high_watermark(0)
        self.topic.advance_log_start(0, self.chance.randrange(start, min(end, start + 4) + 1))

    def retain(self) -> None:
        if "delete" in self.config["cleanup.policy"]:
            self.log.alter_topic("orders", config={**self.config, "retention.bytes": "1500"})
            self.log.maintain()
            self.log.alter_topic("orders", config=self.config)

    def expire(self) -> None:
        if self.chance.random() < 0.2:
            self.log.alter_topic("orders", config={**self.config, "cordwood.compaction.evidence.ms": "0"})
            self.clock.ms += 10
            self.log.maintain()
            self.did["expired"] += 1
            self.log.alter_topic("orders", config=self.config)

    def roll(self) -> None:
        self.topic.roll()

    def restart(self) -> None:
        self.log.close()
        self.reopen()

    def crash(self) -> None:
        self.files = disk_of(image(self.files, DATA))
        self.log.data_directory.abandon()
        self.reopen()

    def reopen(self) -> None:
        self.log = self.opened()
        self.topic = self.log.topic("orders")

    def sign(self) -> None:
        for signed in self.log.checkpoint("orders"):
            key = VerifierKey.parse(
                read_file(self.files, join(DATA, "meta/keys/checkpoint.pub")).decode().strip()
            )
            given = GivenCheckpoint(f"checkpoint {len(self.held)}", signed.note, key)
            self.held.append((self.topic.high_watermark(0), given))


@pytest.mark.parametrize("part", range(3))
def test_nothing_is_found_in_a_log_that_nobody_tampered_with(part: int) -> None:
    did: Counter[str] = Counter()
    notes: Counter[str] = Counter()
    for number in range(part, HISTORIES, 3):
        history = History(SEED + number)
        history.run(40)
        report = verify_directory(history.files, DATA, checkpoints=[given for _, given in history.held])
        assert not report.corrupt, f"seed {SEED + number}: {report.findings}"
        if not history.did["expired"]:
            assert report.sound, f"seed {SEED + number}: {report.findings}"
        did += history.did
        did["checkpoints"] += len(history.held)
        notes += Counter(each.what for each in report.findings)
        if history.refuted:
            found = verify_directory(history.files, DATA, checkpoints=history.refuted[:1])
            assert found.corrupt, f"seed {SEED + number}: a truncation below a checkpoint goes unnoticed"
            did["refuted"] += 1
    ran = len(range(part, HISTORIES, 3))
    print(f"seeds {SEED + part} to {SEED + HISTORIES - 1} by 3: {ran} histories, {dict(did)}")
    print(f"notes: {dict(notes)}")
    assert did["dropped"] > 200
    assert did["checkpoints"] > 10
