"""What a server tells about itself: each number is true, declared, and under a name that dashboards know."""

from __future__ import annotations

import contextlib
import errno
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from threading import Event

import pytest
from broker.nodes import BreakableFiles
from confluent_kafka import Consumer, Producer, TopicPartition
from support.asking import Asking
from support.patience import SECONDS_MAX, until
from support.scraping import get, parse, say, scrape
from support.tenant_requests import LISTEN, SETTINGS

import cordwood
from cordwood.errors import ListenFailed, LogFailed
from cordwood.protocol.apis import ApiKey
from cordwood.server.metrics import http as metrics
from cordwood.server.metrics.text import CONTENT_TYPE, exposition
from cordwood.telemetry import (
    LOOKED_UP,
    LOOKED_UP_EACH,
    METRICS,
    Counter,
    Gauge,
    Histogram,
    Metric,
    Sample,
    Telemetry,
)

LISTENING = {"cordwood.metrics.listen": "127.0.0.1:0"}
EACH = {**LISTENING, "cordwood.metrics.partitions": "true"}

# Names and labels of danielqsj/kafka_exporter 1.9, all that do not speak of ZooKeeper.
KAFKA_EXPORTER = {
    "kafka_brokers": (),
    "kafka_broker_info": ("id", "address"),
    "kafka_topic_partitions": ("topic",),
    "kafka_topic_partition_current_offset": ("topic", "partition"),
    "kafka_topic_partition_oldest_offset": ("topic", "partition"),
    "kafka_topic_partition_leader": ("topic", "partition"),
    "kafka_topic_partition_replicas": ("topic", "partition"),
    "kafka_topic_partition_in_sync_replica": ("topic", "partition"),
    "kafka_topic_partition_leader_is_preferred": ("topic", "partition"),
    "kafka_topic_partition_under_replicated_partition": ("topic", "partition"),
    "kafka_consumergroup_current_offset": ("consumergroup", "topic", "partition"),
    "kafka_consumergroup_current_offset_sum": ("consumergroup", "topic"),
    "kafka_consumergroup_lag": ("consumergroup", "topic", "partition"),
    "kafka_consumergroup_lag_sum": ("consumergroup", "topic"),
    "kafka_consumergroup_members": ("consumergroup",),
}
BOUNDS = ("1024", "4096", "65536", "262144", "4294967296", "+Inf")


def url_of(broker: cordwood.Broker, path: str = "/metrics") -> str:
    assert broker.metrics_url is not None
    return broker.metrics_url.removesuffix("/metrics") + path


def send(broker: cordwood.Broker, topic: str, *values: str, partition: int = 0) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap, "linger.ms": 0})
    for value in values:
        producer.produce(topic, value, partition=partition)
    assert producer.flush(SECONDS_MAX) == 0


def commit(broker: cordwood.Broker, group: str, topic: str, offset: int) -> None:
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": group})
    consumer.commit(offsets=[TopicPartition(topic, 0, offset)], asynchronous=False)
    consumer.close()


# --- Names ------------------------------------------------------------------------------------------


def kind_of(metric: Metric) -> str:
    return {Counter: "counter", Gauge: "gauge"}.get(type(metric), "histogram")


@pytest.mark.parametrize("each", [False, True])
def test_a_scrape_has_what_is_declared_and_nothing_else(each: bool) -> None:
    declared = [*METRICS, *LOOKED_UP, *(LOOKED_UP_EACH if each else ())]
    listen = "PLAINTEXT://localhost:0,SSL://localhost:0"
    with cordwood.Broker(listen=listen, tls=True, config=EACH if each else LISTENING) as broker:
        send(broker, "orders", "a", "b")
        commit(broker, "readers", "orders", 1)
        found = scrape(broker.metrics_url)
    assert found.kinds == {metric.name: kind_of(metric) for metric in declared}
    assert found.helps == {metric.name: metric.sentence for metric in declared}
    for metric in declared:
        if kind_of(metric) != "histogram":
            for labels in found.each(metric.name):
                assert {name for name, _ in labels} == set(metric.labels)
    print(f"{len(declared)} metrics in {len(found.samples)} samples")


