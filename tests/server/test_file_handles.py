"""A server with few file handles: hundreds of topics, real clients, and no restart."""

from __future__ import annotations

import errno
import re
from pathlib import Path
from threading import Event

from broker.nodes import DATA, BreakableFiles, batch_of
from confluent_kafka import KafkaError, Message, Producer
from support.asking import Asking
from support.patience import SECONDS_MAX
from support.serving import serving

import cordwood
from cordwood.disk.files import os_error
from cordwood.disk.posix import PosixFiles
from cordwood.server.server import connections_max
from cordwood.verify import verify_directory

TOPICS = 150
FEW = 100
#: What a broker keeps trying for: an append that is refused for want of a handle is sent again.
PATIENCE_SECONDS = 120


def test_more_topics_than_file_handles_are_served_and_every_acknowledged_record_is_there(
    tmp_path: Path,
) -> None:
    """P4. Each topic needs two handles while it is used; there are fewer than that for all of them."""
    failed: list[KafkaError] = []
    settings = {"log.segment.bytes": "2000", "num.partitions": "1"}
    with serving(tmp_path, settings, handles=(FEW, FEW)) as server:

        def delivered(error: KafkaError | None, message: Message) -> None:
            if error is not None:
                failed.append(error)

        config = {"bootstrap.servers": server.bootstrap, "enable.idempotence": True, "linger.ms": 5}
        producer = Producer(config)
        with Asking(server.address) as client:
            for number in range(TOPICS):
                client.create(f"topic-{number}")
        for round_ in range(3):
            for number in range(TOPICS):
                value = b"round %d of topic %d " % (round_, number)
                producer.produce(f"topic-{number}", value * 30, on_delivery=delivered)
            assert producer.flush(PATIENCE_SECONDS) == 0
        assert failed == []
        assert server.process.poll() is None, "the server has ended"
        assert len(list(Path(f"/proc/{server.process.pid}/fd").iterdir())) <= FEW
        with Asking(server.address) as client:
            for number in range(TOPICS):
                assert client.fetch(f"topic-{number}").high_watermark == 3
        assert server.stop() == 0
        said = server.errors.splitlines()
        assert len(said) == 1, said
        assert f"can open only {FEW} files and connections (ulimit -n)" in said[0]
    with cordwood.open(tmp_path, read_only=True) as log:
        for number in range(TOPICS):
            found = [record.value for record in log.topic(f"topic-{number}").read()]
            assert found == [b"round %d of topic %d " % (round_, number) * 30 for round_ in range(3)]
    assert verify_directory(PosixFiles(), str(tmp_path)).sound


def test_a_server_takes_as_many_file_handles_as_it_may_have(tmp_path: Path) -> None:
    with serving(tmp_path, handles=(256, 5000)) as server:
        limits = Path(f"/proc/{server.process.pid}/limits").read_text()
        assert re.search(r"Max open files +5000 +5000 ", limits)
        assert server.stop() == 0
        assert server.errors == ""


def test_clients_are_let_in_up_to_what_is_left_beside_the_files() -> None:
    assert [connections_max(handles) for handles in (10, 64, 100, 1024, 20_000)] == [1, 24, 60, 768, 15_000]


class RefusingOpens:
    """Lets no file be opened for a while, from `begin` until somebody was refused."""

    def __init__(self) -> None:
        self.files = BreakableFiles()
        self.refused = Event()
        self.files.before = self._before
        self._refusing = False

    def begin(self) -> None:
        self._refusing = True

    def end(self) -> None:
        self._refusing = False

    def _before(self, kind: str, path: str) -> None:
        if self._refusing and kind in {"open", "create", "sync_directory", "list"}:
            self.refused.set()
            raise os_error(errno.EMFILE, path)


def test_a_client_that_is_refused_for_want_of_a_handle_sends_again_by_itself() -> None:
    """The answer is one that clients try again after, and the server needs no restart for it."""
    disk = RefusingOpens()
    answered: list[KafkaError | None] = []
    with cordwood.Broker(DATA, files=disk.files) as broker:
        with Asking(broker.bootstrap) as client:
            client.create("orders", 2)
            assert client.produce("orders", batch_of(b"open already"), 0).error_code == 0
        producer = Producer({"bootstrap.servers": broker.bootstrap, "linger.ms": 0, "retry.backoff.ms": 20})
        # The first record of a partition needs files.
        disk.begin()
        producer.produce(
            "orders", b"value", partition=1, on_delivery=lambda error, message: answered.append(error)
        )
        producer.poll(0)
        assert disk.refused.wait(SECONDS_MAX)
        disk.end()
        assert producer.flush(PATIENCE_SECONDS) == 0
        assert answered == [None]
        assert broker.failure is None
        with Asking(broker.bootstrap) as client:
            assert client.fetch("orders", 0, partition=1).high_watermark == 1


def test_a_whole_server_goes_on_after_no_file_could_be_opened_for_a_while() -> None:
    """Appends, rolls, reads, the catalogue, chains and retention meet it; none of them fails the log."""
    disk = RefusingOpens()
    config = {
        "log.segment.bytes": "300",
        "log.retention.check.interval.ms": "10",
        "log.cleaner.backoff.ms": "10",
        "log.retention.bytes": "2000",
    }
    with cordwood.Broker(DATA, files=disk.files, config=config) as broker, Asking(broker.bootstrap) as client:
        client.create("orders")
        stored = 0
        for round_ in range(6):
            for number in range(20):
                told = client.produce("orders", batch_of(b"value %d" % number * 9))
                assert told.error_code in (0, 56)
                stored += told.error_code == 0
            client.fetch("orders", max(stored - 3, 0))
            # Every other round nothing can be opened.
            disk.refused.clear()
            (disk.end if round_ % 2 else disk.begin)()
        disk.end()
        assert broker.failure is None
        assert client.produce("orders", batch_of(b"last")).error_code == 0
        assert client.fetch("orders", stored).high_watermark == stored + 1
