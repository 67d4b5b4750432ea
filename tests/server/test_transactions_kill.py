"""kill -9 of the real server under transactional producers of three clients; then a history check.

`CORDWOOD_TRANSACTION_KILLS` sets how often the server is killed (default 1), `CORDWOOD_SEED` when.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from support.seeds import seed_or
from support.serving import RawClient, ServerProcess, serving
from support.transaction_kills import CLIENT_SECONDS_MAX, TRANSACTIONS_PER_CYCLE, kill_under_transactions

from cordwood.protocol.apis import ApiKey
from cordwood.protocol.messages.api_versions import ApiVersionsRequest

KILLS = int(os.environ.get("CORDWOOD_TRANSACTION_KILLS", "1"))
SEED = seed_or(20_261_126)
#: Kafka's number of this API.
END_TXN = 26
#: Small segments, so that kills also meet rolls.
SETTINGS = {"log.segment.bytes": str(64 << 10), "auto.create.topics.enable": "false"}


def serves_transactions(server: ServerProcess) -> bool:
    """Return whether the server announces EndTxn. Once it does, nothing here is skipped any more."""
    with RawClient(server.address) as client:
        announced = client.ask(ApiKey.API_VERSIONS, ApiVersionsRequest("test", "1")).api_keys
    return END_TXN in {api.api_key for api in announced}


@pytest.mark.timeout(300 + CLIENT_SECONDS_MAX * KILLS)
def test_kills_tear_no_transaction_apart_lose_none_that_was_committed_and_repeat_nothing(
    tmp_path: Path,
) -> None:
    """X1, X2, X4 and X5 as writers, processors and readers of both isolations see them across kills."""
    with serving(tmp_path / "data", SETTINGS) as server:
        if not serves_transactions(server):
            pytest.skip("the server does not announce EndTxn")

        def restart() -> None:
            server.restart(kill=True)

        outcome = kill_under_transactions(server.bootstrap, restart, KILLS, SEED)
        assert server.stop() == 0, server.errors
    by_name = ", ".join(f"{count} {name}" for name, count in outcome.committed.items())
    print(
        f"seed {SEED}: {KILLS} kills, {sum(outcome.committed.values())} transactions committed ({by_name}), "
        f"{outcome.aborted} aborted, {outcome.replaced} producers replaced, "
        f"{outcome.stored} records committed"
    )
    assert outcome.verdict.problems() == []
    assert min(outcome.committed.values()) >= (KILLS + 1) * TRANSACTIONS_PER_CYCLE
    assert outcome.aborted > 0
    assert outcome.verdict.counts["unseen"] == 0
