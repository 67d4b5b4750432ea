"""When the disk breaks under a server: who is told what, what is still served, what is there afterwards."""

from __future__ import annotations

import errno
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Self

import pytest
from broker.nodes import DATA, BreakableFiles, batch_of, open_on, values_in, values_of
from support.logs import segment_file
from support.patience import SECONDS_MAX
from support.serving import RawClient

import cordwood
from cordwood.disk.files import os_error
from cordwood.errors import LogFailed
from cordwood.protocol.apis import ApiKey
from cordwood.protocol.error_codes import ErrorCode
from cordwood.protocol.messages.fetch import FetchPartition, FetchPartitionResponse, FetchRequest, FetchTopic
from cordwood.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from cordwood.protocol.messages.produce import (
    ProducePartition,
    ProducePartitionResponse,
    ProduceRequest,
    ProduceTopic,
)
from cordwood.protocol.messages.producers import InitProducerIdRequest
from cordwood.protocol.messages.topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
from cordwood.protocol.wire import NULL_ID
from cordwood.server.broker import Broker

PRODUCE_VERSION, FETCH_VERSION = 9, 12
OK, STORAGE_ERROR, CORRUPT = ErrorCode.NONE, ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.CORRUPT_MESSAGE
PARTITIONS = 3


class Client(RawClient):
    """A client that produces and fetches one partition, or more, at a time."""

    def __enter__(self) -> Self:
        return self

    def send_produce(self, topic: str, partition: int, *values: bytes, acks: int = -1) -> None:
        batch = ProducePartition(partition, batch_of(*values))
        request = ProduceRequest(None, acks, 1000, [ProduceTopic(topic, NULL_ID, [batch])])
        self.send(ApiKey.PRODUCE, PRODUCE_VERSION, request)

    def receive_produced(self) -> ProducePartitionResponse:
        (partition,) = self.receive(ApiKey.PRODUCE, PRODUCE_VERSION).topics[0].partitions
        assert isinstance(partition, ProducePartitionResponse)
        return partition

    def produce(self, topic: str, partition: int, *values: bytes, acks: int = -1) -> ProducePartitionResponse:
        self.send_produce(topic, partition, *values, acks=acks)
        return self.receive_produced()

    def fetch(
        self, topic: str, *wishes: tuple[int, int], max_bytes: int = 1 << 20
    ) -> list[FetchPartitionResponse]:
        """Fetch partitions from offsets on, without waiting."""
        partitions = [FetchPartition(index, fetch_offset=at, max_bytes=max_bytes) for index, at in wishes]
        request = FetchRequest(
            -1, 0, 1, max_bytes, 0, 0, -1, [FetchTopic(topic, NULL_ID, partitions)], [], ""
        )
        found = self.ask(ApiKey.FETCH, request, FETCH_VERSION).topics[0].partitions
        assert isinstance(found, list)
        return found

    def values(self, topic: str, partition: int = 0, offset: int = 0) -> list[bytes]:
        (found,) = self.fetch(topic, (partition, offset))
        assert found.error_code == OK, found
        return read(found)

    def create(self, *topics: str) -> list[int]:
        """Create topics and return the codes of that."""
        asked = [
            CreatableTopic(name=name, num_partitions=PARTITIONS, replication_factor=1) for name in topics
        ]
        answer = self.ask(ApiKey.CREATE_TOPICS, CreateTopicsRequest(topics=asked))
        return [topic.error_code for topic in answer.topics]


def read(found: FetchPartitionResponse) -> list[bytes]:
    return values_in([memoryview(bytes(records)) for records in found.records])


