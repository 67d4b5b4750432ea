"""``cordwood top``: rates, sizes and lag of topics, by directory, by address and by metrics."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from support.anchoring import anchor
from support.authority import Authority
from support.commands import refused, run
from support.patience import SECONDS_MAX

import cordwood
from cordwood.cli.operations.top import Look, _lines, read_metrics
from cordwood.errors import CordwoodError

METRICS = {"cordwood.metrics.listen": "127.0.0.1:0", "cordwood.metrics.partitions": "true"}
ONCE = ("--once", "--interval", "0.05")


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[cordwood.Broker]:
    with cordwood.Broker(tmp_path / "data", config=METRICS) as broker:
        producer = Producer({"bootstrap.servers": broker.bootstrap})
        for topic, count in (("orders", 10), ("quiet", 1)):
            for number in range(count):
                producer.produce(topic, f"value {number}", partition=0)
        assert producer.flush(SECONDS_MAX) == 0
        consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "billing"})
        consumer.commit(offsets=[TopicPartition("orders", 0, 4)], asynchronous=False)
        consumer.close()
        yield broker


def places(broker: cordwood.Broker, tmp_path: Path) -> dict[str, list[str]]:
    assert broker.metrics_url is not None
    return {
        "files": ["--data", str(tmp_path / "data")],
        "address": ["--bootstrap", broker.bootstrap],
        "metrics": ["--metrics", broker.metrics_url.split("/")[2]],
    }


@pytest.mark.parametrize("where", ["files", "address", "metrics"])
def test_once_shows_every_topic_with_its_records_and_lag(
    broker: cordwood.Broker, tmp_path: Path, where: str
) -> None:
    result = run("top", *places(broker, tmp_path)[where], *ONCE, "--json")
    assert result.exit_code == 0, result.output
    lines: list[dict[str, Any]] = json.loads(result.stdout)
    assert [(line["topic"], line["partitions"], line["offsets"]) for line in lines] == [
        ("orders", 1, 10),
        ("quiet", 1, 1),
    ]
    assert [line["lag"] for line in lines] == [6, None]
    assert all(line["records_per_second"] == 0 for line in lines)
    assert all((line["bytes"] is None) == (where == "address") for line in lines), "a broker does not say"


def test_a_table_is_printed_for_people_and_internal_topics_only_if_asked_for(
    broker: cordwood.Broker, tmp_path: Path
) -> None:
    where = places(broker, tmp_path)["metrics"]
    lines = run("top", *where, *ONCE).stdout.splitlines()
    assert lines[0].split() == ["topic", "partitions", "offsets", "records/s", "size", "bytes/s", "lag"]
    assert [line.split()[0] for line in lines[1:]] == ["orders", "quiet"]
    assert "__consumer_offsets" in run("top", *where, *ONCE, "--internal").stdout
    assert run("top", *where, *ONCE, "--limit", "1").stdout.splitlines()[-1] == "and 1 more"


def test_what_comes_between_two_looks_is_the_rate(broker: cordwood.Broker, tmp_path: Path) -> None:
    """It goes on until nobody reads it any more, and a topic that is written to comes first."""
    ended = Event()

    def produce() -> None:
        producer = Producer({"bootstrap.servers": broker.bootstrap, "linger.ms": 0})
        while not ended.is_set():
            producer.produce("quiet", "value", partition=0)
            producer.flush(SECONDS_MAX)

    writer = Thread(target=produce)
    writer.start()
    where = places(broker, tmp_path)["metrics"]
    command = [sys.executable, "-m", "cordwood.cli", "top", *where, "--interval", "0.1", "--json"]
    try:
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            looks = [json.loads(process.stdout.readline()) for _ in range(3)]
            process.stdout.close()
            assert process.wait(SECONDS_MAX) == os.EX_OK, "who went away is no error"
    finally:
        ended.set()
        writer.join()
    for lines in looks:
        first = lines[0]
        assert first["topic"] == "quiet"
        assert first["records_per_second"] > 0
        assert first["bytes_per_second"] > 0
    assert looks[0][0]["offsets"] < looks[2][0]["offsets"]


def test_a_topic_that_is_new_or_made_again_has_no_rate_yet() -> None:
    before = {"kept": Look(1, 5, 5, 100, None), "again": Look(1, 50, 50, 100, None)}
    now = {"kept": Look(1, 9, 9, 300, 2), "again": Look(1, 3, 3, 10, None), "new": Look(1, 1, 1, 10, None)}
    rates = {
        line.topic: (line.records_per_second, line.bytes_per_second) for line in _lines(before, now, 2.0)
    }
    assert rates == {"kept": (2.0, 100.0), "again": (None, None), "new": (None, None)}


def test_metrics_without_topics_in_them_say_how_to_have_them() -> None:
    with cordwood.Broker(config={**METRICS, "cordwood.metrics.partitions": "false"}) as broker:
        assert broker.metrics_url is not None
        Producer({"bootstrap.servers": broker.bootstrap}).list_topics("orders", 10)
        result = run("top", "--metrics", broker.metrics_url, *ONCE)
    assert result.exit_code == 1
    assert "-X cordwood.metrics.partitions=true" in result.stderr
    assert read_metrics("cordwood_topics 0\n", "") == {}
    with pytest.raises(CordwoodError):
        read_metrics("", "")


def test_an_address_where_nobody_answers_is_said_in_one_sentence() -> None:
    result = run("top", "--metrics", "127.0.0.1:1", *ONCE)
    assert result.exit_code == 1
    assert result.stderr.count("\n") == 1
    assert "cordwood serve --metrics" in result.stderr


# --- metrics with TLS and a token ------------------------------------------------------------------

TOKEN = "c2VjcmV0LXRva2Vu"


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


def guarded(authority: Authority, token: Path, scheme: str = "https://") -> cordwood.Broker:
    """Return a broker whose metrics need the token in a file."""
    config = {
        **METRICS,
        "cordwood.metrics.listen": f"{scheme}localhost:0",
        "cordwood.metrics.token.file": str(token),
        "listener.name.metrics.ssl.keystore.location": str(authority.issue("metrics").both),
    }
    return cordwood.Broker(config=config)


def test_metrics_are_read_over_tls_with_a_token_from_a_file_or_the_environment(
    authority: Authority, tmp_path: Path
) -> None:
    token = tmp_path / "token"
    token.write_text(f"{TOKEN}\n")
    with guarded(authority, token) as broker:
        assert broker.metrics_url is not None
        Producer({"bootstrap.servers": broker.bootstrap}).list_topics("orders", SECONDS_MAX)
        for address in (broker.metrics_url, broker.metrics_url.removesuffix("/metrics")):
            where = ("--metrics", address, "--metrics-ca", authority.certificate, *ONCE)
            by_file = run("top", *where, "--metrics-token-file", token)
            by_variable = run("top", *where, CORDWOOD_METRICS_TOKEN=TOKEN)
            for done in (by_file, by_variable):
                assert (done.exit_code, done.stderr) == (0, "")
                assert [line.split()[0] for line in done.stdout.splitlines()] == ["topic", "orders"]


def test_a_token_that_is_missing_or_wrong_is_said_with_how_to_give_it(
    authority: Authority, tmp_path: Path
) -> None:
    token = tmp_path / "token"
    token.write_text("another")
    with guarded(authority, token) as broker:
        where = ("top", "--metrics", broker.metrics_url, "--metrics-ca", authority.certificate, *ONCE)
        assert "answered 401; give the server's token in --metrics-token-file" in refused(*where)
        done = run(*where, CORDWOOD_METRICS_TOKEN=TOKEN)
    assert done.exit_code == 1
    assert "answered 401" in done.stderr
    assert TOKEN not in done.stderr


def test_a_server_that_is_not_the_one_meant_gets_no_token(authority: Authority, tmp_path: Path) -> None:
    """Neither another authority's, nor the target of a redirection, nor a server in the clear elsewhere."""
    top = ("top", *ONCE)
    token = tmp_path / "token"
    token.write_text(TOKEN)
    given = ("--metrics-token-file", token)
    other = Authority(tmp_path / "other", "other").certificate
    with guarded(authority, token) as broker:
        for trusted in ((), ("--metrics-ca", other)):
            sentence = refused(*top, "--metrics", broker.metrics_url, *trusted, *given)
            assert "certificate verify failed" in sentence
    with anchor() as elsewhere, anchor(status=302, to=elsewhere.url) as found:
        assert "it answered 302" in refused(*top, "--metrics", found.url, *given)
    assert [sent for sent, _ in found.requests] == [f"Bearer {TOKEN}"]
    assert elsewhere.requests == []
    for address in ("192.0.2.1:1", "http://192.0.2.1:1", "http://elsewhere.invalid:1"):
        assert "goes over https:// only" in refused(*top, "--metrics", address, *given)


def test_metrics_that_need_tls_say_how_to_ask_for_them(authority: Authority, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text(TOKEN)
    with guarded(authority, token) as broker:
        assert broker.metrics_url is not None
        sentence = refused("top", *ONCE, "--metrics", broker.metrics_url.split("/")[2])
    assert "with TLS at https://HOST:PORT" in sentence


def test_options_of_metrics_need_an_address_that_they_are_for(tmp_path: Path) -> None:
    for given in (
        ("--metrics-ca", "x"),
        ("--metrics-token-file", "x", "--data", tmp_path),
        ("--metrics", "localhost:1", "--metrics-ca", "x"),
        ("--metrics", "https://localhost:1", "--metrics-key", "x"),
        ("--metrics", "https://anna:hidden@localhost:1"),
    ):
        assert "hidden" not in refused("top", *ONCE, *given, code=2)


def test_two_places_at_once_are_a_usage_error(tmp_path: Path) -> None:
    assert run("top", "--metrics", "h:1", "--data", tmp_path).exit_code == 2
