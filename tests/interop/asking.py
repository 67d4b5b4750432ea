"""Questions for a program that reads one topic and answers to another, while it or the broker is killed."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from interop.brokers import Broker
from interop.copying import CommittedReader, working
from interop.frameworks import FIRST_TIME, feed, until_read
from support.clients import Confluent

PARTITIONS = 2
KEYS = 7
#: The questions of each round.
ROUND, ROUNDS = 200, 4

Answers = dict[bytes, list[bytes]]
"""The answers to the questions of each key, in their order. The last word of an answer is the question."""


def go_through(
    broker: Broker, command: Sequence[str], directory: Path, stalled_seconds: float | None = None
) -> Answers:
    """Ask in rounds, killing broker and the program of *command* in between; return what was answered.

    What it keeps under ``state`` in *directory* is removed when it is killed. For *stalled_seconds* see
    `until_read`.
    """
    for topic in ("questions", "answers"):
        Confluent().create_topic(broker.bootstrap, topic, PARTITIONS)
    rounds = iter(range(ROUNDS))

    def ask() -> int:
        count = next(rounds) * ROUND
        numbers = range(count, count + ROUND)
        records = [(f"key-{number % KEYS}", str(number), FIRST_TIME + number) for number in numbers]
        feed(broker.bootstrap, "questions", records)
        return count + ROUND

    with (
        working(command, directory / "printed.txt") as app,
        CommittedReader(broker.bootstrap, "answers", PARTITIONS) as reader,
    ):
        until_read(reader, ask() // 2, app, stalled_seconds)
        broker.restart(kill=True)
        until_read(reader, ask() - ROUND // 2, app, stalled_seconds)
        app.stop(kill=True)
        shutil.rmtree(directory / "state", ignore_errors=True)
        asked = ask()
        app.start()
        until_read(reader, asked, app, stalled_seconds)
        broker.restart()
        asked = ask()
        until_read(reader, asked, app, stalled_seconds)
        app.stop()
        reader.read_to_end()
        assert asked == ROUNDS * ROUND
        return reader.of_each_key()


def questions() -> dict[bytes, list[bytes]]:
    """Return the questions of each key."""
    return {
        b"key-%d" % key: [b"%d" % number for number in range(key, ROUNDS * ROUND, KEYS)]
        for key in range(KEYS)
    }


def answered(answers: Answers) -> dict[bytes, list[bytes]]:
    """Return the questions of each key in the order in which they were answered for the first time."""
    return {key: list(dict.fromkeys(each.split()[-1] for each in found)) for key, found in answers.items()}
