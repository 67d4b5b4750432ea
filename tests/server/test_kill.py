"""kill -9 of the real server under three producers and a reader, again and again; then a history check.

`CORDWOOD_KILL_CYCLES` sets how often the server is killed (default 20), `CORDWOOD_KILL_SEED` when. A kill
cannot show a missing sync, since the page cache outlives it: the crash suite does that.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from support.asking import Asking
from support.histories import (
    Content,
    History,
    LibraryProducer,
    PipeliningProducer,
    Place,
    Reader,
    read_everything,
)
from support.patience import until
from support.serving import ServerProcess, serving

CYCLES = int(os.environ.get("CORDWOOD_KILL_CYCLES", "10"))
SEED = int(os.environ.get("CORDWOOD_KILL_SEED", "20260317"))
TOPIC, PARTITIONS = "history", 4
IDEMPOTENT, PLAIN, PIPELINED = NAMES = ("idempotent", "plain", "pipelined")
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


def wait_for_more(history: History, name: str, count: int) -> None:
    """Wait until *count* more records of a producer are acknowledged."""
    wanted = history.acknowledged(name) + count
    until(lambda: history.acknowledged(name) >= wanted, f"{count} records of {name}")


def kill(server: ServerProcess, pipelined: PipeliningProducer) -> int:
    """Kill the server and return how many requests of the pipelining producer it left unanswered."""
    before = len(pipelined.unanswered_at_breaks)
    server.kill()
    until(lambda: len(pipelined.unanswered_at_breaks) > before, "the connection breaks")
    # A process that dies closes what it listens on last, so that a client may get through once more.
    return pipelined.unanswered_at_breaks[before]


def kill_under_load(server: ServerProcess, history: History, rng: random.Random) -> list[int]:
    """Run the clients over all kills; return how many requests were unanswered at each."""
    seed = rng.randrange(1 << 32)
    pipelined = PipeliningProducer(
        PIPELINED, history, TOPIC, PARTITIONS, server.address, seed=seed, ids=PRODUCER_IDS
    )
    clients = (
        Reader("reader", history, TOPIC, PARTITIONS, server.address),
        pipelined,
        LibraryProducer(IDEMPOTENT, history, TOPIC, PARTITIONS, server.bootstrap, idempotent=True),
        LibraryProducer(PLAIN, history, TOPIC, PARTITIONS, server.bootstrap, idempotent=False),
    )
    for client in clients:
        client.start()
    unanswered = []
    for _ in range(CYCLES):
        for name in NAMES:
            wait_for_more(history, name, RECORDS_PER_CYCLE)
        wait_for_more(history, PIPELINED, rng.randrange(RECORDS_MORE))
        time.sleep(rng.uniform(0, MOMENT_SECONDS))
        unanswered.append(kill(server, pipelined))
        server.start()
    for client in reversed(clients):
        client.stop()
    return unanswered


@pytest.mark.timeout(100 + 10 * CYCLES)
def test_kills_lose_no_acknowledged_record_change_none_and_repeat_none_of_an_idempotent_producer(
    tmp_path: Path,
) -> None:
    """D1, O1 to O4 and O6, as three producers and a reader see them across kills."""
    rng = random.Random(SEED)
    history = History(exactly_once=frozenset({IDEMPOTENT, PIPELINED}))
    with serving(tmp_path / "data", SETTINGS) as server:
        with Asking(server.address) as client:
            client.create(TOPIC, PARTITIONS)
        unanswered = kill_under_load(server, history, rng)
        stored, ends = read_everything(server.address, TOPIC, PARTITIONS, history.show)
        server.kill()
        killed = verify(server.data)
        server.start()
        assert server.stop() == 0, server.errors
    closed = verify(server.data)
    by_name = ", ".join(f"{history.acknowledged(name)} {name}" for name in NAMES)
    print(
        f"seed {SEED}: {len(unanswered)} kills, each with {min(unanswered)} requests unanswered or more; "
        f"{history.acknowledged()} records acknowledged ({by_name}), {len(stored)} stored, "
        f"{history.shown()} seen by readers"
    )
    assert history.problems(stored, ends) == []
    for verified in (killed, closed):
        assert verified.returncode == 0, verified.stdout + verified.stderr
    assert len(unanswered) == CYCLES
    assert min(unanswered) >= UNANSWERED_MIN
    assert history.acknowledged() >= ACKNOWLEDGED_MIN


# --- the check itself -------------------------------------------------------------------------------

Stored = dict[Place, Content]


def sound_history() -> tuple[History, Stored]:
    """Return a history of a few records, all of them stored as they were acknowledged."""
    history = History(exactly_once=frozenset({"once"}))
    stored = {
        Place(0, 0): Content(1, b"once:0"),
        Place(0, 1): Content(2, b"often:0"),
        Place(0, 2): Content(2, b"often:0"),
        Place(0, 3): Content(3, b"once:1"),
    }
    for place, content in stored.items():
        history.sending(content.value)
        history.show(place, content)
    for offset in (0, 2, 3):
        history.acknowledge(stored[Place(0, offset)].value, Place(0, offset))
    history.show_high_watermark(0, 4)
    return history, stored


def lose_one(_: History, stored: Stored) -> None:
    del stored[Place(0, 3)]


def move_one(_: History, stored: Stored) -> None:
    stored[Place(0, 4)] = stored.pop(Place(0, 3))


def change_one_that_was_only_shown(_: History, stored: Stored) -> None:
    stored[Place(0, 1)] = Content(9, b"often:0")


def show_another(history: History, _: Stored) -> None:
    history.show(Place(0, 1), Content(2, b"once:1"))


def repeat_one(history: History, stored: Stored) -> None:
    stored[Place(0, 4)] = stored[Place(0, 0)]


def store_what_nobody_sent(_: History, stored: Stored) -> None:
    stored[Place(0, 4)] = Content(4, b"often:7")


def leave_a_gap(history: History, stored: Stored) -> None:
    history.sending(b"often:8")
    stored[Place(0, 5)] = Content(4, b"often:8")


def let_the_high_watermark_go_back(history: History, _: Stored) -> None:
    history.show_high_watermark(0, 3)


def turn_two_sends_around(history: History, stored: Stored) -> None:
    history.sending(b"often:9")
    stored[Place(0, 4)] = Content(4, b"often:9")
    history.acknowledge(b"often:9", Place(0, 4), after=5)


def acknowledge_twice(history: History, _: Stored) -> None:
    history.acknowledge(b"once:0", Place(0, 0))


def end_below_the_high_watermark(history: History, stored: Stored) -> None:
    history.show_high_watermark(0, 6)


@pytest.mark.parametrize(
    "spoil",
    [
        lose_one,
        move_one,
        change_one_that_was_only_shown,
        show_another,
        repeat_one,
        store_what_nobody_sent,
        leave_a_gap,
        let_the_high_watermark_go_back,
        turn_two_sends_around,
        acknowledge_twice,
        end_below_the_high_watermark,
    ],
    ids=lambda spoil: spoil.__name__,
)
def test_the_check_of_a_history_finds(spoil: Callable[[History, Stored], None]) -> None:
    """A check that finds nothing in a spoiled history would prove nothing of a sound one."""
    history, stored = sound_history()
    spoil(history, stored)
    end = max(place.offset for place in stored) + 1
    assert history.problems(stored, {0: end})


def test_the_check_of_a_sound_history_finds_nothing() -> None:
    """Repeated records of a producer that is not idempotent are no fault."""
    history, stored = sound_history()
    assert history.problems(stored, {0: 4}) == []