def test_what_was_made_for_kafka_exporter_finds_its_names_and_labels() -> None:
    ours = {
        metric.name: metric.labels
        for metric in (*LOOKED_UP, *LOOKED_UP_EACH)
        if metric.name.startswith("kafka_")
    }
    assert ours == KAFKA_EXPORTER


def test_series_do_not_grow_with_topics_unless_that_is_asked_for(tmp_path: Path) -> None:
    with cordwood.open(tmp_path) as log:
        log.topic("t0").append(b"value")
    with cordwood.Broker(tmp_path, config=LISTENING) as broker:
        few = scrape(broker.metrics_url).samples
    with cordwood.open(tmp_path) as log:
        for number in range(50):
            log.topic(f"t{number}", partitions=4 if number else None)
    with cordwood.Broker(tmp_path, config=LISTENING) as broker:
        many = scrape(broker.metrics_url)
        assert many.samples.keys() - few.keys() == {
            key for key in many.samples.keys() - few.keys() if key[0] == "kafka_broker_info"
        }
        assert (many.value("cordwood_topics"), many.value("cordwood_partitions")) == (50, 1 + 49 * 4)
        assert many.value("cordwood_open_logs") == 0, "a scrape opens nothing"
    with cordwood.Broker(tmp_path, config=EACH) as broker:
        each = scrape(broker.metrics_url)
        assert len(each.each("kafka_topic_partition_current_offset")) == 1 + 49 * 4
        assert each.value("kafka_topic_partition_current_offset", topic="t0", partition="0") == 1
        assert each.value("cordwood_log_bytes") == each.value("cordwood_topic_bytes", topic="t0") > 0


def test_the_sizes_of_segments_are_a_distribution_of_those_that_there_are(tmp_path: Path) -> None:
    with cordwood.open(tmp_path) as log:
        topic = log.topic("t0")
        for size in (10, 3000, 3000, 100_000):
            topic.append(bytes(size))
            topic.roll()
    with cordwood.Broker(tmp_path, config=EACH) as broker:
        found = scrape(broker.metrics_url)
        at_most = {bound: found.value("cordwood_segment_bytes_bucket", le=bound) for bound in BOUNDS}
        # The active segment has 0 bytes.
        assert at_most == {"1024": 2, "4096": 4, "65536": 4, "262144": 5, "4294967296": 5, "+Inf": 5}
        assert found.value("cordwood_segment_bytes_count") == found.value("cordwood_segments") == 5
        assert found.value("cordwood_segment_bytes_sum") == found.value("cordwood_log_bytes")
        assert found.value("cordwood_mapped_bytes") == 0, "a server reads files"


def test_mapped_bytes_are_those_of_the_sealed_segments_in_use(tmp_path: Path) -> None:
    with cordwood.open(tmp_path) as log:
        topic = log.topic("t")
        topic.append(bytes(5000))
        list(topic.read(0))
        assert log.mapped_bytes == 0, "the active segment is not mapped"
        topic.roll()
        list(topic.read(0))
        assert log.mapped_bytes == topic.size(0)
        with cordwood.open(tmp_path, read_only=True) as beside:
            list(beside.topic("t").read(0))
            assert beside.mapped_bytes == topic.size(0)
        topic.advance_log_start(0, 1)
        assert log.mapped_bytes == 0


# --- Numbers ----------------------------------------------------------------------------------------