class Bench:
    """A broker on a disk that can be broken, with topics, and clients."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack
        self.files = BreakableFiles()
        self.broker = Broker(DATA, files=self.files, config={"cordwood.client.stall.ms": "600000"})
        self.client = self.connect()
        assert self.client.create("orders", "payments") == [OK, OK]

    def connect(self) -> Client:
        return self._stack.enter_context(Client(self.broker.bootstrap))


@contextmanager
def running() -> Iterator[Bench]:
    with ExitStack() as stack:
        bench = Bench(stack)
        try:
            yield bench
        finally:
            bench.files.heal()
            if bench.broker.failure is None:
                bench.broker.close()
            else:
                with pytest.raises(LogFailed):
                    bench.broker.close()


@pytest.fixture
def bench() -> Iterator[Bench]:
    with running() as bench:
        yield bench


# --- A sync that fails ------------------------------------------------------------------------------


class FailingSync:
    """Holds the first sync of a segment of *topic* until it is told to fail, and fails it and all after."""

    def __init__(self, files: BreakableFiles, topic: str) -> None:
        self._within = f"/{topic}/"
        self._reached = threading.Event()
        self._written = threading.Semaphore(0)
        self._let_go = threading.Event()
        files.before = self._before

    def _before(self, kind: str, path: str) -> None:
        if kind == "write":
            self._written.release()
        if kind == "sync" and self._within in path and path.endswith(".log"):
            self._reached.set()
            assert self._let_go.wait(SECONDS_MAX)
            raise os_error(errno.EIO, path)

    def wait_for_it(self) -> None:
        assert self._reached.wait(SECONDS_MAX)
        while self._written.acquire(blocking=False):
            pass

    def wait_for_writes(self, count: int) -> None:
        for _ in range(count):
            assert self._written.acquire(timeout=SECONDS_MAX)

    def fail(self) -> None:
        self._let_go.set()


def test_a_failed_sync_is_told_to_every_client_that_waits_and_to_all_who_come_later() -> None:
    with ExitStack() as stack:
        bench = Bench(stack)
        for number in range(3):
            assert bench.client.produce("orders", 0, b"%d" % number).error_code == OK
            assert bench.client.produce("payments", 0, b"%d" % number).error_code == OK
        sync = FailingSync(bench.files, "orders")
        waiting = [bench.connect() for _ in range(4)]
        waiting[0].send_produce("orders", 0, b"doubtful")
        sync.wait_for_it()
        for client in waiting[1:]:
            client.send_produce("orders", 0, b"doubtful")
        sync.wait_for_writes(3)
        sync.fail()
        for client in waiting:
            told = client.receive_produced()
            assert (told.error_code, told.base_offset) == (STORAGE_ERROR, -1)
            assert "sync failed" in (told.error_message or "")

        # Nothing is taken any more, by any partition, whatever the acks.
        for topic in ("orders", "payments"):
            for acks in (-1, 1):
                assert bench.client.produce(topic, 1, b"late", acks=acks).error_code == STORAGE_ERROR
        assert isinstance(bench.broker.failure, LogFailed)
        # What is known to be durable elsewhere can still be read.
        assert bench.client.values("payments") == [b"0", b"1", b"2"]
        (failed,) = bench.client.fetch("orders", (0, 0))
        assert failed.error_code == STORAGE_ERROR

        with pytest.raises(LogFailed, match="sync failed"):
            bench.broker.close()
        bench.broker.close()
        assert isinstance(bench.broker.failure, LogFailed), "it can still be asked why"
        assert not bench.files.exists(f"{DATA}/meta/clean")

    bench.files.before = lambda kind, path: None
    with open_on(bench.files) as again:
        assert values_of(again, "payments") == [b"0", b"1", b"2"]
        found = values_of(again, "orders")
        assert found[:3] == [b"0", b"1", b"2"]
        assert set(found[3:]) <= {b"doubtful"}, "what was not acknowledged may be there or not"


def test_a_batch_sent_without_acks_costs_its_client_the_connection_if_it_is_refused(bench: Bench) -> None:
    """There is no answer in which it could be told."""
    bench.files.fail("sync", code=errno.EIO, within="/orders/0/segments/")
    assert bench.client.produce("orders", 0, b"doubtful").error_code == STORAGE_ERROR
    client = bench.connect()
    client.send_produce("orders", 0, b"late", acks=0)
    assert client.is_closed()


FAILING_SERVER = """
import errno, sys
sys.path.insert(0, {tests!r})
from broker.nodes import BreakableFiles
from cordwood.cli import main
from cordwood.server import broker
from cordwood.disk import PosixFiles

