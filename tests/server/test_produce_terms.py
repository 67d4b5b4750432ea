"""What a topic asks of what is produced to it: stored in its codec, and a refusal that names the records."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack

import pytest
from support.asking import Asking
from support.clients import CLIENTS, Client, Outgoing
from support.patience import SECONDS_MAX

from cordwood import Broker
from cordwood.errors import RecordsRejected
from cordwood.formats import batch
from cordwood.formats.batch import BatchHeader, BatchOptions
from cordwood.formats.compression import Compression
from cordwood.host import Host
from cordwood.host.crew import Crew
from cordwood.protocol.error_codes import ErrorCode
from cordwood.protocol.messages.produce import RecordError
from cordwood.server.recompressing import COMPRESSORS, Batch, Recompressor

HOUR_MS = 3_600_000
CODECS = {
    "uncompressed": Compression.NONE,
    "gzip": Compression.GZIP,
    "snappy": Compression.SNAPPY,
    "lz4": Compression.LZ4,
    "zstd": Compression.ZSTD,
}
NAMES = itertools.count()


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker() as running:
        yield running


@pytest.fixture
def raw(broker: Broker) -> Iterator[Asking]:
    with Asking(broker.bootstrap) as connection:
        yield connection


def created(raw: Asking, **settings: str) -> str:
    name = f"terms-{next(NAMES)}"
    raw.create(name, 1, **settings)
    return name


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def encoded(*rows: tuple[object, ...], now: int = 1_000, **options: object) -> bytearray:
    return batch.encode_records(rows, now, BatchOptions(**options))  # type: ignore[arg-type]


def stored(raw: Asking, topic: str) -> list[tuple[BatchHeader, bytes]]:
    """Return the batches of a topic as they are fetched, which is as they are stored."""
    data = b"".join(bytes(piece) for piece in raw.fetch(topic).records)
    headers = list(batch.scan(data).headers())
    for header in headers:
        batch.validate(data, header)
    return [(header, data[header.position : header.end]) for header in headers]


# --- record by record (KIP-467) -----------------------------------------------------------------------


def test_of_three_records_the_one_without_a_key_is_blamed(raw: Asking) -> None:
    topic = created(raw, cleanup_policy="compact")
    data = encoded((b"a", b"1"), (None, b"2"), (b"c", b"3"))
    answer = raw.produce(topic, data)
    reason = "a record without a key in a topic that is compacted"
    assert answer.error_code == ErrorCode.INVALID_RECORD
    assert answer.record_errors == [RecordError(1, reason)]
    assert answer.error_message == f"the batch was refused because of 1 of its records: record 1: {reason}"
    assert stored(raw, topic) == [], "all of the batch is refused"
    assert raw.produce(topic, encoded((b"a", b"1"), (b"c", b"3"))).error_code == ErrorCode.NONE


@pytest.mark.parametrize("version", range(3, 14))
def test_who_can_be_told_which_records_is(raw: Asking, version: int) -> None:
    topic = created(raw, cleanup_policy="compact")
    answer = raw.produce(topic, encoded((None, b"1"), (b"b", b"2"), (None, b"3")), version=version)
    assert answer.error_code == ErrorCode.INVALID_RECORD
    blamed = [error.batch_index for error in answer.record_errors]
    assert blamed == ([0, 2] if version >= 8 else [])
    assert (answer.error_message is not None) is (version >= 8)


def test_a_timestamp_out_of_range_is_refused_with_its_own_code(raw: Asking) -> None:
    topic = created(raw, message_timestamp_before_max_ms=str(HOUR_MS))
    now = now_ms()
    times = [now, now + HOUR_MS + 60_000, now - HOUR_MS - 60_000, now + HOUR_MS - 60_000]
    answer = raw.produce(topic, encoded(*((None, b"v", (), each) for each in times)))
    assert answer.error_code == ErrorCode.INVALID_TIMESTAMP
    assert [error.batch_index for error in answer.record_errors] == [1, 2]
    assert stored(raw, topic) == []
    assert raw.produce(topic, encoded((None, b"v", (), times[3]))).error_code == ErrorCode.NONE


def test_by_default_an_hour_ahead_is_the_limit_and_the_past_has_none(raw: Asking) -> None:
    topic = created(raw)
    assert raw.produce(topic, encoded((None, b"v", (), 0))).error_code == ErrorCode.NONE
    late = encoded((None, b"v", (), now_ms() + 2 * HOUR_MS))
    assert raw.produce(topic, late).error_code == ErrorCode.INVALID_TIMESTAMP
    # Where the broker sets the time, the producer's does not count.
    appended = created(raw, message_timestamp_type="LogAppendTime")
    assert raw.produce(appended, late).error_code == ErrorCode.NONE


@pytest.mark.parametrize("compression", Compression)
def test_a_timestamp_that_runs_backwards_is_refused_or_lifted_as_the_topic_says(
    raw: Asking, compression: Compression
) -> None:
    now = now_ms()
    data = encoded(
        (None, b"0", (), now), (None, b"1", (), now - 7), (None, b"2", (), now + 1), compression=compression
    )
    refusing = created(raw, cordwood_timestamp_order="refuse")
    answer = raw.produce(refusing, data)
    assert answer.error_code == ErrorCode.INVALID_TIMESTAMP
    assert answer.record_errors == [
        RecordError(1, f"timestamp {now - 7} is before {now}, the last one of the segment")
    ]
    assert stored(raw, refusing) == []
    lifting = created(raw, cordwood_timestamp_order="lift")
    assert raw.produce(lifting, data).error_code == ErrorCode.NONE
    ((header, kept),) = stored(raw, lifting)
    assert header.compression == compression
    read = batch.decode_records(kept, batch.read_header(kept))
    assert [record.timestamp for record in read] == [now, now, now + 1]


def test_a_batch_of_very_many_wrong_records_gets_an_answer_that_fits(raw: Asking) -> None:
    topic = created(raw, cleanup_policy="compact")
    answer = raw.produce(topic, encoded(*[(None, b"")] * 50_000))
    assert answer.error_code == ErrorCode.INVALID_RECORD
    assert len(answer.record_errors) == RecordsRejected.REASONS_MAX


# --- compression.type ----------------------------------------------------------------------------------


@pytest.mark.parametrize("storage", ["own", "shared"])
def test_whatever_codec_a_batch_comes_in_it_is_stored_in_that_of_its_topic(raw: Asking, storage: str) -> None:
    rows = [(b"k%d" % n, b"value " * n, (("h", b"%d" % n),), 1_000 + n) for n in range(20)]
    pairs = 0
    for asked, codec in CODECS.items():
        topic = created(raw, compression_type=asked, cordwood_storage=storage)
        for number, came in enumerate(Compression):
            stamp = {"producer_id": 9_000 + number, "producer_epoch": 0, "base_sequence": 0}
            data = encoded(*rows, compression=came, **stamp)
            answer = raw.produce(topic, data)
            assert (answer.error_code, answer.base_offset) == (0, 20 * number)
            again = raw.produce(topic, encoded(*rows, compression=came, **stamp))
            assert (again.error_code, again.base_offset) == (0, 20 * number), "a retry is a duplicate"
            pairs += 1
        found = stored(raw, topic)
        assert [header.compression for header, _ in found] == [codec] * 5
        assert [(header.producer_id, header.base_sequence) for header, _ in found] == [
            (9_000 + number, 0) for number in range(5)
        ]
        for number, (header, frame) in enumerate(found):
            records = batch.decode_records(frame, header._replace(position=0))
            assert [(r.key, r.value, r.headers, r.timestamp) for r in records] == rows
            assert [record.offset for record in records] == list(range(20 * number, 20 * number + 20))
    print(f"{pairs} pairs of codecs")
    assert pairs == 25


def test_producer_keeps_and_a_batch_that_fits_is_not_touched(raw: Asking) -> None:
    for settings in ({}, {"compression_type": "zstd", "compression_zstd_level": "1"}):
        topic = created(raw, **settings)
        data = encoded((b"k", b"value " * 500), compression=Compression.ZSTD, level=19)
        raw.produce(topic, bytearray(data))
        ((_, found),) = stored(raw, topic)
        # All but the offset and the leader epoch, which a broker sets.
        assert (found[8:12], found[16:]) == (bytes(data[8:12]), bytes(data[16:]))


def test_a_damaged_batch_is_not_given_a_checksum_that_fits(raw: Asking) -> None:
    """The first batch opens the partition; from then on batches are compressed before they are looked at."""
    topic = created(raw, compression_type="zstd")
    assert raw.produce(topic, encoded((None, b"sound"))).error_code == ErrorCode.NONE
    data = encoded((None, b"changed on its way"))
    data[-3] ^= 0xFF
    assert raw.produce(topic, data).error_code == ErrorCode.CORRUPT_MESSAGE
    too_large = created(raw, compression_type="uncompressed", max_message_bytes="1000")
    assert raw.produce(too_large, encoded((None, b"opened"))).error_code == ErrorCode.NONE
    packed = encoded((None, bytes(900)), (None, bytes(900)), compression=Compression.GZIP)
    assert raw.produce(too_large, packed).error_code == ErrorCode.MESSAGE_TOO_LARGE


@pytest.mark.parametrize("client", CLIENTS, ids=lambda client: client.name)
def test_clients_send_and_read_what_is_compressed_again(broker: Broker, raw: Asking, client: Client) -> None:
    topic = created(raw, compression_type="gzip")
    outgoing = [Outgoing(0, b"k%d" % n, b"value " * 20, (("h", b"x"),), 1_000 + n) for n in range(200)]
    with client.producing(broker.bootstrap, topic, "none") as producer:
        producer.send(outgoing)
        assert producer.flush() == list(range(200))
    assert {header.compression for header, _ in stored(raw, topic)} == {Compression.GZIP}
    with ExitStack() as stack:
        for reader in CLIENTS:
            consumer = stack.enter_context(reader.consuming(broker.bootstrap))
            consumer.begin(topic, 1)
            found = [(r.key, r.value, r.headers, r.timestamp) for r in consumer.take(200)]
            assert found == [(r.key, r.value, r.headers, r.timestamp) for r in outgoing], reader.name


# --- the order of what waits to be compressed ----------------------------------------------------------


class FakeJob:
    """Batches, and nothing else of a job."""

    def __init__(self, *places: tuple[str, int]) -> None:
        self.batches: Sequence[Batch] = [Batch(topic, number, memoryview(b"")) for topic, number in places]


class Compressing:
    """Compresses batches of topic "slow" when it is told to."""

    def __init__(self) -> None:
        self.gates: list[threading.Event] = []
        self.woken = threading.Semaphore(0)
        self.crew = Crew("compress", COMPRESSORS, Host())
        self.recompressor = Recompressor[FakeJob](self._find, self.woken.release, self.crew)

    def _find(self, sent: Batch) -> Callable[[], memoryview] | None:
        if sent.topic != "slow":
            return None
        gate = threading.Event()
        self.gates.append(gate)

        def work() -> memoryview:
            assert gate.wait(SECONDS_MAX)
            return memoryview(b"packed")

        return work

    def finish(self, number: int) -> None:
        self.gates[number].set()
        assert self.woken.acquire(timeout=SECONDS_MAX)


@pytest.fixture
def compressing() -> Iterator[Compressing]:
    made = Compressing()
    yield made
    for gate in made.gates:
        gate.set()
    made.crew.close()


def test_other_partitions_go_on_while_a_batch_is_compressed(compressing: Compressing) -> None:
    slow, other = FakeJob(("slow", 0)), FakeJob(("quick", 0))
    assert compressing.recompressor.sift([slow, other]) == [other]
    assert not compressing.recompressor.has_ready()
    compressing.finish(0)
    assert compressing.recompressor.has_ready()
    assert compressing.recompressor.sift([]) == [slow]
    assert [bytes(each.data) for each in slow.batches] == [b"packed"]
    assert bool(compressing.recompressor) is False


def test_a_partition_keeps_its_order_whichever_batch_is_compressed_first(compressing: Compressing) -> None:
    first, second = FakeJob(("slow", 0), ("quick", 1)), FakeJob(("slow", 0))
    behind, beside = FakeJob(("quick", 1)), FakeJob(("quick", 2))
    assert compressing.recompressor.sift([first, second, behind, beside]) == [beside]
    compressing.finish(1)
    # The second is ready and must wait for the first; so must what shares another partition with it.
    assert not compressing.recompressor.has_ready()
    assert compressing.recompressor.sift([]) == []
    compressing.finish(0)
    assert compressing.recompressor.sift([]) == [first, second, behind]


def test_a_job_that_was_cancelled_meanwhile_has_nothing_to_append(compressing: Compressing) -> None:
    job = FakeJob(("slow", 0))
    assert compressing.recompressor.sift([job]) == []
    job.batches = ()
    compressing.finish(0)
    assert compressing.recompressor.sift([]) == [job]
    assert job.batches == ()
