"""Planning by address: a handful of requests for any number of topics, and tasks of a sensible size."""

from __future__ import annotations

import pickle
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient
from pyspark.sql.streaming.datasource import ReadAllAvailable
from support.filling import NOW, SMALL, fill, ranges, rows_of

import cordwood
from cordwood.errors import RecordsLost
from cordwood.server.connections.exchange import Exchange
from cordwood.server.service import Service
from cordwood.spark.access import broker as broker_access
from cordwood.spark.options import check_read_options
from cordwood.spark.source.reader import PlannedReader, Slice
from cordwood.spark.source.schema import spark_schema
from cordwood.spark.source.stream_reader import StreamReader

SHARED = {"cordwood.storage": "shared"}
FEW, MANY, RECORDS = 3, 300, 200
#: The requests that planning consists of. Others are made by the client on its own: to connect, for example.
COUNTED = ("METADATA", "LIST_OFFSETS", "FETCH")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three topics of the same size, three hundred with up to three records, one that is larger."""
    path = tmp_path_factory.mktemp("planned") / "data"
    with cordwood.open(path) as log:
        for number in range(FEW):
            log.topic(f"few-{number}", 1, SHARED).append_many([(None, b"v", (), NOW)] * RECORDS)
        for number in range(MANY):
            log.topic(f"many-{number:03}", 1, SHARED).append_many([(None, b"v", (), NOW)] * (number % 3 + 1))
        large = log.topic("large", 2, SMALL)
        fill(large, 0, 600)
        fill(large, 1, 50)
    return path


@pytest.fixture(scope="module")
def broker(data: Path) -> Iterator[cordwood.Broker]:
    with cordwood.Broker(data) as running:
        yield running


@pytest.fixture
def requests(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """What servers in this process are asked, by the names of the APIs."""
    seen: Counter[str] = Counter()
    handle = Service.handle

    def counted(self: Service, exchange: Exchange) -> None:
        seen[exchange.request.api_key.name] += 1
        handle(self, exchange)

    monkeypatch.setattr(Service, "handle", counted)
    return seen


def streaming(broker: cordwood.Broker, **options: str) -> StreamReader:
    given = {"kafka.bootstrap.servers": broker.bootstrap, **options}
    return StreamReader(given, spark_schema(include_headers=False))


def batch(broker: cordwood.Broker, **options: str) -> PlannedReader:
    given = {"kafka.bootstrap.servers": broker.bootstrap, **options}
    return PlannedReader(check_read_options(given, streaming=False), spark_schema(include_headers=False))


def read(made: PlannedReader, planned: list[Slice]) -> list[list[tuple[str, int, int]]]:
    """Return topic, partition and offset of what each task reads of its slice, sent as Spark sends it."""
    found = []
    for part in map(pickle.loads, map(pickle.dumps, planned)):
        columns = [
            (each.column("topic").to_pylist(), each.column("partition").to_pylist(), each.column("offset"))
            for each in made.read(part)
        ]
        found.append(
            [row for t, p, o in columns for row in zip(t, p, o.to_pylist(), strict=True)],
        )
    return found


def names(kind: str) -> str:
    count = FEW if kind == "few" else MANY
    return ",".join(f"few-{n}" if kind == "few" else f"many-{n:03}" for n in range(count))


def asked(requests: Counter[str]) -> dict[str, int]:
    found = {name: requests[name] for name in COUNTED}
    requests.clear()
    return found


@pytest.mark.parametrize("by", ["subscribe", "subscribePattern"])
def test_a_trigger_takes_as_many_requests_for_300_topics_as_for_3(
    broker: cordwood.Broker, requests: Counter[str], by: str
) -> None:
    triggers = {}
    for kind, count in (("few", FEW), ("many", MANY)):
        wanted = names(kind) if by == "subscribe" else f"^{kind}-"
        reader = streaming(broker, **{by: wanted}, startingTimestamp=str(NOW))
        try:
            start = reader.initialOffset()
            end = reader.latestOffset(start, ReadAllAvailable())
            assert reader.reportLatestOffset() == end
            planned = reader.partitions(start, end)
            assert sum(len(part.pieces) for part in planned) == count
            first = asked(requests)
            reader.latestOffset(end, ReadAllAvailable())
            reader.reportLatestOffset()
            assert reader.partitions(end, end) == []
            triggers[kind] = first, asked(requests)
        finally:
            reader.stop()
    print(triggers)
    # A few more are the client's own affair, when it is slow to connect. Topic by topic there are hundreds.
    for few, many in zip(triggers["few"], triggers["many"], strict=True):
        for name in COUNTED:
            assert many[name] <= few[name] + 9 <= 30, name


def test_small_topics_share_tasks_and_each_record_is_read_once(
    broker: cordwood.Broker, requests: Counter[str]
) -> None:
    made = batch(broker, subscribe=names("many"))
    planned = made.partitions()
    assert 16 <= len(planned) <= 25
    asked(requests)
    found = read(made, planned)
    assert asked(requests)["LIST_OFFSETS"] == 2 * len(planned)
    rows = [row for task in found for row in task]
    assert sorted(rows) == sorted((f"many-{n:03}", 0, o) for n in range(MANY) for o in range(n % 3 + 1))
    for task in found:
        for topic in {row[0] for row in task}:
            offsets = [row[2] for row in task if row[0] == topic]
            assert offsets == sorted(offsets)
    assert len(batch(broker, subscribe=names("many"), minPartitions="300").partitions()) == 300
    most = batch(broker, subscribe=names("many"), maxRecordsPerPartition="4").partitions()
    assert max(sum(piece.end - piece.start for piece in ranges([part])) for part in most) <= 4


def test_up_to_sixteen_partitions_have_a_task_each(broker: cordwood.Broker) -> None:
    """A query of a few partitions runs on as many cores as before."""
    assert len(batch(broker, subscribe="large").partitions()) == 2
    sixteen = ",".join(names("many").split(",")[:16])
    assert len(batch(broker, subscribe=sixteen).partitions()) == 16


def test_a_large_partition_is_cut_by_the_size_of_its_records(
    broker: cordwood.Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broker does not tell sizes; the estimate decides how many tasks there are, never what they read."""
    made = batch(broker, subscribe="large")
    rows = sorted(row for task in read(made, made.partitions()) for row in task)
    assert len(rows) == 650
    size = sum(len(key or b"") + len(value or b"") for key, value, *_ in rows_of(0, 0, 600))
    monkeypatch.setattr(broker_access, "PIECE_BYTES_MAX", size // 5)
    planned = made.partitions()
    zero = [piece for piece in ranges(planned) if piece.partition == 0]
    assert 4 <= len(zero) <= 8
    assert sorted(row for task in read(made, planned) for row in task) == rows


def test_a_range_that_is_lost_is_named_among_those_of_its_task(tmp_path: Path) -> None:
    """One that ends within its partition, one whose start moved, one whose topic is gone: in one task."""
    with cordwood.open(tmp_path / "data") as log:
        for name in ("a", "b", "c"):
            fill(log.topic(name, 1, SMALL), 0, 30)
    with cordwood.Broker(tmp_path / "data") as broker:
        strict = batch(broker, subscribe="a,b,c")
        lenient = batch(broker, subscribe="a,b,c", failOnDataLoss="false")
        planned = strict.partitions()
        a, b, c = ranges(planned)
        together = Slice((a._replace(end=20), b._replace(start=5), c), planned[0].build)
        (rows,) = read(strict, [together])
        within = [("a", 0, o) for o in range(20)]
        assert sorted(rows) == [
            *within,
            *(("b", 0, o) for o in range(5, 30)),
            *(("c", 0, o) for o in range(30)),
        ]
        admin = AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": 0})
        for future in admin.delete_records([TopicPartition("b", 0, 12)]).values():
            future.result()
        with pytest.raises(RecordsLost, match="offsets 5 up to 12 of partition 0 of topic b are lost"):
            read(strict, [together])
        for gone in admin.delete_topics(["c"]).values():
            gone.result()
        with pytest.raises(
            RecordsLost, match="offsets 0 up to 30 of partition 0 of topic c are lost: the topic"
        ):
            read(strict, [Slice((a, c), planned[0].build)])
        (left,) = read(lenient, [together])
        assert sorted(left) == [*within, *(("b", 0, o) for o in range(12, 30))]