def test_what_clients_did_is_counted_exactly() -> None:
    with cordwood.Broker(config=EACH) as broker:
        before = scrape(broker.metrics_url)
        send(broker, "orders", *(f"value {number}" for number in range(10)))
        settings = {"bootstrap.servers": broker.bootstrap, "group.id": "g", "enable.auto.commit": False}
        consumer = Consumer({**settings, "auto.offset.reset": "earliest"})
        consumer.subscribe(["orders"])
        for _ in range(10):
            message = consumer.poll(SECONDS_MAX)
            assert message is not None
            assert message.error() is None
        consumer.commit(offsets=[TopicPartition("orders", 0, 7)], asynchronous=False)
        after = scrape(broker.metrics_url)
        consumer.close()
    orders, group = {"topic": "orders"}, {"consumergroup": "g"}
    assert after.value("cordwood_messages_produced_total") == 10
    assert after.value("cordwood_bytes_in_total") == after.value("cordwood_topic_bytes", **orders)
    assert after.value("cordwood_bytes_out_total") == after.value("cordwood_bytes_in_total")
    assert after.value("cordwood_batches_refused_total") == 0
    for name in ("produce", "fetch"):
        assert before.value(f"cordwood_{name}_latency_seconds_count") == 0
        assert after.value(f"cordwood_{name}_latency_seconds_count") >= 1
        assert 0 < after.value(f"cordwood_{name}_latency_seconds_sum") < 60
    place = {**orders, "partition": "0"}
    assert after.value("kafka_topic_partition_current_offset", **place) == 10
    assert after.value("kafka_topic_partition_oldest_offset", **place) == 0
    assert after.value("kafka_consumergroup_current_offset", **group, **place) == 7
    assert after.value("kafka_consumergroup_lag", **group, **place) == 3
    assert after.value("kafka_consumergroup_lag_sum", **group, **orders) == 3
    assert after.value("kafka_consumergroup_current_offset_sum", **group, **orders) == 7
    assert after.value("kafka_consumergroup_members", **group) == 1
    assert after.value("cordwood_consumer_lag") == 3
    assert after.value("cordwood_connections") >= 2


def test_fetch_sessions_their_partitions_and_evictions_are_counted_over_all_orgs() -> None:
    """An org with its slots taken evicts nobody before its time, so there are none here."""
    settings = {**LISTENING, **SETTINGS, "max.incremental.fetch.session.cache.slots": "3"}
    with cordwood.Broker(listen=LISTEN, config=settings) as broker:
        for name in ("ALPHA", "BETA"):
            with Asking(broker.addresses[name]) as client:
                client.create("orders", 4)
                request = client.fetch_request("orders", dict.fromkeys(range(4), 0))
                request.session_epoch = 0
                ids = [client.ask(ApiKey.FETCH, request).session_id for _ in range(2)]
                assert [bool(id_) for id_ in ids] == [True, False]
        after = scrape(broker.metrics_url)
        assert after.value("cordwood_fetch_sessions") == 2
        assert after.value("cordwood_fetch_session_partitions") == 8
        assert after.value("cordwood_fetch_session_evictions_total") == 0


def test_a_group_that_committed_beyond_the_end_is_not_behind() -> None:
    with cordwood.Broker(config=LISTENING) as broker:
        send(broker, "orders", "a")
        commit(broker, "ahead", "orders", 5)
        found = scrape(broker.metrics_url)
    assert found.value("kafka_consumergroup_lag_sum", consumergroup="ahead", topic="orders") == 0


def test_a_partition_that_cannot_be_opened_is_counted_and_the_others_are_shown(tmp_path: Path) -> None:
    with cordwood.open(tmp_path) as log:
        for name in ("broken", "sound"):
            log.topic(name).append(b"value")
    (tmp_path / "topics/broken/0/partition.json").write_bytes(b"{}")
    with cordwood.Broker(tmp_path, config=EACH) as broker:
        found = scrape(broker.metrics_url)
    assert found.value("cordwood_unreadable_partitions") == 1
    (labels,) = found.each("kafka_topic_partition_current_offset")
    assert ("topic", "sound") in labels


# --- The text ---------------------------------------------------------------------------------------


def test_labels_and_numbers_survive_the_text() -> None:
    waited = Histogram("waited_seconds", "Time waited.", (0.1, 1.0), ("api",))
    numbers = Telemetry([waited])
    odd = 'a "quoted" \\ back\nslash, {braces}='
    numbers.observe(waited, 0.25, api=odd)
    numbers.observe(waited, 5, api=odd)
    found = parse(exposition(numbers.collect()))
    assert found.value("waited_seconds_bucket", api=odd, le="0.1") == 0
    assert found.value("waited_seconds_bucket", api=odd, le="1") == 1
    assert found.value("waited_seconds_bucket", api=odd, le="+Inf") == 2
    assert (found.value("waited_seconds_sum", api=odd), found.value("waited_seconds_count", api=odd)) == (
        5.25,
        2,
    )


