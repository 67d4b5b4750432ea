"""What a scrape says of the bucket: the lag is what a takeover would lose at most. K3."""

from __future__ import annotations

from pathlib import Path

import pytest
from confluent_kafka import Producer
from support.patience import until
from support.roads import Road
from support.scraping import scrape

import cordwood
from cordwood.telemetry import LOOKED_UP_OF_BUCKET


def test_the_lag_is_above_zero_as_long_as_the_bucket_lacks_something(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    road = Road()
    road.lead(monkeypatch)
    config = {
        "cordwood.bucket": "s3://bucket/log",
        "cordwood.bucket.interval.ms": "20",
        "cordwood.metrics.listen": "127.0.0.1:0",
    }
    with cordwood.Broker(tmp_path / "a", config=config) as broker:
        assert broker.metrics_url is not None
        url = broker.metrics_url
        assert {metric.name for metric in LOOKED_UP_OF_BUCKET} <= scrape(url).names
        road.open.clear()
        producer = Producer({"bootstrap.servers": broker.bootstrap})
        producer.produce("orders", b"x" * 1000)
        assert producer.flush(60) == 0
        until(lambda: scrape(url).value("cordwood_bucket_retries_total") > 1, "shipping is tried again")
        found = scrape(url)
        assert found.value("cordwood_bucket_lag_seconds") > 0
        assert found.value("cordwood_bucket_lag_bytes") >= 1000
        assert found.value("cordwood_bucket_fenced") == 0
        road.open.set()
        until(lambda: scrape(url).value("cordwood_bucket_lag_bytes") == 0, "the bucket has everything")
        assert road.has("orders", b"x" * 1000)
        assert scrape(url).value("cordwood_bucket_pieces_total") >= 2
