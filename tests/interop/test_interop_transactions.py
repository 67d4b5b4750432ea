"""Transactions and kills on Apache Kafka: the oracle of our own test of them."""

from __future__ import annotations

from pathlib import Path

import pytest
from interop.apache_kafka import apache_kafka
from support.seeds import seed_or
from support.transaction_kills import kill_under_transactions

pytestmark = pytest.mark.interop
SEED = seed_or(20_261_126)
KILLS = 1


@pytest.mark.timeout(600)
def test_the_history_of_transactions_on_apache_kafka_is_sound_over_kills(tmp_path: Path) -> None:
    """The oracle of tests/server/test_transactions_kill.py: a fault found here is one of the test."""
    with apache_kafka(tmp_path / "kafka") as broker:

        def restart() -> None:
            broker.process.kill()
            broker.process.wait()
            broker.start()

        outcome = kill_under_transactions(broker.bootstrap, restart, KILLS, SEED)
    print(f"seed {SEED}: {KILLS} kills, {outcome}")
    assert outcome.verdict.problems() == []