def test_a_sentence_with_a_line_break_stays_on_its_line() -> None:
    metric = Gauge("g", "One\\two\nthree.")
    assert exposition([Sample(metric, {}, 2.5)]) == ("# HELP g One\\\\two\\nthree.\n# TYPE g gauge\ng 2.5\n")


# --- HTTP -------------------------------------------------------------------------------------------


@pytest.fixture
def broker() -> Iterator[cordwood.Broker]:
    with cordwood.Broker(config=LISTENING) as broker:
        yield broker


def test_nothing_listens_unless_told_to() -> None:
    with cordwood.Broker() as broker:
        assert broker.metrics_url is None


def test_the_document_says_its_format_and_length_and_that_it_is_the_last(broker: cordwood.Broker) -> None:
    head, _, body = say(broker.metrics_url, b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n").partition(
        b"\r\n\r\n"
    )
    lines = head.decode().split("\r\n")
    assert lines[0] == "HTTP/1.1 200 OK"
    assert f"Content-Type: {CONTENT_TYPE}" in lines
    assert f"Content-Length: {len(body)}" in lines
    assert "Connection: close" in lines
    assert parse(body.decode()).value("kafka_brokers") == 1


def test_head_is_answered_without_the_document(broker: cordwood.Broker) -> None:
    answer = say(broker.metrics_url, b"HEAD /metrics HTTP/1.0\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 200 OK\r\n")
    assert answer.endswith(b"\r\n\r\n")
    assert get(url_of(broker), "HEAD") == (200, "")


def test_a_request_that_comes_byte_by_byte_is_one(broker: cordwood.Broker) -> None:
    request = b"GET /healthz?verbose HTTP/1.1\r\nHost: x\r\n\r\n"
    assert say(broker.metrics_url, *(bytes([byte]) for byte in request)).endswith(b"\r\n\r\nok\n")


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (b"POST /metrics HTTP/1.1\r\nContent-Length: 5\r\n\r\nhello", 405),
        (b"DELETE /metrics HTTP/1.1\r\n\r\n", 405),
        (b"GET /secrets HTTP/1.1\r\n\r\n", 404),
        (b"GET /../../etc/passwd HTTP/1.1\r\n\r\n", 404),
        (b"GET /metrics\r\n\r\n", 400),
        (b"GET /metrics HTTP/2.0\r\n\r\n", 400),
        (b"\r\n\r\n", 400),
        (b"\x16\x03\x01\x02\x00\xff\xfe\r\n\r\n", 400),
        (b"GET /metrics HTTP/1.1\r\nX: " + b"x" * 9000 + b"\r\n\r\n", 431),
        (b"x" * (metrics.REQUEST_BYTES_MAX + 1), 431),
    ],
)
def test_what_is_no_request_of_ours_is_refused_and_serving_goes_on(
    broker: cordwood.Broker, request_: bytes, status: int
) -> None:
    answer = say(broker.metrics_url, request_)
    assert answer.startswith(f"HTTP/1.1 {status} ".encode())
    assert get(url_of(broker, "/healthz")) == (200, "ok\n")


def test_who_never_finishes_its_request_is_hung_up_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "SECONDS_MAX", 0.05)
    with cordwood.Broker(config=LISTENING) as broker:
        assert say(broker.metrics_url, b"GET /metr") == b""
        assert say(broker.metrics_url) == b""