files = BreakableFiles(PosixFiles())
files.fail("sync", code=errno.EIO, within="/doomed/0/segments/")
broker.files_of = lambda data, config: files
main(["serve", "--data", sys.argv[1], "--listen", "localhost:0"])
"""


def test_the_command_ends_with_an_error_when_a_sync_failed_and_starts_again(tmp_path: Path) -> None:
    script = FAILING_SERVER.format(tests=str(Path(__file__).parents[1]))
    process = subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with process:
        try:
            assert process.stdout is not None
            address = process.stdout.readline().split()[-1]
            with Client(address) as client, Client(address) as waiting:
                client.create("orders", "doomed")
                assert client.produce("orders", 0, b"kept").error_code == OK
                waiting.send(ApiKey.FETCH, FETCH_VERSION, long_poll("orders", 1))
                assert client.produce("doomed", 0, b"doubtful").error_code == STORAGE_ERROR
                assert client.is_closed()
                # Who only reads is answered, if it was heard at all, and then disconnected.
                waiting.receive_frame()
                assert waiting.is_closed()
            _, errors = process.communicate(timeout=SECONDS_MAX)
        finally:
            process.kill()
    assert process.returncode == 1
    assert "a sync failed; nothing more is stored" in errors
    assert errors.splitlines()[-1].startswith("Error: ")
    assert "sync failed" in errors.splitlines()[-1]
    assert "Traceback" not in errors
    assert not tmp_path.joinpath("meta", "clean").exists()
    with cordwood.open(tmp_path) as log:
        assert [record.value for record in log.topic("orders").read()] == [b"kept"]
        assert [record.value for record in log.topic("doomed").read()] in ([], [b"doubtful"])


def long_poll(topic: str, offset: int) -> FetchRequest:
    wanted = FetchTopic(topic, NULL_ID, [FetchPartition(0, fetch_offset=offset, max_bytes=1 << 20)])
    return FetchRequest(-1, 60_000, 1, 1 << 20, 0, 0, -1, [wanted], [], "")


# --- A disk that is full ----------------------------------------------------------------------------


def test_a_full_disk_refuses_appends_serves_readers_and_recovers_by_itself(bench: Bench) -> None:
    client = bench.client
    assert client.produce("orders", 0, b"before").error_code == OK
    bench.files.fail("write", "create", "preallocate", code=errno.ENOSPC)
    for acks in (-1, 1):
        for partition in (0, 1):
            told = client.produce("orders", partition, b"refused", acks=acks)
            assert told.error_code == STORAGE_ERROR
            assert "No space left" in (told.error_message or "") or "no space left" in (
                told.error_message or ""
            )
    assert client.values("orders") == [b"before"]
    assert client.create("more") == [STORAGE_ERROR]
    (asked,) = client.ask(
        ApiKey.METADATA, MetadataRequest(topics=[MetadataRequestTopic(name="made-by-asking")])
    ).topics
    assert asked.error_code == STORAGE_ERROR
    assert (
        client.ask(ApiKey.INIT_PRODUCER_ID, InitProducerIdRequest(transactional_id=None)).error_code
        == STORAGE_ERROR
    )
    assert bench.broker.failure is None

    bench.files.heal()
    after = client.produce("orders", 0, b"after")
    assert (after.error_code, after.base_offset) == (OK, 1)
    assert client.produce("orders", 1, b"after").error_code == OK
    assert client.values("orders") == [b"before", b"after"]
    assert client.create("more") == [OK]
    assert client.ask(ApiKey.INIT_PRODUCER_ID, InitProducerIdRequest(transactional_id=None)).error_code == OK


@pytest.mark.parametrize("code", [errno.EIO, errno.EDQUOT])
def test_a_write_that_fails_is_undone_and_the_next_is_taken(bench: Bench, code: int) -> None:
    assert bench.client.produce("orders", 0, b"before").error_code == OK
    bench.files.fail("write", code=code)
    assert bench.client.produce("orders", 0, b"refused").error_code == STORAGE_ERROR
    bench.files.heal()
    assert bench.client.produce("orders", 0, b"after").base_offset == 1
    assert bench.client.values("orders") == [b"before", b"after"]
    assert bench.broker.failure is None


# --- What cannot be read ----------------------------------------------------------------------------


def test_damage_below_the_mark_is_refused_where_it_is_and_served_around(bench: Bench) -> None:
    client = bench.client
    for number in range(5):
        for partition in (0, 1):
            assert client.produce("orders", partition, b"%d" % number).error_code == OK
    path = segment_file("orders", 0, 0)
    file = bench.files.inner.open(path, "write")
    frame = file.size() // 5
    file.write_at(3 * frame - 1, [b"\xff"])
    file.close()

    damaged, sound = client.fetch("orders", (0, 2), (1, 0))
    assert (damaged.error_code, read(damaged)) == (CORRUPT, [])
    assert (damaged.high_watermark, damaged.log_start_offset) == (5, 0)
    assert read(sound) == [b"0", b"1", b"2", b"3", b"4"], "one partition does not hide another"
    assert client.values("orders", 0, 0) == [b"0", b"1"], "what comes before it is served"
    assert client.values("orders", 0, 3) == [b"3", b"4"], "and what comes after it"
    assert client.produce("orders", 0, b"5").base_offset == 5, "and the log goes on"
    assert bench.broker.failure is None


def test_a_device_that_cannot_read_is_refused_for_now_and_served_when_it_can(bench: Bench) -> None:
    assert bench.client.produce("orders", 0, b"value").error_code == OK
    bench.files.fail("read", code=errno.EIO)
    (refused,) = bench.client.fetch("orders", (0, 0))
    assert refused.error_code == CORRUPT
    bench.files.heal()
    assert bench.client.values("orders") == [b"value"]


def test_without_file_handles_a_reader_is_told_to_try_again_and_then_served() -> None:
    """That there are too many files open says nothing about the records: they are not damaged."""
    with running() as bench:
        client = bench.client
        # Sealed segments are opened when they are read.
        with_roll = CreatableTopic(name="rolled", num_partitions=1, replication_factor=1)
        with_roll.configs = [CreatableTopicConfig(name="segment.bytes", value="100")]
        client.ask(ApiKey.CREATE_TOPICS, CreateTopicsRequest(topics=[with_roll]))
        for number in range(3):
            assert client.produce("rolled", 0, b"%d" % number).error_code == OK
        bench.files.fail("open", code=errno.EMFILE)
        (refused,) = client.fetch("rolled", (0, 0))
        assert refused.error_code == STORAGE_ERROR
        bench.files.heal()
        assert client.values("rolled")[0] == b"0"


# --- Clients that do not read -----------------------------------------------------------------------

ROOM = 16 << 20


def test_fetches_that_wait_for_their_turn_do_not_all_count_on_the_same_memory() -> None:
    """A crowd that asks for much at once and reads nothing gets no more than there is memory for."""
    with ExitStack() as stack:
        broker = stack.enter_context(Broker(config={"queued.max.request.bytes": str(ROOM)}))
        client = stack.enter_context(Client(broker.bootstrap))
        client.create("orders")
        values = [bytes(10_000)] * 10
        while client.produce("orders", 0, *values, acks=1).base_offset * 10_000 < ROOM:
            pass
        assert client.produce("orders", 0, b"last").error_code == OK
        crowd = [stack.enter_context(Client(broker.bootstrap)) for _ in range(12)]
        wanted = FetchTopic("orders", NULL_ID, [FetchPartition(0, fetch_offset=0, max_bytes=50 << 20)])
        request = FetchRequest(-1, 0, 1, 50 << 20, 0, 0, -1, [wanted], [], "")
        for each in crowd:
            each.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            each.send(ApiKey.FETCH, FETCH_VERSION, request)
        # How long its answer is a client learns from the first four bytes, and reads no further.
        sizes = [int.from_bytes(received(each, 4), "big") for each in crowd]
        assert min(sizes) > 60_000, "everyone is given something"
        assert max(sizes) > ROOM // 2
        assert sum(sizes) < 2 * ROOM
        for each in crowd:
            each.close()
        # That they are gone the server learns in its own time; then there is room again.
        for _ in range(1000):
            (found,) = client.fetch("orders", (0, 0), max_bytes=50 << 20)
            if sum(map(len, found.records)) > ROOM // 2:
                break
        else:
            raise AssertionError("what was set aside for them is not given back")


def received(client: RawClient, count: int) -> bytes:
    data = b""
    while len(data) < count:
        data += client.socket.recv(count - len(data))
    return data