def test_of_more_clients_than_allowed_the_one_that_asks_for_nothing_longest_makes_room(
    monkeypatch: pytest.MonkeyPatch, broker: cordwood.Broker
) -> None:
    """Otherwise a few connections that say nothing would keep everybody from the metrics."""
    monkeypatch.setattr(metrics, "CONNECTIONS_MAX", 2)
    host, port = url_of(broker).split("/")[2].rsplit(":", 1)
    with ExitStack() as stack:
        first, second = (
            stack.enter_context(socket.create_connection((host, int(port)), timeout=SECONDS_MAX))
            for _ in range(2)
        )
        second.sendall(b"GET ")
        assert get(url_of(broker, "/healthz")) == (200, "ok\n")
        with contextlib.suppress(ConnectionError):
            assert first.recv(1) == b"", "it made room"
        second.sendall(b"/healthz HTTP/1.1\r\n\r\n")
        assert second.recv(1 << 16).endswith(b"ok\n")


# --- Health and readiness ---------------------------------------------------------------------------


def test_a_log_that_failed_makes_the_server_unready_but_not_dead(tmp_path: Path) -> None:
    files = BreakableFiles()
    broker = cordwood.Broker("/data", files=files, config=LISTENING)
    try:
        send(broker, "orders", "a")
        until(lambda: get(url_of(broker, "/readyz")) == (200, "ready\n"), "the broker is ready")
        assert scrape(broker.metrics_url).value("cordwood_failed_logs") == 0
        files.fail("sync", code=errno.EIO, within="/orders/0/segments/")
        producer = Producer({"bootstrap.servers": broker.bootstrap, "retries": 0})
        producer.produce("orders", "b")
        producer.flush(SECONDS_MAX)
        status, sentence = get(url_of(broker, "/readyz"))
        assert (status, sentence.count("\n")) == (503, 1)
        assert sentence.startswith("nothing more is stored: ")
        assert get(url_of(broker, "/healthz")) == (200, "ok\n")
        found = scrape(broker.metrics_url)
        assert found.value("cordwood_failed_logs") == 1
        assert found.value("cordwood_batches_refused_total") >= 1
    finally:
        files.heal()
        with pytest.raises(LogFailed):
            broker.close()


def test_a_disk_that_does_not_answer_holds_up_neither_health_nor_clients() -> None:
    files = BreakableFiles()
    asked, answered = Event(), Event()

    def stall(kind: str, path: str) -> None:
        if kind == "free_bytes":
            asked.set()
            assert answered.wait(SECONDS_MAX)

    files.before = stall
    with cordwood.Broker("/data", files=files, config=LISTENING) as broker:
        host, port = url_of(broker).split("/")[2].rsplit(":", 1)
        with socket.create_connection((host, int(port)), timeout=SECONDS_MAX) as scraping:
            scraping.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
            assert asked.wait(SECONDS_MAX)
            assert get(url_of(broker, "/healthz")) == (200, "ok\n")
            send(broker, "orders", "a")
            answered.set()
            assert scraping.recv(1 << 20).startswith(b"HTTP/1.1 200 OK")


# --- Starting ---------------------------------------------------------------------------------------


@contextmanager
def serve(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "cordwood.cli", "serve", "--listen", "localhost:0", *arguments]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    with process:
        try:
            yield process
        finally:
            process.kill()


def test_the_command_says_where_the_metrics_are_after_it_is_ready(tmp_path: Path) -> None:
    with serve("--data", str(tmp_path), "--metrics", "localhost:0") as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("cordwood: ready on ")
        match = re.fullmatch(
            r"cordwood: metrics at (http://127\.0\.0\.1:[0-9]+/metrics)\n", process.stdout.readline()
        )
        assert match
        assert scrape(match[1]).value("kafka_brokers") == 1
        process.send_signal(signal.SIGTERM)
        assert process.communicate(timeout=SECONDS_MAX) == ("", "")
        assert process.returncode == 0


@pytest.mark.parametrize("config", [LISTENING, EACH], ids=["sums", "each"])
def test_a_metrics_port_that_is_taken_is_refused_and_leaves_nothing_open(
    tmp_path: Path, config: Mapping[str, str]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(ListenFailed, match=address):
            cordwood.Broker(tmp_path, config={**config, "cordwood.metrics.listen": address})
    cordwood.Broker(tmp_path, config=config).close()
